"""A diff as text: changes before numbers, intervals, the gate's word, and that what a run file holds is only text."""

from __future__ import annotations

import json

import pytest
from rate_runs import failed_row, noisy, row_at, run_at
from views.make_runs import make_run

from llmbench.protocol import Run
from llmbench.results.diff import diff
from llmbench.views.diff_table import render_diff
from llmbench.views.text import ViewError


def pair() -> tuple[list[Run], list[Run]]:
    old = run_at({"eager": noisy(50.0, 1), "torch-compile": noisy(100.0, 2)})
    new = run_at({"eager": noisy(50.0, 3), "torch-compile": noisy(90.0, 4)})
    new.machine.driver = "580.1"
    return [old], [new]


def test_changes_stand_before_the_numbers() -> None:
    text = render_diff(diff(*pair(), threshold=0.03), width=120)
    assert text.index("changed: driver: none → 580.1") < text.index("new / old")
    line = next(line for line in text.splitlines() if line.startswith("torch-compile"))
    assert "slower, beyond 3 %" in line
    assert "x [0." in line
    assert text.rstrip().splitlines()[-1].startswith("worse by more than 3 %: torch-compile (tokens/s 0.")


def test_nothing_changed_and_nothing_slower() -> None:
    old, _ = pair()
    text = render_diff(diff(old, old, threshold=0.03))
    assert "changed: nothing that the run files tell of" in text
    assert "nothing is shown to be worse by more than 3 %" in text
    assert "not everything" not in text


def test_what_is_missing_or_broken_is_named() -> None:
    old = make_run([row_at("eager", [50.0, 50.0]), row_at("openvino", [50.0, 50.0]), row_at("torch-compile", [99.0, 101.0])])
    new = make_run([row_at("eager", [50.0, 50.0]), failed_row("torch-compile", reason="signal 11"), row_at("onnxruntime", [9.0, 9.0])])
    gone = make_run([row_at("eager", [50.0, 50.0])], name="gone")
    text = render_diff(diff([old, gone], [new], threshold=0.03), width=120)
    assert "torch-compile: was ok, is crashed: signal 11" in text
    assert "openvino: only in the old run" in text
    assert "onnxruntime: only in the new run" in text
    assert "only among the old runs: gone" in text
    assert "worse by more than 3 %: torch-compile (broken)" in text


def test_json_has_the_figures_unrounded() -> None:
    found = diff(*pair(), threshold=0.03)
    data = json.loads(render_diff(found, "json"))
    assert data["exit_code"] == 1
    row = data["pairs"][0]["rows"][1]
    assert (row["label"], row["change"], row["is_regression"], row["old_values"]) == ("torch-compile", "worse", True, 5)
    assert row["high"] == found.pairs[0].rows[1].high
    assert data["pairs"][0]["changes"] == ["driver: none → 580.1"]


def test_markdown_and_hostile_text() -> None:
    old, new = pair()
    new[0].rows[1].blocks[0].versions = {"torch": "1|2\x1b[31m<b>"}
    text = render_diff(diff(old, new), "markdown")
    assert "| torch-compile |" in text
    assert "\x1b" not in text
    assert "<b>" not in text


def test_an_unknown_format() -> None:
    with pytest.raises(ViewError):
        render_diff(diff(*pair()), "html")
