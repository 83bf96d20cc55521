"""Two separate runs, whose rounds have no partner in each other: the interval of the ratio of their levels, and what it decides.

Rounds of one run are paired, which takes out what the machine did in between. Two runs have no such pairs: whatever changed on the machine from
one to the other is part of their ratio, and the interval knows nothing of it. docs/ci.md says what to do about that.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from llmbench.statistics import bounded_exp, t_quantile


class Change(str, enum.Enum):
    """How a figure moved from one run to another."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"  # any difference is smaller than min_effect
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Shift:
    """new / old, with its interval; above 1 the figure has grown. Interval and change are null together, with the reason."""

    ratio: float
    low: float | None = None
    high: float | None = None
    change: Change | None = None
    reason: str = ""


def welch(new: Sequence[float], old: Sequence[float], confidence: float = 0.95, comparisons: int = 1) -> tuple[float, float]:
    """The mean difference of logarithms, log new - log old, and half the width of its interval. At least two values each, above 0.

    half = t(df) x sqrt(v_new / n_new + v_old / n_old) with sample variances v; df by Welch and Satterthwaite (B. L. Welch, Biometrika 34,
    1947), rounded down. The two spreads may differ. Several `comparisons` share the confidence (Bonferroni).
    """
    logs = [[math.log(value) for value in values] for values in (new, old)]
    shares = [statistics.variance(values) / len(values) for values in logs]
    mean = statistics.fmean(logs[0]) - statistics.fmean(logs[1])
    if sum(shares) == 0:
        return mean, 0.0
    squares = sum(share**2 / (len(values) - 1) for share, values in zip(shares, logs, strict=True))
    # Squares of tiny shares run to 0; the lesser number of values bounds df from below.
    degrees = int(sum(shares) ** 2 / squares) if squares > 0 else min(map(len, logs)) - 1
    tail = (1 - confidence) / max(1, comparisons) / 2
    return mean, t_quantile(max(1, degrees), 1 - tail) * math.sqrt(sum(shares))


def compare_unpaired(
    new: Sequence[float],
    old: Sequence[float],
    *,
    higher_is_better: bool,
    confidence: float = 0.95,
    comparisons: int = 1,
    min_effect: float = 0.02,
    noise_floor: float | None = None,
) -> Shift:
    """How a figure moved from `old` to `new`: independent values of each, above 0, at least one.

    The estimate is the ratio of the geometric means. The rule is that of statistics.compare: better and worse take an interval that excludes 1
    and an estimate beyond min_effect and noise_floor (relative: 0.02 is a factor of 1.02 up or down); same takes an interval within min_effect.
    Fewer than two values on a side: no interval, no verdict.
    """
    if min(len(new), len(old)) < 2:
        ratio = bounded_exp(statistics.fmean(map(math.log, new)) - statistics.fmean(map(math.log, old)))
        sides = " and ".join(side for side, values in (("the old", old), ("the new", new)) if len(values) < 2)
        return Shift(ratio, reason=f"one value on {sides} side: no interval, no verdict")
    mean, half = welch(new, old, confidence, comparisons)
    ratio, low, high = bounded_exp(mean), bounded_exp(mean - half), bounded_exp(mean + half)
    effect, floor = math.log1p(min_effect), math.log1p(noise_floor or 0.0)
    if abs(mean) > half and abs(mean) > max(effect, floor):
        change = Change.BETTER if (mean > 0) == higher_is_better else Change.WORSE
        return Shift(ratio, low, high, change, f"the whole interval lies {'above' if mean > 0 else 'below'} 1")
    if abs(mean) + half < effect and floor <= effect:
        return Shift(ratio, low, high, Change.SAME, f"the whole interval lies within {100 * min_effect:g} % of 1")
    if abs(mean) <= floor and floor > effect:
        why = f"the difference is below this machine's noise floor of {100 * math.expm1(floor):.2g} %"
    elif abs(mean) > effect:
        why = "the interval includes 1"
    else:
        why = f"the interval reaches beyond {100 * min_effect:g} %, the estimate doesn't"
    return Shift(ratio, low, high, Change.UNDECIDED, why)


def is_beyond(shift: Shift, threshold: float, *, higher_is_better: bool) -> bool:
    """Whether the figure is worse by more than `threshold` (0.03 is a factor of 1.03) with its whole interval on the far side of it."""
    if shift.low is None or shift.high is None:
        return False
    return shift.high < 1 / (1 + threshold) if higher_is_better else shift.low > 1 + threshold
