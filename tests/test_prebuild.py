"""Building ahead for hardware that isn't here, with an engine that runs on GPUs alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from building_engines import spec
from tiny import tiny_folder

from llmbench.comparison import Options
from llmbench.engines import registry
from llmbench.prebuild import build, exit_code
from llmbench.protocol import Status


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    plan = dataclasses.replace(spec("plan", "graph"), devices=("cuda",))
    monkeypatch.setattr(registry, "BUILT_IN", (*registry.BUILT_IN, spec("graph"), plan))
    return Options(str(tiny_folder(tmp_path)), engines="plan[level=3]", input_len=4, max_new_tokens=8, load_format="dummy", home=tmp_path)


def test_a_target_needs_no_gpu(options: Options) -> None:
    """Its source is built on the way."""
    (outcome,) = build(dataclasses.replace(options, device="cpu"), ["l4"], lambda text: None)
    assert (outcome.status, outcome.reason, outcome.targets) == (Status.OK, None, ("l4",))
    assert Path(outcome.path or "", "plan").read_text() == "plan of level 3"
    assert exit_code([outcome]) == 0
    assert sorted(path.name for path in (options.home / "engines").iterdir()) == ["graph", "plan"]


def test_without_a_target_the_device_must_be_here(options: Options) -> None:
    (outcome,) = build(dataclasses.replace(options, device="cpu"), [], lambda text: None)
    assert outcome.status is Status.UNAVAILABLE
    assert "does not run on cpu" in (outcome.reason or "")
    assert exit_code([outcome]) == 1
    assert not (options.home / "engines").exists()
