"""Medians, deviations and ratios against numbers worked out by hand."""

from __future__ import annotations

import pytest

from llmbench.statistics import deviation, geometric_mean, median, paired_ratios


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


def test_geometric_mean() -> None:
    assert geometric_mean([2.0, 4.0, 1.0]) == pytest.approx(2.0)
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert geometric_mean([]) is None


def test_paired_ratios_take_only_shared_rounds() -> None:
    assert paired_ratios({2: 30.0, 0: 10.0, 1: 20.0}, {0: 5.0, 2: 10.0, 3: 1.0}) == [2.0, 3.0]
    assert paired_ratios({0: 1.0}, {}) == []
