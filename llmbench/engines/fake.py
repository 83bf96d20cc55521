"""The `fake` engine: set speed, noise and faults, no model. Everything that all engines share is tested on it, under `python -S` too.

    fake[tokens_per_s=50,noise=0.02]
    fake[fault=crash,fault_at=sample]

It waits as long as an engine of that speed would take, and its ids follow from the prompt alone. Numbers from it say nothing about a machine.
"""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmbench.engines.base import EngineError, Unsupported
from llmbench.protocol import EngineReport, Job, Recipe, Request, Status

FAULTS = (
    "none",
    "error",  # raises
    "crash",  # SIGSEGV
    "kill",  # SIGKILL, as the kernel does when memory runs out
    "exit",  # ends without a word
    "hang",  # never answers
    "stop",  # SIGSTOP
    "ignore_term",  # never answers and ignores SIGTERM
    "garbage",  # prints to stdout and stderr, then goes on
    "grandchild",  # leaves a child that holds every descriptor, then dies
    "oom",  # raises what torch raises
    "short",  # one id too few
    "vocabulary",  # an id outside the vocabulary
)
FAULT_PLACES = ("open", "build", "load", "warmup", "sample")


@dataclasses.dataclass(frozen=True)
class FakeOptions:
    """The variant options, with their defaults."""

    tokens_per_s: float = 1000.0
    prefill_s: float = 0.0
    noise: float = 0.0  # standard deviation of a generation's relative error
    block_noise: float = 0.0  # the same, drawn once for each process
    compile_s: float = 0.0  # added to the first generation
    load_s: float = 0.0
    artifact_bytes: int = 0  # above 0: it builds an artifact of this size before it loads it
    build_s: float = 0.0  # what building takes
    noise_seed: int = -1  # -1: another one in each process
    fault: str = "none"
    fault_at: str = "sample"

    @staticmethod
    def of(options: dict[str, Any]) -> FakeOptions:
        defaults = FakeOptions()
        known = {entry.name: type(getattr(defaults, entry.name)) for entry in dataclasses.fields(FakeOptions)}
        for name in options:
            if name not in known:
                raise Unsupported(f"fake has no option {name!r}; it has {', '.join(known)}")
        try:
            chosen = dataclasses.replace(defaults, **{name: known[name](value) for name, value in options.items()})
        except (TypeError, ValueError) as error:
            raise Unsupported(f"fake: {error}") from None
        if chosen.fault not in FAULTS or chosen.fault_at not in FAULT_PLACES:
            raise Unsupported(f"fake: fault is one of {', '.join(FAULTS)}; fault_at one of {', '.join(FAULT_PLACES)}")
        return chosen


class FakeEngine:
    """Waits instead of computing."""

    ADAPTER = 1

    def __init__(self) -> None:
        self._options = FakeOptions()
        self._random = random.Random()
        self._block_factor = 1.0
        self._generations = 0

    def supports(self, job: Job) -> None:
        self._options = FakeOptions.of(job.variant.options)
        if job.variant.quantization is not None:
            raise Unsupported(f"fake has no quantization {job.variant.quantization!r}")
        self._break_at("open")

    def recipe(self, job: Job) -> Recipe | None:
        if not self._options.artifact_bytes:
            return None
        return Recipe(
            adapter=self.ADAPTER,
            versions=self.versions(),
            targets=job.targets or ("any",),
            maxima={"batch": job.request.batch_size, "tokens": job.request.total_tokens},
            options={"artifact_bytes": self._options.artifact_bytes},
        )

    def build(self, job: Job, into: Path, source: Path | None = None) -> None:
        """A file of pseudo-random bytes, half of it before it waits and perhaps breaks, so that a broken build has left something."""
        content = random.Random(self._options.artifact_bytes).randbytes(self._options.artifact_bytes)
        half = len(content) // 2
        with (into / "weights.bin").open("wb") as file:
            file.write(content[:half])
            file.flush()
            time.sleep(self._options.build_s)
            self._break_at("build")
            file.write(content[half:])

    def load(self, job: Job, artifact: Path | None) -> EngineReport:
        options = self._options
        self._random = random.Random(options.noise_seed if options.noise_seed >= 0 else None)
        self._block_factor = 1 + self._random.gauss(0, options.block_noise)
        if options.artifact_bytes:
            content = random.Random(options.artifact_bytes).randbytes(options.artifact_bytes)
            if artifact is None or (artifact / "weights.bin").read_bytes() != content:
                raise EngineError("fake's artifact is not the one that it builds", Status.LOAD_FAILED)
        time.sleep(options.load_s)
        self._break_at("load")
        return EngineReport(storage_dtype=job.variant.dtype, arithmetic_dtype=job.variant.dtype, settings={"fake": True})

    def generate(self, request: Request, on_token: Callable[[int], None] | None = None) -> list[list[int]]:
        options = self._options
        self._generations += 1
        place = "warmup" if self._generations == 1 else "sample"
        self._break_at(place)
        ids = [self._ids(request, sequence) for sequence in range(request.batch_size)]
        seconds = options.prefill_s + (request.max_new_tokens - (1 if options.prefill_s else 0)) / options.tokens_per_s
        seconds *= max(0.0, self._block_factor * (1 + self._random.gauss(0, options.noise)))
        time.sleep(seconds + (options.compile_s if self._generations == 1 else 0.0))
        for count in range(1, request.max_new_tokens + 1) if on_token else ():
            on_token(count)  # type: ignore[misc]
        if options.fault == "short" and request.max_new_tokens > 1:
            ids[-1].pop()
        if options.fault == "vocabulary":
            ids[-1][-1] = 2**40
        return ids

    def logits(self, ids: list[int]) -> Any:
        raise Unsupported("fake has no logits")

    def versions(self) -> dict[str, str]:
        return {"python": sys.version.split()[0]}

    def synchronize(self) -> None:
        pass

    def close(self) -> None:
        pass

    @staticmethod
    def _ids(request: Request, sequence: int) -> list[int]:
        """Ids below the greatest of the prompt's, so inside any vocabulary that the prompt fits in."""
        source = random.Random(f"{request.prompt_ids}{request.sampling.seed}{sequence}")
        return [source.randint(0, max(request.prompt_ids)) for _ in range(request.max_new_tokens)]

    def _break_at(self, place: str) -> None:
        if place != self._options.fault_at:
            return
        fault = self._options.fault
        if fault == "error":
            raise ValueError("the fake engine was told to fail")
        if fault == "oom":
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes."
            )
        if fault == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "exit":
            os._exit(0)
        if fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if fault == "garbage":
            print('{"number": 1}\nnot json \x1b[2J\x00', flush=True)
            print("a banner on stderr", file=sys.stderr, flush=True)
        if fault == "grandchild":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False)
            os.kill(os.getpid(), signal.SIGKILL)
        if fault in ("hang", "ignore_term"):
            if fault == "ignore_term":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(3600)
