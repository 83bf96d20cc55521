"""The suite's summary as text: where it is shown, what it says, and that names are shown and not obeyed."""

from __future__ import annotations

import pytest
from rate_runs import failed_row, row_at
from views.make_runs import make_run

from llmbench.protocol import Run
from llmbench.views.suite_table import render_suite
from llmbench.views.text import ViewError


def suite(second: str = "b") -> list[Run]:
    good = make_run([row_at("eager", [50.0, 50.0]), row_at("torch-compile", [25.0, 25.0], compile_s=30.0, peak_gib=0.25)], name="a")
    return [good, make_run([row_at("eager", [50.0, 50.0]), failed_row("torch-compile", reason="signal 11")], name=second)]


def test_every_number_and_what_failed() -> None:
    text = render_suite(suite(), width=120)
    line = next(line for line in text.splitlines() if line.startswith("torch-compile"))
    assert line.split() == ["torch-compile", "50", "%,", "1/2", "0.500x", "30.0", "2.00x"]
    assert "b: crashed: signal 11 (torch-compile)" in text
    assert "a 0.500x !" in text
    assert "!: a speedup under 0.95, over 120 s of compiling, or a compression under 0.9" in text
    assert "2 models together" in text


def test_a_model_that_failed_everywhere_for_one_reason_is_one_line() -> None:
    runs = suite()
    runs[1] = make_run([failed_row(label, reason="x" * 500) for label in ("eager", "torch-compile")], name="b")
    text = render_suite(runs, "markdown")
    assert f"- b: crashed: {'x' * 119}… (eager, torch-compile)" in text


def test_markdown() -> None:
    text = render_suite(suite(), "markdown")
    assert "| torch-compile | 50 %, 1/2 | 0.500x | 30.0 | 2.00x |" in text


def test_one_model_says_nothing_and_neither_do_none() -> None:
    assert render_suite(suite()[:1]) == ""
    assert render_suite([]) == ""


def test_hostile_names_are_only_text() -> None:
    text = render_suite(suite("[red]b\x1b[31m|x"), "markdown")
    assert "\x1b" not in text
    assert "[red]b\\|x" in text


def test_an_unknown_format() -> None:
    with pytest.raises(ViewError):
        render_suite(suite(), "html")
