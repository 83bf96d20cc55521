"""The engines `eager` and `torch-compile`: a model in PyTorch, run as it is or compiled by TorchInductor.

All torch engines load the same weights into the same module and run the same loop; they differ in the two functions that the loop calls. The
module is llmbench's own model where that knows the family, else transformers' (torchfast.transformers_model): the same one in every engine of
a run, and named in the report.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from llmbench.checkpoints.config import ModelConfig, Outline, read_outline
from llmbench.checkpoints.errors import CheckpointError
from llmbench.checkpoints.tensor_files import read_entries
from llmbench.engines import compile_figures
from llmbench.engines.base import EngineError, Unavailable, Unsupported
from llmbench.engines.compilers import missing_compiler
from llmbench.engines.faults import told_as
from llmbench.protocol import Compilation, EngineReport, Job, Recipe, Request, Status
from llmbench.torchfast import generate as functions
from llmbench.torchfast import transformers_model
from llmbench.torchfast.model import run_block
from llmbench.torchfast.weights import DTYPES, build_empty, load_dummy, load_safetensors

MODELS = ("own", "transformers")
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class TorchEngine:
    """What the torch engines share. A subclass names its options and may replace the two functions."""

    name = ""
    options: tuple[str, ...] = ("model",)
    traces = True  # whether Dynamo works in this process; loading it takes 100 MB and a second

    def __init__(self) -> None:
        self.model: Any = None  # a Transformer, or a HuggingFaceModel, which answers the same calls
        self.device = torch.device("cpu")
        self.request: Request | None = None
        self.prefill: functions.Prefill = functions.prefill
        self.decode_one_token: functions.DecodeOneToken = functions.decode_one_token

    # ------------------------------------------------------------------------------------------------------------- before loading

    def supports(self, job: Job) -> None:
        """Raises Unsupported or Unavailable where this job can't be run as asked. Reads config.json, no weights."""
        variant = job.variant
        unknown = sorted(set(variant.options) - set(self.options))
        if unknown:
            known = f"known: {', '.join(self.options)}" if self.options else "it has none"
            raise Unsupported(f"{self.name} has no option {unknown[0]!r}; {known}")
        if variant.quantization is not None:
            raise Unsupported(f"{self.name} has no quantization {variant.quantization!r} yet; leave quantization out")
        if variant.dtype not in DTYPES:
            raise Unsupported(f"{self.name} can't run in dtype {variant.dtype!r}; known: {', '.join(DTYPES)}")
        device = self._device(job.device)
        if device.type == "cuda" and variant.dtype == "bfloat16" and torch.cuda.get_device_capability(device) < (8, 0):
            card = torch.cuda.get_device_name(device)
            raise Unsupported(f"{card} has no bfloat16 arithmetic (that begins with compute capability 8.0); use --dtype float16")
        model = variant.options.get("model", MODELS[0])
        if model not in MODELS:
            raise Unsupported(f"{self.name} has no model {model!r}; known: {', '.join(MODELS)}")
        config = _config(job)
        if variant.options.get("model") == "own" and isinstance(config, Outline):
            raise Unsupported(config.why)
        if self._is_foreign(job):
            transformers_model.model_class(job.checkpoint)
        context = config.context
        if context is not None and job.request.total_tokens > context:
            raise Unsupported(
                f"prompt and new tokens are {job.request.total_tokens}, more than the model's context of {context}; ask for fewer"
            )

    def _is_foreign(self, job: Job) -> bool:
        """Whether transformers' model is run: where it is asked for, and where there is no other."""
        return job.variant.options.get("model") == "transformers" or isinstance(_config(job), Outline)

    def _device(self, text: str) -> torch.device:
        kind, _, index = text.partition(":")
        if text == "cpu":
            return torch.device("cpu")
        if kind != "cuda" or not index.isdecimal():
            raise Unsupported(f"{self.name} can't run on device {text!r}; known: cpu, cuda:0, cuda:1, ...")
        if torch.version.cuda is None and torch.version.hip is None:
            raise Unavailable(f"torch {torch.__version__} is built without CUDA; install a CUDA build of torch to use {text}")
        count = torch.cuda.device_count()
        if int(index) >= count:
            raise Unavailable(f"{text} isn't here: torch sees {count} CUDA devices")
        return torch.device(text)

    def recipe(self, job: Job) -> Recipe | None:
        return None

    def build(self, job: Job, into: Path, source: Path | None = None) -> None:
        raise EngineError(f"{self.name} builds no artifact")

    # -------------------------------------------------------------------------------------------------------------------- loading

    def load(self, job: Job, artifact: Path | None = None) -> EngineReport:
        """Loads the weights and makes the KV cache for job.request's lengths and batch. Nothing is compiled yet."""
        torch.set_num_threads(job.threads)
        torch.set_float32_matmul_precision("highest")  # containers and variables turn TF32 on, and float32 rows would not be float32
        if self.traces:
            compile_figures.remember()
        self.device = self._device(job.device)
        self.request = job.request
        with told_as(Status.LOAD_FAILED), torch.no_grad():
            model = self._foreign_model(job) if self._is_foreign(job) else self._own_model(job)
            self.synchronize()
        self.model = model
        settings = model.settings()
        settings.update(self.prepare(job))
        return EngineReport(
            storage_dtype=job.variant.dtype,
            arithmetic_dtype=job.variant.dtype,
            weights_bytes=model.weights_bytes(),
            kv_cache_bytes=model.kv_cache_bytes(),
            settings=settings,
        )

    def _own_model(self, job: Job) -> Any:
        config = _config(job)
        assert isinstance(config, ModelConfig)
        model = build_empty(config, DTYPES[job.variant.dtype], self.device)
        if job.checkpoint.load_format == "dummy":
            load_dummy(model, job.checkpoint.dummy_seed)
        else:
            load_safetensors(model, read_entries(Path(job.checkpoint.path), config))
        model.setup_caches(job.request.batch_size, job.request.cache_length, self.device)
        return model

    def _foreign_model(self, job: Job) -> Any:
        inner = transformers_model.build(job.checkpoint, job.variant.dtype, self.device)
        return transformers_model.HuggingFaceModel(inner, job.request.batch_size, job.request.cache_length)

    def prepare(self, job: Job) -> dict[str, str | int | float | bool]:
        """Replaces prefill and decode_one_token as the job asks; returns what it chose."""
        return {}

    # ------------------------------------------------------------------------------------------------------------------ generating

    def generate(self, request: Request, on_token: Callable[[int], None] | None = None) -> list[list[int]]:
        """batch_size x max_new_tokens ids. Seeded anew each time: two calls with the same request give the same ids."""
        model = self._loaded()
        if request.max_new_tokens < 1 or request.batch_size < 1:
            raise EngineError(f"can't generate {request.max_new_tokens} tokens for {request.batch_size} sequences: at least 1 of each")
        prompt = self._ids(list(request.prompt_ids), request.batch_size, request.total_tokens)
        sampling = request.sampling
        with told_as(Status.FAILED), torch.no_grad():
            torch.manual_seed(sampling.seed)
            return functions.generate(
                model,
                prompt,
                request.max_new_tokens,
                sampling.temperature,
                sampling.top_k,
                on_token,
                self.prefill,
                self.decode_one_token,
            )

    def logits(self, ids: list[int]) -> Any:
        """float32 array [len(ids), vocab]. The rows of the request's prompt length come from a plain prefill, since the timed one gives its last
        position alone; then the timed prefill fills the caches, and the rest goes on from there through the decode step that `generate` uses,
        at its batch size. Of ids no longer than the prompt the first half is prefilled plainly."""
        model = self._loaded()
        assert self.request is not None
        batch = self._ids(ids, self.request.batch_size, len(ids))
        sampling = self.request.sampling  # as in generate, so that the compiled step is the same one
        with told_as(Status.FAILED), torch.no_grad():
            rows = functions.teacher_forced_logits(
                model,
                batch,
                sampling.temperature,
                sampling.top_k,
                self.decode_one_token,
                self.prefill,
                len(self.request.prompt_ids),
            )
        return rows.numpy()

    def _ids(self, ids: list[int], batch: int, total: int) -> torch.Tensor:
        """One sequence repeated batch times, on the device, checked against the vocabulary and the cache."""
        model = self._loaded()
        assert self.request is not None
        vocab = model.vocab
        wrong = [token for token in ids if not 0 <= token < vocab]
        if wrong:
            raise EngineError(f"token id {wrong[0]} is not in the vocabulary of {vocab} ids")
        if not ids:
            raise EngineError("the prompt is empty: at least one token id is needed")
        if total > model.length or batch > self.request.batch_size:
            raise EngineError(
                f"asked for {batch} sequences of {total} tokens; loaded for {self.request.batch_size} of {model.length} at most"
            )
        return torch.tensor([ids], dtype=torch.int64, device=self.device).repeat(batch, 1)

    def _loaded(self) -> Any:
        if self.model is None:
            raise EngineError("no weights are loaded")
        return self.model

    # ------------------------------------------------------------------------------------------------------------------ the rest

    def compilation(self) -> Compilation | None:
        """What torch compiled in this process so far; None where that is nothing. For the worker, after the samples."""
        return compile_figures.figures()

    def profile(self, request: Request, into: Path) -> None:
        """Writes torch.profiler's trace of one generation, in Chrome's format, gzipped where the name says so."""
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.device.type == "cuda" else [])]
        with profile(activities=activities) as trace:
            self.generate(request)
            self.synchronize()
        trace.export_chrome_trace(str(into))

    def versions(self) -> dict[str, str]:
        found = {"torch": str(torch.__version__)}
        if torch.version.cuda is not None:
            found["cuda"] = str(torch.version.cuda)
        if importlib.util.find_spec("triton") is not None:
            import triton

            found["triton"] = str(triton.__version__)
        if "transformers" in sys.modules:  # its model is run
            found["transformers"] = str(sys.modules["transformers"].__version__)
        return found

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def close(self) -> None:
        self.model = None
        self.prefill, self.decode_one_token = functions.prefill, functions.decode_one_token
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


