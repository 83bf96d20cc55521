"""A small version of benchmarks/gate.py with a fixed seed: what docs/ci.md says of false alarms and of power."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy
import pytest


@pytest.fixture(scope="module")
def gate() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "gate.py"
    spec = importlib.util.spec_from_file_location("gate_by_simulation", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def share(gate: ModuleType, slower: float, *world: object) -> float:
    return float(gate.stopped(numpy.random.default_rng(2), gate.World(*world), slower, 100))


def test_a_quiet_machine_stops_a_tenth_and_nothing_equal(gate: ModuleType) -> None:
    assert share(gate, 0.0, "tokens", 1, 5, 0.01, 0.0) == 0
    assert share(gate, 0.1, "tokens", 1, 5, 0.01, 0.0) == 1


def test_hours_that_differ_alarm_unless_the_baseline_or_several_runs_take_them_out(gate: ModuleType) -> None:
    assert share(gate, 0.0, "tokens", 1, 5, 0.01, 0.05) > 0.15
    assert share(gate, 0.0, "speedup", 1, 5, 0.01, 0.05) == 0
    assert share(gate, 0.1, "speedup", 1, 5, 0.01, 0.05) > 0.9
    assert share(gate, 0.0, "tokens", 5, 5, 0.01, 0.05) < 0.03
