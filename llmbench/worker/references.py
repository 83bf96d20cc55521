"""Reference logits kept on disk, so that a checkpoint's next run with the same ids computes none.

A file's name is the digest of all that its content follows from: the checkpoint's files (names, sizes, times of change) or the dummy seed,
config.json, the rounding scheme and the ids. Files are plain arrays, never unpickled; one that can't be read is computed again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from llmbench.checkpoints.config import ModelConfig, read_outline
from llmbench.checkpoints.identity import quick_identity
from llmbench.protocol import CheckpointRef
from llmbench.torchfast.reference import DTYPES, Arithmetic, Logits, Plain, Source, relative_error, run

#: Raised when the arithmetic or the files' content change.
VERSION = 1
#: All kept files together; the longest unused go first, the newest stays whatever its size.
MAX_BYTES = 2**30

_FIELDS = tuple(field.name for field in dataclasses.fields(Logits))


class References:
    """The reference logits of one checkpoint, computed where they aren't kept."""

    def __init__(self, checkpoint: CheckpointRef, device: str, folder: Path | None) -> None:
        """folder: where files are kept; None keeps nothing."""
        self._checkpoint, self._device, self._folder = checkpoint, device, folder
        self._identity = identity(checkpoint)

    def get(
        self, sequences: Sequence[Sequence[int]], spans: Sequence[tuple[int, int]], scheme: str | None, dtype: str | None = None
    ) -> tuple[list[Logits], float | None]:
        """Each sequence's logits (see torchfast.reference.run), and the relative error of plain PyTorch in `dtype` over the first one's span.

        Raises CheckpointError and OSError where the weights can't be read.
        """
        keys = [self._key(ids, span, scheme) for ids, span in zip(sequences, spans, strict=True)]
        found = [self._load(key) for key in keys]
        plain = self._load_error(keys[0], dtype) if dtype is not None and found[0] is not None else None
        missing = [index for index, logits in enumerate(found) if logits is None]
        if missing or (dtype is not None and plain is None):
            chosen = missing if dtype is None or plain is not None or 0 in missing else [0, *missing]
            # Plain arithmetic is wanted for the first sequence alone, but a second sweep would read all weights again.
            lines = self._compute(
                [sequences[index] for index in chosen],
                [spans[index] for index in chosen],
                scheme,
                dtype if plain is None else None,
            )
            for index, logits in zip(chosen, lines[0], strict=True):
                found[index] = logits
                self._save(keys[index], logits)
            if len(lines) > 1 and dtype is not None:
                plain = relative_error(lines[1][0].kept, lines[0][0].kept)
                self._save_error(keys[0], dtype, plain)
            self._prune()
        return [logits for logits in found if logits is not None], plain

    def _compute(
        self, sequences: Sequence[Sequence[int]], spans: Sequence[tuple[int, int]], scheme: str | None, dtype: str | None
    ) -> list[list[Logits]]:
        """Every sequence's logits: by the reference, and where a dtype is given by plain PyTorch in it too."""
        lines: list[list[Logits]]
        if not isinstance(read_outline(Path(self._checkpoint.path)), ModelConfig):
            from llmbench.torchfast import transformers_reference

            lines = transformers_reference.run(self._checkpoint, sequences, spans, scheme, dtype, self._device)
            return lines
        ways: list[Arithmetic] = [Arithmetic()]
        if dtype is not None:
            ways.append(Plain(DTYPES[dtype]))
        lines = run(Source(self._checkpoint, scheme), sequences, spans, ways, self._device)
        return lines

    def _key(self, ids: Sequence[int], span: tuple[int, int], scheme: str | None) -> str:
        where = [str(self._device), str(torch.__version__)]  # eager's own error, kept beside, follows from both
        text = json.dumps([VERSION, self._identity, scheme, list(ids), list(span), where])
        return hashlib.sha256(text.encode()).hexdigest()

    def _load(self, key: str) -> Logits | None:
        if self._folder is None:
            return None
        path = self._folder / f"{key}.npz"
        try:
            with np.load(path, allow_pickle=False) as arrays:
                logits = Logits(**{name: torch.from_numpy(arrays[name]) for name in _FIELDS})
            os.utime(path)
        except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile):
            return None  # not there, or damaged
        return logits

    def _save(self, key: str, logits: Logits) -> None:
        arrays = {name: getattr(logits, name).numpy() for name in _FIELDS}
        self._write(f"{key}.npz", lambda stream: np.savez(stream, **arrays))

    def _load_error(self, key: str, dtype: str) -> float | None:
        assert self._folder is not None
        try:
            value = json.loads((self._folder / f"{key}.{dtype}.json").read_text())
        except (OSError, ValueError):
            return None
        return value if isinstance(value, float) and 0 <= value < float("inf") else None

    def _save_error(self, key: str, dtype: str, value: float) -> None:
        self._write(f"{key}.{dtype}.json", lambda stream: stream.write(json.dumps(value).encode()))

    def _write(self, name: str, write: Any) -> None:
        """Puts a whole file in place, or none: a full disk costs the next run its time, not this run its answer."""
        if self._folder is None:
            return
        temporary = self._folder / f".{name}.{os.getpid()}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as stream:
                write(stream)
            temporary.replace(self._folder / name)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()

    def _prune(self) -> None:
        if self._folder is None:
            return
        try:
            files = sorted(((path, path.stat()) for path in self._folder.iterdir()), key=lambda entry: entry[1].st_mtime_ns, reverse=True)
            total = 0
            for number, (path, state) in enumerate(files):
                total += state.st_size
                if number > 1 and total > MAX_BYTES:  # the newest two are one sequence's logits and its error
                    path.unlink(missing_ok=True)
        except OSError:
            return


def identity(checkpoint: CheckpointRef) -> list[Any]:
    """What tells a checkpoint's weights from others' without reading all of them."""
    folder = Path(checkpoint.path)
    config = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    if checkpoint.load_format == "dummy":
        return [config, "dummy", checkpoint.dummy_seed]
    return [quick_identity(folder)]