class EagerEngine(TorchEngine):
    """PyTorch as it is, one operator after the other."""

    name = "eager"
    traces = False


class TorchCompileEngine(TorchEngine):
    """prefill and decode_one_token compiled, each as one graph with static shapes. Compiling happens in the first generations."""

    name = "torch-compile"
    options: tuple[str, ...] = ("model", "mode", "regional")

    def supports(self, job: Job) -> None:
        """As for every torch engine, and there must be what Inductor compiles with."""
        super().supports(job)
        mode = job.variant.options.get("mode", "default")
        if mode not in COMPILE_MODES:
            raise Unsupported(f"torch-compile has no mode {mode!r}; known: {', '.join(COMPILE_MODES)}")
        regional = job.variant.options.get("regional", False)
        if not isinstance(regional, bool):
            raise Unsupported(f"torch-compile's option regional is {regional!r}; it is true or false")
        if regional and self._is_foreign(job):
            raise Unsupported("torch-compile's option regional is for llmbench's own layers, and transformers' model is run here")
        missing = missing_compiler(self._device(job.device).type)
        if missing is not None:
            raise Unavailable("; ".join(missing))

    def prepare(self, job: Job) -> dict[str, str | int | float | bool]:
        on_cuda = self.device.type == "cuda"
        asked = job.variant.options.get("mode")
        # Decoding on a GPU is held up by launches, not by arithmetic: by default it runs as one CUDA graph.
        return self.compile_both(job, str(asked) if asked is not None else ("reduce-overhead" if on_cuda else "default"))

    def compile_both(self, job: Job, mode: str) -> dict[str, str | int | float | bool]:
        """Has both functions compiled by Inductor when they are first called; returns what was chosen."""
        # Prefill runs once for each generation, so a graph of its own would only take memory.
        prefill_mode = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}.get(mode, mode)
        self.prefill = torch.compile(functions.prefill, fullgraph=True, dynamic=False, mode=prefill_mode)
        self.decode_one_token = torch.compile(functions.decode_one_token, fullgraph=True, dynamic=False, mode=mode)
        regional = bool(job.variant.options.get("regional", False))
        if regional:
            # All layers are then calls of one compiled function: less to compile, and nothing is fused across a layer's edge.
            self._loaded().run_block = torch.compiler.nested_compile_region(run_block)
        return {"mode": mode, "prefill_mode": prefill_mode, "fullgraph": True, "regional": regional}

    def close(self) -> None:
        super().close()
        torch._dynamo.reset()
        gc.collect()


def _config(job: Job) -> ModelConfig | Outline:
    try:
        return read_outline(Path(job.checkpoint.path))
    except CheckpointError as error:
        raise EngineError(error.reason, Status.LOAD_FAILED) from error
