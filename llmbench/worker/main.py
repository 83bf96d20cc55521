"""The worker's loop: one process, one variant. Reads commands and writes replies as JSON lines on two descriptors of their own.

Standard output and error are not part of the protocol, since libraries print banners there: the parent sends both to a log file. Every
command gets exactly one reply; an error is a reply with a status and one line, its traceback goes to the log. The parent decides what happens
next, so that it can time out, interleave and stop.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from llmbench.engines.base import Engine, EngineError, Unsupported
from llmbench.engines.faults import classify
from llmbench.protocol import Command, EngineReport, Job, Reply, Sample, Status, decode, encode
from llmbench.worker import probe
from llmbench.worker.accuracy import check, write_logits
from llmbench.worker.energy import EnergyCounter
from llmbench.worker.memory import PhasePeaks
from llmbench.worker.timing import now_s, timed

#: What an error is called that the engine itself doesn't name, by the command in which it happened.
_DEFAULT_STATUS = {"open": Status.LOAD_FAILED, "build": Status.BUILD_FAILED, "load": Status.LOAD_FAILED}


class Worker:
    """The commands, one method each; a method's keyword arguments are the command's, its return value the reply's result."""

    def __init__(self) -> None:
        self._start_s = now_s()
        self._engine: Engine | None = None
        self._job: Job | None = None
        self._peaks: PhasePeaks | None = None
        self._energy: EnergyCounter | None = None

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise EngineError("no engine is open")
        return self._engine

    @property
    def job(self) -> Job:
        if self._job is None:
            raise EngineError("no engine is open")
        return self._job

    def probe(self) -> dict[str, Any]:
        """What this interpreter finds on this machine."""
        return probe.devices()

    def bandwidth(self, device: str, threads: int) -> dict[str, Any]:
        """The read bandwidth of the device's memory, now."""
        return {"bandwidth": encode(probe.read_bandwidth(device, threads))}

    def versions(self, target: str) -> dict[str, Any]:
        """Imports an engine ("module:Class") and asks which libraries it runs on, and which revision of the adapter it is, where it says so.
        Fails where the libraries are missing or broken. "contract": how a library's API differs from the one that the adapter was written
        against, one line each; null for engines that don't compare it."""
        module, _, name = target.partition(":")
        engine = getattr(importlib.import_module(module), name)
        found = engine()
        contract = getattr(found, "contract", None)
        return {
            "versions": found.versions(),
            "adapter": getattr(engine, "ADAPTER", None),
            "contract": contract() if contract is not None else None,
        }

    def open(self, target: str, job: dict[str, Any]) -> dict[str, Any]:
        """Imports the engine ("module:Class") and asks it whether it can do the job."""
        module, _, name = target.partition(":")
        self._job = decode(Job, job)
        self._engine = getattr(importlib.import_module(module), name)()
        self.engine.supports(self.job)
        return {"versions": self.engine.versions()}

    def recipe(self) -> dict[str, Any]:
        """What decides the artifact for the opened job; null where the engine builds none for it."""
        recipe = self.engine.recipe(self.job)
        return {"recipe": encode(recipe) if recipe is not None else None}

    def build(self, into: str, source: str | None = None) -> dict[str, Any]:
        """Builds the artifact for the opened job in an empty folder. The peak is this process's own, compilers that it starts not included."""
        peaks = PhasePeaks(self.job.device)
        self.engine.build(self.job, Path(into), Path(source) if source else None)
        return {"peak_bytes": peaks.end_phase()[0]}

    def load(self, artifact: str | None = None) -> dict[str, Any]:
        """Loads weights; from here on memory peaks are counted."""
        self._energy = EnergyCounter(self.job.device)
        self._peaks = PhasePeaks(self.job.device)

        def load_whole() -> EngineReport:
            report = self.engine.load(self.job, Path(artifact) if artifact else None)
            self.engine.synchronize()  # only now is there a device to wait for
            return report

        report, seconds = timed(load_whole, lambda: None)
        return {"load_s": seconds, "report": encode(report), "baseline_bytes": self._peaks.baseline_bytes}

    def end_phase(self) -> dict[str, Any]:
        """The memory peaks since loading began, or since the last call."""
        host, device = self._peaks.end_phase() if self._peaks else (None, None)
        return {"peak_bytes": host, "device_peak_bytes": device}

    def generate(self, kind: str, max_new_tokens: int, want_ids: bool = False, prompt_ids: list[int] | None = None) -> dict[str, Any]:
        """One timed generation of the job's request with max_new_tokens new tokens. Ids are counted here, whatever the engine claims.

        prompt_ids: another prompt of the same length instead of the request's.
        """
        import dataclasses

        request = dataclasses.replace(self.job.request, max_new_tokens=max_new_tokens)
        if prompt_ids is not None:
            request = dataclasses.replace(request, prompt_ids=tuple(prompt_ids))
        started_s = now_s() - self._start_s
        self._energy = self._energy or EnergyCounter(self.job.device)
        meter = self._energy.around(self.engine.synchronize)
        ids, wall_s = timed(lambda: self.engine.generate(request), meter.synchronize)
        energy_j = meter.energy_j(wall_s)
        if not all(type(token) is int for sequence in ids for token in sequence):
            raise EngineError("the engine's ids are not all of type int")
        sample = Sample(
            kind=kind,
            wall_s=wall_s,
            new_tokens=tuple(len(sequence) for sequence in ids),
            ids_sha256=hashlib.sha256(json.dumps(ids).encode()).hexdigest(),
            started_s=started_s,
            energy_j=energy_j,
        )
        return {"sample": encode(sample), "ids": ids if want_ids else None}

    def logits(self, ids: list[int], first: int, into: str) -> dict[str, Any]:
        """Writes the engine's logits after ids[first] to ids[-1] into a file, float32 [positions, vocab]."""
        positions, vocab = write_logits(self.engine.logits(ids), first, len(ids), Path(into))
        return {"positions": positions, "vocab": vocab}

    def accuracy(
        self, job: dict[str, Any], new_ids: list[list[int]], logits: str | None, first: int, stop: int, cache: str | None
    ) -> dict[str, Any]:
        """The verdict on another worker's logits and ids; needs torch and numpy, and no open engine."""
        verdict = check(decode(Job, job), new_ids, Path(logits) if logits else None, first, stop, Path(cache) if cache else None)
        return {"accuracy": encode(verdict)}

    def compilation(self) -> dict[str, Any]:
        """What the engine's compiler did in this process; null for engines that don't compile or don't tell."""
        ask = getattr(self.engine, "compilation", None)
        found = ask() if ask is not None else None
        return {"compilation": encode(found) if found is not None else None}

    def profile(self, into: str) -> dict[str, Any]:
        """Writes a trace of one generation of the job's request, untimed. Unsupported where the engine writes none."""
        write = getattr(self.engine, "profile", None)
        if write is None:
            raise Unsupported("this engine writes no trace: torch.profiler sees torch alone")
        write(self.job.request, Path(into))
        return {}

    def close(self) -> dict[str, Any]:
        """Closes the engine. The loop ends after the reply."""
        if self._engine is not None:
            self._engine.close()
        return {}


