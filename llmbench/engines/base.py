"""What an engine is, seen from the worker: the protocol every adapter follows, and the exceptions it may raise.

Standard library only. An engine never prints and never times itself: the worker does both for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from llmbench.protocol import EngineReport, Job, Recipe, Request, Status


class EngineError(Exception):
    """An engine's answer to what it can't do: one line that a user can act on, and the status its row gets."""

    def __init__(self, reason: str, status: Status = Status.FAILED) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status


class Unsupported(EngineError):
    """This engine is here, but can't do this job: dtype, quantization, length, batch, architecture."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, Status.UNSUPPORTED)


class Unavailable(EngineError):
    """This engine's library, tool or device isn't here; the reason says how to get it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, Status.UNAVAILABLE)


class Engine(Protocol):
    """One way to run a checkpoint. Made without arguments, in a process of its own, used for one job.

    Called in this order: supports, [recipe], load, then generate and logits as often as asked, close. A process that builds calls supports,
    recipe, build, close: what building leaves behind in a process must not be measured.
    """

    def supports(self, job: Job) -> None:
        """Raises Unsupported or Unavailable where this job can't be run as asked. Reads no weights."""

    def recipe(self, job: Job) -> Recipe | None:
        """What decides the artifact for this job; null where the engine builds none for it, and then loads its source's (EngineSpec.source)
        if it has one. Asked only of engines whose spec says artifact=True. Reads no weights, builds nothing."""

    def build(self, job: Job, into: Path, source: Path | None = None) -> None:
        """Writes the artifact for this job into an empty folder, from the checkpoint or from the artifact `source` of EngineSpec.source.

        Regular files and folders only; nothing in it may name a place outside of it. Keys, locks, hashes and publishing are the parent's.
        """

    def load(self, job: Job, artifact: Path | None) -> EngineReport:
        """Brings the weights into memory, ready to generate up to job.request's lengths and batch. `artifact` is a folder to read only."""

    def generate(self, request: Request, on_token: Callable[[int], None] | None = None) -> list[list[int]]:
        """New ids on the host, batch_size x max_new_tokens: never fewer, no stop at EOS, the prompt not among them.

        on_token is called with the number of tokens so far as each step's ids reach the host; without it nothing may wait for the device
        between tokens.
        """

    def logits(self, ids: list[int]) -> Any:
        """float32 array, len(ids) x vocabulary: the first half of ids prefilled, the rest teacher-forced one at a time through the decode
        step and the cache that `generate` uses. Raises Unsupported where the engine doesn't give logits."""

    # Two more that an engine may have; the worker asks whether it has. compilation() -> protocol.Compilation | None: what was compiled in this
    # process so far. profile(request, into: Path): writes a trace of one generation, in Chrome's format, gzipped.

    # An engine that builds has its adapter's revision, Recipe.adapter, as the class's ADAPTER: `llmbench cache prune --stale` goes by it.

    def versions(self) -> dict[str, str]:
        """The engine's libraries and their versions."""

    def synchronize(self) -> None:
        """Returns once all work given to the device is done."""

    def close(self) -> None:
        """Gives memory and handles back."""
