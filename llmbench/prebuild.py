"""`llmbench build` without the command line: has artifacts built ahead of the runs that load them, for this machine or for hardware that
isn't here. The job is settled as `compare` settles it, so that a later run with the same options finds what was built.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmbench.artifact_manifest import ArtifactError
from llmbench.artifacts import Store
from llmbench.building import Provider
from llmbench.comparison import Options, UsageError, prepare
from llmbench.engines import registry
from llmbench.protocol import Status
from llmbench.schedule import Contestant, worker_environment
from llmbench.supervise import WorkerFailed


@dataclass(frozen=True)
class Outcome:
    """What became of one variant's artifact; figures are null where there is none."""

    label: str
    status: Status
    reason: str | None = None
    engine: str | None = None  # whose folder it lies in
    key: str | None = None
    path: str | None = None
    hit: bool | None = None  # it was here
    bytes: int | None = None
    seconds: float | None = None  # of this command, waiting for others left out
    build_s: float | None = None  # of its building, whenever that was
    built_at: str | None = None
    build_peak_bytes: int | None = None  # of the building process
    targets: tuple[str, ...] = ()
    log: str | None = None  # where the building process wrote, kept where it failed


def build(options: Options, targets: Sequence[str], say: Callable[[str], None]) -> list[Outcome]:
    """Has the artifact of each variant in options.engines found or built. Raises UsageError, SetupError.

    targets: hardware by name, llmbench.hardware's; empty: this machine's device.
    """
    prepared = prepare(options, say=say, building_for=_targets(options, targets))
    interpreters = {entry.spec.name: entry.python for entry in prepared.contestants if entry.python}
    provider = Provider(Store(options.home / "engines"), worker_environment, options.plan.timeout_s, interpreters, say)
    return [_build(entry, provider, options.home / "results" / "build.logs") for entry in prepared.contestants]


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """As compare's: 0 all are there, 1 none is, 3 some are."""
    good = sum(outcome.status is Status.OK for outcome in outcomes)
    return 0 if good == len(outcomes) else 3 if good else 1


def _targets(options: Options, targets: Sequence[str]) -> tuple[str, ...]:
    """The names as the profiles have them, each once. Unknown ones, and engines that build for the machine's own device alone, are told before
    anything is looked at."""
    if not targets:
        return ()
    from llmbench import hardware
    from llmbench.variants import parse_variants

    try:
        named = parse_variants(options.engines or "", "auto")
    except ValueError as error:  # an unknown engine, or a variant that can't be read
        raise UsageError(str(error)) from None
    for spec, _ in named:
        if not spec.targets:
            able = [name for name, other in registry.engines().items() if other.targets]
            raise UsageError(f"--target: {spec.name} builds for the device that is here and no other; {', '.join(able)} can")
    try:
        return tuple(dict.fromkeys(hardware.find(name).name for name in targets))
    except hardware.UnknownHardware as error:
        raise UsageError(f"--target: {error}") from None


def _build(entry: Contestant, provider: Provider, logs: Path) -> Outcome:
    label, spec = entry.row.variant.label, entry.spec
    if entry.row.status is not Status.OK:
        return Outcome(label, entry.row.status, entry.row.reason)
    if not spec.artifact:
        return Outcome(label, Status.UNSUPPORTED, f"{spec.name} builds nothing that could be kept")
    log = logs / f"{re.sub(r'[^A-Za-z0-9._=-]+', '-', label).strip('-.')[:100]}.log"
    try:
        logs.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        recipe = provider.recipe(spec, entry.job, log)
        provided = provider.provide(spec, entry.job, recipe, log)
    except (WorkerFailed, ArtifactError) as error:
        return Outcome(label, error.status, error.reason, log=str(log) if log.exists() else None)
    except OSError as error:
        return Outcome(label, Status.FAILED, f"{logs} can't be written: {error.strerror or error}")
    log.unlink(missing_ok=True)
    if provided is None:
        return Outcome(label, Status.UNSUPPORTED, f"{spec.name} builds nothing with these options")
    with_lease, use = provided.lease, provided.use
    provided.close()
    return Outcome(
        label,
        Status.OK,
        path=str(with_lease.path),
        seconds=provided.seconds,
        targets=with_lease.manifest.ingredients.targets,
        **{
            name: value
            for name, value in dataclasses.asdict(use).items()
            if name in ("engine", "key", "hit", "bytes", "build_s", "built_at", "build_peak_bytes")
        },
    )
