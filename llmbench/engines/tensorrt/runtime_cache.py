"""Kernels that TensorRT for RTX compiled in an earlier process of this run, kept beside the compiler caches of the other engines.

That edition's plans hold no kernels for a card: they are compiled when the plan is first run. The run's folder of caches makes the first block
cold and the later ones cached, and is removed with the run, so nothing that others wrote is ever read.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any


def cache_file(name: str) -> Path | None:
    """Where the cache of an artifact lies, in the worker's folder of compiler caches; None where it was given none."""
    inductor = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return Path(inductor).parent / "tensorrt-rtx" / f"{name}.cache" if inductor else None


class RuntimeCache:
    """One cache for all contexts of a process: what prefill compiled is there for the steps."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._cache: Any = None
        self.found = False  # an earlier process's was read

    def attach(self, config: Any) -> None:
        """Gives an IRuntimeConfig the cache. A file that TensorRT doesn't take is passed over: then kernels are compiled again."""
        if self._cache is None:
            self._cache = config.create_runtime_cache()
            if self._path.exists():
                self.found = bool(self._cache.deserialize(self._path.read_bytes()))
        config.set_runtime_cache(self._cache)

    def save(self) -> None:
        """Writes it for the run's next process, whole or not at all. A disk that is full costs that process its compiling anew, no more."""
        if self._cache is None:
            return
        partial = self._path.with_suffix(f".{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(memoryview(self._cache.serialize()))
            partial.replace(self._path)
        except OSError as error:
            print(f"the runtime cache can't be kept in {self._path}: {error.strerror or error}", flush=True)
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
        self._cache = None
