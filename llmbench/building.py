"""From a job to its artifact: asks the engine for its recipe, looks in the cache, and has a process of its own build what is missing.

A building process is never the one that is measured: what building leaves in memory, and in a library's caches, would be measured with it.
Shared by blocks and by `llmbench build`.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from llmbench import temporary
from llmbench.artifact_manifest import ArtifactError, Ingredients
from llmbench.artifacts import Built, Lease, Store
from llmbench.engines import registry
from llmbench.engines.registry import EngineSpec
from llmbench.protocol import ArtifactUse, Job, Recipe, Status, Variant, decode, encode
from llmbench.supervise import Worker, WorkerFailed

#: Environment of a worker from its threads and its folder of compiler caches; schedule.worker_environment.
Environment = Callable[[int, Path], dict[str, str]]


@dataclass
class Provided:
    """An artifact in use, until `close`."""

    lease: Lease
    use: ArtifactUse
    seconds: float  # looking, checking and building; waiting for others not counted

    @property
    def path(self) -> Path:
        return self.lease.path

    def close(self) -> None:
        self.lease.close()


@dataclass
class Provider:
    """Provides artifacts for the jobs of one command."""

    store: Store
    environment: Environment
    timeout_s: float = 1800.0  # of each step of a building process
    interpreters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # engine -> its interpreter, with flags
    say: Callable[[str], None] = lambda text: None
    _recipes: dict[str, Recipe | None] = field(default_factory=dict, repr=False)

    def provide(self, spec: EngineSpec, job: Job, recipe: Recipe | None, log: Path) -> Provided | None:
        """The artifact that `spec`'s engine loads for a job, built where it isn't here. Null where it needs none.

        recipe: the engine's own; null where it loads its source's artifact. log: where building processes write. Raises ArtifactError, and
        WorkerFailed with the status of what failed in a building process.
        """
        start_s = time.monotonic()
        if recipe is None:
            if spec.source is None:
                return None
            spec, job = self._source(spec, job)
            recipe = self.recipe(spec, job, log)
            if recipe is None:
                raise ArtifactError(f"{spec.name} has no recipe for this job")
        lease = self._obtain(spec, job, recipe, log)
        return Provided(lease, _use_of(lease), max(0.0, time.monotonic() - start_s - lease.waited_s))

    def _obtain(self, spec: EngineSpec, job: Job, recipe: Recipe, log: Path) -> Lease:
        if not job.checkpoint.identity:
            raise ArtifactError(f"the checkpoint of {spec.name} has no identity, so nothing can be kept of it")
        wanted = Ingredients.of(spec.name, recipe, job.checkpoint.identity, job.variant)
        return self.store.obtain(
            wanted, lambda into: self._build(spec, job, into, log), model=job.checkpoint.name, executes=recipe.executes, say=self.say
        )

    def _build(self, spec: EngineSpec, job: Job, into: Path, log: Path) -> Built:
        source: Lease | None = None
        if spec.source is not None:
            source_spec, source_job = self._source(spec, job)
            recipe = self.recipe(source_spec, source_job, log)
            source = self._obtain(source_spec, source_job, recipe, log) if recipe is not None else None
        self.say(f"building the artifact of {job.variant.label}, kept for later runs")
        try:
            with _Builder(self, spec, job, log) as worker:
                arguments = {"into": str(into), "source": str(source.path) if source else None}
                answer = worker.ask("build", timeout_s=self.timeout_s, **arguments)
                worker.close()
        finally:
            if source is not None:
                source.close()
        if source is None:
            return Built(answer.get("peak_bytes"))
        # Wall seconds of a source that was built just now are in this building's own; those that another process's building made this one
        # wait are in it too, and stand in that source's manifest as well.
        earlier_s = max(0.0, source.manifest.build_s - source.waited_s) if source.hit else 0.0
        return Built(answer.get("peak_bytes"), source.name, earlier_s)

    def recipe(self, spec: EngineSpec, job: Job, log: Path) -> Recipe | None:
        """What decides the artifact of a job, asked of a process of its own, once. Raises WorkerFailed where the engine can't do the job."""
        asked = repr((spec.name, job))
        if asked not in self._recipes:
            with _Builder(self, spec, job, log) as worker:
                answer = worker.ask("recipe", timeout_s=self.timeout_s)["recipe"]
                worker.close()
            self._recipes[asked] = decode(Recipe, answer) if answer is not None else None
        return self._recipes[asked]

    @staticmethod
    def _source(spec: EngineSpec, job: Job) -> tuple[EngineSpec, Job]:
        """The engine that a spec builds from, and its job: the options that both know are handed on."""
        assert spec.source is not None
        source = registry.find(spec.source)
        options = {name: value for name, value in job.variant.options.items() if name in source.options}
        variant = Variant(source.name, source.name, job.variant.dtype, job.variant.quantization, options)
        return source, dataclasses.replace(job, variant=variant)


class _Builder:
    """A worker with an open job and compiler caches that are thrown away: those of a run would otherwise be warm before its first block."""

    def __init__(self, provider: Provider, spec: EngineSpec, job: Job, log: Path) -> None:
        self._provider, self._spec, self._job, self._log = provider, spec, job, log

    def __enter__(self) -> Worker:
        provider = self._provider
        try:
            self._caches = temporary.folder("building")
        except OSError as error:
            raise WorkerFailed(
                Status.FAILED, f"no folder for a builder's caches can be made in {tempfile.gettempdir()}: {error.strerror or error}"
            ) from None
        try:
            python = provider.interpreters.get(self._spec.name, ())
            self._worker = Worker(self._log, python=python, environment=provider.environment(self._job.threads, Path(self._caches.name)))
            try:
                self._worker.ask("open", timeout_s=provider.timeout_s, target=self._spec.target, job=encode(self._job))
            except BaseException:
                self._worker.end()
                raise
        except BaseException:
            self._caches.cleanup()
            raise
        return self._worker

    def __exit__(self, *_: object) -> None:
        self._worker.end()
        self._caches.cleanup()


def _use_of(lease: Lease) -> ArtifactUse:
    manifest = lease.manifest
    return ArtifactUse(
        engine=manifest.ingredients.engine,
        key=manifest.key,
        hit=lease.hit,
        bytes=manifest.bytes,
        build_s=manifest.build_s,
        built_at=manifest.built_at,
        build_peak_bytes=manifest.build_peak_bytes,
        waited_s=lease.waited_s,
    )
