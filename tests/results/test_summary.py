"""Every figure of a row against numbers worked out by hand from the samples.

The model: vocabulary 10, hidden 4, one layer, 2 heads of 2 elements, 1 key and value head, feed-forward 8, tied. Its parameters: embedding 40,
q 16, k 8, v 8, o 16, gate, up and down 32 each, three norms of 4: 196, in float32 784 bytes. A position's keys and values: 2 x 2 x 4 = 16 bytes.
With 3 prompt ids and 10 new ones the cache holds 3 + 10 / 2 = 8 positions at mid-length, 128 bytes: a token reads 912 bytes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from llmbench.checkpoints.config import ModelConfig
from llmbench.protocol import (
    Accuracy,
    Bandwidth,
    Block,
    EngineReport,
    Machine,
    Memory,
    Model,
    Plan,
    Request,
    Row,
    Run,
    Sample,
    Status,
    Variant,
    encode,
)
from llmbench.results.summary import CACHE_FACTOR, RowSummary, block_rate, limit_tokens_per_s, summarise
from llmbench.statistics import Verdict

GIB = 2**30
BYTES_PER_TOKEN = 912
#: 9120 bytes a second: ten tokens a second at most.
BANDWIDTH = Bandwidth(9.12e-6)

CONFIG = ModelConfig("LlamaForCausalLM", hidden=4, layers=1, heads=2, kv_heads=1, head_dim=2, mlp=8, vocab=10, context=64, tied=True)


def block(
    number: int,
    walls: list[float],
    *,
    warmups: tuple[float, ...] = (),
    first_token: tuple[float, ...] = (0.2,),
    tokens: int = 10,
    batch: int = 1,
    **fields: Any,
) -> Block:
    def samples(kind: str, seconds: tuple[float, ...], count: int) -> list[Sample]:
        return [Sample(kind, wall, (count,) * batch, "") for wall in seconds]

    taken = [*samples("warmup", warmups, tokens), *samples("first_token", first_token, 1), *samples("sample", tuple(walls), tokens)]
    return Block(number, samples=taken, bandwidth=fields.pop("bandwidth", [BANDWIDTH]), cold=fields.pop("cold", number == 0), **fields)


def row(label: str, *blocks: Block, dtype: str = "float32", **fields: Any) -> Row:
    made = Row(Variant(label, label, dtype, **fields))
    for one in blocks:
        made.add(one)
    return made


def run(*rows: Row, tokens: int = 10, batch: int = 1, baseline: str | None = "eager") -> Run:
    model = Model("tiny", "", "", "LlamaForCausalLM", "float32", encode(CONFIG))
    request = Request((1, 2, 3), tokens, batch)
    return Run("r", model, request, Plan(), Machine(), 1, "float32", list(rows), baseline=baseline)


def eager() -> Row:
    """Block medians of 5, 5 and 10 tokens/s."""
    return row(
        "eager",
        block(0, [1.0, 2.0, 4.0], warmups=(7.0, 3.0), load_s=3.0),
        block(1, [2.0, 2.0, 2.5], warmups=(2.5, 2.0), load_s=1.0),
        block(2, [1.25, 1.0, 1.0], warmups=(1.0, 1.0), load_s=2.0),
    )


def compiled() -> Row:
    """Block medians of 10, 20 and 40 tokens/s: 2, 4 and 4 times eager's."""
    return row("torch-compile", block(0, [1.0]), block(1, [0.5]), block(2, [0.25]))


def one(summaries: list[RowSummary], label: str) -> RowSummary:
    return next(summary for summary in summaries if summary.label == label)


def test_rates() -> None:
    figures = summarise(run(eager()))[0]
    assert (figures.rounds, figures.samples) == (3, 9)
    assert figures.tokens_per_s == pytest.approx(5.0)
    assert figures.total_tokens_per_s == pytest.approx(5.0)
    # Of 10, 5, 2.5, 5, 5, 4, 8, 10, 10: squares 461.25 - 59.5 ** 2 / 9, over 8.
    assert figures.tokens_per_s_deviation == pytest.approx(((461.25 - 59.5**2 / 9) / 8) ** 0.5)


