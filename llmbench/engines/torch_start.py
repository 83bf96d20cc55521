"""torch-compile's ways to start, its option `start`: what a new process has of an earlier one's compiling.

    disk    torch's caches on disk, as they are when the same user starts again on the same machine (the default)
    cold    nothing: every process has empty caches
    bundle  one file of all that torch's caches hold (torch.compiler.save_cache_artifacts), loaded into empty caches. Where torch has it and
            it proves to work, Dynamo's guards and bytecode are in it (caching_precompile), so nothing is traced either
    aot     both functions compiled ahead by torch.compile(...).aot_compile and loaded as functions: neither Dynamo nor Inductor runs.
            Lengths and batch are the request's own

`disk` and `cold` differ in the folder that the parent gives (schedule). `bundle` and `aot` are artifacts, built by a process of their own. On
a CPU both need one thing more, which torch leaves out of its files (2.13): the shared libraries of the C++ kernels. Without them the C++
compiler runs again in each process, and that is nearly all of a cold start. They lie beside torch's file in the artifact.

Loading either runs machine code and unpickles, inside torch. So it is only done from the folder that the parent has checked: the user's own,
each file with the hash that was written down when it was built.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from llmbench.engines.base import EngineError, Unsupported
from llmbench.engines.faults import told_as
from llmbench.engines.sources import compiler_environment, source_digest
from llmbench.engines.torch_engines import TorchCompileEngine
from llmbench.protocol import EngineReport, Job, Recipe, Request, Scalar, Status
from llmbench.worker.targets import device_target

STARTS = ("disk", "cold", "bundle", "aot")
BUNDLE, PREFILL, STEP, LIBRARIES, NOTES = "caches.bundle", "prefill.aot", "step.aot", "libraries", "start.json"


#: What is compiled: with another model or another way to sample, an older artifact is another one.
_SOURCES = (
    "llmbench.torchfast.model",
    "llmbench.torchfast.generate",
    "llmbench.torchfast.transformers_model",
    "llmbench.engines.torch_engines",
    "llmbench.engines.torch_start",
)


class StartableTorchCompileEngine(TorchCompileEngine):
    """torch-compile with the option `start`."""

    ADAPTER = 1
    options = (*TorchCompileEngine.options, "start")

    def __init__(self) -> None:
        super().__init__()
        self._artifact: Path | None = None
        self._libraries: set[Path] | None = None  # compiled before the first generation, to be checked after it

    # ------------------------------------------------------------------------------------------------------------- before loading

    def supports(self, job: Job) -> None:
        super().supports(job)
        start = _start(job)
        if start not in STARTS:
            raise Unsupported(f"torch-compile has no start {start!r}; known: {', '.join(STARTS)}")
        if start == "bundle" and not hasattr(torch.compiler, "save_cache_artifacts"):
            raise Unsupported(f"torch {torch.__version__} can't save its caches as a bundle (torch.compiler.save_cache_artifacts)")
        if start == "aot":
            if not hasattr(torch.compiler, "load_compiled_function"):
                raise Unsupported(
                    f"torch {torch.__version__} has no torch.compiler.load_compiled_function; start=aot needs torch 2.10 or so"
                )
            if self._is_foreign(job):
                raise Unsupported("start=aot is for llmbench's own model, and transformers' model is run here; start=bundle takes both")

    def recipe(self, job: Job) -> Recipe | None:
        """None for disk and cold. Static graphs: the prompt's length is compiled in as the batch and the cache's length are."""
        start = _start(job)
        if start not in ("bundle", "aot"):
            return None
        sampling = job.request.sampling
        chosen: dict[str, Scalar] = {name: value for name, value in job.variant.options.items() if name in self.options}
        chosen |= {"start": start, "prompt_length": len(job.request.prompt_ids), "temperature": float(sampling.temperature)}
        chosen["source"] = source_digest(_SOURCES)
        chosen |= compiler_environment()
        if sampling.temperature > 0 and sampling.top_k is not None:
            chosen["top_k"] = sampling.top_k
        if job.device == "cpu":
            chosen["threads"] = job.threads  # Inductor writes their number into its loops
        maxima = {"batch": job.request.batch_size, "cache_length": job.request.cache_length}
        return Recipe(self.ADAPTER, self.versions(), (device_target(job.device),), maxima, chosen, executes=True)

    def build(self, job: Job, into: Path, source: Path | None = None) -> None:
        """Compiles, and for a bundle generates once, in a process with empty caches."""
        start = _start(job)
        with told_as(Status.BUILD_FAILED), torch.no_grad():
            notes = self._build_aot(job, into) if start == "aot" else self._build_bundle(job, into)
            folder = _caches()
            for library in sorted(folder.rglob("*.so")):
                place = into / LIBRARIES / library.relative_to(folder)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(library, place)
        (into / NOTES).write_text(json.dumps(notes))

    def _build_aot(self, job: Job, into: Path) -> dict[str, Scalar]:
        self.load(job, None)
        model, request = self._loaded(), job.request
        prompt = self._ids(list(request.prompt_ids), request.batch_size, request.total_tokens)
        # Made as generate makes it: a slice of the prompt has other strides, and those are guarded too.
        token = torch.zeros((request.batch_size, 1), dtype=torch.int64, device=self.device)
        input_pos = torch.full((1,), prompt.shape[1], dtype=torch.int64, device=self.device)
        sampling = (request.sampling.temperature, request.sampling.top_k)
        both: tuple[tuple[Any, tuple[Any, ...], str], ...] = (
            (self.prefill, (model, prompt, *sampling), PREFILL),
            (self.decode_one_token, (model, token, input_pos, *sampling), STEP),
        )
        for function, arguments, name in both:
            compiled = function.aot_compile((arguments, {}))
            compiled.save_compiled_function(str(into / name), external_data={"model": model})
        return {"caching_precompile": False}

    def _build_bundle(self, job: Job, into: Path) -> dict[str, Scalar]:
        """With Dynamo's part where a second start from it works in this process, else without."""
        can_precompile = hasattr(torch._dynamo.config, "caching_precompile")
        for precompile in (True, False) if can_precompile else (False,):
            _precompile(precompile)
            self.load(job, None)
            ids = self.generate(job.request)
            saved = torch.compiler.save_cache_artifacts()
            if saved is None:
                raise EngineError("torch compiled nothing that it could save", Status.BUILD_FAILED)
            if precompile and not self._starts_again(job, saved[0], ids):
                from torch.compiler._cache import CacheArtifactManager

                torch._dynamo.reset()
                CacheArtifactManager.clear()  # else what didn't work is saved again
                continue
            (into / BUNDLE).write_bytes(saved[0])
            break
        return {"caching_precompile": precompile}

    def _starts_again(self, job: Job, saved: bytes, ids: list[list[int]]) -> bool:
        """Whether a model compiled anew from what was saved gives the same ids without compiling."""
        import torch._dynamo.utils

        try:
            self.model = None  # two would be in memory together
            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
            torch.compiler.load_cache_artifacts(saved)
            self.load(job, None)
            return self.generate(job.request) == ids and not torch._dynamo.utils.counters["stats"]
        except Exception:  # whatever torch raises: it is experimental, and there is another way
            return False

    # -------------------------------------------------------------------------------------------------------------------- loading

    def load(self, job: Job, artifact: Path | None = None) -> EngineReport:
        self._artifact = artifact
        return super().load(job, artifact)

    def prepare(self, job: Job) -> dict[str, str | int | float | bool]:
        start, artifact = _start(job), self._artifact
        if start in ("disk", "cold") or artifact is None:  # without an artifact this is the building process
            return {**super().prepare(job), "start": start}
        with told_as(Status.LOAD_FAILED):
            notes = json.loads((artifact / NOTES).read_text())
            folder, libraries = _caches(), artifact / LIBRARIES
            copied = 0
            for library in sorted(libraries.rglob("*.so")):
                place = folder / library.relative_to(libraries)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(library, place)
                copied += 1
            self._libraries = set(folder.rglob("*.so"))
            settings: dict[str, str | int | float | bool] = {"start": start, "start_libraries": copied}
            if start == "bundle":
                _precompile(bool(notes["caching_precompile"]))
                info = torch.compiler.load_cache_artifacts((artifact / BUNDLE).read_bytes())
                if info is None:
                    raise EngineError("torch could not read the bundle", Status.LOAD_FAILED)
                settings["caching_precompile"] = bool(notes["caching_precompile"])
                settings |= {f"start_{kind}": len(keys) for kind, keys in info.artifacts.items()}
            settings = {**super().prepare(job), **settings}
            if start == "aot":
                self.prefill, self.decode_one_token = self._open(artifact / PREFILL), self._open(artifact / STEP)
        return settings

    def _open(self, path: Path) -> Callable[..., Any]:
        with path.open("rb") as file:
            function: Callable[..., Any] = torch.compiler.load_compiled_function(file, external_data={"model": self._loaded()})
        return function

    # ------------------------------------------------------------------------------------------------------------------ generating

    def generate(self, request: Request, on_token: Callable[[int], None] | None = None) -> list[list[int]]:
        """As of torch-compile. After the first one with both functions it is checked that nothing was compiled which the artifact brought."""
        ids = super().generate(request, on_token)
        if self._libraries is not None and request.max_new_tokens > 1:
            new, misses = len(set(_caches().rglob("*.so")) - self._libraries), _misses()
            self._libraries = None
            if new or misses:
                raise EngineError(f"its artifact was not used: {misses} graphs and {new} C++ libraries were compiled again; build it anew")
        return ids

    def close(self) -> None:
        _precompile(False)
        super().close()


def _start(job: Job) -> str:
    return str(job.variant.options.get("start", STARTS[0]))


def _precompile(wanted: bool) -> None:
    if hasattr(torch._dynamo.config, "caching_precompile"):
        torch._dynamo.config.caching_precompile = wanted


def _misses() -> int:
    """Graphs that this process had to compile, by torch's own counters."""
    from torch._dynamo.utils import counters

    autograd, inductor = counters["aot_autograd"], counters["inductor"]
    return int(max(autograd["autograd_cache_miss"] + autograd["autograd_cache_bypass"], inductor["fxgraph_cache_miss"]))


def _caches() -> Path:
    from torch._inductor.codecache import cache_dir

    return Path(cache_dir())
