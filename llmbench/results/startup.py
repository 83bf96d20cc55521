"""What starting costs, from a run file: each variant's way from nothing to its steady rate, cold and warm, and where one overtakes another.

Cold: nothing is kept from earlier, so the artifact is built and the compiler's caches are empty. Warm: a later process, which finds what the
cold one kept. Both begin when the process is started and end when it generates at its steady rate; what the first generations took beyond
that rate counts as start-up, whatever the engine did in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from llmbench import statistics
from llmbench.protocol import Block, Row, Run, Status
from llmbench.results.summary import block_rates, compile_s, good_blocks, median_wall


@dataclass(frozen=True)
class Start:
    """One start: seconds by part, their sum, and the wall until the first token. Null where a part wasn't measured."""

    process_s: float | None  # starting the process and importing the engine's libraries
    build_s: float | None  # 0 where nothing is built: no artifact, or it was there
    load_s: float | None
    compile_s: float | None  # what the first generations took beyond the steady rate
    first_token_s: float | None  # wall of the process's first generation, of one token; in start-up runs only

    @property
    def ready_s(self) -> float | None:
        """Until it generates at its steady rate, the generations themselves not counted."""
        parts = (self.process_s, self.build_s, self.load_s, self.compile_s)
        return None if any(part is None for part in parts) else sum(part for part in parts if part is not None)

    @property
    def to_first_token_s(self) -> float | None:
        parts = (self.process_s, self.build_s, self.load_s, self.first_token_s)
        return None if any(part is None for part in parts) else sum(part for part in parts if part is not None)


@dataclass(frozen=True)
class StartUp:
    """A row's start-up figures."""

    label: str
    engine: str
    status: Status
    reason: str | None
    cold: Start | None = None  # the first block's
    warm: Start | None = None  # medians over the later blocks
    warm_blocks: int = 0
    tokens_per_s: float | None = None  # steady, as everywhere
    disk_bytes: int | None = None  # of the artifact; null where there is none
    built_at: str | None = None  # where the artifact was built before this run: when


@dataclass(frozen=True)
class BreakEven:
    """After how many new tokens one row, its start counted, has taken less time than another.

    `tokens` is null where that never happens; 0 where it is ahead from the start. `low` and `high` bound it by the interval of the ratio of
    the two rates; `high` is infinite where that includes 1. Null together: one round gives no interval.
    """

    tokens: float | None
    low: float | None = None
    high: float | None = None


def start_ups(run: Run) -> list[StartUp]:
    """Every row's, in the run's order."""
    return [_start_up(run, row) for row in run.rows]


def break_even(run: Run, ahead: StartUp, behind: StartUp, warm: bool) -> BreakEven | None:
    """When `ahead` overtakes `behind`, both started cold or both warm; null where a figure is missing.

    break_even_tokens = (extra seconds to start) / (1 / slow rate - 1 / fast rate), both rates in tokens/s of one sequence.
    """
    starts = [(entry.warm if warm else entry.cold) for entry in (ahead, behind)]
    ready = [start.ready_s if start is not None else None for start in starts]
    rates = ahead.tokens_per_s, behind.tokens_per_s
    if ready[0] is None or ready[1] is None or rates[0] is None or rates[1] is None:
        return None
    extra_s = ready[0] - ready[1]
    tokens = tokens_until_ahead(extra_s, rates[0], rates[1])
    rows = run.row(ahead.label), run.row(behind.label)
    if rows[0] is None or rows[1] is None:
        return BreakEven(tokens)
    ratios = statistics.paired_ratios(block_rates(run, rows[0]), block_rates(run, rows[1]))
    if len(ratios) < 2:
        return BreakEven(tokens)
    logs = [math.log(ratio) for ratio in ratios]
    half = statistics.half_width(logs, run.plan.confidence)
    mean = sum(logs) / len(logs)
    ends = [tokens_until_ahead(extra_s, rates[1] * math.exp(mean + side * half), rates[1]) for side in (1, -1)]
    return BreakEven(tokens, *(math.inf if end is None else end for end in ends))


def tokens_until_ahead(extra_s: float, rate: float, other_rate: float) -> float | None:
    """New tokens after which a way that starts extra_s later and runs at `rate` has caught up with one that runs at `other_rate`.

    0 where it is ahead from the first token on and stays so, or for a while: a slower way that starts earlier is ahead until it is overtaken,
    which `tokens_until_ahead` with the two exchanged tells. Null where it never catches up. Rates in tokens/s, above 0.
    """
    if extra_s <= 0:
        return 0.0
    gained_s = 1 / other_rate - 1 / rate  # by every token
    return extra_s / gained_s if gained_s > 0 else None


def _start_up(run: Run, row: Row) -> StartUp:
    blocks = good_blocks(run, row)
    cold = next((block for block in blocks if block.cold), None)
    later = [block for block in blocks if not block.cold]
    used = next((block.artifact for block in blocks if block.artifact is not None), None)
    rates = list(block_rates(run, row).values())
    return StartUp(
        label=row.variant.label,
        engine=row.variant.engine,
        status=row.status,
        reason=row.reason,
        cold=_cold(run, cold) if cold is not None else None,
        warm=_warm(run, later) if later else None,
        warm_blocks=len(later),
        tokens_per_s=statistics.median(rates),
        disk_bytes=used.bytes if used is not None else None,
        built_at=used.built_at if used is not None and cold is not None and cold.artifact is not None and cold.artifact.hit else None,
    )


def _cold(run: Run, block: Block) -> Start:
    # An artifact that an earlier run had kept counts with what building it took then: a cold start is one without it.
    build_s = block.artifact.build_s if block.artifact is not None else block.build_s or 0.0
    return Start(block.start_s, build_s, block.load_s, compile_s(run, block), median_wall(block, "starting_first_token"))


def _warm(run: Run, blocks: list[Block]) -> Start:
    def middle(figure: Callable[[Block], float | None]) -> float | None:
        return statistics.median([value for value in map(figure, blocks) if value is not None])

    return Start(
        process_s=middle(lambda block: block.start_s),
        build_s=middle(lambda block: block.build_s or 0.0),
        load_s=middle(lambda block: block.load_s),
        compile_s=middle(lambda block: compile_s(run, block)),
        first_token_s=middle(lambda block: median_wall(block, "starting_first_token")),
    )
