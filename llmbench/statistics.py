"""Medians, ratios, intervals and verdicts of measured rates: pure functions over plain numbers.

Inner samples of one process are not independent of each other; whatever compares variants therefore goes block by block, each block first
reduced to its median, and pairs the blocks of one round. docs/methodology.md says what the interval assumes; benchmarks/coverage.py checks
these very functions by simulation. scipy is imported on first use: the command line must answer before it is there.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

#: More rounds than this are not proposed: the estimate then lies too near a threshold for any number of rounds to help.
MOST_ROUNDS = 1000
#: A standard deviation from the median of absolute deviations, for normal noise: 1 / quantile(3/4).
MAD_TO_SIGMA = 1.4826


class Verdict(str, enum.Enum):
    """How a row's speed compares with the baseline's."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"  # any difference is smaller than min_effect
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Comparison:
    """One row against the baseline. `ratio` above 1: the row is faster. Interval and verdict are null together, with the reason."""

    ratio: float
    low: float | None = None
    high: float | None = None
    verdict: Verdict | None = None
    reason: str = ""
    rounds_needed: int | None = None  # of an undecided row: about how many rounds would decide; null where more rounds would not help


# ---------------------------------------------------------------------------------------------------------------------------- describing


def median(values: Sequence[float]) -> float | None:
    """The middle value, or null for no values."""
    return statistics.median(values) if values else None


def deviation(values: Sequence[float]) -> float | None:
    """The sample standard deviation (n - 1), in the values' unit; null for fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else None


def mad(values: Sequence[float]) -> float:
    """The median of absolute deviations from the median, in the values' unit. Needs at least one value."""
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values)


def geometric_mean(ratios: Sequence[float]) -> float | None:
    """exp of the mean of logarithms; null for no ratios. Every ratio must be above 0."""
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios)) if ratios else None


def paired_ratios(row: Mapping[int, float], baseline: Mapping[int, float]) -> list[float]:
    """row / baseline for each round that both have; arguments map a round to its block's median rate, above 0.

    Pairing within the round takes out what changed on the machine between rounds.
    """
    return [row[number] / baseline[number] for number in sorted(row) if number in baseline]


# ------------------------------------------------------------------------------------------------------------------------------ comparing


@lru_cache(maxsize=1024)
def t_quantile(degrees: int, probability: float) -> float:
    """Student's t: the value below which a share of `probability` lies, with that many degrees of freedom."""
    from scipy.special import stdtrit  # scipy.stats would take twice as long to import

    return float(stdtrit(degrees, probability))


def half_width(values: Sequence[float], confidence: float, comparisons: int = 1) -> float:
    """Half the width of the t-interval of the mean, in the values' unit: t x s / sqrt(n). Needs at least two values.

    With several `comparisons` each interval is wider, so that all of them together hold with that confidence (Bonferroni).
    """
    tail = (1 - confidence) / max(1, comparisons) / 2
    return t_quantile(len(values) - 1, 1 - tail) * statistics.stdev(values) / math.sqrt(len(values))


def compare(
    ratios: Sequence[float],
    *,
    confidence: float = 0.95,
    comparisons: int = 1,
    min_effect: float = 0.02,
    noise_floor: float | None = None,
) -> Comparison:
    """The verdict over a row's paired ratios, one for each round, at least one, each above 0.

    The estimate is the geometric mean, the interval Student's t on the logarithms. `faster` and `slower`: the interval excludes 1 and the
    estimate is beyond min_effect and beyond noise_floor (both relative, 0.02 is 2 %; a factor of 1.02 up or 1 / 1.02 down). `same`: the
    interval lies within min_effect, and the noise floor does so too. Else `undecided`. Fewer than two ratios: no interval and no verdict.
    """
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return Comparison(bounded_exp(mean), reason="one round: no interval, no verdict")
    half = half_width(logs, confidence, comparisons)
    low, high, ratio = bounded_exp(mean - half), bounded_exp(mean + half), bounded_exp(mean)
    effect, floor = math.log1p(min_effect), math.log1p(noise_floor or 0.0)
    excludes_one, is_within = abs(mean) > half, abs(mean) + half < effect

    if excludes_one and abs(mean) > max(effect, floor):
        verdict = Verdict.FASTER if mean > 0 else Verdict.SLOWER
        side = "above" if mean > 0 else "below"
        return Comparison(ratio, low, high, verdict, f"the whole interval lies {side} 1, the estimate beyond {_percent(min_effect)}")
    if is_within and floor <= effect:
        return Comparison(ratio, low, high, Verdict.SAME, f"the whole interval lies within {_percent(min_effect)} of 1")
    if abs(mean) <= floor and floor > effect:
        why = f"the difference is below this machine's noise floor of {_percent(noise_floor or 0.0)}"
        return Comparison(ratio, low, high, Verdict.UNDECIDED, why)
    needed = _rounds_needed(logs, abs(mean), effect, confidence, comparisons)
    what = "the interval includes 1" if abs(mean) > effect else f"the interval reaches beyond {_percent(min_effect)}, the estimate doesn't"
    more = f"about {needed} rounds would do" if needed else "the estimate is so near to that limit that more rounds would hardly help"
    return Comparison(ratio, low, high, Verdict.UNDECIDED, f"{what} (± {_percent(bounded_exp(half) - 1)}); {more}", needed)


