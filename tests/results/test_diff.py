"""Two sets of runs: what is matched, what is refused, what changed, and what a gate makes of it."""

from __future__ import annotations

import dataclasses
import json
import statistics
from typing import Any

import pytest
from rate_runs import failed_row, noisy, row_at, run_at
from views.make_runs import make_run

from llmbench.protocol import Accuracy, EngineReport, Request, Run, Sampling, Status
from llmbench.results.diff import Diff, Incomparable, RowDiff, diff
from llmbench.results.diff_metrics import METRICS
from llmbench.results.export import export_bytes
from llmbench.results.unpaired import Change
from llmbench.views.diff_table import render_diff


def pair(old: float = 100.0, new: float = 100.0, **fields: Any) -> tuple[Run, Run]:
    """Eager at the same rate in both, torch-compile at these."""
    runs = [run_at({"eager": noisy(50.0, seed), "torch-compile": noisy(rate, seed + 10)}) for rate, seed in ((old, 1), (new, 2))]
    runs[0].run_id, runs[1].run_id = "old", "new"
    return runs[0], dataclasses.replace(runs[1], **fields)


def only(found: Diff, label: str = "torch-compile") -> RowDiff:
    (row,) = (row for entry in found.pairs for row in entry.rows if row.label == label)
    return row


# ------------------------------------------------------------------------------------------------------------------------------- verdicts


def test_an_aa_pair_passes() -> None:
    found = diff([pair()[0]], [pair()[1]], threshold=0.03)
    assert found.exit_code == 0
    assert {row.change for row in found.pairs[0].rows} <= {Change.SAME, Change.UNDECIDED}
    assert found.pairs[0].changes == ()
    assert found.comparisons == 2


def test_a_tenth_slower_is_named() -> None:
    old, new = pair(100.0, 90.0)
    found = diff([old], [new], threshold=0.03)
    assert found.exit_code == 1
    ((_, row),) = found.regressions
    assert (row.label, row.change) == ("torch-compile", Change.WORSE)
    assert row.old == pytest.approx(statistics.median(noisy(100.0, 11)))
    assert row.high is not None
    assert row.high < 1 / 1.03
    assert diff([old], [new]).exit_code == 0  # without a threshold it only tells
    assert diff([old], [new], threshold=0.2).exit_code == 0
    assert diff([new], [old], threshold=0.03).exit_code == 0  # faster is no regression


def test_a_noise_floor_holds_the_gate_back() -> None:
    old, new = pair(100.0, 90.0, noise_floor=0.3)
    found = diff([old], [new], threshold=0.03)
    assert (found.exit_code, only(found).change) == (0, Change.UNDECIDED)
    assert diff([old], [new], metrics=["memory"], threshold=0.03).pairs[0].rows[0].change is Change.SAME  # it is a floor of times


def test_a_row_that_broke_is_a_regression_and_one_that_was_broken_isnt() -> None:
    old = make_run([row_at("eager", [50.0, 50.0]), row_at("torch-compile", [99.0, 101.0])])
    new = make_run([row_at("eager", [50.0, 50.0]), failed_row("torch-compile")])
    broke = diff([old], [new], threshold=0.03)
    assert broke.exit_code == 1
    assert (only(broke).broke, only(broke).reason) == (True, "was ok, is crashed: signal 11")
    mended = only(diff([new], [old], threshold=0.03))
    assert (mended.is_regression, mended.reason) == (False, "was crashed, is ok")
    still = diff([new], [new], threshold=0.03)
    assert (still.exit_code, only(still).reason) == (3, "still crashed: signal 11")


def test_what_can_not_be_judged_does_not_pass_a_gate() -> None:
    one_round = run_at({"eager": [50.0]})
    found = diff([one_round], [one_round], threshold=0.03)
    assert (found.exit_code, only(found, "eager").judged) == (3, False)
    full, less = run_at({"eager": [50.0, 50.0], "torch-compile": [99.0, 101.0]}), run_at({"eager": [50.0, 50.0]})
    missing = diff([full], [less], threshold=0.03)
    assert (missing.exit_code, missing.pairs[0].only_old) == (3, ("torch-compile",))
    more = diff([less], [full], threshold=0.03)
    assert (more.exit_code, more.pairs[0].only_new) == (0, ("torch-compile",))


def test_several_runs_of_a_side_give_one_value_each() -> None:
    olds = [run_at({"eager": [rate - 1, rate, rate + 1]}) for rate in (100.0, 102.0, 98.0)]
    news = [run_at({"eager": [rate - 1, rate, rate + 1]}) for rate in (90.0, 91.0)]
    row = only(diff(olds, news), "eager")
    assert (row.old_values, row.new_values, row.old, row.new) == (3, 2, 100.0, 90.5)
    mixed = only(diff(olds, news[:1]), "eager")  # one run tells nothing of how runs vary, so processes count
    assert (mixed.old_values, mixed.new_values) == (9, 3)


# -------------------------------------------------------------------------------------------------------------------------------- metrics


