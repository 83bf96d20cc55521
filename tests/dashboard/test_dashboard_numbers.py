"""The dashboard's numbers are those of the terminal's tables, cell by cell."""

import dataclasses
import math
import re

import pytest
from make_history import GPUS, MODELS, make_run, write_runs

from llmbench import statistics
from llmbench.dashboard.answer import answer
from llmbench.dashboard.collect import collect
from llmbench.dashboard.parts import Choices
from llmbench.dashboard.report import report
from llmbench.protocol import Block, Row, Status, Variant
from llmbench.results.diff import diff
from llmbench.results.startup import break_even, start_ups
from llmbench.results.suite_summary import summarise_suite, worst_models
from llmbench.results.summary import block_rates, summarise
from llmbench.views.diff_table import render_diff
from llmbench.views.startup_table import render_startup, tokens_words
from llmbench.views.suite_table import render_suite
from llmbench.views.table import render


def table(shown, name):
    return next(one for section in shown.sections for one in section.tables if one.name == name)


def texts(shown, name):
    return [[cell.text for cell in line.cells] for line in table(shown, name).lines]


def markdown_rows(text):
    """All tables' rows as lists of cells, markdown's escapes taken back."""
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|")]
    return [[re.sub(r"\\(.)", r"\1", cell.strip()) for cell in row] for row in rows]


@pytest.fixture(scope="module")
def nights(tmp_path_factory):
    """Every model on one GPU, two nights; and the report of all."""
    folder = tmp_path_factory.mktemp("nights")
    runs = [make_run(GPUS[0], model, day, 2) for day in (0, 1) for model in MODELS]
    write_runs(folder, runs)
    return runs, report(collect([folder]), Choices(worst=2))


def test_bars_show_what_the_terminal_shows(nights):
    runs, shown = nights
    newest = {run.model.name: run for run in runs[len(MODELS) :]}
    assert len(shown.cases) == len(MODELS)
    for case in shown.cases:
        rows = markdown_rows(render([newest[case.model]], "markdown"))
        cells = {row[0]: row for row in rows}
        for bar in case.bars:
            row = cells[bar.label]
            assert (bar.value or "—") == row[1]
            if bar.rate is not None:
                assert bar.ratio == row[2]
        assert [bar.rate or 0 for bar in case.bars] == sorted((bar.rate or 0 for bar in case.bars), reverse=True)


def test_sums_are_those_of_the_suites_table(nights):
    runs, shown = nights
    rows = markdown_rows(render_suite(runs[len(MODELS) :], "markdown"))
    expected = {row[0]: row[1:] for row in rows if "%" in row[1]}
    found = {cells[2]: cells[3:5] + cells[6:] for cells in texts(shown, "sums")}
    assert found == expected
    [summary] = summarise_suite(runs[len(MODELS) :])
    for line in table(shown, "sums").lines:
        variant = next(one for one in summary.variants if one.label == line.cells[2].text)
        assert line.cells[4].order == variant.speedup


def test_the_interval_of_a_sum_is_the_geometric_mean_of_the_models_ends(nights):
    runs, _ = nights
    [summary] = summarise_suite(runs[len(MODELS) :])
    variant = next(one for one in summary.variants if one.label == "torch-compile")
    rows = [next(row for row in summarise(run) if row.label == "torch-compile") for run in runs[len(MODELS) :]]
    low, high = (math.prod(getattr(row, end) for row in rows) ** (1 / len(rows)) for end in ("speedup_low", "speedup_high"))
    assert variant.speedup_interval == pytest.approx((low, high))
    assert low < variant.speedup < high


def test_worst_models_are_the_suites_and_as_many_as_asked_for(nights):
    runs, shown = nights
    [summary] = summarise_suite(runs[len(MODELS) :])
    expected = [(worst.label, worst.model, worst.value) for worst in worst_models(summary, 2)]
    found = [(line.cells[1].text, line.cells[3].text, abs(line.cells[4].order)) for line in table(shown, "worst").lines]
    assert found == expected


def test_flags_go_by_the_limits_given(nights, tmp_path):
    runs, shown = nights
    names = {(row[1], row[3]) for row in texts(shown, "flags")}
    assert ("tensorrt-llm", "compile time") in names
    write_runs(tmp_path, runs)
    lenient = report(collect([tmp_path]), Choices(limits={"speedup": 0.0, "compile_s": 1e9, "memory_compression": 0.0}))
    assert texts(lenient, "flags") == []
    strict = report(collect([tmp_path]), Choices(limits={"speedup": 100.0, "compile_s": 1e9, "memory_compression": 0.0}))
    assert {row[3] for row in texts(strict, "flags")} == {"speedup"}


