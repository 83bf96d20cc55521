"""Medians, intervals, verdicts and what is unsteady, against numbers worked out by hand or taken from tables."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from llmbench import statistics
from llmbench.statistics import Verdict, compare, deviation, geometric_mean, mad, median, paired_ratios


def test_median() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5
    assert median([7.0]) == 7.0
    assert median([]) is None


def test_deviation_is_the_samples() -> None:
    # mean 5, squares 9 + 1 + 1 + 1 + 0 + 0 + 4 + 16 = 32, divided by n - 1 = 7
    assert deviation([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]) == pytest.approx((32 / 7) ** 0.5)
    assert deviation([3.0, 3.0]) == 0.0
    assert deviation([3.0]) is None
    assert deviation([]) is None


def test_median_of_absolute_deviations() -> None:
    assert mad([1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 9.0]) == 1.0
    assert mad([5.0]) == 0.0


def test_geometric_mean() -> None:
    assert geometric_mean([2.0, 4.0, 1.0]) == pytest.approx(2.0)
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert geometric_mean([]) is None


def test_paired_ratios_take_only_shared_rounds() -> None:
    assert paired_ratios({2: 30.0, 0: 10.0, 1: 20.0}, {0: 5.0, 2: 10.0, 3: 1.0}) == [2.0, 3.0]
    assert paired_ratios({0: 1.0}, {}) == []


# -------------------------------------------------------------------------------------------------------------------- interval and verdict


def logs(*values: float) -> list[float]:
    return [math.exp(value) for value in values]


def test_the_interval_by_a_table_of_t() -> None:
    # Logarithms 0.1, 0.2, 0.3: mean 0.2, s = 0.1; t(2; 97.5 %) = 4.302653: half-width 0.2484137.
    found = compare(logs(0.1, 0.2, 0.3))
    assert found.ratio == pytest.approx(math.exp(0.2))
    assert found.low == pytest.approx(math.exp(0.2 - 0.2484137))
    assert found.high == pytest.approx(math.exp(0.2 + 0.2484137))


def test_two_comparisons_make_wider_intervals() -> None:
    # Each at 97.5 %: t(2; 98.75 %) = 6.205347.
    found = compare(logs(0.1, 0.2, 0.3), comparisons=2)
    assert found.high == pytest.approx(math.exp(0.2 + 6.205347 * 0.1 / 3**0.5))
    assert compare(logs(0.1, 0.2, 0.3), confidence=0.975).high == pytest.approx(found.high)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([1.50, 1.51, 1.49, 1.50, 1.50], Verdict.FASTER),
        ([0.50, 0.51, 0.49, 0.50, 0.50], Verdict.SLOWER),
        ([1.001, 0.999, 1.0, 1.002, 0.998], Verdict.SAME),
        ([1.010, 1.011, 1.009, 1.010, 1.010], Verdict.SAME),  # the interval excludes 1, and lies within 2 %
        ([1.015, 1.005, 1.025, 1.010, 1.020], Verdict.UNDECIDED),  # excludes 1, reaches beyond 2 %, the estimate doesn't
        ([1.5, 0.8, 1.4, 0.9, 1.3], Verdict.UNDECIDED),  # beyond 2 %, includes 1
        ([1.03, 1.03, 1.03], Verdict.FASTER),  # no spread at all
        ([1.0, 1.0], Verdict.SAME),
    ],
)
def test_verdicts(ratios: list[float], verdict: Verdict) -> None:
    assert compare(ratios).verdict is verdict
    mirrored = compare([1 / ratio for ratio in ratios]).verdict
    opposite = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
    assert mirrored is opposite.get(verdict, verdict)


def test_min_effect_decides_what_matters() -> None:
    ratios = [1.030, 1.031, 1.029, 1.030, 1.030]
    assert compare(ratios, min_effect=0.02).verdict is Verdict.FASTER
    assert compare(ratios, min_effect=0.05).verdict is Verdict.SAME
    assert compare(ratios, min_effect=0.0301).verdict is Verdict.UNDECIDED


def test_one_round_has_no_interval_and_no_verdict() -> None:
    found = compare([1.5])
    assert (found.ratio, found.low, found.high, found.verdict) == (pytest.approx(1.5), None, None, None)
    assert found.reason == "one round: no interval, no verdict"


def test_below_the_noise_floor_nothing_is_told() -> None:
    ratios = [1.030, 1.031, 1.029, 1.030, 1.030]
    found = compare(ratios, noise_floor=0.04)
    assert found.verdict is Verdict.UNDECIDED
    assert found.rounds_needed is None
    assert "below this machine's noise floor of 4 %" in found.reason
    assert compare([1 / ratio for ratio in ratios], noise_floor=0.04).verdict is Verdict.UNDECIDED
    assert compare(ratios, noise_floor=0.025).verdict is Verdict.FASTER
    # A machine that tells 3 % apart can't say that two things are within 2 %; one that tells 1 % can.
    same = [1.001, 0.999, 1.0, 1.002, 0.998]
    assert compare(same, noise_floor=0.03).verdict is Verdict.UNDECIDED
    assert compare(same, noise_floor=0.01).verdict is Verdict.SAME


def test_rounds_that_would_do() -> None:
    found = compare([1.5, 0.8, 1.4, 0.9, 1.3])
    needed = found.rounds_needed
    assert needed is not None
    values = [math.log(ratio) for ratio in (1.5, 0.8, 1.4, 0.9, 1.3)]
    mean, spread = sum(values) / 5, deviation(values)
    assert spread is not None

    def half(rounds: int) -> float:
        return float(statistics.t_quantile(rounds - 1, 0.975) * spread / math.sqrt(rounds))

    assert half(needed) < mean <= half(needed - 1)
    assert f"about {needed} rounds would do" in found.reason
    assert "the interval includes 1 (± " in found.reason


def test_an_estimate_at_the_threshold_takes_more_rounds_than_anyone_has() -> None:
    found = compare(logs(math.log(1.02) + 0.01, math.log(1.02) - 0.01), min_effect=0.02)
    assert found.verdict is Verdict.UNDECIDED
    assert found.rounds_needed is None or found.rounds_needed > 2


def test_wild_ratios_stay_numbers() -> None:
    found = compare([1e-9, 1e9], comparisons=30)
    assert found.verdict is Verdict.UNDECIDED
    assert found.low is not None
    assert found.high is not None
    assert 0 < found.low < found.high < math.inf


def test_scipy_is_not_imported_with_the_module() -> None:
    code = "import sys, llmbench.statistics, llmbench.results.summary, llmbench.cli; print('scipy' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


# ---------------------------------------------------------------------------------------------------------------------------- unsteadiness


def test_a_block_that_stands_apart() -> None:
    rates = {0: 100.0, 1: 101.0, 2: 80.0, 3: 99.0, 4: 100.5}
    assert statistics.disturbed(rates) == {2: pytest.approx(80 / ((100 * 100.5) ** 0.5))}
    assert statistics.disturbed({0: 100.0, 1: 101.0, 2: 102.0, 3: 99.0, 4: 100.5}) == {}
    assert statistics.disturbed({number: rate for number, rate in rates.items() if number < 4}) == {}  # four are too few


def test_two_disturbed_blocks_do_not_hide_each_other() -> None:
    rates = {number: 100.0 + number % 3 for number in range(8)} | {8: 70.0, 9: 60.0}
    assert set(statistics.disturbed(rates)) == {8, 9}


def test_a_tiny_difference_is_no_disturbance_however_quiet_the_rest() -> None:
    assert statistics.disturbed({0: 100.0, 1: 100.0, 2: 100.0, 3: 100.0, 4: 98.5}) == {}


def test_outliers_by_modified_z() -> None:
    values = [10.0, 10.1, 9.9, 10.0, 10.2, 9.8, 13.0]
    assert statistics.outliers(values) == [6]
    assert statistics.outliers(values[:6]) == []
    assert statistics.outliers(values[2:]) == []  # five are too few
    assert statistics.outliers([10.0] * 6 + [10.1]) == []  # 1 % off is none


def test_slope_is_least_squares() -> None:
    assert statistics.slope([1.0, 2.0, 3.0]) == pytest.approx(2.0)
    assert statistics.slope([0.0, 4.0]) == pytest.approx(4.0)
    assert statistics.slope([1.0, 0.0, 1.0]) == pytest.approx(0.0)


def test_trend() -> None:
    rates = [100 * 0.95**number for number in range(5)]
    assert statistics.trend(rates) == pytest.approx(0.95**4)
    assert statistics.trend([rate * (1.004 if place % 2 else 1) for place, rate in enumerate(rates)]) is not None
    assert statistics.trend([100.0, 95.0, 101.0, 96.0, 100.0]) is None
    assert statistics.trend([100.0, 99.8, 99.6, 99.4, 99.2]) is None  # under 2 % in all
    assert statistics.trend(rates[:3]) is None


def test_a_shift_that_blocks_agree_on() -> None:
    assert statistics.common_shift([0.9, 0.91, 0.89, 0.9, 0.9]) == pytest.approx(0.9, rel=0.01)
    assert statistics.common_shift([0.9, 1.1, 0.95, 1.05, 1.0]) is None
    assert statistics.common_shift([0.99, 0.99, 0.99, 0.99]) is None  # under 2 %
    assert statistics.common_shift([0.8]) == pytest.approx(0.8)
    assert statistics.common_shift([0.95]) is None
    assert statistics.common_shift([0.8, 1.3]) is None
    assert statistics.common_shift([1.2, 1.3]) is not None
    assert statistics.common_shift([]) is None
