"""From a job to its artifact through real building processes: keys from recipes, sources, faults, kills, and what is told of it."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from building_engines import spec

from llmbench.artifact_manifest import MANIFEST, ArtifactError
from llmbench.artifacts import Store
from llmbench.building import Provided, Provider
from llmbench.engines import registry
from llmbench.engines.registry import EngineSpec
from llmbench.protocol import CheckpointRef, Job, Request, Status, Variant
from llmbench.schedule import worker_environment
from llmbench.supervise import WorkerFailed

TESTS = Path(__file__).parent
FAKE = registry.find("fake")


def job_for(engine: EngineSpec = FAKE, **options: Any) -> Job:
    variant = Variant(engine.name, engine.name, "float32", options=options)
    checkpoint = CheckpointRef("a model", "/nowhere", identity="c" * 64)
    return Job(checkpoint, variant, Request((3, 4, 5), 4, batch_size=2), "cpu", 1)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def provider(tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> Provider:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setattr(registry, "BUILT_IN", (*registry.BUILT_IN, spec("graph"), spec("plan", "graph"), spec("loads", "graph")))
    return Provider(Store(tmp_path / "engines"), worker_environment, timeout_s=120, say=said.append)


def provide(provider: Provider, engine: EngineSpec, job: Job, tmp_path: Path) -> Provided | None:
    """As a block does, and given back at once."""
    log = tmp_path / "log"
    provided = provider.provide(engine, job, provider.recipe(engine, job, log), log)
    if provided is not None:
        provided.close()
    return provided


def left_in(tmp_path: Path) -> list[str]:
    """What lies in engines/ beside locks and whole artifacts."""
    places = (tmp_path / "engines").glob("*/*")
    return [place.name for place in places if place.suffix != ".lock" and not (place / MANIFEST).is_file()]


def test_built_by_a_process_of_its_own_then_found(provider: Provider, said: list[str], tmp_path: Path) -> None:
    job = job_for(artifact_bytes=100_000)
    first = provide(provider, FAKE, job, tmp_path)
    assert first is not None
    assert not first.use.hit
    assert first.use.bytes == 100_000
    assert (first.use.build_peak_bytes or 0) >= 0
    assert 0 < first.use.build_s <= first.seconds
    assert said == ["building the artifact of fake, kept for later runs"]
    again = provide(provider, FAKE, job, tmp_path)
    assert again is not None
    assert again.use == dataclasses.replace(first.use, hit=True)
    assert again.seconds < first.use.build_s
    assert len(said) == 1


def test_no_recipe_no_artifact(provider: Provider, tmp_path: Path) -> None:
    assert provide(provider, FAKE, job_for(), tmp_path) is None
    assert not (tmp_path / "engines").exists()


@pytest.mark.parametrize(
    ("change", "hit"),
    [
        (lambda job: job, True),
        (lambda job: dataclasses.replace(job, variant=dataclasses.replace(job.variant, dtype="float16")), False),
        (lambda job: dataclasses.replace(job, variant=dataclasses.replace(job.variant, options={"artifact_bytes": 101})), False),
        (lambda job: dataclasses.replace(job, checkpoint=dataclasses.replace(job.checkpoint, identity="d" * 64)), False),
        (lambda job: dataclasses.replace(job, targets=("rtx-4090",)), False),
        (lambda job: dataclasses.replace(job, request=dataclasses.replace(job.request, max_new_tokens=5)), False),
        (lambda job: dataclasses.replace(job, request=dataclasses.replace(job.request, prompt_ids=(9, 9, 9))), True),
        (lambda job: dataclasses.replace(job, checkpoint=dataclasses.replace(job.checkpoint, name="another name")), True),
    ],
    ids=["the same", "dtype", "option", "weights", "target", "length", "another prompt", "another name"],
)
def test_what_makes_another_artifact(provider: Provider, tmp_path: Path, change: Any, hit: bool) -> None:
    job = job_for(artifact_bytes=100)
    provide(provider, FAKE, job, tmp_path)
    again = provide(provider, FAKE, change(job), tmp_path)
    assert again is not None
    assert again.use.hit is hit


def test_another_library_version_is_another_artifact(provider: Provider, tmp_path: Path) -> None:
    """The version as the builder's interpreter finds it, here through a module that lies in its way."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path/versioned.py").write_text(
        "from llmbench.engines.fake import FakeEngine\n"
        "class Engine(FakeEngine):\n"
        "    def versions(self):\n"
        "        return {'library': open(__file__ + '.version').read()}\n"
    )
    version = tmp_path / "path/versioned.py.version"
    engine = dataclasses.replace(FAKE, target="versioned:Engine")
    hits = []
    for text in ("1.0", "1.1", "1.0"):
        version.write_text(text)
        fresh = Provider(provider.store, lambda threads, caches: {**worker_environment(threads, caches), "PYTHONPATH": str(version.parent)})
        provided = provide(fresh, engine, job_for(artifact_bytes=10), tmp_path)
        assert provided is not None
        hits.append(provided.use.hit)
    assert hits == [False, False, True]


