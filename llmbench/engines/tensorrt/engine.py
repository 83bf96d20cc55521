"""The engines `tensorrt-rtx` and `tensorrt`: a plan built from the ONNX graph, run by llmbench's own loop.

TensorRT for RTX builds on any machine, for the GeForce and workstation cards that it knows, several in one plan. The classic edition builds on
the card that will run the plan, and is the one for data-centre cards. A plan is data: no code of the host's runs when it is loaded.
"""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from llmbench import hardware
from llmbench.checkpoints.config import ModelConfig, read_config
from llmbench.checkpoints.errors import CheckpointError
from llmbench.engines.base import EngineError, Unavailable, Unsupported
from llmbench.engines.faults import told_as
from llmbench.engines.sources import source_digest
from llmbench.engines.tensorrt import bindings
from llmbench.engines.tensorrt.bindings import CLASSIC, RTX, Edition
from llmbench.engines.tensorrt.builder import PLAN_FILE, PlanOptions, build_plan
from llmbench.engines.tensorrt.in_place import has_layers
from llmbench.engines.tensorrt.runner import TORCH_TYPES, CudaStream, Runner, RunOptions
from llmbench.engines.tensorrt.runtime_cache import RuntimeCache, cache_file
from llmbench.graph.contract import GRAPH_SOURCES, VERSION, read_info
from llmbench.protocol import EngineReport, Job, Recipe, Request, Scalar, Status
from llmbench.worker.targets import device_target

KV_CACHES = ("copied", "in-place")
SPECIALIZATIONS = ("eager", "lazy", "none")
#: What the graph and so the plan is written from; a change there is another plan.


