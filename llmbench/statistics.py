"""Medians, deviations and ratios of measured rates: pure functions over plain numbers.

Standard library only for now, so that the parent starts fast. Inner samples of one process are not independent of each other; whatever
compares variants therefore goes block by block, each block first reduced to its median.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence


def median(values: Sequence[float]) -> float | None:
    """The middle value, or null for no values."""
    return statistics.median(values) if values else None


def deviation(values: Sequence[float]) -> float | None:
    """The sample standard deviation (n - 1), in the values' unit; null for fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else None


def geometric_mean(ratios: Sequence[float]) -> float | None:
    """exp of the mean of logarithms; null for no ratios. Every ratio must be above 0."""
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios)) if ratios else None


def paired_ratios(row: Mapping[int, float], baseline: Mapping[int, float]) -> list[float]:
    """row / baseline for each round that both have; arguments map a round to its block's median rate, above 0.

    Pairing within the round takes out what changed on the machine between rounds.
    """
    return [row[number] / baseline[number] for number in sorted(row) if number in baseline]
