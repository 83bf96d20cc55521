"""The chart: whole files or none, and no text that overlaps another or leaves the picture."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from make_runs import make_block, make_row, make_run, rows_at

from llmbench.protocol import Bandwidth, Plan, Run, Status
from llmbench.views import chart
from llmbench.views.chart import draw
from llmbench.views.text import ViewError

RATES = {"eager": 41.3, "torch-compile": 61.9, "torch-compile[quantization=int8,group=128]": 70.2, "openvino": 55.0, "onnxruntime": 50.2}


def failed(label: str = "tensorrt-llm", reason: str = "costs $5 and $6") -> Any:
    return make_row(label, status=Status.UNAVAILABLE, reason=reason)


def with_bandwidth(run: Run, gb_per_s: float) -> Run:
    for row in run.rows:
        for block in row.blocks:
            block.bandwidth = [Bandwidth(gb_per_s)]
    return run


def mixed_dtypes() -> Run:
    rows = [*rows_at({"eager": 41.3}), make_row("torch-compile", rows_at({"x": 80.0})[0].blocks, dtype="bfloat16")]
    return with_bandwidth(make_run([*rows, *rows_at({"openvino": 40.0})]), 40.0)


CASES = {
    "two rows": [with_bandwidth(make_run(), 40.0)],
    "two runs": [make_run([*rows_at(RATES), failed()]), make_run([*rows_at({"eager": 3.1}), failed()], name="phi-2")],
    "five models": [
        make_run([*rows_at({label: rate * (1 - number / 8) for label, rate in RATES.items()}), failed()], name=f"model-{number}")
        for number in range(5)
    ],
    "huge and small": [make_run(rows_at({"eager": 123456.7, "torch-compile": 0.0123}))],
    "limit far off": [with_bandwidth(make_run(), 4000.0)],
    "two dtypes": [mixed_dtypes()],
    "only failures": [make_run([failed(), failed("openvino", "x" * 500)])],
    "noise floor": [dataclasses.replace(make_run([*rows_at(RATES), failed()]), noise_floor=0.012)],
    "one variant twice": [
        dataclasses.replace(make_run(rows_at({"eager": 41.3, "eager (again)": 41.5})), aa=True, plan=Plan(min_effect=0.05)),
        dataclasses.replace(make_run(rows_at({"eager": 41.3})), noise_floor=5.0),
    ],
    "one row": [make_run(rows_at({"eager": 41.3}), baseline=None)],
    "long names": [make_run(rows_at({"e" * 90: 10.0, "eager[" + "a" * 90 + "]": 12.0}), name="m" * 300)],
    "formulas": [make_run([*rows_at({"$x_1$": 10.0}), failed(reason=r"$\frac{1}$ \alpha $")], name="$\\undefined{$")],
    "partly failed": [
        make_run(
            [
                make_row(
                    "eager",
                    [make_block(0), make_block(1, (), warmups=(), first_token=(), status=Status.CRASHED, reason="signal 9 " * 20)],
                )
            ]
        )
    ],
    "batch of four": [make_run([make_row("eager", [make_block(0, batch_size=4)])], batch_size=4)],
}


@pytest.mark.parametrize("name", CASES)
def test_nothing_overlaps_or_is_cut(name: str) -> None:
    picture = chart._Picture([chart._group(run) for run in CASES[name]])
    figure = picture.figure
    figure.set_dpi(100)
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    ticks = [
        tick.label1
        for axes in figure.axes
        for tick in axes.xaxis.get_major_ticks()
        if tick.label1.get_visible() and tick.get_loc() <= axes.get_xlim()[1]
    ]
    texts = [*figure.texts, *(text for axes in figure.axes for text in axes.texts), *ticks]
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in texts if text.get_text() and text.get_visible()]
    width, height = figure.get_size_inches() * 100
    for text, box in boxes:
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= width, text
        assert box.y1 <= height, text
    for (one, first), (other, second) in combinations(boxes, 2):
        across = min(first.x1, second.x1) - max(first.x0, second.x0)
        down = min(first.y1, second.y1) - max(first.y0, second.y0)
        assert across <= 1 or down <= 3, f"{one!r} overlaps {other!r}"  # a box has room for descenders that the text may not have


@pytest.mark.parametrize("suffix", [".png", ".svg", ".PNG"])
def test_writes_by_suffix(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"bars{suffix}"
    path.write_text("old")
    draw(CASES["two runs"], path)
    assert path.read_bytes().startswith(b"<?xml" if suffix == ".svg" else b"\x89PNG")
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_the_same_runs_give_the_same_svg(tmp_path: Path) -> None:
    draw(CASES["two rows"], tmp_path / "a.svg")
    draw(CASES["two rows"], tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_permission_like_any_new_file(tmp_path: Path) -> None:
    draw(CASES["two rows"], tmp_path / "a.png")
    (tmp_path / "other").touch()
    assert (tmp_path / "a.png").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("name", ["bars.pdf", "bars", "bars.jpg"])
def test_other_suffixes_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ViewError, match=r"must end in \.png or \.svg"):
        draw(CASES["two rows"], tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ViewError, match="No such file"):
        draw(CASES["two rows"], tmp_path / "none" / "bars.png")


@pytest.mark.parametrize("runs", [[], [make_run([])]])
def test_nothing_to_draw(tmp_path: Path, runs: list[Run]) -> None:
    with pytest.raises(ViewError, match="nothing to draw"):
        draw(runs, tmp_path / "bars.png")


def test_a_failed_drawing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "bars.png").write_text("old")
    monkeypatch.setattr(chart, "_save", fails)
    with pytest.raises(ViewError, match="No space left"):
        draw(CASES["two rows"], tmp_path / "bars.png")
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("bars.png", "old")]


def test_views_import_neither_matplotlib_nor_rich_nor_torch() -> None:
    code = (
        "import sys, llmbench.views.chart, llmbench.views.table, llmbench.views.card, llmbench.views.progress\n"
        "print([name for name in ('matplotlib', 'rich', 'torch', 'numpy') if name in sys.modules])"
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd=root)
    assert answer.stdout.strip() == "[]"


def test_a_bar_tells_interval_and_verdict_and_the_caption_how_to_read_them() -> None:
    picture = chart._Picture([chart._group(run) for run in CASES["noise floor"]])
    texts = " ".join(text.get_text() for text in [*picture.figure.texts, *picture.figure.axes[0].texts])
    assert "1.499x [1.499, 1.499]   faster" in texts
    assert "x: ratio to eager [95 % interval, all ratios of a run together]" in texts
    assert "noise floor 1.2 %" in texts