class TensorRTEngine:
    """What both editions share; a subclass names its edition."""

    ADAPTER = 2
    edition: Edition
    options: tuple[str, ...] = ("kv_cache", "workspace_mib", "cuda_graph")

    def __init__(self) -> None:
        self._runner: Runner | None = None

    # ------------------------------------------------------------------------------------------------------------- before loading

    def supports(self, job: Job) -> None:
        """Raises Unsupported or Unavailable. With targets nothing of this machine counts: it only builds."""
        variant, name = job.variant, self.edition.engine
        unknown = sorted(set(variant.options) - set(self.options))
        if unknown:
            raise Unsupported(f"{name} has no option {unknown[0]!r}; known: {', '.join(self.options)}")
        if variant.quantization is not None:
            raise Unsupported(f"{name} has no quantization {variant.quantization!r} yet; leave quantization out")
        if variant.dtype not in TORCH_TYPES:
            raise Unsupported(f"{name} can't run in dtype {variant.dtype!r}; known: {', '.join(TORCH_TYPES)}")
        self._check_options(job)
        config = _shape(job)
        if job.request.total_tokens > config.context:
            raise Unsupported(
                f"prompt and new tokens are {job.request.total_tokens}, more than the model's context of {config.context}; ask for fewer"
            )
        trt = bindings.load(self.edition)
        if variant.options.get("kv_cache") == "in-place" and not has_layers(trt):
            raise Unsupported(f"{trt.__name__} {trt.__version__} has no layer that updates a cache in place; leave kv_cache=in-place out")
        for target in self._targets(job):
            self._check_target(trt, target, variant.dtype)

    def _check_options(self, job: Job) -> None:
        options, name = job.variant.options, self.edition.engine
        for option, known in (("kv_cache", KV_CACHES), ("specialization", SPECIALIZATIONS)):
            if options.get(option, known[0]) not in known:
                raise Unsupported(f"{name}'s option {option} is {options[option]!r}; known: {', '.join(known)}")
        for option in ("cuda_graph", "runtime_cache"):
            if not isinstance(options.get(option, True), bool):
                raise Unsupported(f"{name}'s option {option} is {options[option]!r}; it is true or false")
        workspace = options.get("workspace_mib", 1)
        if type(workspace) is not int or not 1 <= workspace <= 2**20:
            raise Unsupported(f"{name}'s option workspace_mib is {workspace!r}; it is a number of MiB from 1 to {2**20}")

    def _check_target(self, trt: Any, target: str, dtype: str) -> None:
        capability = target.partition(" ")[0]
        if self.edition.cross_builds and capability not in bindings.capabilities(trt):
            raise Unsupported(
                f"{self.edition.title} {trt.__version__} does not run on {capability}, only on {', '.join(bindings.capabilities(trt))}; "
                "use tensorrt there"
            )
        if dtype == "bfloat16" and int(capability.removeprefix("sm_")) < 80:
            raise Unsupported(f"{capability} has no bfloat16 arithmetic (that begins with compute capability 8.0); use --dtype float16")

    def _targets(self, job: Job) -> tuple[str, ...]:
        """What the plan is for: compute capabilities, where this edition builds for others, else this very card."""
        if job.targets:
            if not self.edition.cross_builds:
                raise Unsupported(f"{self.edition.engine} builds on the card that runs the plan and for no other; leave --target out")
            return tuple(sorted({hardware.find(name).sm for name in job.targets}))
        device = self._device(job.device)
        target = device_target(str(device))
        return (target.partition(" ")[0],) if self.edition.cross_builds else (target,)

    def _device(self, text: str) -> torch.device:
        kind, _, index = text.partition(":")
        if kind != "cuda" or not index.isdecimal():
            hint = "; llmbench build --target builds for one that isn't here" if self.edition.cross_builds else ""
            raise Unavailable(f"{self.edition.title} runs on NVIDIA GPUs, and the device is {text}{hint}")
        if torch.version.cuda is None:
            raise Unavailable(f"torch {torch.__version__} is built without CUDA; install a CUDA build of torch to use {text}")
        count = torch.cuda.device_count()
        if int(index) >= count:
            raise Unavailable(f"{text} isn't here: torch sees {count} CUDA devices")
        return torch.device(text)

    def recipe(self, job: Job) -> Recipe:
        """A prompt's length counts by the power of two above it alone, so that a slightly longer one finds the plan."""
        options: dict[str, Scalar] = {
            "kv_cache": job.variant.options.get("kv_cache", KV_CACHES[0]),
            "contract": VERSION,
            "graph": source_digest(GRAPH_SOURCES),
        }
        if "workspace_mib" in job.variant.options:
            options["workspace_mib"] = job.variant.options["workspace_mib"]
        return Recipe(
            adapter=self.ADAPTER,
            versions=self._library(),
            targets=self._targets(job),
            maxima={
                "batch": job.request.batch_size,
                "cache_length": job.request.cache_length,
                "prompt": prompt_maximum(job.request),
            },
            options=options,
            executes=True,  # a plan holds machine code for the GPU
        )

    def build(self, job: Job, into: Path, source: Path | None = None) -> None:
        """Writes the plan. Peak memory is some three times the weights: the graph's, the builder's and the plan."""
        if source is None:
            raise EngineError(f"{self.edition.engine} builds from the ONNX graph, and there is none", Status.BUILD_FAILED)
        options = PlanOptions(
            prompt_maximum=prompt_maximum(job.request),
            targets=self._targets(job) if self.edition.cross_builds else (),
            in_place=job.variant.options.get("kv_cache") == "in-place",
            workspace_mib=_whole(job.variant.options.get("workspace_mib")),
        )
        if not self.edition.cross_builds:
            torch.cuda.set_device(self._device(job.device))  # its kernels are timed on the current device
        build_plan(self.edition, bindings.load(self.edition), source, into, options)

    # -------------------------------------------------------------------------------------------------------------------- loading

    def load(self, job: Job, artifact: Path | None) -> EngineReport:
        if artifact is None:
            raise EngineError(f"{self.edition.engine} runs a plan, and there is none", Status.LOAD_FAILED)
        device = self._device(job.device)
        torch.cuda.set_device(device)  # TensorRT loads to the current device
        return self.load_on(job, artifact, device, CudaStream(device))

    def load_on(self, job: Job, artifact: Path, device: torch.device, stream: Any) -> EngineReport:
        """The part of loading that no longer asks whether the device is there."""
        torch.set_num_threads(job.threads)
        options, info = job.variant.options, read_info(artifact)
        run_options = RunOptions(
            in_place=options.get("kv_cache") == "in-place",
            cuda_graph=bool(options.get("cuda_graph", True)),
            specialization=str(options.get("specialization", SPECIALIZATIONS[0])),
        )
        cache = None
        if self.edition.runtime_config and options.get("runtime_cache", True):
            file = cache_file(artifact.name)
            cache = RuntimeCache(file) if file is not None else None
        trt = bindings.load(self.edition)
        with told_as(Status.LOAD_FAILED), torch.no_grad():
            self._runner = Runner(self.edition, trt, artifact / PLAN_FILE, info, device, stream, run_options, cache)
        settings: dict[str, Scalar] = {
            "kv_cache": str(options.get("kv_cache", KV_CACHES[0])),
            "cuda_graph": run_options.cuda_graph,
            "prompt_maximum": self._runner.prompt_maximum,
            "tf32": False,
        }
        if self.edition.runtime_config:
            settings["specialization"] = run_options.specialization
            settings["runtime_cache"] = "none" if cache is None else "found" if cache.found else "new"
        return EngineReport(
            storage_dtype=job.variant.dtype,
            arithmetic_dtype=job.variant.dtype,
            weights_bytes=info.weights_bytes,
            kv_cache_bytes=self._runner.kv_cache_bytes,
            settings=settings,
        )

    # ------------------------------------------------------------------------------------------------------------------ generating

    def generate(self, request: Request, on_token: Callable[[int], None] | None = None) -> list[list[int]]:
        runner = self._loaded()
        if request.max_new_tokens < 1 or request.batch_size != runner.info.batch:
            raise EngineError(f"asked for {request.max_new_tokens} tokens of {request.batch_size} sequences; built for {runner.info.batch}")
        self._check_ids(list(request.prompt_ids), request.total_tokens)
        with told_as(Status.FAILED), torch.no_grad():
            return runner.generate([list(request.prompt_ids)] * request.batch_size, request.max_new_tokens, request.sampling, on_token)

    def logits(self, ids: list[int]) -> Any:
        """float32 array [len(ids), vocab], see Runner.teacher_forced."""
        runner = self._loaded()
        self._check_ids(ids, len(ids))
        with told_as(Status.FAILED), torch.no_grad():
            return runner.teacher_forced(ids).numpy()

    def _check_ids(self, ids: list[int], total: int) -> None:
        info = self._loaded().info
        wrong = [token for token in ids if not 0 <= token < info.vocab]
        if wrong:
            raise EngineError(f"token id {wrong[0]} is not in the vocabulary of {info.vocab} ids")
        if not ids or total > info.length:
            raise EngineError(f"asked for {total} tokens with {len(ids)} given; built for 1 to {info.length}")

    def _loaded(self) -> Runner:
        if self._runner is None:
            raise EngineError("no plan is loaded")
        return self._runner

    # ------------------------------------------------------------------------------------------------------------------ the rest

    def _library(self) -> dict[str, str]:
        return {self.edition.engine: str(bindings.load(self.edition).__version__)}

    def versions(self) -> dict[str, str]:
        found = {**self._library(), "torch": importlib.metadata.version("torch")}
        if torch.version.cuda is not None:
            found["cuda"] = str(torch.version.cuda)
        return found

    def synchronize(self) -> None:
        if self._runner is not None:
            self._runner.stream.wait()

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


class TensorRTForRTXEngine(TensorRTEngine):
    """Built anywhere, run on GeForce and workstation cards; its kernels are compiled when a plan is first run."""

    edition = RTX
    options = (*TensorRTEngine.options, "runtime_cache", "specialization")


class ClassicTensorRTEngine(TensorRTEngine):
    """Built and run on one card, data-centre cards included."""

    edition = CLASSIC


def prompt_maximum(request: Request) -> int:
    """Tokens of one call at most: the prompt's length up to a power of two, and never more than the cache holds."""
    return min(1 << (len(request.prompt_ids) - 1).bit_length(), request.cache_length)


def _shape(job: Job) -> ModelConfig:
    try:
        return read_config(Path(job.checkpoint.path))
    except CheckpointError as error:
        raise Unsupported(error.reason) from error


def _whole(value: Scalar | None) -> int | None:
    return value if isinstance(value, int) else None
