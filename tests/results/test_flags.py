"""What is said of an unsteady row: blocks with known rates, one thing wrong with them at a time."""

from __future__ import annotations

import random

from llmbench.protocol import Block, Machine, MachineState, Model, Plan, Request, Row, Run, Sample, Variant
from llmbench.results.summary import summarise

#: Blocks that nothing is wrong with: 1 % apart, no trend in them.
CALM = [(100.0, 101.0, 99.5), (101.0, 100.0, 100.5), (99.0, 99.5, 100.5), (100.5, 99.5, 100.0), (100.0, 100.5, 101.0)]


def flags_of(rates: list[tuple[float, ...]], states: dict[int, tuple[MachineState, MachineState]] | None = None) -> tuple[str, ...]:
    """The flags of a row whose blocks have samples of those tokens/s."""
    row = Row(Variant("eager", "eager", "float32"))
    for number, block_rates in enumerate(rates):
        before, after = (states or {}).get(number, (None, None))
        samples = [Sample("sample", 100 / rate, (100,), "") for rate in block_rates]
        row.add(Block(number, samples=samples, state_before=before, state_after=after))
    run = Run("", Model("m", "", "", "a", "float32"), Request((1,), 100), Plan(), Machine(), 1, "float32", [row])
    (summary,) = summarise(run)
    assert summary.samples == sum(map(len, rates))  # nothing is dropped
    return summary.flags


def test_a_calm_row_has_no_flags() -> None:
    assert flags_of(CALM) == ()
    assert flags_of(CALM[:1]) == ()
    assert flags_of([(100.0,)]) == ()
    assert flags_of([]) == ()


def test_a_disturbed_block() -> None:
    (flag,) = flags_of([*CALM[:2], (75.0, 74.5, 75.5), *CALM[3:]])
    assert flag == "round 3 is disturbed: 25.2 % slower than its other blocks"


def test_an_outlier_is_one_and_its_block_stays_calm() -> None:
    (flag,) = flags_of([CALM[0], (101.0, 80.0, 100.5), *CALM[2:]])
    assert flag == "1 sample is an outlier of 15: 20 % slower than the median"


def test_slow_first_samples_hide_neither_as_outliers_nor_as_drift() -> None:
    (flag,) = flags_of([(0.9 * first, *rest) for first, *rest in CALM])
    assert flag.startswith("the first sample of a block is ")
    assert "slower than the rest: more warm-ups may be needed" in flag


def test_one_slow_first_sample_of_a_single_block() -> None:
    (flag,) = flags_of([(60.0, 100.0, 101.0)])
    assert "the first sample of a block is 40" in flag


def test_drift_within_blocks() -> None:
    (flag,) = flags_of([(rate, 1.002 * rate, 0.96 * rate, 0.94 * rate) for rate in (100.0, 101.0, 100.5, 99.5, 100.0)])
    assert flag.startswith("drift within blocks: the last sample is 6.62 %")
    assert "slower than the first" in flag


def test_drift_over_the_run() -> None:
    (flag,) = flags_of([tuple(rate * 0.97**number for rate in rates) for number, rates in enumerate(CALM)])
    assert flag.startswith("drift over the run: round 5 is 1")
    assert "slower than round 1" in flag


def test_what_the_machine_tells_is_one_line_for_each_cause() -> None:
    def stolen(seconds: float) -> tuple[MachineState, MachineState]:
        return MachineState(cpu_steal_s=1.0, read_at_s=10.0), MachineState(cpu_steal_s=1.0 + seconds, read_at_s=20.0)

    flags = flags_of(CALM, {0: stolen(1.5), 3: stolen(4.0), 4: stolen(0.01)})
    assert len(flags) == 1
    assert flags[0].startswith("2 of 5 rounds are disturbed: the hypervisor took 4 CPU seconds in 10 s")
    assert flags[0].endswith("(round 4)")
    assert flags_of(CALM, {1: stolen(1.5)})[0].startswith("round 2 is disturbed: the hypervisor took 1.5 CPU seconds")


def test_pure_noise_seldom_sets_a_flag_off() -> None:
    source = random.Random(1)
    rows = 300
    flagged = 0
    for _ in range(rows):
        blocks = [source.gauss(100, 2) for _ in range(5)]
        flagged += bool(flags_of([tuple(source.gauss(block, 2) for _ in range(3)) for block in blocks]))
    assert flagged / rows < 0.15
