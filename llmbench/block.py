"""One block: the steps that a worker is led through for one variant, from its start to its last sample.

The same for every engine. What was measured before a fault stays in the block.
"""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from llmbench.accuracy import gather_fresh, gather_logits
from llmbench.artifact_manifest import ArtifactError
from llmbench.building import Provided, Provider
from llmbench.checkpoints.identity import stamp
from llmbench.engines.registry import EngineSpec
from llmbench.machine_state import read_state
from llmbench.plausibility import block_fault, count_fault, vocabulary_fault
from llmbench.protocol import ArtifactUse, Bandwidth, Block, Compilation, EngineReport, Job, Plan, Recipe, Sample, Status, decode, encode
from llmbench.supervise import Worker, WorkerFailed


class Steps(Protocol):
    """Told what a block is about to do, between samples and never during one."""

    def step(self, text: str) -> None: ...

    def message(self, text: str) -> None: ...


@dataclass(frozen=True)
class BlockSetup:
    """What a block needs beside the plan."""

    spec: EngineSpec
    job: Job
    log: Path
    environment: dict[str, str]
    vocab: int
    stamp: str  # of the checkpoint when the run began
    python: tuple[str, ...] = ()  # another interpreter, with its flags
    provider: Provider | None = None  # of artifacts; null where the engine keeps none
    logits: Path | None = None  # where the engine's logits go; None: accuracy isn't looked at in this block
    trace: Path | None = None  # where torch.profiler's trace of a generation goes; None: no trace of this block


def reused(label: str, use: ArtifactUse) -> str:
    """A line that says which artifact is loaded again, and what that saves."""
    place, size = f"engines/{use.engine}/{use.key}", f"{use.bytes / 2**20:.1f} MiB"
    return f"{label}: reuses {place} ({size}, built {use.built_at[:10]} in {use.build_s:.1f} s)"


