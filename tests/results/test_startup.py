"""Start-up figures and break-even against numbers that can be recomputed by hand."""

from __future__ import annotations

import dataclasses
import math

import pytest
from views.make_runs import make_block, make_row, make_run

from llmbench.protocol import ArtifactUse, Block, Row, Run, Sample, Status
from llmbench.results.startup import break_even, start_ups, tokens_until_ahead

USE = ArtifactUse("aot-inductor", "0" * 32, hit=False, bytes=5_000_000, build_s=40.0, built_at="2026-11-30T23:00:00+00:00")


def started(number: int, rate: float, *, load_s: float, first_s: float, extra_s: float, build_s: float | None = None) -> Block:
    """A block of 200-token generations at `rate`; its process took 2 s to start, its first token first_s, its first warm-up extra_s more."""
    wall = 200 / rate
    block = make_block(number, (wall,) * 3, warmups=(wall + extra_s, wall), first_token=(0.1,) * 3, load_s=load_s)
    block.samples.insert(0, Sample("starting_first_token", first_s, (1,), "0" * 64))
    block.start_s, block.build_s = 2.0, build_s
    if build_s is not None:
        block.artifact = dataclasses.replace(USE, hit=number > 0)
    return block


@pytest.fixture
def run() -> Run:
    eager = [started(number, rate, load_s=1.0, first_s=0.1, extra_s=0.0) for number, rate in enumerate((50.0, 51.0, 49.0))]
    compiled = [
        started(number, rate, load_s=1.0, first_s=10.1 if number == 0 else 1.1, extra_s=20.0 if number == 0 else 2.0)
        for number, rate in enumerate((100.0, 102.0, 98.0))
    ]
    ahead = [
        started(number, rate, load_s=0.5, first_s=0.1, extra_s=0.0, build_s=40.5 if number == 0 else 0.2)
        for number, rate in enumerate((80.0, 81.6, 78.4))
    ]
    return make_run([make_row("eager", eager), make_row("torch-compile", compiled), make_row("aot-inductor", ahead)])


def test_cold_and_warm_are_the_sums_of_their_parts(run: Run) -> None:
    eager, compiled, ahead = start_ups(run)
    assert eager.cold is not None
    assert eager.cold.ready_s == pytest.approx(2.0 + 0.0 + 1.0 + 0.0)
    assert eager.disk_bytes is None
    # The first token took 10 s and the first generation 20 s longer than later ones.
    assert compiled.cold is not None
    assert compiled.cold.compile_s == pytest.approx(30.0)
    assert compiled.cold.ready_s == pytest.approx(33.0)
    assert compiled.cold.to_first_token_s == pytest.approx(2.0 + 1.0 + 10.1)
    assert compiled.warm is not None
    assert compiled.warm.compile_s == pytest.approx(3.0)
    assert compiled.warm_blocks == 2
    # Cold: what building took as the manifest has it. Warm: what finding it took.
    assert ahead.cold is not None
    assert ahead.warm is not None
    assert ahead.cold.ready_s == pytest.approx(2.0 + 40.0 + 0.5)
    assert ahead.warm.ready_s == pytest.approx(2.0 + 0.2 + 0.5)
    assert ahead.disk_bytes == 5_000_000
    assert ahead.built_at is None


def test_an_artifact_of_an_earlier_run_counts_as_built_and_says_when(run: Run) -> None:
    first = run.rows[2].blocks[0]
    first.artifact, first.build_s = dataclasses.replace(USE, hit=True), 0.2
    ahead = start_ups(run)[2]
    assert ahead.cold is not None
    assert ahead.cold.build_s == 40.0
    assert ahead.built_at == USE.built_at


def test_break_even_is_the_extra_start_over_the_seconds_gained_by_a_token(run: Run) -> None:
    eager, compiled, ahead = start_ups(run)
    found = break_even(run, compiled, eager, warm=False)
    assert found is not None
    assert found.tokens == pytest.approx((33.0 - 3.0) / (1 / 50 - 1 / 100))
    # The ratios of the three rounds are all 2, so their interval is a point.
    assert found.low == pytest.approx(found.tokens)
    assert found.high == pytest.approx(found.tokens)
    warm = break_even(run, compiled, eager, warm=True)
    assert warm is not None
    assert warm.tokens == pytest.approx((6.0 - 3.0) / (1 / 50 - 1 / 100))
    slower = break_even(run, eager, compiled, warm=False)
    assert slower is not None
    assert slower.tokens == 0.0  # ahead from the start, until the other overtakes it
    never = break_even(run, ahead, compiled, warm=False)
    assert never is not None
    assert never.tokens is None  # starts later and is slower


def test_rates_too_close_to_tell_have_no_upper_bound() -> None:
    def row(label: str, rates: tuple[float, ...], extra_s: float) -> Row:
        return make_row(label, [started(n, rate, load_s=1.0, first_s=0.1, extra_s=extra_s) for n, rate in enumerate(rates)])

    run = make_run([row("eager", (50.0, 55.0, 50.0), 0.0), row("torch-compile", (52.0, 53.0, 54.0), 20.0)])
    eager, compiled = start_ups(run)
    found = break_even(run, compiled, eager, warm=False)
    assert found is not None
    assert found.tokens is not None
    assert found.high == math.inf


def test_one_round_has_no_interval_and_no_warm_start(run: Run) -> None:
    for row in run.rows:
        del row.blocks[1:]
    eager, compiled, _ = start_ups(run)
    assert compiled.warm is None
    found = break_even(run, compiled, eager, warm=False)
    assert found is not None
    assert found.low is None
    assert break_even(run, compiled, eager, warm=True) is None


def test_a_row_that_failed_has_no_start(run: Run) -> None:
    run.rows[1] = make_row("torch-compile", status=Status.UNAVAILABLE, reason="no compiler")
    eager, compiled, _ = start_ups(run)
    assert compiled.cold is None
    assert compiled.reason == "no compiler"
    assert break_even(run, compiled, eager, warm=False) is None


@pytest.mark.parametrize(
    ("extra_s", "rate", "other", "tokens"), [(10.0, 100.0, 50.0, 1000.0), (10.0, 50.0, 50.0, None), (0.0, 20.0, 50.0, 0.0)]
)
def test_tokens_until_ahead(extra_s: float, rate: float, other: float, tokens: float | None) -> None:
    assert tokens_until_ahead(extra_s, rate, other) == (pytest.approx(tokens) if tokens is not None else None)