def test_each_metric_by_hand() -> None:
    # 200 tokens at 100/s are 2 s; first token 0.01 s; start 2 + load 1 + compile 30, warm 2 + 1; peak 0.5 GiB; eager at 50/s.
    run = make_run([row_at("eager", [50.0, 50.0]), row_at("torch-compile", [100.0, 100.0], compile_s=30.0)])
    row = run.rows[1]
    assert METRICS["tokens"].values(run, row) == [100.0, 100.0]
    assert METRICS["decode"].values(run, row) == pytest.approx([199 / 1.99] * 2)
    assert METRICS["ttft"].values(run, row) == [0.01, 0.01]
    assert METRICS["speedup"].values(run, row) == [2.0, 2.0]
    assert METRICS["startup"].values(run, row) == pytest.approx([33.0])
    assert METRICS["startup-warm"].values(run, row) == pytest.approx([3.0])
    assert METRICS["memory"].values(run, row) == [0.5]
    row.blocks[0].memory = dataclasses.replace(row.blocks[0].memory, steady_peak_bytes=2**30)
    assert METRICS["memory"].values(run, row) == [0.5]  # what compiling left in the cold process doesn't count
    row.blocks.pop()
    assert METRICS["memory"].values(run, row) == [1.0]  # unless there is no other
    assert METRICS["accuracy"].values(run, row) == []


def test_the_baseline_has_no_speedup_and_is_not_asked_for_one() -> None:
    old, new = pair()
    found = diff([old], [new], metrics=["speedup"], threshold=0.03)
    assert [row.label for row in found.pairs[0].rows] == ["torch-compile"]
    assert found.exit_code == 0


def test_more_memory_and_a_longer_start_are_worse() -> None:
    old = make_run([row_at("eager", [50.0] * 4)])
    new = make_run([row_at("eager", [50.0] * 4, peak_gib=0.6)])
    for block in new.rows[0].blocks:
        block.load_s = 1.5
    found = diff([old], [new], metrics=["memory", "startup-warm", "startup"], threshold=0.03)
    assert [(row.metric, row.change, row.ratio) for row in found.pairs[0].rows] == [
        ("memory", Change.WORSE, pytest.approx(1.2)),
        ("startup-warm", Change.WORSE, pytest.approx(3.5 / 3)),
        ("startup", None, pytest.approx(3.5 / 3)),  # one cold start in a run gives no interval
    ]
    assert found.exit_code == 1
    colds = diff([old, old], [new, new], metrics=["startup"], threshold=0.03)
    assert (colds.exit_code, only(colds, "eager").change) == (1, Change.WORSE)


def test_accuracy_is_computed_and_needs_no_interval() -> None:
    runs = []
    for error in (0.01, 0.0101, 0.02, 0.0):
        run = run_at({"eager": [50.0]})
        run.rows[0].blocks[0].accuracy = Accuracy("logits", True, error=error, quality_kl=1e-9 * error)
        runs.append(run)
    steps = [only(diff([runs[0]], [run], metrics=["accuracy"], threshold=0.5), "eager") for run in runs]
    assert [(row.change, row.beyond) for row in steps] == [
        (Change.SAME, False),
        (Change.SAME, False),
        (Change.WORSE, True),
        (Change.BETTER, False),
    ]
    rounding = diff([runs[0]], [runs[2]], metrics=["quality"], threshold=0.5).pairs[0].rows[0]
    assert rounding.change is Change.SAME  # 1e-11 and 2e-11 are rounding


# ------------------------------------------------------------------------------------------------------------------------------- matching


def test_rows_are_matched_by_model_and_request() -> None:
    def suite(rate: float) -> list[Run]:
        return [
            run_at({"eager": noisy(rate, 1)}, name="a"),
            run_at({"eager": noisy(2 * rate, 2)}, name="b"),
            dataclasses.replace(run_at({"eager": noisy(3 * rate, 3)}, name="a"), request=Request((1, 2), 200)),
        ]

    found = diff(suite(50.0), list(reversed(suite(50.0))), threshold=0.03)
    assert [only_row.ratio for entry in found.pairs for only_row in entry.rows] == pytest.approx([1.0] * 3)
    assert found.exit_code == 0
    fewer = diff(suite(50.0), suite(50.0)[:2], threshold=0.03)
    assert ([run.model.name for run in fewer.only_old], fewer.exit_code) == (["a"], 3)


def test_a_copy_under_another_name_is_matched_by_its_digest() -> None:
    old, new = pair()
    old.model.identity = new.model.identity = "d" * 64
    new.model.name = "./copy"
    assert len(diff([old], [new]).pairs) == 1


def test_a_greedy_seed_decides_nothing_and_a_drawn_one_does() -> None:
    old, new = pair()
    new = dataclasses.replace(new, request=dataclasses.replace(new.request, sampling=Sampling(seed=7)))
    assert len(diff([old], [new]).pairs) == 1
    warm = [
        dataclasses.replace(run, request=dataclasses.replace(run.request, sampling=Sampling(1.0, None, run.request.sampling.seed)))
        for run in (old, new)
    ]
    with pytest.raises(Incomparable, match="seed: 1234 → 7"):
        diff(warm[:1], warm[1:])


# ------------------------------------------------------------------------------------------------------------------------------- refusals


