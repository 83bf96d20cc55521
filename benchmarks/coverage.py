"""Whether intervals and verdicts keep their word: runs drawn from a known truth, judged by the functions that judge measured ones.

    python benchmarks/coverage.py            # 2,000 runs for each line (20,000 for A/A), four minutes
    python benchmarks/coverage.py --runs 200

No process is started. Each run is a Run object as a measurement leaves it, with the noise model of the `fake` engine: a generation takes
wall x block factor x sample factor, both normal around 1 with the same deviation, the block's drawn once for each process. All figures come
from llmbench.results.summary, so from the code that every table shows. The first table has normal, independent noise only, the second has
blocks that something slows down, the third several rows against one baseline.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy

from llmbench.protocol import Block, Machine, Model, Plan, Request, Row, Run, Sample, Variant
from llmbench.results.summary import RowSummary, block_rates, summarise
from llmbench.statistics import Verdict, disturbed

TOKENS, SAMPLES, WALL_S = 100, 3, 2.0
#: Shares near 5 % are asked to be told from 5 %: 2,000 runs have a standard error of 0.5 % there, ten times as many 0.15 %.
AA_FACTOR = 10
#: Of blocks that something slows down, how much longer they take: drawn evenly between these.
SLOWED = (1.05, 1.5)


@dataclass(frozen=True)
class World:
    """What is true of the simulated machine."""

    noise: float  # standard deviation of a block's and of a sample's factor
    rounds: int
    log_effects: tuple[float, ...] = (0.0,)  # of each row against the baseline
    slowed: float = 0.0  # share of blocks that something slows down
    slowed_rows: tuple[int, ...] = (0, 1)  # the rows that this happens to


def simulate(world: World, random: numpy.random.Generator) -> tuple[Run, set[tuple[int, int]]]:
    """One run, and the (row, round) of its slowed blocks."""
    rows, slow = [], set()
    for place, effect in enumerate((0.0, *world.log_effects)):
        label = f"row {place}"
        row = Row(Variant(label, "fake", "float32"))
        for number in range(world.rounds):
            factor = 1 + world.noise * random.standard_normal()
            if place in world.slowed_rows and random.random() < world.slowed:
                slow.add((place, number))
                factor *= random.uniform(*SLOWED)
            walls = WALL_S * math.exp(-effect) * factor * (1 + world.noise * random.standard_normal(SAMPLES))
            row.add(Block(number, samples=[Sample("sample", float(wall), (TOKENS,), "") for wall in walls]))
        rows.append(row)
    plan = Plan(rounds=world.rounds, num_iters=SAMPLES)
    model = Model("simulated", "", "", "none", "float32")
    return Run("", model, Request((1,), TOKENS), plan, Machine(), 1, "float32", rows, baseline="row 0"), slow


def many(world: World, runs: int, seed: int) -> Iterator[tuple[Run, set[tuple[int, int]], list[RowSummary]]]:
    """Runs of a world with what the product says of them, the baseline's row left out of the latter."""
    random = numpy.random.default_rng(seed)
    for _ in range(runs):
        run, slow = simulate(world, random)
        yield run, slow, summarise(run)[1:]


def covers(row: RowSummary, log_effect: float) -> bool:
    """Whether the interval has the truth in it."""
    assert row.speedup_low is not None
    assert row.speedup_high is not None
    return row.speedup_low <= math.exp(log_effect) <= row.speedup_high


def is_called(row: RowSummary) -> bool:
    """Whether a difference is claimed."""
    return row.verdict in (Verdict.FASTER, Verdict.SLOWER)


def half_width(row: RowSummary) -> float:
    """Of the interval, in logarithms."""
    assert row.speedup_low is not None
    assert row.speedup_high is not None
    return math.log(row.speedup_high / row.speedup_low) / 2


def share(found: Sequence[bool]) -> float:
    return statistics.fmean(found) if found else math.nan


def typical_half_width(world: World, runs: int, seed: int) -> float:
    """The mean half-width of the interval, in logarithms."""
    return statistics.fmean(half_width(rows[0]) for _, _, rows in many(world, runs, seed))


@dataclass(frozen=True)
class Normal:
    """A line of the first table: shares of runs."""

    noise: float
    rounds: int
    half_width: float
    effect: float
    coverage: float
    right: float  # faster, for the effect
    false_calls: float  # faster or slower, where there is no effect


