"""The noise floor: how far apart this machine puts a variant and itself.

`llmbench aa` measures one variant under two names through the same pipeline. Its ratio should be 1. The floor is the far end of the ratio's
interval: the largest difference between a thing and itself that the A/A run can't exclude. Kept A/A runs are found among the run files of
results/; a later run on the same machine quotes the newest one, and calls no smaller difference faster or slower.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmbench.protocol import Machine, Run, Status, Variant
from llmbench.results import files
from llmbench.results.summary import summarise

#: Fewer rounds give so wide an interval that every later comparison would be undecided by it.
LEAST_ROUNDS = 3
#: A floor is cut here: two wild rounds have an interval without end, and no machine is that bad.
MOST = 1000.0


@dataclass(frozen=True)
class NoiseFloor:
    """`relative`: 0.012 is 1.2 %, a factor of 1.012 up or down. `source`: the A/A run it comes from, in words."""

    relative: float
    source: str


def is_aa(variants: Sequence[Variant]) -> bool:
    """Whether these are one variant under several names."""
    things = [(one.engine, one.dtype, one.quantization, one.options) for one in variants]
    return len(things) > 1 and all(thing == things[0] for thing in things)


def of_run(run: Run) -> float | None:
    """An A/A run's noise floor, relative; null where it tells too little: under LEAST_ROUNDS rounds, a failed or unfinished row.

    exp(max(|log low|, |log high|)) - 1 of the ratio's interval, the widest where there are several. It is never under |log ratio|.
    """
    if not (run.aa and run.rows) or run.finished_at is None or run.interrupted or any(row.status is not Status.OK for row in run.rows):
        return None
    if min(len(row.blocks) for row in run.rows) < LEAST_ROUNDS:
        return None
    ends = [end for row in summarise(run) for end in (row.speedup_low, row.speedup_high) if end is not None]
    return min(MOST, math.expm1(max(abs(math.log(end)) for end in ends))) if ends else None


def find(results: Path, machine: Machine, threads: int, *, fake: bool = False) -> NoiseFloor | None:
    """The floor by the newest A/A run in `results` of the same machine and number of threads, or null where there is none.

    Newest by the names that run files and suites have, which begin with their time. An A/A run of the `fake` engine, which only waits, says
    nothing of the machine: it counts with `fake` alone, and others don't count then. A file that is no run file is passed over.
    """
    kept = [*results.glob("*.json"), *results.glob("*/*.json")]  # runs, and suites of runs
    for path in sorted(kept, key=lambda path: path.relative_to(results).as_posix(), reverse=True):
        try:
            # Most run files are no A/A run: a look for the words is fifty times as fast as checking the whole file.
            if path.stat().st_size > files.MAX_BYTES or b'"aa": true' not in path.read_bytes():
                continue
            run = files.load(path)
        except (OSError, files.RunFileError):
            continue
        floor = of_run(run)
        if floor is None or (run.rows[0].variant.engine == "fake") != fake:
            continue
        if _fingerprint(run.machine, run.threads) == _fingerprint(machine, threads):
            return NoiseFloor(floor, f"{run.rows[0].variant.label}, {run.model.name}, {len(run.rows[0].blocks)} rounds, {run.run_id}")
    return None


def lookup(results: Path, machine: Machine, threads: int) -> float | None:
    """`find`'s floor alone, relative."""
    found = find(results, machine, threads)
    return found.relative if found else None


def _fingerprint(machine: Machine, threads: int) -> tuple[object, ...]:
    """What must be equal for one run's noise to be told of another. Kernel and driver versions may change, memory limits too."""
    return (machine.device, machine.device_name, machine.cpu, machine.cpu_count, threads)
