"""Progress: drawn when called and only then, plain where no terminal is, and never the end of a measurement."""

from __future__ import annotations

import io
import threading

import pytest
from make_runs import make_block, make_run

from llmbench.protocol import Status
from llmbench.views.progress import Lines, Live, Progress, Silent, progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drive(shown: Progress) -> None:
    shown.start(make_run())
    shown.block("eager", 0, 3)
    shown.step("loading")
    shown.step("sample 2 of 3")
    shown.done(make_block(0))
    shown.block("torch-compile", 0, 3)
    shown.message("the time budget cuts rounds from 5 to 3")
    shown.done(make_block(0, (), status=Status.CRASHED, reason="signal 9\x1b[31m"))
    shown.close()
    shown.close()


def test_which_kind() -> None:
    assert isinstance(progress(True, Terminal(), {}), Silent)
    assert isinstance(progress(False, Terminal(), {"TERM": "xterm"}), Live)
    for environ in ({"TERM": "dumb"}, {"TERM": "xterm", "NO_COLOR": "1"}):
        assert type(progress(False, Terminal(), environ)) is Lines
    assert isinstance(progress(False, Terminal(), {"TERM": "xterm", "NO_COLOR": ""}), Live)
    assert type(progress(False, io.StringIO(), {"TERM": "xterm"})) is Lines


def test_plain_lines() -> None:
    stream = io.StringIO()
    drive(Lines(stream))
    assert stream.getvalue().splitlines() == [
        "round 1 of 3  eager  100.0 tokens/s, loaded in 0.8 s",
        "the time budget cuts rounds from 5 to 3",
        "round 1 of 3  torch-compile  crashed: signal 9",
    ]


def test_live_line_is_redrawn_and_cleared() -> None:
    stream, times = Terminal(), iter(range(0, 1000, 7))
    before = threading.active_count()
    drive(Live(stream, clock=lambda: float(next(times))))
    assert threading.active_count() == before
    drawn = [part for part in stream.getvalue().split("\r\x1b[2K") if part]
    assert drawn[0] == "round 1 of 3 · eager · 7.0 s"
    assert drawn[1] == "round 1 of 3 · eager · loading · 14 s"
    assert "round 1 of 3  eager  100.0 tokens/s, loaded in 0.8 s\n" in drawn[3]
    assert stream.getvalue().endswith("crashed: signal 9\n")


def test_nothing_is_written_between_calls() -> None:
    stream = Terminal()
    shown = Live(stream)
    shown.block("eager", 0, 3)
    length = len(stream.getvalue())
    shown.close()
    assert len(stream.getvalue()) == length + len("\r\x1b[2K")


def test_a_long_line_stays_below_the_terminals_width() -> None:
    stream = Terminal()
    shown = Live(stream)
    shown.block("engine" * 40, 0, 3)
    assert len(stream.getvalue().removeprefix("\r\x1b[2K")) <= 79
    assert stream.getvalue().endswith("…")


def test_silent() -> None:
    drive(Silent())


@pytest.mark.parametrize("kind", [Lines, Live])
def test_a_closed_stderr_ends_nothing(kind: type[Lines]) -> None:
    stream = Terminal()
    shown = kind(stream)
    stream.close()
    drive(shown)


@pytest.mark.parametrize("kind", [Lines, Live])
def test_a_terminal_without_unicode(kind: type[Lines]) -> None:
    raw = io.BytesIO()
    shown = kind(io.TextIOWrapper(raw, encoding="ascii"))
    drive(shown)
    shown.message("größer")
    assert b"gr??er" in raw.getvalue()