def _rounds_needed(logs: Sequence[float], estimate: float, effect: float, confidence: float, comparisons: int) -> int | None:
    """How many rounds bring the half-width below what decides, if estimate and spread stay as they are; null above MOST_ROUNDS."""
    margin = estimate if estimate > effect else effect - estimate
    spread = statistics.stdev(logs)
    tail = (1 - confidence) / max(1, comparisons) / 2
    if margin <= 0 or t_quantile(MOST_ROUNDS - 1, 1 - tail) * spread / math.sqrt(MOST_ROUNDS) >= margin:
        return None
    few, enough = len(logs), MOST_ROUNDS  # few don't do: else it would be decided
    while enough - few > 1:
        middle = (few + enough) // 2
        does = t_quantile(middle - 1, 1 - tail) * spread / math.sqrt(middle) < margin
        few, enough = (few, middle) if does else (middle, enough)
    return enough


def bounded_exp(value: float) -> float:
    """exp, held within what a float takes: two rounds that differ wildly have an interval without bounds."""
    return math.exp(max(-700.0, min(700.0, value)))


def _percent(relative: float) -> str:
    """0.0213 as `2.1 %`; two figures, all of them from 100 on."""
    value = 100 * relative
    return f"{value:.2g} %" if value < 99.5 else f"{value:.0f} %" if value < 1000 else "over 1000 %"


# ------------------------------------------------------------------------------------------------------------------------------- unsteady


def disturbed(rates: Mapping[int, float], least: float = 0.02) -> dict[int, float]:
    """The rounds whose block stands apart from the variant's other blocks, each with its rate / the others' median. Needs five rounds.

    A block stands apart where the logarithm of its rate is further from the others' median than k robust standard deviations of the others
    (from their MAD), and by more than `least`. k = 3.5 + 160 / n^1.7 for n blocks: the MAD of four values is a poor one, and with this k
    about one row in twenty of purely normal noise has a block flagged, for any n (simulated).
    """
    if len(rates) < 5:
        return {}
    limit = 3.5 + 160 / len(rates) ** 1.7
    found = {}
    for number, rate in rates.items():
        others = [math.log(other) for round, other in rates.items() if round != number]
        distance = math.log(rate) - statistics.median(others)
        if abs(distance) > max(limit * MAD_TO_SIGMA * mad(others), math.log1p(least)):
            found[number] = math.exp(distance)
    return found


def outliers(values: Sequence[float], least: float = 0.02) -> list[int]:
    """Places of values far from the others: a modified z above 3.5 + 20 / n, for n of them.

    Modified z: (x - median) / (1.4826 MAD), on logarithms; 3.5 is the limit of Iglewicz and Hoaglin (1993), which the second term keeps from
    flagging one set of fifteen normal values in nine (now about one in thirty, for any n; simulated). None among fewer than six values; a value
    within `least` of the median is never one.
    """
    if len(values) < 6:
        return []
    logs = [math.log(value) for value in values]
    middle = statistics.median(logs)
    limit = max((3.5 + 20 / len(values)) * MAD_TO_SIGMA * mad(logs), math.log1p(least))
    return [place for place, value in enumerate(logs) if abs(value - middle) > limit]


def slope(values: Sequence[float]) -> float:
    """Least-squares change from the first value to the last, in the values' unit. Needs at least two values."""
    middle = (len(values) - 1) / 2
    return (
        (len(values) - 1)
        * sum((place - middle) * value for place, value in enumerate(values))
        / sum((place - middle) ** 2 for place in range(len(values)))
    )


def trend(rates: Sequence[float], confidence: float = 0.99, least: float = 0.02) -> float | None:
    """Last rate / first rate by a straight line through the logarithms, or null where there is no trend. Needs four rates, in order.

    A trend's slope differs from 0 by Student's t at that confidence, and the change is beyond `least`.
    """
    if len(rates) < 4:
        return None
    logs = [math.log(rate) for rate in rates]
    change, mean, count = slope(logs), statistics.fmean(logs), len(logs)
    line = [mean + change * (place / (count - 1) - 0.5) for place in range(count)]
    residual = math.sqrt(sum((value - fit) ** 2 for value, fit in zip(logs, line, strict=True)) / (count - 2))
    squares = sum((place / (count - 1) - 0.5) ** 2 for place in range(count))
    error = residual / math.sqrt(squares)
    is_trend = abs(change) > max(t_quantile(count - 2, (1 + confidence) / 2) * error, math.log1p(least))
    return math.exp(change) if is_trend else None


def common_shift(ratios: Sequence[float], confidence: float = 0.99, least: float = 0.02) -> float | None:
    """The geometric mean of ratios, one from each block, where the blocks agree that it differs from 1 by more than `least`; else null.

    They agree where the t-interval of the logarithms at that confidence excludes 0; of fewer than three blocks, where each is beyond 10 %
    and on the same side.
    """
    if not ratios:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    least_shift = max(min(logs), -max(logs))  # of the block that moved least, below 0 where they differ in direction
    agree = least_shift > math.log(1.1) if len(logs) < 3 else abs(mean) > half_width(logs, confidence)
    return math.exp(mean) if agree and abs(mean) > math.log1p(least) else None
