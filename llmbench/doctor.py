"""`llmbench doctor`: what this machine and its interpreters have, and what is missing for which engine, with the command for it.

Everything an engine's library has to say comes from a worker under that engine's interpreter, so that a broken library is a line and no end.
The result is plain data for a page or for a bug report: `private` takes user names, home folders and tokens out of every text before it leaves.
The GPU part has not been run on a GPU by this project yet.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from llmbench import __version__, gpu_state, machine, temporary
from llmbench.engines.registry import EngineSpec, Problem, engines, find, problem
from llmbench.machine_state import read_state
from llmbench.protocol import Status, encode
from llmbench.schedule import worker_environment
from llmbench.supervise import Worker, WorkerFailed

#: A worker that takes longer to import a library or to probe has hung.
_STEP_S = 180.0
#: Longer than this no folder is added up; a Hugging Face cache can hold a million files.
_WALK_S = 5.0
_HUB_S = 5.0
#: Asked for on the hub: a small public model of the catalog.
_HUB_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
#: Variables that change what is measured and hold nothing private.
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "HF_HUB_OFFLINE", "CXX", "CC")
_COMPILERS = ("g++", "clang++", "gcc", "nvcc", "ninja", "cmake")


def examine(
    *,
    home: Path,
    engine: str | None = None,
    python: Mapping[str, str] | None = None,
    offline: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """All that doctor knows, ready for json.dumps. Raises UnknownEngine for an engine that isn't one.

    engine: only this one. python: engine -> its interpreter. offline: the hub is not asked. `say` is told of long steps.
    """
    chosen = [find(engine)] if engine is not None else list(engines().values())
    interpreters = {name: path for name, path in (python or {}).items() if find(name)}
    threads = machine.default_threads()
    workers = _Workers(interpreters, threads, say)
    seen = {path: workers.probe(path) for path in dict.fromkeys(interpreters.get(spec.name, "") for spec in chosen)}
    gpus = _gpus()
    # Nothing can be measured on a device that torch under our own interpreter doesn't see, whatever NVML lists.
    has_cuda = any(one["devices"] for one in seen.values())
    found = {
        "llmbench": __version__,
        "machine": {
            "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
            "cpu": machine.cpu_name(),
            "cpu_count": machine.usable_cpus(),
            "threads": threads,
            "memory_bytes": machine.memory_bytes(),
            "state": encode(read_state("cpu")),
        },
        "gpus": gpus,
        "interpreters": [{"path": path or sys.executable, "own": not path, **one} for path, one in seen.items()],
        "bandwidth": workers.bandwidth(next((path for path, one in seen.items() if one["torch"]), ""), seen),
        "engines": [_engine(spec, interpreters.get(spec.name, ""), has_cuda, workers) for spec in chosen],
        "compilers": _compilers(),
        "folders": _folders(home),
        "hub": _hub(offline, say),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }
    found["remarks"] = _remarks(found)
    return _private(found)  # type: ignore[no-any-return]


def exit_code(found: Mapping[str, Any]) -> int:
    """0 where one of the engines asked for is usable (`fake` doesn't count beside others), else 1."""
    entries = [entry for entry in found["engines"] if entry["default"]] or found["engines"]
    return 0 if any(entry["usable"] for entry in entries) else 1


# -------------------------------------------------------------------------------------------------------------------------------- workers


class _Workers:
    """Short-lived workers that look at one interpreter or one engine each."""

    def __init__(self, interpreters: Mapping[str, str], threads: int, say: Callable[[str], None]) -> None:
        self._interpreters, self._threads, self._say = interpreters, threads, say

    def ask(self, path: str, *commands: tuple[str, dict[str, Any]]) -> tuple[list[dict[str, Any]], WorkerFailed | None]:
        """The answers of one worker under the interpreter `path` ("": this one), as far as it got, and why it got no further."""
        answers: list[dict[str, Any]] = []
        with temporary.folder("doctor") as folder:
            try:
                environment = worker_environment(self._threads, Path(folder))
                with Worker(Path(folder) / "log", python=(path,) if path else (), environment=environment) as worker:
                    for do, arguments in commands:
                        answers.append(worker.ask(do, timeout_s=_STEP_S, **arguments))
            except WorkerFailed as failure:
                return answers, failure
        return answers, None

    def probe(self, path: str) -> dict[str, Any]:
        """Versions and devices that an interpreter finds; all null with a `fault` where it fails."""
        self._say(f"asking {path or 'this interpreter'}")
        answers, failure = self.ask(path, ("probe", {}))
        found = answers[0] if answers else {"python": None, "torch": None, "cuda": None, "devices": []}
        return {"fault": f"{failure.status.words}: {failure.reason}" if failure else None, **found}

    def bandwidth(self, path: str, seen: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Read bandwidth of the main memory and of each GPU, by a worker under the interpreter `path`."""
        found = []
        count = len(seen.get(path, {}).get("devices", []))
        for device in ("cpu", *(f"cuda:{index}" for index in range(count))):
            self._say(f"reading the memory's bandwidth on {device}")
            answers, failure = self.ask(path, ("bandwidth", {"device": device, "threads": self._threads}))
            probed = answers[0]["bandwidth"] if answers else {"gb_per_s": None, "last_level_cache_bytes": None}
            found.append({"device": device, **probed, **({"reason": failure.reason} if failure else {})})
        return found

    def versions(self, spec: EngineSpec, path: str) -> tuple[dict[str, Any], WorkerFailed | None]:
        """The worker's answer to `versions`; empty where there is none."""
        self._say(f"asking {spec.name}")
        answers, failure = self.ask(path, ("versions", {"target": spec.target}))
        return (answers[0] if answers else {}), failure


def _engine(spec: EngineSpec, path: str, has_cuda: bool, workers: _Workers) -> dict[str, Any]:
    """One engine under its interpreter: usable or not, why not, and the command that would change it."""
    devices = [device for device in spec.devices if device == "cpu" or has_cuda]
    # What another interpreter lacks, only its own worker can say; a device that is missing is missing for all.
    why = problem(spec, devices[0] if devices else None) if not path else None
    told: dict[str, Any] = {}
    if why is None:
        told, failure = workers.versions(spec, path)
        if failure is not None:
            why = Problem(f"{failure.status.words}: {failure.reason}", _remedy(spec, path, failure))
    if why is None and not devices:
        why = Problem(f"it runs on {' and '.join(spec.devices)} only, and no interpreter here finds such a device")
    return {
        "name": spec.name,
        "default": spec.default,
        "python": path or None,
        "usable": why is None,
        "reason": why.reason if why else None,
        "remedy": why.remedy if why else None,
        "devices": devices,
        "versions": told.get("versions", {}),
        "contract": told.get("contract"),  # how its library differs from the API that the adapter was written against
        "written_against": spec.written_against,
        "not_run_on": spec.not_run_on,
    }


def _remedy(spec: EngineSpec, path: str, failure: WorkerFailed) -> str | None:
    """The command that brings an engine's libraries, or brings them anew where they are there and don't work."""
    if not failure.alive and failure.status is Status.UNAVAILABLE:
        return f"--python {spec.name}=PATH with an interpreter that starts"
    packages = " ".join(spec.requires)
    if not packages:
        return None
    missing = failure.status is Status.UNAVAILABLE
    if missing and spec.remedy:
        return spec.remedy
    if missing and not path and spec.extra:
        return f"pip install 'llmbench[{spec.extra}]'"
    return f"{path or sys.executable} -m pip install {'' if missing else '--force-reinstall '}{packages}"


# -------------------------------------------------------------------------------------------------------------------------------- machine


def _gpus() -> dict[str, Any]:
    """What NVIDIA's driver lists, whatever torch can use: {"driver", "cuda", "devices": [...]}; nulls without a driver."""
    nvml = gpu_state.load_nvml()
    found: dict[str, Any] = {"driver": None, "cuda": None, "devices": []}
    if nvml is None:
        return found
    with contextlib.suppress(Exception):  # each of NVML's calls may be refused
        found["driver"] = str(nvml.nvmlSystemGetDriverVersion())
    with contextlib.suppress(Exception):
        version = int(nvml.nvmlSystemGetCudaDriverVersion())
        found["cuda"] = f"{version // 1000}.{version % 1000 // 10}"
    with contextlib.suppress(Exception):
        for index in range(int(nvml.nvmlDeviceGetCount())):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            found["devices"].append(
                {"name": str(nvml.nvmlDeviceGetName(handle)), "memory_bytes": int(memory.total), "free_bytes": int(memory.free)}
            )
    return found


def _compilers() -> dict[str, str | None]:
    """Name -> the line of its --version that has the version; null where it isn't on PATH or doesn't answer."""
    found: dict[str, str | None] = {}
    for name in (*filter(None, (os.environ.get("CXX"),)), *_COMPILERS):
        path = shutil.which(name)
        found[name] = None
        if path is not None:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL)
                lines = [line.strip() for line in answer.stdout.splitlines() if re.search(r"\d+\.\d", line)]
                found[name] = lines[0][:120] if lines else None
    return found


def _folders(home: Path) -> list[dict[str, Any]]:
    """The folders that llmbench fills: what lies in each, and how much room its disk has."""
    from huggingface_hub import constants

    places = {"checkpoints": home / "checkpoints", "engines": home / "engines", "results": home / "results"}
    places["hub cache"] = Path(constants.HF_HUB_CACHE)
    return [{"what": what, "path": str(path), **folder_size(path), "disk_free_bytes": _free(path)} for what, path in places.items()]


def folder_size(folder: Path, limit_s: float = _WALK_S) -> dict[str, Any]:
    """{"bytes": of all files, links not followed, "whole": whether all were seen within limit_s}; null bytes where there is no such folder."""
    if not folder.is_dir():
        return {"bytes": None, "whole": True}
    end_s, total, waiting = time.monotonic() + limit_s, 0, [str(folder)]
    while waiting:
        if time.monotonic() > end_s:
            return {"bytes": total, "whole": False}
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    total += entry.stat(follow_symlinks=False).st_size
    return {"bytes": total, "whole": True}


def _free(path: Path) -> int | None:
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _hub(offline: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Whether the model hub answers, and whether there is a token: never the token itself. `reachable` is null where it wasn't asked."""
    from huggingface_hub import HfApi, constants, get_token

    found: dict[str, Any] = {"endpoint": constants.ENDPOINT, "reachable": None, "words": "", "token": get_token() is not None}
    if offline or constants.HF_HUB_OFFLINE:
        return {**found, "words": "--offline is given" if offline else "HF_HUB_OFFLINE is set"}
    say("asking the model hub")
    try:
        HfApi(token=False).model_info(_HUB_MODEL, timeout=_HUB_S)
    except Exception as error:  # of huggingface_hub or of whichever HTTP library it uses
        status = getattr(getattr(error, "response", None), "status_code", None)
        words = f"it answered {status}" if status else f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return {**found, "reachable": status is not None, "words": words}
    return {**found, "reachable": True, "words": "it answers"}


def _remarks(found: Mapping[str, Any]) -> list[dict[str, str | None]]:
    """What a reader should know beside the engines: each with the command that changes it, where there is one."""
    remarks: list[dict[str, str | None]] = []
    own = next((one for one in found["interpreters"] if one["own"]), None)
    if found["gpus"]["devices"] and own is not None and own["torch"] and not own["devices"]:
        built = f"is built for CUDA {own['cuda']}" if own["cuda"] else "is a CPU build"
        text = f"there is an {found['gpus']['devices'][0]['name']}, but torch {own['torch']} finds no CUDA device: it {built}"
        remarks.append({"text": text, "remedy": "pip install --force-reinstall torch"})
    counters = [path / "energy_uj" for path in Path("/sys/class/powercap").glob("intel-rapl:?")]
    if any(path.exists() and not os.access(path, os.R_OK) for path in counters):
        text = "the processor counts its energy, but only root may read it: joules per token are left out"
        remarks.append({"text": text, "remedy": "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"})
    if found["hub"]["reachable"] is False:
        text = "the model hub can't be reached: --model takes a local folder, or --load-format dummy random weights"
        remarks.append({"text": text, "remedy": None})
    return remarks


# -------------------------------------------------------------------------------------------------------------------------------- privacy


def _private(value: Any) -> Any:
    """The same data without names of users, home folders and tokens in any text."""
    if isinstance(value, str):
        return private(value)
    if isinstance(value, dict):
        return {key: _private(entry) for key, entry in value.items()}
    return [_private(entry) for entry in value] if isinstance(value, list) else value


def private(text: str, home: str | None = None, user: str | None = None) -> str:
    """A text without what is nobody's business: home folders become ~, tokens and passwords in URLs ***, the user's name in a path USER."""
    home = str(Path.home()) if home is None else home
    if len(home) > 1:
        text = re.sub(re.escape(home) + r"(?=[/\s:'\",;)]|$)", "~", text)
    text = re.sub(r"\bhf_[A-Za-z0-9]{8,}", "hf_***", text)
    text = re.sub(r"(?<=://)[^/@\s]+@", "***@", text)
    text = re.sub(r"(?<![\w./-])(/home/|/Users/)[^/\s:'\",;)]+", r"\1USER", text)
    name = _user() if user is None else user
    return re.sub(rf"(?<=/){re.escape(name)}(?=[/\s:'\",;)]|$)", "USER", text) if name else text


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a number without a name, as in many containers
        return ""
