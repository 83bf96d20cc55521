"""torch-compile's ways to start: built in one process, started from in another, and nothing compiled there."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import ahead
import pytest
import torch

from llmbench.artifacts import Store
from llmbench.building import Provider
from llmbench.engines import compilers, registry
from llmbench.engines.base import EngineError, Unsupported
from llmbench.engines.torch_engines import EagerEngine
from llmbench.engines.torch_start import LIBRARIES, StartableTorchCompileEngine
from llmbench.protocol import Job, Sampling, Status
from llmbench.supervise import WorkerFailed

pytestmark = pytest.mark.xdist_group("torch")
needs_compiler = pytest.mark.skipif(compilers.missing_compiler("cpu") is not None, reason=str(compilers.missing_compiler("cpu")))


def job_for(folder: Path, start: str) -> Job:
    return ahead.job_for(folder, "torch-compile", options={"start": start}, num_hidden_layers=1)


@needs_compiler
@pytest.mark.parametrize("start", ["bundle", "aot"])
def test_started_from_its_artifact_nothing_is_compiled(start: str, tmp_path: Path) -> None:
    compiler, calls = tmp_path / "c++", tmp_path / "calls"
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {calls}\nexec g++ "$@"\n')
    compiler.chmod(0o755)

    def environment(threads: int, caches: Path) -> dict[str, str]:
        return {**ahead.environment(threads, caches), "CXX": str(compiler)}

    def libraries() -> int:
        return sum(".so" in line for line in calls.read_text().splitlines()) if calls.exists() else 0

    job = job_for(tmp_path / "tiny", start)
    provider = Provider(Store(tmp_path / "engines"), environment, timeout_s=600)
    built = ahead.provide(provider, job, tmp_path / "build.log")
    assert not built.use.hit
    built.close()
    assert libraries() > 2
    found = ahead.provide(provider, job, tmp_path / "build.log")
    assert found.use.hit
    before = libraries()
    with ahead.worker_for(job, tmp_path / "log", environment(2, tmp_path / "caches")) as worker:
        report = worker.ask("load", timeout_s=300, artifact=str(found.path))["report"]
        first = worker.ask("generate", timeout_s=300, kind="starting_first_token", max_new_tokens=1, want_ids=True)["ids"]
        ids = worker.ask("generate", timeout_s=300, kind="warmup", max_new_tokens=12, want_ids=True)["ids"]
        compiled = worker.ask("compilation", timeout_s=60)["compilation"]
    assert libraries() == before
    assert report["settings"]["start"] == start
    assert report["settings"]["start_libraries"] > 2
    if start == "aot" or report["settings"]["caching_precompile"]:
        assert compiled is None  # nothing was traced either
    else:
        assert (compiled["cache_hits"], compiled["cache_misses"]) == (2, 0)
    if start == "bundle":
        assert report["settings"]["start_inductor"] == 2
    eager = EagerEngine()
    eager.load(job)
    assert ids == eager.generate(job.request)
    assert first == [ids[0][:1]]

    # An artifact that doesn't bring what it should is a failed row, not a cold start in silence.
    shutil.copytree(found.path, tmp_path / "emptied")
    shutil.rmtree(tmp_path / "emptied" / LIBRARIES)
    with (
        ahead.worker_for(job, tmp_path / "log", environment(2, tmp_path / "others")) as worker,
        pytest.raises(WorkerFailed, match="its artifact was not used") as caught,
    ):
        worker.ask("load", timeout_s=300, artifact=str(tmp_path / "emptied"))
        worker.ask("generate", timeout_s=300, kind="warmup", max_new_tokens=2)
    assert caught.value.status is Status.FAILED
    found.close()


def test_disk_and_cold_have_no_artifact(tmp_path: Path) -> None:
    engine = StartableTorchCompileEngine()
    assert engine.recipe(job_for(tmp_path / "tiny", "disk")) is None
    assert engine.recipe(job_for(tmp_path / "tiny", "cold")) is None
    assert engine.recipe(ahead.job_for(tmp_path / "tiny", "torch-compile")) is None


def test_the_recipe_follows_what_is_compiled(tmp_path: Path) -> None:
    engine = StartableTorchCompileEngine()
    job = job_for(tmp_path / "tiny", "aot")
    recipe = engine.recipe(job)
    assert recipe is not None
    assert recipe.executes

    def changed(**changes: object) -> bool:
        return engine.recipe(dataclasses.replace(job, request=dataclasses.replace(job.request, **changes))) != recipe

    assert not changed(prompt_ids=(3, 4, 5, 6, 7))
    assert changed(prompt_ids=(3, 4, 5))  # its graphs have static shapes
    assert changed(batch_size=2)
    assert changed(max_new_tokens=20)
    assert changed(sampling=Sampling(0.5))
    assert engine.recipe(job_for(tmp_path / "tiny", "bundle")) != recipe
    variant = dataclasses.replace(job.variant, options={"start": "aot", "mode": "max-autotune-no-cudagraphs"})
    assert engine.recipe(dataclasses.replace(job, variant=variant)) != recipe


def test_what_it_cannot_do_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = StartableTorchCompileEngine()
    with pytest.raises(Unsupported, match="no start 'warm'; known: disk, cold, bundle, aot"):
        engine.supports(job_for(tmp_path / "tiny", "warm"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(EngineError) as caught:
        engine.load(job_for(tmp_path / "tiny", "bundle"), tmp_path / "empty")
    assert caught.value.status is Status.LOAD_FAILED
    assert "\n" not in caught.value.reason
    with monkeypatch.context() as patch:
        patch.delattr(torch.compiler, "load_compiled_function")
        with pytest.raises(Unsupported, match=f"torch {torch.__version__}".replace("+", r"\+")):
            engine.supports(job_for(tmp_path / "tiny", "aot"))
    spec = registry.find("torch-compile")
    assert spec.artifact
    assert "start" in spec.options