def test_first_token_decode_and_prefill() -> None:
    figures = summarise(run(eager()))[0]
    assert figures.ttft_s == pytest.approx(0.2)
    assert figures.decode_tokens_per_s == pytest.approx(9 / (2.0 - 0.2))
    assert figures.tpot_s == pytest.approx(0.2)
    assert figures.prefill_tokens_per_s == pytest.approx(3 / 0.2)


def test_ttft_is_the_median_of_the_blocks_medians() -> None:
    made = row("eager", block(0, [2.0], first_token=(0.1, 0.3, 0.9)), block(1, [2.0], first_token=(0.5,)), block(2, [2.0], first_token=()))
    assert summarise(run(made))[0].ttft_s == pytest.approx(0.4)


def test_speedup_pairs_rounds() -> None:
    figures = summarise(run(eager(), compiled()))
    assert one(figures, "torch-compile").speedup == pytest.approx(32 ** (1 / 3))  # 2 x 4 x 4; the ratio of medians is 4
    assert one(figures, "eager").speedup == pytest.approx(1.0)
    assert [figure.is_baseline for figure in figures] == [True, False]


def test_speedup_leaves_out_rounds_that_only_one_has() -> None:
    faster = row("torch-compile", block(1, [0.5]), block(7, [0.001]))
    assert one(summarise(run(eager(), faster)), "torch-compile").speedup == pytest.approx(4.0)


def test_limit_and_bandwidth_use() -> None:
    figures = summarise(run(eager()))[0]
    assert figures.bytes_per_token == BYTES_PER_TOKEN
    assert figures.limit_tokens_per_s == pytest.approx(10.0)
    assert figures.limit_reason is None
    assert figures.bandwidth_use == pytest.approx(0.5)  # 5 decode tokens/s
    assert figures.read_gb_per_s == pytest.approx(9.12e-6)


def test_limit_goes_by_the_highest_probe() -> None:
    made = row(
        "eager", block(0, [1.0], bandwidth=[BANDWIDTH, Bandwidth(2 * 9.12e-6)]), block(1, [1.0], bandwidth=[Bandwidth(None, "busy")])
    )
    assert summarise(run(made))[0].limit_tokens_per_s == pytest.approx(20.0)


def test_limit_in_bfloat16_is_twice_as_high() -> None:
    made = row("eager", block(0, [1.0]), dtype="bfloat16")
    assert summarise(run(made))[0].limit_tokens_per_s == pytest.approx(20.0)


def test_no_limit_where_the_weights_may_come_from_the_cache() -> None:
    cache = BYTES_PER_TOKEN // CACHE_FACTOR  # exactly four caches: the memory's bandwidth still counts
    assert limit_tokens_per_s([Bandwidth(1.0, None, cache)], BYTES_PER_TOKEN, 1)[0] is not None
    figures = summarise(run(row("eager", block(0, [1.0], bandwidth=[Bandwidth(9.12e-6, None, cache + 1)]))))[0]
    assert figures.limit_tokens_per_s is None
    assert figures.bandwidth_use is None
    assert "last-level cache" in str(figures.limit_reason)
    assert figures.read_gb_per_s == pytest.approx(9.12e-6)


def test_no_limit_without_a_probe_gives_the_probes_reason() -> None:
    assert limit_tokens_per_s([Bandwidth(None, "no probe for this device")], 1, 1) == (None, "no probe for this device")
    assert limit_tokens_per_s([], 1, 1) == (None, "read bandwidth was not probed")


def test_no_limit_for_quantized_weights() -> None:
    figures = summarise(run(row("eager", block(0, [1.0]), quantization="int8")))[0]
    assert figures.bytes_per_token is None
    assert figures.limit_tokens_per_s is None
    assert "quantization" in str(figures.limit_reason)