def normal(noise: float, rounds: int, runs: int, seed: int) -> Normal:
    """Coverage and verdicts under normal noise, for an effect of twice the half-width and over twice min_effect, and for none (A/A)."""
    half = typical_half_width(World(noise, rounds), min(runs, 500), seed + 1)
    effect = max(2 * half, 2.05 * math.log1p(Plan().min_effect))
    with_effect = [rows[0] for _, _, rows in many(World(noise, rounds, (effect,)), runs, seed + 2)]
    without = [rows[0] for _, _, rows in many(World(noise, rounds), AA_FACTOR * runs, seed + 3)]
    return Normal(
        noise,
        rounds,
        half,
        effect,
        coverage=share([covers(row, effect) for row in with_effect]),
        right=share([row.verdict is Verdict.FASTER for row in with_effect]),
        false_calls=share([is_called(row) for row in without]),
    )


@dataclass(frozen=True)
class OneSided:
    """A line of the second table."""

    noise: float
    rounds: int
    half_width: float
    coverage: float
    false_calls: float
    found: float  # slowed blocks that are flagged
    false_flags: float  # blocks flagged that nothing slowed
    runs_flagged: float
    coverage_unflagged: float  # of the runs without a flag
    calls_unflagged: float


def one_sided(noise: float, rounds: int, runs: int, seed: int, slowed: float, slowed_rows: tuple[int, ...]) -> OneSided:
    """What blocks that something slows down do to the interval, no effect being there, and how many of them are flagged."""
    covered, called, flagged, found, false, halves = [], [], [], [], [], []
    for run, slow, (row,) in many(World(noise, rounds, slowed=slowed, slowed_rows=slowed_rows), runs, seed):
        apart = {(place, number) for place, one in enumerate(run.rows) for number in disturbed(block_rates(run, one))}
        covered.append(covers(row, 0.0))
        halves.append(half_width(row))
        called.append(is_called(row))
        flagged.append(bool(apart))
        found += [key in apart for key in sorted(slow)]
        false += [(place, number) in apart for place in (0, 1) for number in range(rounds) if (place, number) not in slow]
    clean = [place for place, is_flagged in enumerate(flagged) if not is_flagged]
    return OneSided(
        noise,
        rounds,
        statistics.median(halves),
        share(covered),
        share(called),
        share(found),
        share(false),
        share(flagged),
        share([covered[place] for place in clean]),
        share([called[place] for place in clean]),
    )


def together(noise: float, rounds: int, rows: int, runs: int, seed: int) -> tuple[float, float]:
    """Several equal rows against one baseline: the share of runs where all intervals cover, and where any row is called different."""
    found = [
        (all(covers(row, 0.0) for row in summaries), any(map(is_called, summaries)))
        for _, _, summaries in many(World(noise, rounds, (0.0,) * rows), runs, seed)
    ]
    return share([cover for cover, _ in found]), share([call for _, call in found])


def _percent(value: float) -> str:
    return "—" if math.isnan(value) else f"{100 * value:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    worlds = [(noise, rounds) for noise in (0.01, 0.03) for rounds in (5, 10)]

    print("| noise % | rounds | half-width % | effect % | interval covers % | verdict right % | A/A called different % |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for noise, rounds in worlds:
        line = normal(noise, rounds, arguments.runs, arguments.seed)
        cells = (noise, math.expm1(line.half_width), math.expm1(line.effect), line.coverage, line.right, line.false_calls)
        first, *others = map(_percent, cells)
        print(f"| {first} | {rounds} | {' | '.join(others)} |", flush=True)

    print("\n15 % of blocks slowed by 5 to 50 %, in no row, in both, or in one; no effect\n")
    heads = ("slowed in", "noise %", "rounds", "half-width %", "covers %", "called different %", "slowed blocks flagged %", "other blocks flagged %",
             "runs flagged %", "covers, runs without flag %", "called different, runs without flag %")  # fmt: skip
    print(f"| {' | '.join(heads)} |\n| --- |{' ---: |' * (len(heads) - 1)}")
    for where, rows in (("no row", ()), ("both rows", (0, 1)), ("one row", (1,))):
        for noise, rounds in sorted([*worlds, (0.01, 30), (0.03, 30)]):
            one = one_sided(noise, rounds, arguments.runs, arguments.seed, 0.15, rows)
            cells = (
                math.expm1(one.half_width),
                one.coverage,
                one.false_calls,
                one.found,
                one.false_flags,
                one.runs_flagged,
                one.coverage_unflagged,
                one.calls_unflagged,
            )
            print(f"| {where} | {_percent(noise)} | {rounds} | {' | '.join(map(_percent, cells))} |", flush=True)

    print("\nFour equal rows against one baseline\n")
    print("| noise % | rounds | all intervals cover % | any row called different % |")
    print("| ---: | ---: | ---: | ---: |")
    for noise, rounds in worlds:
        print(f"| {_percent(noise)} | {rounds} | {' | '.join(map(_percent, together(noise, rounds, 4, arguments.runs, arguments.seed)))} |")


if __name__ == "__main__":
    main()
