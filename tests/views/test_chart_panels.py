"""Runs from several machines in one picture: a panel for each device."""

from __future__ import annotations

import re
from pathlib import Path

from make_runs import make_run

from llmbench.views.chart import draw


def texts(path: Path) -> str:
    """The picture's texts in the order of drawing; matplotlib keeps each as a comment beside its glyphs."""
    return " | ".join(re.findall(r"<!-- (.*?) -->", path.read_text()))


def test_a_panel_for_each_device_with_its_runs_together(tmp_path: Path) -> None:
    first, second, third = (
        make_run(device="cuda:0", name="phi-2"),
        make_run(device="cuda:0", name="phi-2"),
        make_run(device="cuda:0", name="llama-2-7b"),
    )
    second.machine.device_name = "NVIDIA GeForce RTX 4090"
    draw([first, second, third], tmp_path / "bars.svg")
    found = texts(tmp_path / "bars.svg")
    h200, rtx = found.index("NVIDIA H200"), found.index("NVIDIA GeForce RTX 4090")
    assert h200 < found.index("phi-2") < found.index("llama-2-7b") < rtx < found.rindex("phi-2")
    assert found.count("NVIDIA H200") == 1, "the panel says it, so its groups need not"


def test_one_device_has_no_panels(tmp_path: Path) -> None:
    draw([make_run(name="phi-2"), make_run(name="llama-2-7b")], tmp_path / "bars.svg")
    assert texts(tmp_path / "bars.svg").count("AMD EPYC 7B13") == 1, "in the caption alone"