def test_batch_of_four() -> None:
    # Four caches of 128 bytes: 784 + 512 = 1296 bytes a step, four tokens for them.
    figures = summarise(run(row("eager", block(0, [2.0], batch=4)), batch=4))[0]
    assert figures.tokens_per_s == pytest.approx(5.0)
    assert figures.total_tokens_per_s == pytest.approx(20.0)
    assert figures.bytes_per_token == 1296
    assert figures.limit_tokens_per_s == pytest.approx(9120 * 4 / 1296)
    assert figures.bandwidth_use == pytest.approx(5.0 * 4 / (9120 * 4 / 1296))
    assert figures.prefill_tokens_per_s == pytest.approx(15.0)


def test_one_new_token_has_no_decode() -> None:
    figures = summarise(run(row("eager", block(0, [0.25], tokens=1, first_token=(0.25,))), tokens=1))[0]
    assert figures.tokens_per_s == pytest.approx(4.0)
    assert figures.ttft_s == pytest.approx(0.25)
    assert (figures.decode_tokens_per_s, figures.tpot_s, figures.bandwidth_use) == (None, None, None)


def test_decode_is_null_where_the_first_token_took_as_long() -> None:
    assert summarise(run(row("eager", block(0, [0.2]))))[0].decode_tokens_per_s is None


def test_compile_cold_and_cached() -> None:
    figures = summarise(run(eager()))[0]
    assert figures.first_generation_s == pytest.approx(7.0)
    assert figures.compile_s == pytest.approx((7.0 - 2.0) + (3.0 - 2.0))
    assert figures.compile_cached_s == pytest.approx((0.5 + 0.0) / 2)
    assert figures.load_s == pytest.approx(2.0)


def test_noise_makes_no_negative_compile_time() -> None:
    assert summarise(run(row("eager", block(0, [1.0], warmups=(0.9, 1.0)))))[0].compile_s == 0.0


def test_without_a_cold_block_or_warm_ups_compile_is_null() -> None:
    assert summarise(run(row("eager", block(0, [1.0]))))[0].compile_s is None
    later = summarise(run(row("eager", block(1, [1.0], warmups=(4.0,), cold=False))))[0]
    assert (later.compile_s, later.compile_cached_s) == (None, pytest.approx(3.0))


