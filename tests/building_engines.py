"""Engines that build in ways the fake one doesn't: from another's artifact, or with their parent killed in the middle. Tests put this folder
on the worker's PYTHONPATH."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from llmbench.engines.fake import FakeEngine
from llmbench.engines.registry import EngineSpec
from llmbench.protocol import EngineReport, Job, Recipe


class Graph(FakeEngine):
    """A builder of what others build from or load."""

    def supports(self, job: Job) -> None:
        pass

    def recipe(self, job: Job) -> Recipe | None:
        return Recipe(1, {"python": "3"}, ("any",), options={"level": job.variant.options.get("level", 0)})

    def build(self, job: Job, into: Path, source: Path | None = None) -> None:
        (into / "graph").write_text(f"level {job.variant.options.get('level', 0)}")


class Plan(Graph):
    """Builds from the graph."""

    def recipe(self, job: Job) -> Recipe | None:
        return Recipe(1, {"python": "3"}, job.targets or ("here",), options=dict(job.variant.options), executes=True)

    def build(self, job: Job, into: Path, source: Path | None = None) -> None:
        assert source is not None
        (into / "plan").write_text(f"plan of {(source / 'graph').read_text()}")


class Loads(Graph):
    """Builds nothing: loads the graph as it is."""

    def recipe(self, job: Job) -> Recipe | None:
        return None

    def load(self, job: Job, artifact: Path | None) -> EngineReport:
        assert artifact is not None
        return EngineReport("float32", "float32", settings={"graph": (artifact / "graph").read_text()})


class KillsParent(Graph):
    """kill -9 of the parent when half is written; would then go on."""

    def build(self, job: Job, into: Path, source: Path | None = None) -> None:
        (into / "half").write_bytes(bytes(1000))
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)


def spec(name: str, source: str | None = None) -> EngineSpec:
    classes = {"graph": Graph, "plan": Plan, "loads": Loads, "kills-parent": KillsParent}
    target = f"building_engines:{classes[name].__name__}"
    return EngineSpec(name, target, "a test's", artifact=True, targets=True, source=source, options={"level": "any"}, reads_weights=False)
