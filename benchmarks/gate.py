"""How often `llmbench diff --fail-if-slower` stops a change: runs drawn from a known truth, judged by the very functions of the command.

    python benchmarks/gate.py            # 1,000 comparisons for each number, a minute
    python benchmarks/gate.py --count 200

Each run has two variants, and one of them gets slower. A process's rate is the variant's rate x (1 + noise), normal; each run is shifted as a whole
by a factor of its own, normal too, which is what another hour on the same machine does and what no interval within a run can see.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy

from llmbench.protocol import Block, Machine, Model, Plan, Request, Row, Run, Sample, Variant
from llmbench.results.diff import diff

TOKENS, RATE, THRESHOLD = 100, 50.0, 0.03


def simulate(random: numpy.random.Generator, rounds: int, noise: float, shift: float, slower: float) -> Run:
    """One run whose second variant is slower by that factor less 1."""
    hour = 1 + shift * random.standard_normal()
    rows = []
    for label, factor in (("unchanged", 1.0), ("changed", 1 + slower)):
        row = Row(Variant(label, "fake", "float32"))
        for number in range(rounds):
            wall = TOKENS / RATE * factor * hour * (1 + noise * random.standard_normal())
            row.add(Block(number, samples=[Sample("sample", float(wall), (TOKENS,), "")]))
        rows.append(row)
    model = Model("simulated", "", "", "none", "float32")
    return Run("", model, Request((1,), TOKENS), Plan(rounds=rounds), Machine(), 1, "float32", rows, baseline="unchanged", finished_at="x")


@dataclass(frozen=True)
class World:
    """What is measured, and what is true of the machine."""

    metric: str
    runs: int  # of each side
    rounds: int
    noise: float
    shift: float


def stopped(random: numpy.random.Generator, world: World, slower: float, count: int) -> float:
    """Share of comparisons that the gate stops."""
    stops = 0
    for _ in range(count):
        sides = [[simulate(random, world.rounds, world.noise, world.shift, change) for _ in range(world.runs)] for change in (0.0, slower)]
        stops += diff(sides[0], sides[1], metrics=[world.metric], threshold=THRESHOLD).exit_code == 1
    return stops / count


def lines(count: int) -> Iterator[str]:
    yield "| metric | runs of a side | rounds | noise of a process | shift of a run | equal | 5 % slower | 10 % slower | 20 % slower |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for world in WORLDS:
        random = numpy.random.default_rng(8)
        cells = " | ".join(f"{100 * stopped(random, world, slower, count):.1f} %" for slower in (0.0, 0.05, 0.1, 0.2))
        yield f"| {world.metric} | {world.runs} | {world.rounds} | {100 * world.noise:g} % | {100 * world.shift:g} % | {cells} |"


#: The last three are a machine whose hours differ by 5 %.
WORLDS = (
    World("tokens", 1, 5, 0.01, 0.0),
    World("tokens", 1, 5, 0.03, 0.0),
    World("tokens", 1, 10, 0.03, 0.0),
    World("tokens", 1, 5, 0.01, 0.05),
    World("speedup", 1, 5, 0.01, 0.05),
    World("tokens", 5, 5, 0.01, 0.05),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="comparisons for each number")
    for line in lines(parser.parse_args().count):
        print(line, flush=True)


if __name__ == "__main__":
    main()
