"""Progress on stderr, drawn only when called: between samples, never during one.

There is no thread and no timer, since a parent that wakes up while a sample runs takes time from it on a small machine. On a terminal one
line is drawn over and over; elsewhere each block gives one line; -q gives none. A stderr that has gone away never ends a measurement.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Protocol, TextIO

from llmbench.protocol import Block, Run, Status
from llmbench.results.summary import block_rate
from llmbench.views.text import duration, number, plain


class Progress(Protocol):
    """What a measurement tells of itself. Calls come in this order: start, then for each block: block, step..., done; close at the end."""

    def start(self, run: Run) -> None:
        """The run as planned."""

    def block(self, label: str, round_number: int, rounds: int) -> None:
        """A variant's block begins; round_number counts from 0."""

    def step(self, text: str) -> None:
        """What happens now: "loading", "warming up 1 of 2 (compiles here)", "sample 2 of 3"."""

    def done(self, block: Block) -> None:
        """The block has ended, well or not."""

    def message(self, text: str) -> None:
        """One line that stays."""

    def close(self) -> None:
        """Leaves the terminal clean. May be called at any time, and twice."""


def progress(quiet: bool, stream: TextIO, environ: Mapping[str, str] = os.environ) -> Progress:
    """Silent where quiet; a line drawn in place on a terminal; plain lines elsewhere and where NO_COLOR or TERM=dumb asks for them."""
    if quiet:
        return Silent()
    is_plain = bool(environ.get("NO_COLOR")) or environ.get("TERM") in ("dumb", "") or not _is_terminal(stream)
    return Lines(stream) if is_plain else Live(stream)


class Silent:
    """Nothing at all."""

    def start(self, run: Run) -> None: ...
    def block(self, label: str, round_number: int, rounds: int) -> None: ...
    def step(self, text: str) -> None: ...
    def done(self, block: Block) -> None: ...
    def message(self, text: str) -> None: ...
    def close(self) -> None: ...


class Lines:
    """A line when a block has ended."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._run: Run | None = None
        self._label, self._place = "", ""

    def start(self, run: Run) -> None:
        self._run = run

    def block(self, label: str, round_number: int, rounds: int) -> None:
        self._label, self._place = plain(label), f"round {round_number + 1} of {rounds}"

    def step(self, text: str) -> None:
        pass

    def done(self, block: Block) -> None:
        self._write(f"{self._place}  {self._label}  {_outcome(self._run, block)}\n")

    def message(self, text: str) -> None:
        self._write(f"{plain(text)}\n")

    def close(self) -> None:
        pass

    def _write(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        try:
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError):  # ValueError: the stream was closed
            pass


class Live(Lines):
    """One line in place: where we are, what happens, how long it has taken; the blocks' lines stay above it."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        self._began = clock()
        self._step = ""
        self._drawn = False

    def start(self, run: Run) -> None:
        super().start(run)
        self._began = self._clock()

    def block(self, label: str, round_number: int, rounds: int) -> None:
        super().block(label, round_number, rounds)
        self._step = ""
        self._draw()

    def step(self, text: str) -> None:
        self._step = plain(text)
        self._draw()

    def done(self, block: Block) -> None:
        self._clear()
        super().done(block)

    def message(self, text: str) -> None:
        self._clear()
        super().message(text)

    def close(self) -> None:
        self._clear()

    def _draw(self) -> None:
        from rich.cells import cell_len, set_cell_size

        parts = (self._place, self._label, self._step, duration(self._clock() - self._began))
        text = " · ".join(part for part in parts if part)
        room = max(10, _columns(self._stream) - 1)  # a full line would wrap, and then couldn't be drawn over
        if cell_len(text) > room:
            text = set_cell_size(text, room - 1).rstrip() + "…"
        self._write(f"\r\x1b[2K{text}")
        self._drawn = True

    def _clear(self) -> None:
        if self._drawn:
            self._write("\r\x1b[2K")
            self._drawn = False


def _outcome(run: Run | None, block: Block) -> str:
    parts = []
    rate = block_rate(run, block) if run else None
    if rate is not None:
        parts.append(f"{number(rate, 4)} tokens/s")
    if block.status is not Status.OK:
        parts.append(block.status.words + (f": {plain(block.reason)}" if block.reason else ""))
    elif block.load_s is not None:
        parts.append(f"loaded in {duration(block.load_s)}")
    return ", ".join(parts) or "no samples"


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, OSError, ValueError):
        return False


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