def utc_now() -> str:
    """The present time, UTC, ISO 8601 to the second."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def measure_block(setup: BlockSetup, plan: Plan, block: Block, steps: Steps, iters_for: Callable[[float], int]) -> None:
    """Fills `block`, one step after the other. A fault becomes its status and reason; Ctrl-C makes it interrupted and is raised again.

    `iters_for` is asked once, with the last warm-up's seconds, how many samples to take: the time budget may want fewer.
    """
    with BlockMeasurement(setup, plan, block, steps) as measurement:
        if measurement.prepare():
            iters = iters_for(measurement.warmup_s) if measurement.warmup_s is not None else plan.num_iters
            for number in range(iters):
                if not measurement.sample(number, iters):
                    return
            measurement.finish()


class BlockMeasurement:
    """A block in the making, so that several can be interleaved: prepare, then sample as often as wanted, then finish.

    Each of the three answers whether the block is still good. A fault ends the worker and becomes the block's status; the samples taken
    before it stay. As a context manager it ends the worker, and marks the block interrupted where Ctrl-C ends the whole.
    """

    def __init__(self, setup: BlockSetup, plan: Plan, block: Block, steps: Steps) -> None:
        self.setup, self.plan, self.block, self.steps = setup, plan, block, steps
        self.warmup_s: float | None = None  # the last warm-up
        self._worker: Worker | None = None
        self._artifact: Provided | None = None
        self._new_tokens = setup.job.request.max_new_tokens

    def __enter__(self) -> BlockMeasurement:
        self.block.started_at = utc_now()
        self.block.state_before = read_state(self.setup.job.device)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()
        if isinstance(error, KeyboardInterrupt):
            self.block.status, self.block.reason = Status.INTERRUPTED, "Ctrl-C or a signal"

    def prepare(self) -> bool:
        """Starts the worker, loads and warms up."""
        return self._guard(self._prepare)

    def sample(self, number: int, iters: int) -> bool:
        """Takes sample `number` of `iters`, with a generation of one token before it."""
        return self._guard(lambda: self._sample(number, iters))

    def finish(self) -> bool:
        """Reads memory, bandwidth and, where asked, logits; judges the samples; lets the worker leave."""
        return self._guard(self._finish)

    def _guard(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except WorkerFailed as failure:
            self.block.status, self.block.reason = failure.status, failure.reason
        except (KeyError, TypeError, ValueError, AttributeError) as error:  # an engine's figures are not what the protocol says
            self.block.status, self.block.reason = (
                Status.FAILED,
                f"the engine's answer can't be read: {type(error).__name__}: {error}"[:400],
            )
        except ArtifactError as error:
            self.block.status, self.block.reason = error.status, error.reason
        else:
            return True
        self._end()
        return False

    def _end(self) -> None:
        """Ends the worker, and only then gives the artifact free that it may have mapped."""
        if self._worker is not None:
            self._worker.end()
        if self._artifact is not None:
            self._artifact.close()
            self._artifact = None

    def _prepare(self) -> None:
        self.steps.step("starting")
        if stamp(Path(self.setup.job.checkpoint.path)) != self.setup.stamp:
            raise WorkerFailed(Status.LOAD_FAILED, f"the checkpoint changed after the run began: {self.setup.job.checkpoint.path}")
        start_s = time.monotonic()
        self._worker = Worker(self.setup.log, python=self.setup.python, environment=self.setup.environment)
        self.block.versions = self._ask("open", target=self.setup.spec.target, job=encode(self.setup.job))["versions"]
        self.block.start_s = time.monotonic() - start_s
        self._provide_artifact()
        self._probe_bandwidth()
        self.steps.step("loading")
        loaded = self._ask("load", artifact=str(self._artifact.path) if self._artifact else None)
        self.block.load_s = loaded["load_s"]
        self.block.report = decode(EngineReport, loaded["report"])
        self._end_phase("load", baseline_bytes=loaded["baseline_bytes"])
        if self.plan.startup:
            self.steps.step("the first token")
            self._generate("starting_first_token", 1)
        for number in range(self.plan.num_iters_warmup):
            compiles = " (compiles here)" if self.setup.spec.compiles and number == 0 else ""
            self.steps.step(f"warming up {number + 1} of {self.plan.num_iters_warmup}{compiles}")
            self.warmup_s = self._generate("warmup", self._new_tokens).wall_s
        self._end_phase("warmup")

    def _provide_artifact(self) -> None:
        """Has the artifact found or built, by another process, where this job's engine keeps one."""
        provider, spec = self.setup.provider, self.setup.spec
        if provider is None or not spec.artifact:
            return
        recipe = self._ask("recipe")["recipe"]
        if recipe is None and spec.source is None:
            return
        self.steps.step("looking for its artifact, building it where it isn't here")
        log = self.setup.log.with_suffix(".build.log")
        self._artifact = provider.provide(spec, self.setup.job, decode(Recipe, recipe) if recipe is not None else None, log)
        if self._artifact is not None:
            self.block.build_s, self.block.artifact = self._artifact.seconds, self._artifact.use
            if self._artifact.use.hit and self.block.round == 0:
                self.steps.message(reused(self.setup.job.variant.label, self._artifact.use))

    def _sample(self, number: int, iters: int) -> None:
        self.steps.step(f"sample {number + 1} of {iters}")
        self._generate("first_token", 1)
        self._generate("sample", self._new_tokens, want_ids=number == iters - 1)

    def _finish(self) -> None:
        self.block.state_after = read_state(self.setup.job.device)  # while the worker lives: clocks and throttling as under load
        self._end_phase("steady")
        self._probe_bandwidth()
        compiled = self._ask("compilation")["compilation"]
        self.block.compilation = decode(Compilation, compiled) if compiled is not None else None
        if self.block.round == 0:
            gather_fresh(self._ask, self.block, self.setup.job, self.setup.vocab)
        if self.setup.logits is not None:
            self.steps.step("reading its logits")
            gather_logits(self._ask, self.block, self.setup.job, self.setup.logits)
        fault = block_fault(self.block, len(self.setup.job.request.prompt_ids))
        if fault is not None:
            raise WorkerFailed(*fault, alive=True)
        if self.setup.trace is not None:
            self._write_trace(self.setup.trace)
        assert self._worker is not None
        self._worker.close()

    def _write_trace(self, into: Path) -> None:
        """Last of all, as a profiler leaves its traces in a process. What can't be traced is told and fails nothing."""
        self.steps.step("writing a trace")
        try:
            into.parent.mkdir(exist_ok=True)
            self._ask("profile", into=str(into))
        except (WorkerFailed, OSError) as failure:
            into.unlink(missing_ok=True)
            self.steps.message(f"{self.setup.job.variant.label}: no trace: {failure}")
        else:
            self.block.trace = f"{into.parent.name}/{into.name}"

    def _ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        assert self._worker is not None
        return self._worker.ask(do, timeout_s=self.plan.timeout_s, **arguments)

    def _generate(self, kind: str, new_tokens: int, want_ids: bool = False) -> Sample:
        answer = self._ask("generate", kind=kind, max_new_tokens=new_tokens, want_ids=want_ids)
        sample = decode(Sample, answer["sample"])
        fault = count_fault(sample, self.setup.job.request.batch_size, new_tokens)
        if fault is None and want_ids:
            self.block.ids = answer["ids"]
            fault = vocabulary_fault(answer["ids"], self.setup.vocab)
        if fault is not None:  # a wrong count makes its rate wrong, so the sample is not kept
            raise WorkerFailed(Status.WRONG_COUNT, fault, alive=True)
        self.block.samples.append(sample)
        return sample

    def _end_phase(self, phase: str, **also: int | None) -> None:
        peaks = self._ask("end_phase")
        if self.plan.interleave:  # the device's use is that of all the processes that live side by side
            peaks["device_peak_bytes"] = None
        changes = {f"{phase}_peak_bytes": peaks["peak_bytes"], f"device_{phase}_peak_bytes": peaks["device_peak_bytes"], **also}
        self.block.memory = dataclasses.replace(self.block.memory, **changes)

    def _probe_bandwidth(self) -> None:
        if self.setup.spec.reads_weights:
            self.steps.step("reading the memory's bandwidth")
            answer = self._ask("bandwidth", device=self.setup.job.device, threads=self.setup.job.threads)
            self.block.bandwidth.append(decode(Bandwidth, answer["bandwidth"]))
        else:
            self.block.bandwidth.append(Bandwidth(None, f"{self.setup.spec.name} reads no weights"))
