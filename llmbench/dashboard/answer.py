"""The answer of one run in words: which row is fastest, by how much over the next one, and after how many tokens that pays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llmbench import statistics
from llmbench.dashboard.collect import name
from llmbench.protocol import Run, Status
from llmbench.results.startup import StartUp, break_even, start_ups
from llmbench.results.summary import RowSummary, block_rates, summarise
from llmbench.statistics import Comparison, Verdict
from llmbench.views.startup_table import tokens_words
from llmbench.views.text import decimals_for, shorten

_NOTHING = "Nothing was measured that can be believed."


@dataclass(frozen=True)
class Answer:
    """`rows`: all of the run's, as summarised. `best`: the fastest good one; `next`: the one after it; `ratio`: best / next."""

    rows: tuple[RowSummary, ...]
    best: RowSummary | None = None
    next: RowSummary | None = None
    ratio: Comparison | None = None
    head: str = ""
    by: str = ""
    sentence: str = ""  # all of it
    rest: str = ""  # without what head and by say already

    @property
    def decided(self) -> bool:
        return self.ratio is not None and self.ratio.verdict is Verdict.FASTER


def answer(run: Run) -> Answer:
    """A run's answer. The interval is as wide as choosing the two fastest of all pairs after the measurement asks for (Bonferroni)."""
    rows = tuple(summarise(run))
    good = [row for row in rows if row.status in (Status.OK, Status.INTERRUPTED) and row.tokens_per_s]
    good.sort(key=lambda row: -(row.tokens_per_s or 0.0))
    if not good:
        return Answer(rows, head="No answer", sentence=_NOTHING, rest=_NOTHING)
    best = good[0]
    if len(good) == 1:
        words = f"{name(best.label)} is the only row that can be believed."
        return Answer(rows, best, head=name(best.label), sentence=words, rest=words)
    ratio = _best_over_next(run, good)
    after = good[1]
    compared, more = _compared(best, after, ratio, run.plan.confidence), f"{_worth(run, best, after)}{_over_baseline(rows, best, after)}"
    sentence = f"{compared}{more}."
    first, second, confidence = name(best.label), name(after.label), run.plan.confidence
    if ratio is None:
        return Answer(rows, best, after, None, first, "", sentence, sentence)
    if ratio.verdict is None:
        return Answer(
            rows, best, after, ratio, first, f"{ratio_text(ratio)} {second}", sentence, f"One round: no interval, no verdict{more}."
        )
    rest = f"{_interval_words(ratio, confidence)}{more}."
    if ratio.verdict is Verdict.FASTER:
        return Answer(rows, best, after, ratio, first, f"{ratio_text(ratio)} {second}", sentence, rest)
    by = "equally fast" if ratio.verdict is Verdict.SAME else "too close to tell"
    return Answer(rows, best, after, ratio, f"{first} and {second}", by, sentence, f"{first} {ratio_text(ratio)} {second}, {rest}")


def _best_over_next(run: Run, good: Sequence[RowSummary]) -> Comparison | None:
    first, second = (run.row(row.label) for row in good[:2])
    if first is None or second is None:
        return None
    ratios = statistics.paired_ratios(block_rates(run, first), block_rates(run, second))
    if not ratios:
        return None
    plan, pairs = run.plan, len(good) * (len(good) - 1) // 2
    return statistics.compare(
        ratios, confidence=plan.confidence, comparisons=pairs, min_effect=plan.min_effect, noise_floor=run.noise_floor
    )


def ratio_text(ratio: Comparison) -> str:
    """`1.12x`, with as many decimals as tell it from 1."""
    return f"{ratio.ratio:.{_decimals(ratio)}f}x" if ratio.ratio < 1e6 else "over 1000000x"


def _decimals(ratio: Comparison) -> int:
    decimals = max(2, decimals_for(ratio.ratio, 3)) if ratio.ratio < 1e4 else 0
    ends = [end for end in (ratio.ratio, ratio.low, ratio.high) if end is not None]
    while decimals < 4 and any(round(end, decimals) == 1 != end for end in ends):
        decimals += 1
    return min(4, decimals)


def _interval_words(ratio: Comparison, confidence: float) -> str:
    return f"{100 * confidence:g} % interval {_interval(ratio)}"


def _interval(ratio: Comparison) -> str:
    decimals = _decimals(ratio)
    return " to ".join("over 10000" if end > 1e4 else f"{end:.{decimals}f}" for end in (ratio.low, ratio.high) if end is not None)


def _compared(best: RowSummary, after: RowSummary, ratio: Comparison | None, confidence: float) -> str:
    first, second = name(best.label), name(after.label)
    if ratio is None:
        return f"{first} was the fastest; it has no round in common with {second}"
    if ratio.low is None or ratio.high is None:
        return f"{first} {ratio_text(ratio)} {second}, by one round: no interval, no verdict"
    words = _interval_words(ratio, confidence)
    if ratio.verdict is Verdict.SAME:
        return f"{first} and {second} are equally fast: {ratio_text(ratio)}, {words}"
    if ratio.verdict is Verdict.FASTER:
        return f"{first} {ratio_text(ratio)} {second}, {words}"
    return f"{first} and {second} are too close to tell: {ratio_text(ratio)}, {words}"


def _worth(run: Run, best: RowSummary, after: RowSummary) -> str:
    """When the fastest has made up for its longer start over the next one, both cold."""
    starts: dict[str, StartUp] = {start.label: start for start in start_ups(run)}
    found = break_even(run, starts[best.label], starts[after.label], warm=False)
    if found is None or found.tokens is None:
        return ""
    if found.tokens == 0:
        return "; it starts sooner, too"
    words = f"; worth its longer start after {shorten(tokens_words(found.tokens), 24)} tokens"
    return f"{words}, if at all" if found.high == math.inf else words


def _over_baseline(rows: Sequence[RowSummary], best: RowSummary, after: RowSummary) -> str:
    base = next((row for row in rows if row.is_baseline), None)
    if base is None or base is best or base is after or best.speedup is None:
        return ""
    return f"; {best.speedup:.{max(1, decimals_for(min(best.speedup, 1e3), 3))}f}x {name(base.label)}"