def test_memory_takes_the_highest_peak_and_the_device_first() -> None:
    report = EngineReport("bfloat16", "float32", weights_bytes=GIB, kv_cache_bytes=GIB // 2)
    base = row(
        "eager", block(0, [1.0], memory=Memory(steady_peak_bytes=3 * GIB)), block(1, [1.0], memory=Memory(steady_peak_bytes=4 * GIB))
    )
    other = row(
        "cudagraphs",
        block(0, [1.0], report=report, memory=Memory(load_peak_bytes=9 * GIB, steady_peak_bytes=9 * GIB, device_steady_peak_bytes=2 * GIB)),
    )
    figures = one(summarise(run(base, other)), "cudagraphs")
    assert figures.peak_memory_gib == pytest.approx(2.0)
    assert figures.load_peak_gib == pytest.approx(9.0)
    assert figures.memory_compression == pytest.approx(2.0)
    assert (figures.weights_gib, figures.kv_cache_gib) == (1.0, 0.5)
    assert (figures.storage_dtype, figures.arithmetic_dtype) == ("bfloat16", "float32")


def test_unknown_memory_is_null_and_not_zero() -> None:
    figures = summarise(run(eager()))[0]
    assert (figures.peak_memory_gib, figures.load_peak_gib, figures.memory_compression) == (None, None, None)


def test_a_failed_row_has_no_figures() -> None:
    failed = row("openvino", block(0, [], status=Status.CRASHED, reason="signal 9", warmups=(1.0,), first_token=()))
    figures = one(summarise(run(eager(), failed)), "openvino")
    assert (figures.status, figures.reason, figures.rounds, figures.samples) == (Status.CRASHED, "signal 9", 0, 0)
    known = {"label", "engine", "dtype", "status", "reason", "is_baseline", "rounds", "samples", "bytes_per_token"}
    values = {entry.name: getattr(figures, entry.name) for entry in dataclasses.fields(figures)}
    assert {name: value for name, value in values.items() if name not in known and value not in (None, ())} == {}


def test_good_blocks_of_a_row_that_failed_later_stay() -> None:
    made = row("torch-compile", block(0, [1.0]), block(1, [], status=Status.TIMED_OUT, reason="no answer"))
    figures = one(summarise(run(eager(), made)), "torch-compile")
    assert (figures.status, figures.tokens_per_s, figures.rounds) == (Status.TIMED_OUT, pytest.approx(10.0), 1)
    assert figures.speedup == pytest.approx(2.0)


def test_samples_with_a_wrong_count_are_no_samples() -> None:
    short = block(0, [0.1], tokens=4)
    right = block(1, [2.0])
    figures = summarise(run(row("eager", short, right)))[0]
    assert (figures.samples, figures.rounds, figures.tokens_per_s) == (1, 1, pytest.approx(5.0))
    assert block_rate(run(eager()), short) is None


@pytest.mark.parametrize(
    "baseline",
    [
        None,
        row("eager"),
        row("eager", block(0, [], status=Status.LOAD_FAILED)),
        row("eager", block(0, [1.0]), block(1, [], status=Status.CRASHED)),
    ],
)
def test_without_a_good_baseline_ratios_are_null(baseline: Row | None) -> None:
    rows = [compiled()] if baseline is None else [baseline, compiled()]
    figures = one(summarise(run(*rows)), "torch-compile")
    assert (figures.speedup, figures.memory_compression, figures.is_baseline) == (None, None, False)
    assert figures.tokens_per_s == pytest.approx(20.0)


def test_a_run_without_a_baseline() -> None:
    assert [figure.speedup for figure in summarise(run(eager(), compiled(), baseline=None))] == [None, None]


# ------------------------------------------------------------------------------------------------------------------ intervals and verdicts


def ratios(label: str, *values: float, **fields: Any) -> Row:
    """A row whose rounds are these times as fast as 1 second a generation."""
    return row(label, *(block(number, [1 / value]) for number, value in enumerate(values)), **fields)


def test_the_interval_and_the_verdict_it_decides() -> None:
    base = ratios("eager", 1, 1, 1)
    # Logarithms 0.1, 0.2, 0.3: mean 0.2, s = 0.1; t(2; 97.5 %) = 4.302653.
    alone = one(summarise(run(base, ratios("openvino", *(2.718281828**log for log in (0.1, 0.2, 0.3))))), "openvino")
    assert (alone.speedup_low, alone.speedup_high) == (pytest.approx(0.952734, rel=1e-4), pytest.approx(1.565827, rel=1e-4))
    assert alone.verdict is Verdict.UNDECIDED
    assert alone.rounds_needed is not None
    assert f"about {alone.rounds_needed} rounds would do" in str(alone.verdict_reason)
    clear = one(summarise(run(base, ratios("openvino", 2.0, 2.01, 1.99))), "openvino")
    assert clear.verdict is Verdict.FASTER
    assert clear.rounds_needed is None
    baseline = one(summarise(run(base, ratios("openvino", 2.0, 2.01, 1.99))), "eager")
    assert (baseline.speedup, baseline.speedup_low, baseline.verdict, baseline.verdict_reason) == (1.0, None, None, None)


def test_each_comparison_that_is_shown_widens_the_intervals() -> None:
    def high(*others: Row) -> float:
        return one(summarise(run(ratios("eager", 1, 1, 1), ratios("openvino", 1.1, 1.2, 1.3), *others)), "openvino").speedup_high or 0.0

    alone = high()
    assert high(ratios("a", 1, 1.1, 1)) > alone
    assert high(ratios("a", 1, 1.1, 1), ratios("b", 1, 1.1, 1)) > high(ratios("a", 1, 1.1, 1))
    # Rows that get no interval don't count.
    crashed = row("a", block(0, [1.0]), block(1, [1.0]), block(2, [], status=Status.CRASHED, reason="signal 9"))
    assert high(crashed) == high(row("a", block(0, [1.0]))) == high(row("a")) == pytest.approx(alone)


def test_a_row_that_failed_gets_no_verdict() -> None:
    failed = ratios("openvino", 2.0, 2.01, 1.99)
    failed.status, failed.reason = Status.IMPLAUSIBLE, "too fast"
    figures = one(summarise(run(ratios("eager", 1, 1, 1), failed)), "openvino")
    assert (figures.speedup_low, figures.verdict, figures.verdict_reason) == (None, None, "implausible: no verdict")
    assert figures.speedup == pytest.approx(2.0, rel=1e-3)


def test_one_round_and_quick_give_no_verdict_and_say_so() -> None:
    figures = one(summarise(run(ratios("eager", 1), ratios("openvino", 2))), "openvino")
    assert (figures.speedup, figures.speedup_low, figures.verdict) == (pytest.approx(2.0), None, None)
    assert figures.verdict_reason == "one round: no interval, no verdict"
    quick = run(ratios("eager", 1, 1), ratios("openvino", 2, 2.01))
    quick.plan = Plan(quick=True)
    assert one(summarise(quick), "openvino").verdict is None
    assert one(summarise(quick), "openvino").verdict_reason


def test_an_interrupted_baseline_still_has_its_whole_rounds() -> None:
    cut = ratios("eager", 1, 1, 1)
    cut.add(block(3, [], status=Status.INTERRUPTED, reason="interrupted"))
    assert one(summarise(run(cut, ratios("openvino", 2.0, 2.01, 1.99))), "openvino").verdict is Verdict.FASTER


def test_min_effect_confidence_and_floor_come_from_the_run() -> None:
    made = run(ratios("eager", 1, 1, 1), ratios("openvino", 1.03, 1.031, 1.029))
    assert summarise(made)[1].verdict is Verdict.FASTER
    made.plan = Plan(min_effect=0.1)
    assert summarise(made)[1].verdict is Verdict.SAME
    made.plan = Plan(confidence=0.9999)
    assert summarise(made)[1].verdict is Verdict.UNDECIDED
    made.plan, made.noise_floor = Plan(), 0.05
    assert summarise(made)[1].verdict is Verdict.UNDECIDED


def test_energy_is_per_token_of_the_whole_batch_and_absent_without_a_counter() -> None:
    made = eager()
    assert summarise(run(made))[0].joules_per_token is None
    for index, joules in ((0, 30.0), (1, 10.0), (2, 20.0)):
        samples = made.blocks[0].samples
        place = [number for number, sample in enumerate(samples) if sample.kind == "sample"][index]
        samples[place] = dataclasses.replace(samples[place], energy_j=joules)
    assert summarise(run(made))[0].joules_per_token == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("accuracy", "word"),
    [
        (Accuracy("logits", True, error=0.01, tolerance=0.03, quality_top1=0.9), "passed"),
        (Accuracy("ids", False, "the first id is not the reference's"), "failed"),
        (Accuracy("skipped", True, "no torch"), "skipped"),
        (Accuracy("pending", True), None),
        (None, None),
    ],
)
def test_accuracy_is_shown_by_a_word(accuracy: Accuracy | None, word: str | None) -> None:
    made = eager()
    made.blocks[0].accuracy = accuracy
    figures = summarise(run(made))[0]
    assert figures.accuracy == word
    assert figures.accuracy_error == (accuracy.error if accuracy else None)
    assert figures.quality_top1 == (accuracy.quality_top1 if accuracy else None)
