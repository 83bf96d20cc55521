"""Welch's interval on logarithms against scipy, its coverage, and the verdicts it decides."""

from __future__ import annotations

import math

import numpy
import pytest
from scipy import stats

from llmbench.results.unpaired import Change, compare_unpaired, is_beyond, welch

NEW, OLD = [9.0, 10.0, 11.5, 10.2], [12.0, 12.4, 11.9, 12.1, 12.2, 14.0]


def test_the_interval_is_scipys_with_whole_degrees_of_freedom() -> None:
    found = stats.ttest_ind(numpy.log(NEW), numpy.log(OLD), equal_var=False)
    mean, half = welch(NEW, OLD, confidence=0.9)
    assert mean == pytest.approx(numpy.log(NEW).mean() - numpy.log(OLD).mean())
    error = mean / found.statistic
    assert half == pytest.approx(abs(error) * stats.t.ppf(0.95, math.floor(found.df)))
    assert half >= found.confidence_interval(0.9).high - mean


def test_several_comparisons_share_the_confidence() -> None:
    assert welch(NEW, OLD, confidence=0.95, comparisons=5)[1] == pytest.approx(welch(NEW, OLD, confidence=0.99)[1])


def test_equal_values_have_an_interval_without_width() -> None:
    assert welch([2.0, 2.0], [1.0, 1.0, 1.0]) == (pytest.approx(math.log(2)), 0.0)
    assert welch([2.0, 2.0 + 1e-15], [1.0, 1.0])[1] < 1e-9


@pytest.mark.parametrize(("counts", "noise"), [((5, 5), (0.02, 0.02)), ((5, 3), (0.01, 0.04)), ((3, 10), (0.03, 0.01))])
def test_it_covers_the_true_ratio_as_often_as_it_says(counts: tuple[int, int], noise: tuple[float, float]) -> None:
    random, runs, covered = numpy.random.default_rng(1), 1500, 0
    for _ in range(runs):
        new = numpy.exp(math.log(0.9) + noise[0] * random.standard_normal(counts[0]))
        old = numpy.exp(noise[1] * random.standard_normal(counts[1]))
        mean, half = welch(list(new), list(old))
        covered += abs(mean - math.log(0.9)) <= half
    assert 0.935 <= covered / runs <= 0.99  # the standard error of 95 % over 1,500 is 0.6 %; whole degrees widen a little


def test_better_and_worse_go_by_the_metric() -> None:
    shift = compare_unpaired([90.0, 91.0, 89.5], [100.0, 101.0, 99.5], higher_is_better=True)
    assert shift.change is Change.WORSE
    assert shift.low is not None
    assert shift.high is not None
    assert shift.low < shift.ratio < shift.high < 1
    assert compare_unpaired([90.0, 91.0, 89.5], [100.0, 101.0, 99.5], higher_is_better=False).change is Change.BETTER


def test_same_and_undecided() -> None:
    assert compare_unpaired([100.0, 100.1, 99.9], [100.0, 100.2, 99.8], higher_is_better=True).change is Change.SAME
    wide = compare_unpaired([80.0, 120.0, 101.0], [100.0, 100.2, 99.8], higher_is_better=True)
    assert wide.change is Change.UNDECIDED
    small = compare_unpaired([98.6, 98.5, 98.7], [100.0, 100.1, 99.9], higher_is_better=True, min_effect=0.015)
    assert small.change is Change.UNDECIDED
    assert "reaches beyond 1.5 %" in small.reason


def test_a_difference_below_the_noise_floor_is_none() -> None:
    values = [90.0, 90.1, 89.9], [100.0, 100.1, 99.9]
    assert compare_unpaired(*values, higher_is_better=True, noise_floor=0.05).change is Change.WORSE
    floored = compare_unpaired(*values, higher_is_better=True, noise_floor=0.2)
    assert floored.change is Change.UNDECIDED
    assert "noise floor of 20 %" in floored.reason


def test_one_value_gives_a_ratio_and_no_verdict() -> None:
    shift = compare_unpaired([50.0], [100.0, 100.0], higher_is_better=True)
    assert (shift.ratio, shift.low, shift.change) == (pytest.approx(0.5), None, None)
    assert shift.reason == "one value on the new side: no interval, no verdict"
    assert not is_beyond(shift, 0.03, higher_is_better=True)


def test_beyond_is_the_whole_interval() -> None:
    shift = compare_unpaired([90.0, 91.0, 89.0], [100.0, 101.0, 99.0], higher_is_better=True)
    assert shift.high is not None
    edge = 1 / shift.high - 1
    assert is_beyond(shift, edge - 1e-6, higher_is_better=True)
    assert not is_beyond(shift, edge + 1e-6, higher_is_better=True)
    slower = compare_unpaired([110.0, 111.0, 109.0], [100.0, 101.0, 99.0], higher_is_better=False)
    assert slower.low is not None
    assert is_beyond(slower, slower.low - 1 - 1e-6, higher_is_better=False)
    assert not is_beyond(slower, slower.low - 1 + 1e-6, higher_is_better=False)


def test_wild_values_have_finite_ends() -> None:
    shift = compare_unpaired([1e-6, 1e6], [1e-6, 1e6], higher_is_better=True)
    assert shift.high is not None
    assert math.isfinite(shift.high)
