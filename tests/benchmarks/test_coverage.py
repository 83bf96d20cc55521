"""A small version of benchmarks/coverage.py with a fixed seed: intervals cover, verdicts are right, equal rows are seldom called different."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def coverage() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "coverage.py"
    spec = importlib.util.spec_from_file_location("coverage_by_simulation", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("noise", "rounds"), [(0.01, 5), (0.03, 10)])
def test_normal_noise(coverage: ModuleType, monkeypatch: pytest.MonkeyPatch, noise: float, rounds: int) -> None:
    monkeypatch.setattr(coverage, "AA_FACTOR", 1)
    line = coverage.normal(noise, rounds, runs=400, seed=3)
    # Binomial standard error at 95 % of 400: 1.1 %.
    assert 0.92 <= line.coverage <= 0.98
    assert line.right >= 0.93
    assert line.false_calls <= 0.08


def test_one_sided_disturbances_are_flagged_and_quiet_blocks_are_not(coverage: ModuleType) -> None:
    line = coverage.one_sided(0.01, 10, runs=150, seed=3, slowed=0.15, slowed_rows=(0, 1))
    assert line.found > 0.7
    assert line.false_flags < 0.02
    quiet = coverage.one_sided(0.01, 10, runs=150, seed=3, slowed=0.15, slowed_rows=())
    assert quiet.runs_flagged < 0.2
    assert line.half_width > 3 * quiet.half_width  # they stay in the figures, so the interval tells of them


def test_intervals_of_four_rows_hold_together(coverage: ModuleType) -> None:
    cover, called = coverage.together(0.03, 5, rows=4, runs=300, seed=3)
    assert cover >= 0.91
    assert called <= 0.09
