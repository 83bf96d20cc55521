"""The start-up table and picture: what they say of a run, and that a run file's texts are shown and not obeyed."""

from __future__ import annotations

from pathlib import Path

import pytest
from views.make_runs import make_block, make_row, make_run

from llmbench.protocol import Block, Run, Sample, Status
from llmbench.views.startup_chart import draw_startup
from llmbench.views.startup_table import render_startup, tokens_words
from llmbench.views.text import ViewError


def started(number: int, rate: float, extra_s: float) -> Block:
    wall = 200 / rate
    block = make_block(number, (wall,) * 3, warmups=(wall + (extra_s if number == 0 else 0.0), wall), first_token=(0.1,) * 3, load_s=1.0)
    block.samples.insert(0, Sample("starting_first_token", 0.1, (1,), "0" * 64))
    block.start_s = 2.0
    return block


def a_run(label: str = "torch-compile") -> Run:
    rows = [make_row("eager", [started(n, 50.0, 0.0) for n in range(3)]), make_row(label, [started(n, 100.0, 30.0) for n in range(3)])]
    return make_run([*rows, make_row("openvino", status=Status.UNAVAILABLE, reason="Python module 'openvino' is not installed")])


def test_the_table_says_when_building_pays() -> None:
    text = render_startup([a_run()], width=140)
    assert "worth it after 3,000 tokens [3,000 to 3,000]" in " ".join(text.split())
    assert "until 3,000" in text
    assert "openvino: unavailable: Python module 'openvino' is not installed" in text
    cold = next(line for line in text.splitlines() if line.startswith("torch-compile") and "cold" in line)
    assert cold.split()[2:7] == ["2.00", "0", "1.00", "30.0", "33.0"]


def test_markdown_has_the_same_figures() -> None:
    text = render_startup([a_run()], "markdown")
    assert "| torch-compile | cold | 2.00 | 0 | 1.00 | 30.0 | 33.0 |" in text


def test_a_label_is_shown_and_not_obeyed() -> None:
    assert "\x1b" not in render_startup([a_run("\x1b[31mred|row")], width=140)
    assert r"red\|row" in render_startup([a_run("red|row")], "markdown")


def test_a_format_for_machines_is_refused() -> None:
    with pytest.raises(ViewError, match="json"):
        render_startup([a_run()], "json")


@pytest.mark.parametrize(("tokens", "words"), [(None, "never"), (0.0, "at once"), (12.4, "12"), (123456.0, "123,000")])
def test_tokens_words(tokens: float | None, words: str) -> None:
    assert tokens_words(tokens) == words


def test_the_picture_is_whole_or_not_there(tmp_path: Path) -> None:
    draw_startup(a_run("torch-compile[mode=$x$]"), tmp_path / "start.svg")
    assert "What starting costs" in (tmp_path / "start.svg").read_text() or (tmp_path / "start.svg").stat().st_size > 10_000
    draw_startup(a_run(), tmp_path / "start.png")
    assert (tmp_path / "start.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ViewError, match="nothing to draw"):
        draw_startup(make_run([]), tmp_path / "none.png")
    with pytest.raises(ViewError, match=r"\.png or \.svg"):
        draw_startup(a_run(), tmp_path / "start.gif")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["start.png", "start.svg"]