def test_another_model_is_refused_with_the_reason() -> None:
    old, new = pair()
    new.model.name = "phi-2"
    with pytest.raises(Incomparable, match="model: smollm2-135m → phi-2"):
        diff([old], [new])
    forced = diff([old], [new], force=True)
    assert "model: smollm2-135m → phi-2" in forced.pairs[0].changes


def test_another_request_is_refused_with_the_reason() -> None:
    old, new = pair()
    new = dataclasses.replace(new, request=Request((1,), 100, 4))
    with pytest.raises(Incomparable) as caught:
        diff([old], [new])
    assert "new tokens: 200 → 100" in caught.value.reasons
    assert "batch size: 1 → 4" in caught.value.reasons
    assert any(reason.startswith("prompt: 5 ids 'Hello, my name is' → 1 ids") for reason in caught.value.reasons)


def test_another_machine_is_refused_unless_told() -> None:
    old, new = pair()
    new.machine = dataclasses.replace(new.machine, device="cuda:0", device_name="NVIDIA H200")
    new.threads = 4
    with pytest.raises(Incomparable) as caught:
        diff([old], [new])
    assert caught.value.reasons == (
        "device: cpu → cuda:0",
        "device name: AMD EPYC 7B13 → NVIDIA H200",
        "threads: 2 → 4",
        "not the same machine; --across-machines compares them all the same",
    )
    assert "threads: 2 → 4" in diff([old], [new], across_machines=True).pairs[0].changes


def test_another_checkpoint_under_the_name_is_refused_unless_forced() -> None:
    old, new = pair()
    old.model.identity, new.model.identity = "a" * 64, "b" * 64
    with pytest.raises(Incomparable, match=r"checkpoint: aaaaaaaaaaaa → bbbbbbbbbbbb"):
        diff([old], [new], across_machines=True)
    assert len(diff([old], [new], force=True).pairs) == 1
    new.model.identity = None  # a run that kept no digest: where it came from has to do
    assert len(diff([old], [new]).pairs) == 1
    new.model.source = "hub HuggingFaceTB/SmolLM2-135M-Instruct@0000000"
    with pytest.raises(Incomparable, match="checkpoint: hub"):
        diff([old], [new])


def test_a_field_that_another_release_keeps_of_the_shape_is_no_difference() -> None:
    old, new = pair()
    new.model.config = {**new.model.config, "a_field_of_tomorrow": 1}
    assert len(diff([old], [new]).pairs) == 1
    new.model.config["hidden"] = 1024
    with pytest.raises(Incomparable, match="shape: hidden: 576 → 1024"):
        diff([old], [new])


def test_runs_of_one_side_must_be_alike_too() -> None:
    old, new = pair()
    other = dataclasses.replace(old, threads=1)
    with pytest.raises(Incomparable, match="threads: 2 → 1"):
        diff([old, other], [new])


def test_suites_without_a_common_run() -> None:
    olds = [run_at({"eager": [50.0]}, name=name) for name in ("a", "b")]
    news = [run_at({"eager": [50.0]}, name=name) for name in ("c", "d")]
    with pytest.raises(Incomparable, match="models: a, b → c, d"):
        diff(olds, news)


# -------------------------------------------------------------------------------------------------------------------------------- changes


def test_what_else_changed_is_told_once() -> None:
    old, new = pair()
    for row in new.rows:
        for block in row.blocks:
            block.versions = {"torch": "2.14.0"}
    new.rows[1].blocks[-1].report = EngineReport("float32", "bfloat16", settings={"mode": "max-autotune"})
    new.machine.driver = "580.1"
    new.plan = dataclasses.replace(new.plan, num_iters_warmup=1)
    new.interrupted = True
    assert diff([old], [new]).pairs[0].changes == (
        "driver: none → 580.1",
        "num_iters_warmup: 2 → 1",
        "the new run was cut off: what it has is compared",
        "torch: 2.13.0 → 2.14.0",
        "torch-compile: computed in: float32 → bfloat16",
        "torch-compile: mode: none → max-autotune",
    )


def test_an_interrupted_rows_good_blocks_count() -> None:
    old, new = pair(100.0, 90.0)
    new.rows[1].status = Status.INTERRUPTED
    assert diff([old], [new], threshold=0.03).exit_code == 1


def test_absurd_figures_of_a_hostile_file_break_nothing() -> None:
    old, new = run_at({"eager": [1e-9, 1e9]}), run_at({"eager": [1e9, 1e-9]})
    for run, huge in ((old, 1e308), (new, 1e-308)):
        run.rows[0].blocks[0].accuracy = Accuracy("logits", True, error=huge, quality_kl=-huge)
        for block in run.rows[0].blocks:
            block.load_s = block.start_s = huge
    for runs in ([old], [new]), ([new], [old]), ([old, old], [new, new]):
        found = diff(*runs, metrics=list(METRICS), threshold=0.03)
        json.loads(render_diff(found, "json"), parse_constant=lambda text: pytest.fail(text))
        render_diff(found)
    json.loads(export_bytes([old], "pytorch"), parse_constant=lambda text: pytest.fail(text))