def die_with_parent() -> None:
    """Asks Linux to kill this process when its parent dies, also while a library holds the interpreter."""
    parent = os.getppid()
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:  # it died before the call
        os._exit(1)


def one_line(error: BaseException) -> str:
    """An error as one line of at most 400 characters."""
    text = " ".join(str(error).split())
    if not isinstance(error, EngineError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= 400 else text[:397] + "..."


def answer(worker: Worker, command: Command) -> Reply:
    """Carries a command out. Whatever is raised becomes a reply with a status."""
    try:
        return Reply(command.number, result=getattr(worker, command.do)(**command.arguments))
    except EngineError as error:
        traceback.print_exc()
        return Reply(command.number, error.status, one_line(error))
    except ModuleNotFoundError as error:
        traceback.print_exc()
        return Reply(command.number, Status.UNAVAILABLE, f"Python module {error.name!r} is missing in {sys.executable}")
    except Exception as error:
        traceback.print_exc()
        status = classify(error) or _DEFAULT_STATUS.get(command.do, Status.FAILED)
        return Reply(command.number, status, one_line(error))


def main() -> None:
    """`python -m llmbench.worker.main COMMANDS EVENTS`: two inherited descriptors, to read from and to write to."""
    commands_fd, events_fd = int(sys.argv[1]), int(sys.argv[2])
    for descriptor in (commands_fd, events_fd):
        os.set_inheritable(descriptor, False)
    die_with_parent()
    worker = Worker()
    with os.fdopen(commands_fd) as commands, os.fdopen(events_fd, "w") as events:
        for line in commands:
            command = decode(Command, json.loads(line))
            reply = answer(worker, command)
            sys.stdout.flush()
            sys.stderr.flush()
            events.write(json.dumps(encode(reply)) + "\n")
            events.flush()
            if command.do == "close":
                break
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # not through the libraries' own exit handlers: some hang or crash there, after all is measured


if __name__ == "__main__":
    main()