def test_old_and_new_are_those_of_diff(nights):
    runs, shown = nights
    for place, model in enumerate(MODELS):
        found = diff([runs[place]], [runs[len(MODELS) + place]])
        expected = [row for row in markdown_rows(render_diff(found, "markdown")) if row[0] in ("eager", "torch-compile", "tensorrt-llm")]
        cells = [row[4:9] for row in texts(shown, "old-new") if row[1] == model and row[4] in ("eager", "torch-compile", "tensorrt-llm")]
        assert cells == expected


def test_starts_and_break_even_are_those_of_startup(nights):
    runs, shown = nights
    newest = runs[len(MODELS)]
    rows = [row for row in markdown_rows(render_startup([newest], "markdown")) if row[1] in ("cold", "warm")]
    found = [row[4:11] for row in texts(shown, "starts") if row[1] == newest.model.name]
    assert found == [row[1:8] for row in rows]
    starts = {start.label: start for start in start_ups(newest)}
    for row in texts(shown, "pays"):
        if row[1] == newest.model.name:
            expected = [break_even(newest, starts[row[3]], starts["eager"], warm) for warm in (False, True)]
            assert row[4:6] == [tokens_words(one.tokens) for one in expected]


def test_the_answer_is_the_fastest_against_the_next_over_all_pairs():
    run = make_run(GPUS[1], "phi-2", 0, 10)
    found = answer(run)
    ranked = sorted((row for row in summarise(run) if row.tokens_per_s), key=lambda row: -row.tokens_per_s)
    assert (found.best.label, found.next.label) == (ranked[0].label, ranked[1].label)
    ratios = statistics.paired_ratios(*(block_rates(run, run.row(row.label)) for row in ranked[:2]))
    expected = statistics.compare(ratios, comparisons=len(ranked) * (len(ranked) - 1) // 2)
    assert (found.ratio.ratio, found.ratio.low, found.ratio.high) == (expected.ratio, expected.low, expected.high)
    assert found.sentence.startswith(f"{ranked[0].label} ")
    assert f"{expected.ratio:.2f}" in found.sentence


def test_an_answer_says_when_it_is_no_answer():
    run = make_run(GPUS[0], "phi-2", 0, 1)
    nothing = dataclasses.replace(run, rows=[])
    assert answer(nothing).best is None
    alone = dataclasses.replace(run, rows=run.rows[:1])
    assert "only row" in answer(alone).sentence
    twice = dataclasses.replace(run.rows[0], variant=Variant("again", "eager", "float16"))
    same = answer(dataclasses.replace(run, rows=[run.rows[0], twice]))
    assert not same.decided
    assert same.by == "equally fast"
    one_round = dataclasses.replace(run, rows=[dataclasses.replace(row, blocks=row.blocks[:1]) for row in run.rows])
    assert "no interval" in answer(one_round).rest


def test_inaccurate_rows_never_win():
    run = make_run(GPUS[0], "phi-2", 0, 1)
    best = run.row(answer(run).best.label)
    best.status, best.reason = Status.INACCURATE, "logits off"
    assert answer(run).best.label != best.variant.label


def test_failures_and_passes_that_are_new_are_named(tmp_path):
    old, new = (make_run(GPUS[0], "phi-2", day, 2) for day in (0, 1))
    old.rows[1] = Row(old.rows[1].variant)
    old.rows[1].add(Block(0, Status.CRASHED, "signal 11"))
    new.rows[2] = Row(new.rows[2].variant)
    new.rows[2].add(Block(0, Status.TIMED_OUT, "after 30 s"))
    write_runs(tmp_path, [old, new])
    found = texts(report(collect([tmp_path])), "turned")
    assert [row[3:] for row in found] == [
        [old.rows[1].variant.label, "crashed: signal 11", "ok"],
        [new.rows[2].variant.label, "ok", "timed out: after 30 s"],
    ]


def test_a_release_that_moved_the_rate_is_marked_where_it_happened(tmp_path):
    runs = [make_run(GPUS[1], "phi-2", day, 20) for day in range(20)]
    write_runs(tmp_path, runs)
    shown = report(collect([tmp_path]))
    [section] = [one for one in shown.sections if one.name == "models"]
    chart = section.charts[0][0]
    line = next(one for one in chart.series if one.label == "tensorrt-llm")
    assert [(place, point.change) for place, point in enumerate(line.points) if point.change] == [(14, "slower")]
    assert any("tensorrt_llm 1.1.0 → 1.2.0" in words for time, words in chart.marks if time == line.points[14].time)
    moved = [row for row in texts(shown, "moved") if row[3] == "tensorrt-llm"]
    assert len(moved) == 1
    assert "1.2.0" in moved[0][-1]
    eager = next(one for one in chart.series if one.label == "eager")
    assert not any(point.change for point in eager.points)