def test_a_checkpoint_without_identity_keeps_nothing(provider: Provider, tmp_path: Path) -> None:
    job = job_for(artifact_bytes=10)
    nameless = dataclasses.replace(job, checkpoint=dataclasses.replace(job.checkpoint, identity=""))
    with pytest.raises(ArtifactError, match="has no identity"):
        provide(provider, FAKE, nameless, tmp_path)


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ("error", Status.BUILD_FAILED, "told to fail"),
        ("oom", Status.OUT_OF_HOST_MEMORY, "can't allocate memory"),
        ("kill", Status.CRASHED, "SIGKILL during 'build'"),
        ("crash", Status.CRASHED, "SIGSEGV during 'build'"),
        ("exit", Status.CRASHED, "exit code 0 during 'build'"),
        ("grandchild", Status.CRASHED, "SIGKILL during 'build'"),
    ],
)
def test_a_builder_that_fails_leaves_nothing(provider: Provider, tmp_path: Path, fault: str, status: Status, words: str) -> None:
    """kill -9 of the building worker among them. The next build of the same key works: the fault is no part of it."""
    with pytest.raises(WorkerFailed, match=words) as caught:
        provide(provider, FAKE, job_for(artifact_bytes=1000, fault=fault, fault_at="build"), tmp_path)
    assert caught.value.status is status
    assert left_in(tmp_path) == []
    assert list((tmp_path / "engines/fake").iterdir()) == []
    provided = provide(provider, FAKE, job_for(artifact_bytes=1000), tmp_path)
    assert provided is not None
    assert not provided.use.hit


def test_a_builder_that_hangs_is_ended(provider: Provider, tmp_path: Path) -> None:
    job = job_for(artifact_bytes=1000, fault="ignore_term", fault_at="build")
    recipe = provider.recipe(FAKE, job, tmp_path / "log")
    provider.timeout_s = 10.0  # opening counts too, on a busy machine
    with pytest.raises(WorkerFailed, match="no answer to 'build' within 10 s") as caught:
        provider.provide(FAKE, job, recipe, tmp_path / "log")
    assert caught.value.status is Status.TIMED_OUT
    assert left_in(tmp_path) == []


def test_kill_9_of_the_parent_leaves_no_artifact(provider: Provider, tmp_path: Path) -> None:
    """In the middle of building: the worker dies with it, and the next build takes the half away."""
    parent = """
    import sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from building_engines import spec
    from test_building import job_for
    from llmbench.artifacts import Store
    from llmbench.building import Provider
    from llmbench.schedule import worker_environment
    engine, home = spec("kills-parent"), Path(sys.argv[2])
    provider, job = Provider(Store(home / "engines"), worker_environment), job_for(engine)
    provider.provide(engine, job, provider.recipe(engine, job, home / "log"), home / "log")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(parent), str(TESTS), str(tmp_path)], cwd=TESTS.parent, timeout=120)
    assert done.returncode == -9
    (left,) = left_in(tmp_path)
    assert left.endswith(".partial")
    assert (tmp_path / "engines/kills-parent" / left / "half").is_file()
    # The same key, built by one that ends: the graph engine under the killer's name.
    engine = dataclasses.replace(spec("graph"), name="kills-parent")
    provided = provide(provider, engine, job_for(engine), tmp_path)
    assert provided is not None
    assert not provided.use.hit
    assert provided.use.key == left[1:33]
    assert left_in(tmp_path) == []


def test_built_from_another_engines_artifact(provider: Provider, said: list[str], tmp_path: Path) -> None:
    """Which is kept too, with the options that both know, and counts in the seconds once."""
    engine = spec("plan", "graph")
    provided = provide(provider, engine, job_for(engine, level=2), tmp_path)
    assert provided is not None
    assert (provided.path / "plan").read_text() == "plan of level 2"
    (graph,) = (name for name in provider.store.names() if name[0] == "graph")
    assert provided.lease.manifest.source == "/".join(graph)
    assert provided.lease.manifest.executes
    graph_s = provider.store.read_manifest(*graph).build_s
    assert provided.use.build_s > graph_s
    assert [line.partition(",")[0] for line in said] == ["building the artifact of graph", "building the artifact of plan"]
    # Another plan of the same graph finds it, and what that took counts still.
    more = dataclasses.replace(job_for(engine, level=2), targets=("rtx-4090",))
    other = provide(provider, engine, more, tmp_path)
    assert other is not None
    assert not other.use.hit
    assert other.use.build_s > graph_s
    assert len(said) == 3
    assert sum(name[0] == "graph" for name in provider.store.names()) == 1


def test_loaded_from_another_engines_artifact_as_it_is(provider: Provider, tmp_path: Path) -> None:
    engine = spec("loads", "graph")
    provided = provide(provider, engine, job_for(engine, level=5), tmp_path)
    assert provided is not None
    assert provided.use.engine == "graph"
    assert (provided.path / "graph").read_text() == "level 5"


def test_a_source_in_use_while_building_is_given_back(provider: Provider, tmp_path: Path) -> None:
    engine = spec("plan", "graph")
    provide(provider, engine, job_for(engine), tmp_path)
    for name in list(provider.store.names()):
        assert Store(provider.store.root).remove(*name)


def test_a_recipe_is_asked_once(provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question is a process, which imports the engine's libraries."""
    from llmbench import building

    started = []
    real = building.Worker

    def counting(*arguments: Any, **named: Any) -> Any:
        started.append(arguments)
        return real(*arguments, **named)

    monkeypatch.setattr(building, "Worker", counting)
    job = job_for(artifact_bytes=10)
    provide(provider, FAKE, job, tmp_path)
    assert len(started) == 2
    provide(provider, FAKE, job, tmp_path)
    assert len(started) == 2


def test_no_room_for_temporary_files_is_one_line(provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(WorkerFailed, match="no folder for a builder's caches"):
        provide(provider, FAKE, job_for(artifact_bytes=10), tmp_path)
