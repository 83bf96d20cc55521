"""What of the code and the environment artifacts' keys cover."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from llmbench.engines import sources
from llmbench.engines.registry import BUILT_IN, problem
from llmbench.engines.sources import compiler_environment, source_digest

pytestmark = pytest.mark.xdist_group("torch")


def test_a_changed_module_has_another_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "one_source.py").write_text("a = 1\nraise ImportError('it is read, not imported')\n")
    importlib.invalidate_caches()
    first = source_digest(["one_source", "llmbench.protocol"])
    assert first == source_digest(["one_source", "llmbench.protocol"])
    (tmp_path / "one_source.py").write_text("a = 2\n")
    assert source_digest(["one_source", "llmbench.protocol"]) != first


def test_what_steers_a_compiler_counts_and_where_its_caches_lie_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sources.os.environ):
        if name.startswith(("TORCHINDUCTOR_", "TORCH_COMPILE_", "TRITON_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/somewhere")
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    monkeypatch.setenv("CXX", "clang++")
    assert compiler_environment() == {"environment CXX": "clang++", "environment TORCHINDUCTOR_MAX_AUTOTUNE": "1"}


@pytest.mark.parametrize("spec", [spec for spec in BUILT_IN if spec.artifact], ids=lambda spec: spec.name)
def test_every_engine_that_builds_names_its_adapters_revision(spec) -> None:
    if problem(spec) is not None:
        pytest.skip(str(problem(spec)))
    module, _, name = spec.target.partition(":")
    found = getattr(importlib.import_module(module), name)
    loads_its_sources = spec.source is not None and spec.name == "onnxruntime"
    assert loads_its_sources or isinstance(found.ADAPTER, int)


@pytest.mark.parametrize("engine", ["onnx-graph", "openvino", "tensorrt-rtx"])
def test_what_writes_the_graph_is_in_the_keys_of_all_that_comes_from_it(engine: str, tmp_path: Path, monkeypatch) -> None:
    from graph.graph_jobs import make_job

    import llmbench.graph.contract as contract
    from llmbench.engines.registry import find

    module, _, name = find(engine).target.partition(":")
    adapter = importlib.import_module(module)
    job = make_job(tmp_path, engine)
    if engine == "tensorrt-rtx":
        import dataclasses

        job = dataclasses.replace(job, targets=("rtx-4090",))
    before = getattr(adapter, name)().recipe(job)
    assert before.options["graph"]
    for place in (adapter, importlib.import_module("llmbench.engines.tensorrt.engine")):
        for attribute in ("GRAPH_SOURCES", "_SOURCES"):
            if hasattr(place, attribute):
                monkeypatch.setattr(place, attribute, (*contract.GRAPH_SOURCES, "llmbench.protocol"))
    assert getattr(adapter, name)().recipe(job).options["graph"] != before.options["graph"]
