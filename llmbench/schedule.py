"""The main loop of the parent: rounds of blocks, one block of each variant in a round, in an order shuffled anew each round.

A failure is a row, not an end. After each block the run is handed to `save`, so that what was measured is on disk before the next one starts.
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from llmbench import accuracy, budget, temporary
from llmbench.artifacts import Store
from llmbench.block import BlockMeasurement, BlockSetup, Steps, measure_block, utc_now
from llmbench.building import Provider
from llmbench.checkpoints.identity import stamp
from llmbench.engines.registry import EngineSpec
from llmbench.machine_state import memory_available
from llmbench.plausibility import bandwidth_fault
from llmbench.protocol import DTYPE_BYTES, Block, Job, Row, Run, Status
from llmbench.results.files import RunFileError
from llmbench.results.summary import summarise


class Progress(Steps, Protocol):
    """What the loop tells of itself; see views.progress."""

    def block(self, label: str, round: int, rounds: int) -> None: ...

    def done(self, block: Block) -> None: ...


@dataclass(frozen=True)
class Contestant:
    """A row that can be measured, and how."""

    row: Row
    spec: EngineSpec
    job: Job
    python: tuple[str, ...] = ()


class Schedule:
    """Measures the contestants of one run."""

    def __init__(
        self,
        run: Run,
        contestants: list[Contestant],
        *,
        vocab: int,
        logs: Path,
        save: Callable[[Run], None],
        progress: Progress,
        references: Path | None = None,
        artifacts: Store | None = None,
    ) -> None:
        """logs: an existing folder beside the run file, for what the workers print. references: where reference logits are kept.
        artifacts: where engines that build keep what they built; without it they can't be measured."""
        self._provider = (
            Provider(
                artifacts,
                worker_environment,
                run.plan.timeout_s,
                {contestant.spec.name: contestant.python for contestant in contestants if contestant.python},
                progress.message,
            )
            if artifacts is not None
            else None
        )
        self._references = references
        self._run, self._contestants, self._vocab, self._logs = run, contestants, vocab, logs
        self._save, self._progress = save, progress
        self._start_s = 0.0
        self._is_first_round = True  # that this process measures: a resumed run's earlier rounds tell nothing of how long one takes
        self._stamp = stamp(Path(contestants[0].job.checkpoint.path)) if contestants else ""
        self.unsaved: str | None = None  # why the run file doesn't hold all that was measured
        self._block_s: dict[
            str, float
        ] = {}  # each variant's last block: wall seconds without its samples, cold compilation mostly taken out
        self._begun: set[str] = set()  # variants whose compiler caches are no longer empty; a resumed run begins with new ones
        self._sample_s: dict[str, float] = {}  # one sample of each variant, its first-token generation included

    def measure(self) -> None:
        """Fills the run's rows. Ctrl-C ends it with what was measured, the run marked interrupted, and is raised again."""
        plan = self._run.plan
        self._start_s = time.monotonic()
        # Compiler caches of this run's own, one folder a variant: its first block is cold, whatever ran on this machine before.
        temporary.sweep()
        caches = Path(tempfile.mkdtemp(prefix=temporary.prefix("caches")))
        try:
            rounds, iters = plan.rounds, plan.num_iters
            number = 0
            unchecked = "accuracy was not checked (--no-accuracy)"
            if not plan.accuracy and unchecked not in self._run.notes:  # a resumed run says it already
                self._run.notes.append(unchecked)
            while number < rounds:
                if self._sample_s and plan.time_budget_s is not None:
                    left, iters = self._fit(plan.rounds - number)
                    rounds = number + left
                if number >= rounds or not any(contestant.row.status is Status.OK for contestant in self._contestants):
                    break
                self._is_first_round = not self._sample_s
                self._measure_round(number, rounds, iters, caches)
                self._check_accuracy(caches)
                number += 1
            self._note_cuts(number)
        except KeyboardInterrupt:
            self._run.interrupted = True
            raise
        finally:
            shutil.rmtree(caches, ignore_errors=True)
            self._check_plausible()
            accuracy.note_differences(self._run)
            self._run.finished_at = utc_now()
            self._keep()

    def _measure_round(self, number: int, rounds: int, iters: int, caches: Path) -> None:
        """One block of each variant that hasn't failed."""
        order = [
            contestant
            for contestant in self._contestants
            if contestant.row.status is Status.OK
            and all(block.round != number for block in contestant.row.blocks)  # resumed runs have some
        ]
        random.Random(f"{self._run.plan.seed}/{number}").shuffle(order)
        if self._run.plan.interleave and self._fits_side_by_side(order):
            self._interleave(order, number, rounds, iters, caches)
            return
        for position, contestant in enumerate(order):
            block, setup = self._begin(contestant, number, rounds, caches)
            start_s = time.monotonic()
            try:
                measure_block(setup, self._run.plan, block, self._progress, self._iters_for(number, iters, len(order) - position))
            finally:
                contestant.row.add(block)
                self._keep()
            self._account(contestant.row.variant.label, block, time.monotonic() - start_s)
            self._note_versions(contestant.row, block)
            self._progress.done(block)

    def _note_versions(self, row: Row, block: Block) -> None:
        """Says where a resumed row goes on with other libraries than it began with: its figures are then of neither."""
        first = next((other.versions for other in row.blocks if other.versions), {})
        changed = [f"{name} {first.get(name)} and {version}" for name, version in block.versions.items() if first.get(name) != version]
        note = f"{row.variant.label} was measured with different libraries: {', '.join(changed)}"
        if changed and note not in self._run.notes:
            self._run.notes.append(note)

    def _interleave(self, order: list[Contestant], number: int, rounds: int, iters: int, caches: Path) -> None:
        """The round's processes side by side: all are warmed up, then take single samples in turn, forwards and backwards (ABBA).

        What changes on the machine within seconds then falls on all variants alike. Only one of them computes at a time.
        """
        plan = self._run.plan
        measurements: list[tuple[Contestant, BlockMeasurement]] = []
        start_s = time.monotonic()
        with contextlib.ExitStack() as stack:
            try:
                for contestant in order:
                    block, setup = self._begin(contestant, number, rounds, caches)
                    measurement = stack.enter_context(BlockMeasurement(setup, plan, block, self._progress))
                    measurements.append((contestant, measurement))
                    measurement.prepare()
                sample_s = sum(entry.warmup_s or 0.0 for _, entry in measurements)
                iters = self._iters_for(number, iters, 1)(sample_s)
                for index in range(iters):
                    turn = measurements if index % 2 == 0 else measurements[::-1]
                    for contestant, measurement in turn:
                        if measurement.block.status is Status.OK:
                            self._progress.block(contestant.row.variant.label, number, rounds)
                            measurement.sample(index, iters)
                for _, measurement in measurements:
                    if measurement.block.status is Status.OK:
                        measurement.finish()
            except KeyboardInterrupt:
                for _, measurement in measurements:
                    if measurement.block.status is Status.OK:
                        measurement.block.status, measurement.block.reason = Status.INTERRUPTED, "Ctrl-C or a signal"
                raise
            finally:
                for contestant, measurement in measurements:
                    contestant.row.add(measurement.block)
                self._keep()
        for contestant, measurement in measurements:
            self._account(contestant.row.variant.label, measurement.block, (time.monotonic() - start_s) / len(measurements))
            self._progress.block(contestant.row.variant.label, number, rounds)
            self._progress.done(measurement.block)

    def _begin(self, contestant: Contestant, number: int, rounds: int, caches: Path) -> tuple[Block, BlockSetup]:
        """An empty block, and what it needs."""
        label = contestant.row.variant.label
        self._progress.block(label, number, rounds)
        block = Block(round=number, cold=label not in self._begun)
        self._begun.add(label)
        name = f"{self._contestants.index(contestant)}-{_file_name(label)}"
        log = self._logs / f"{name}-round{number}.log"
        with contextlib.suppress(OSError):  # someone may have removed it; a missing log is no reason to stop
            self._logs.mkdir(parents=True, exist_ok=True)
        block.log = f"{self._logs.name}/{log.name}"
        setup = BlockSetup(
            spec=contestant.spec,
            job=contestant.job,
            log=log,
            environment=worker_environment(contestant.job.threads, self._caches_of(contestant, caches / name, number)),
            provider=self._provider if contestant.spec.artifact else None,
            vocab=self._vocab,
            stamp=self._stamp,
            python=contestant.python,
            logits=self._logits_file(contestant, caches) if self._wants_accuracy(contestant) else None,
            trace=self._logs.with_suffix(".traces") / f"{name}.json.gz" if self._wants_trace(contestant) else None,
        )
        return block, setup

    def _wants_trace(self, contestant: Contestant) -> bool:
        return self._run.plan.profile and not any(block.trace for block in contestant.row.blocks)

    @staticmethod
    def _caches_of(contestant: Contestant, folder: Path, number: int) -> Path:
        """The variant's folder of compiler caches: a new one in each round where the variant says that it starts in another way than from them."""
        return folder if contestant.job.variant.options.get("start", "disk") == "disk" else folder.with_name(f"{folder.name}-round{number}")

    def _wants_accuracy(self, contestant: Contestant) -> bool:
        return self._run.plan.accuracy and contestant.spec.reads_weights and not any(block.accuracy for block in contestant.row.blocks)

    def _logits_file(self, contestant: Contestant, caches: Path) -> Path:
        return caches / f"{self._contestants.index(contestant)}.logits"

    def _check_accuracy(self, caches: Path) -> None:
        """Compares with the reference what wrote logits, or only ids, in this round and has no verdict yet."""
        fresh = [
            entry for entry in self._contestants if any(block.accuracy and block.accuracy.method == "pending" for block in entry.row.blocks)
        ]
        if not fresh:
            return
        accuracy.check_rows(
            self._run,
            {entry.row.variant.label: entry.job for entry in fresh},
            {entry.row.variant.label: self._logits_file(entry, caches) for entry in fresh},
            cache=self._references,
            log=self._logs / "accuracy.log",
            environment=worker_environment(self._run.threads, caches / "accuracy"),
            progress=self._progress,
        )
        self._keep()

    def _keep(self) -> None:
        """Saves the run; where that fails, says so and goes on: what is measured can still be shown, and a later save may work."""
        try:
            self._save(self._run)
            self.unsaved = None
        except RunFileError as error:
            if self.unsaved is None:
                self._progress.message(f"{error}; measuring goes on")
            self.unsaved = str(error)

    def _fits_side_by_side(self, order: list[Contestant]) -> bool:
        """Whether the weights of all variants fit in the free memory at once, with a gigabyte for each process; says so where they don't."""
        run = self._run
        device = run.machine.device.startswith("cuda")
        free = run.machine.device_memory_bytes if device else memory_available()
        needed = sum(
            run.model.parameters * DTYPE_BYTES[contestant.job.variant.dtype] + 2**30
            for contestant in order
            if contestant.spec.reads_weights
        )
        if free is None or needed <= free:
            return True
        note = (
            f"not interleaved: {len(order)} processes side by side need some {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free; "
            "blocks run one after another"
        )
        if note not in run.notes:
            run.notes.append(note)
            self._progress.message(note)
        return False

    def _iters_for(self, number: int, iters: int, blocks_left: int) -> Callable[[float], int]:
        budget_s = self._run.plan.time_budget_s
        if budget_s is None or not self._is_first_round:
            return lambda _sample_s: iters
        end_s = self._start_s + budget_s
        return lambda sample_s: budget.first_block_iters(end_s - time.monotonic(), blocks_left, sample_s, iters)

    def _account(self, label: str, block: Block, wall_s: float) -> None:
        samples = [sample.wall_s for sample in block.of_kind("sample")]
        if not samples:
            return
        timed_s = sum(samples) + sum(sample.wall_s for sample in block.of_kind("first_token"))
        self._sample_s[label] = timed_s / len(samples)
        warmups = [sample.wall_s for sample in block.of_kind("warmup")]
        compile_s = max(0.0, sum(warmups) - len(warmups) * self._sample_s[label]) if block.cold else 0.0
        # A later block finds the caches filled; a fifth of the cold compilation is what tracing alone took where it was tried.
        self._block_s[label] = wall_s - timed_s - 0.8 * compile_s

    def _fit(self, rounds_left: int) -> tuple[int, int]:
        plan = self._run.plan
        assert plan.time_budget_s is not None
        labels = [contestant.row.variant.label for contestant in self._contestants if contestant.row.status is Status.OK]
        fixed_s = sum(self._block_s.get(label, 0.0) for label in labels)
        sample_s = sum(self._sample_s.get(label, 0.0) for label in labels)
        remaining_s = plan.time_budget_s - (time.monotonic() - self._start_s)
        return budget.fit(remaining_s, rounds_left, fixed_s, sample_s, plan.num_iters)

    def _note_cuts(self, rounds: int) -> None:
        plan = self._run.plan
        counts = {len(block.of_kind("sample")) for row in self._run.rows for block in row.blocks if block.status is Status.OK}
        if plan.time_budget_s is None or not counts or (rounds >= plan.rounds and min(counts) >= plan.num_iters):
            return
        samples = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
        self._run.notes.append(
            f"time budget of {plan.time_budget_s:g} s: {rounds} of {plan.rounds} rounds, {samples} of {plan.num_iters} samples a block"
            + (f"; the rest: llmbench compare --resume {self._logs.with_suffix('.json')}" if rounds < plan.rounds else "")
        )

    def _check_plausible(self) -> None:
        """Rows that are faster than the memory can be read fail, by name."""
        for row, summary in zip(self._run.rows, summarise(self._run), strict=True):
            fault = bandwidth_fault(summary.bandwidth_use)
            if fault is not None and row.status is Status.OK:
                row.status, row.reason = Status.IMPLAUSIBLE, fault


def worker_environment(threads: int, caches: Path) -> dict[str, str]:
    """Variables that every worker gets: the same threads for every library, compiler caches of its own, no network."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "CUDA_CACHE_PATH": str(caches / "cuda"),  # what the driver compiles for itself
        "HF_HUB_OFFLINE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _file_name(label: str) -> str:
    """A label as part of a file name: letters, digits, '-', '_', '=' and '.' stay; at most 100 characters."""
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", label).strip("-.")[:100] or "variant"
