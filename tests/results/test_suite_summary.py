"""A suite's numbers against ones worked out by hand.

Each model has eager at 50 tokens/s and a peak of 0.5 GiB. torch-compile runs at 100 on a (2x; 30 s of compiling; 0.25 GiB: 2x), at 25 on b (a
slowdown, 0.5x; 150 s; 1 GiB: 0.5x), and crashes on c.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
from rate_runs import failed_row, row_at
from views.make_runs import make_row, make_run

from llmbench.protocol import Machine, Model, Plan, Request, Row, Run, Status, Variant
from llmbench.results.suite_summary import SuiteSummary, VariantSummary, summarise_suite, worst_models


def model_run(name: str, *rows: Row) -> Run:
    return make_run([row_at("eager", [50.0, 50.0]), *rows], name=name)


def suite() -> list[Run]:
    return [
        model_run("a", row_at("torch-compile", [100.0, 100.0], compile_s=30.0, peak_gib=0.25)),
        model_run("b", row_at("torch-compile", [25.0, 25.0], compile_s=150.0, peak_gib=1.0)),
        model_run("c", failed_row("torch-compile")),
    ]


def variant(summary: SuiteSummary, label: str = "torch-compile") -> VariantSummary:
    (found,) = (entry for entry in summary.variants if entry.label == label)
    return found


def test_the_definitions() -> None:
    (summary,) = summarise_suite(suite())
    compiled = variant(summary)
    assert summary.models == ("a", "b", "c")
    assert (compiled.passed, len(compiled.entries), compiled.pass_rate) == (2, 3, pytest.approx(2 / 3))
    assert compiled.speedup == pytest.approx(math.sqrt(2.0 * 0.5))  # clipped at 1 it would be 1.41
    assert compiled.compile_s == pytest.approx((30.0 + 150.0) / 2)
    assert compiled.memory_compression == pytest.approx((2.0 + 0.5) / 2)
    eager = variant(summary, "eager")
    assert (eager.is_baseline, eager.speedup, eager.pass_rate, eager.memory_compression) == (True, pytest.approx(1.0), 1.0, 1.0)
    assert not compiled.is_baseline


def test_a_failed_models_figures_are_not_counted_though_it_has_some() -> None:
    runs = suite()
    runs[1].rows[1].status, runs[1].rows[1].reason = Status.INACCURATE, "logits are off"
    compiled = variant(summarise_suite(runs)[0])
    assert (compiled.passed, compiled.speedup, compiled.compile_s) == (1, pytest.approx(2.0), pytest.approx(30.0))
    assert [entry.reason for entry in compiled.entries] == [None, "logits are off", "signal 11"]


def test_without_a_good_baseline_a_model_passes_and_has_no_speedup() -> None:
    runs = suite()[:2]
    runs[1].rows[0] = failed_row("eager")
    compiled = variant(summarise_suite(runs)[0])
    assert (compiled.passed, compiled.figures("speedup"), compiled.memory_compression) == (2, [pytest.approx(2.0)], pytest.approx(2.0))
    assert compiled.compile_s == pytest.approx(90.0)


def test_building_counts_as_compiling_also_where_the_artifact_was_kept() -> None:
    row = row_at("openvino", [100.0, 100.0], compile_s=1.0)
    row.blocks[0].build_s = 9.0
    assert variant(summarise_suite([model_run("a", row)])[0], "openvino").compile_s == pytest.approx(10.0)


def test_no_suite_and_one_model() -> None:
    assert summarise_suite([]) == []
    (summary,) = summarise_suite(suite()[:1])
    assert (summary.models, variant(summary).speedup, variant(summary).pass_rate) == (("a",), pytest.approx(2.0), 1.0)
    (failed,) = summarise_suite(suite()[2:])
    assert (variant(failed).pass_rate, variant(failed).speedup, variant(failed).compile_s) == (0.0, None, None)
    assert VariantSummary("x", ()).pass_rate is None


def test_two_machines_are_never_pooled() -> None:
    runs = [*suite()[:2], *suite()[:2]]
    for run in runs[2:]:
        run.machine = Machine("cuda:0", "NVIDIA H200")
    runs[2].rows[1] = row_at("torch-compile", [200.0, 200.0])
    first, second = summarise_suite(runs)
    assert (first.models, second.models) == (("a", "b"), ("a", "b"))
    assert variant(first).speedup == pytest.approx(1.0)
    assert variant(second).speedup == pytest.approx(math.sqrt(4.0 * 0.5))


@pytest.mark.parametrize(
    "change",
    [
        {"request": Request((1, 2), 200, batch_size=4)},
        {"threads": 1},
        {"plan": Plan(num_iters_warmup=1)},
        {"plan": Plan(interleave=True)},
        {"prompt": "another"},
    ],
)
def test_unequal_work_is_never_pooled(change: dict[str, object]) -> None:
    runs = suite()[:2]
    assert len(summarise_suite([runs[0], dataclasses.replace(runs[1], **change)])) == 2  # type: ignore[arg-type]


def test_a_prompt_is_one_whatever_ids_a_tokenizer_makes_of_it() -> None:
    runs = suite()[:2]
    runs[1] = dataclasses.replace(runs[1], request=dataclasses.replace(runs[1].request, prompt_ids=(1, 2)))
    assert len(summarise_suite(runs)) == 1
    synthetic = [dataclasses.replace(run, prompt=None) for run in runs]
    assert len(summarise_suite(synthetic)) == 2


def test_dtypes_are_apart_where_a_model_has_several() -> None:
    runs = suite()[:2]
    runs[1].dtype = "bfloat16"
    (mixed,) = summarise_suite(runs)
    assert mixed.dtypes == ("float32", "bfloat16")
    twice = [*suite()[:2], *suite()[:2]]
    for run in twice[2:]:
        run.dtype = "bfloat16"
    assert [summary.dtypes for summary in summarise_suite(twice)] == [("float32",), ("bfloat16",)]


def test_a_model_that_was_run_again_counts_once() -> None:
    old, new = suite()[:1], suite()[:1]
    old[0].run_id, new[0].run_id = "old", "new"
    new[0].started_at = "2026-12-01T00:00:00+00:00"
    new[0].rows[1] = row_at("torch-compile", [150.0, 150.0])
    (summary,) = summarise_suite([*new, *old])
    assert variant(summary).speedup == pytest.approx(3.0)
    assert summary.notes == ("a was run again: new counts, old doesn't",)


def test_random_weights_are_another_model_than_the_checkpoint() -> None:
    runs = [*suite()[:1], *suite()[:1]]
    runs[1].model.load_format = "dummy"
    assert summarise_suite(runs)[0].models == ("a", "a (random weights)")
    assert summarise_suite(runs[1:])[0].models == ("a",)


def test_a_variant_that_was_not_asked_for_is_told() -> None:
    runs = [*suite()[:1], model_run("d")]
    (summary,) = summarise_suite(runs)
    assert (variant(summary).pass_rate, summary.notes) == (1.0, ("torch-compile was not asked for on d",))


def test_a_model_that_could_not_be_had_did_not_pass() -> None:
    absent = Run(
        "r",
        Model("gone", "not here", "", "", "unknown"),
        Request((), 200),
        Plan(),
        Machine("auto"),
        2,
        "unknown",
        [Row(Variant("torch-compile", "torch-compile", "unknown"), Status.UNAVAILABLE, "no such model")],
    )
    (summary,) = summarise_suite([*suite()[:1], absent])
    assert (summary.models, summary.dtypes, variant(summary).pass_rate) == (("a", "gone"), ("float32",), 0.5)
    assert len(summarise_suite([absent])) == 1


def test_the_worst_models_by_each_metric() -> None:
    runs = [*suite(), model_run("d", row_at("torch-compile", [75.0, 75.0], compile_s=60.0, peak_gib=0.5))]
    found = worst_models(summarise_suite(runs)[0], count=2)
    assert [(one.metric, one.model, one.beyond) for one in found] == [
        ("speedup", "b", True),
        ("speedup", "d", False),
        ("compile_s", "b", True),
        ("compile_s", "d", False),
        ("memory_compression", "b", True),
        ("memory_compression", "d", False),
    ]
    assert [one.value for one in found] == pytest.approx([0.5, 1.5, 150.0, 60.0, 0.5, 1.0])


def test_a_suite_without_anything_good() -> None:
    runs = [make_run([make_row("eager", status=Status.CRASHED, reason="x")], name=name) for name in "ab"]
    (summary,) = summarise_suite(runs)
    assert variant(summary, "eager").pass_rate == 0.0
    assert worst_models(summary) == []
