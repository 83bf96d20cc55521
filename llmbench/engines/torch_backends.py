"""The other ways of torch.compile: `aot-eager`, `cudagraphs`, `torch-compile-no-cudagraphs`, and `nvfuser` through lightning-thunder.

Each is TorchEngine with its own way to compile prefill and the decode step. They are PyTorch's compiler dashboard's columns; two of them
are known there by older names: aot_cudagraphs is today's backend "cudagraphs", and nvfuser has left PyTorch for thunder.
"""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from llmbench.engines.base import EngineError, Unavailable, Unsupported
from llmbench.engines.torch_engines import TorchCompileEngine, TorchEngine
from llmbench.protocol import Job, Status
from llmbench.torchfast import generate as functions

Settings = dict[str, str | int | float | bool]


class DynamoEngine(TorchEngine):
    """Both functions through Dynamo to a backend by name, each as one graph with static shapes."""

    backend = ""

    def prepare(self, job: Job) -> Settings:
        self.configure()
        self.prefill = torch.compile(functions.prefill, fullgraph=True, dynamic=False, backend=self.backend)
        self.decode_one_token = torch.compile(functions.decode_one_token, fullgraph=True, dynamic=False, backend=self.backend)
        return {"backend": self.backend, "fullgraph": True, **self.chosen()}

    def configure(self) -> None:
        """What the backend needs of torch's settings, in this process alone."""

    def chosen(self) -> Settings:
        return {}

    def close(self) -> None:
        super().close()
        torch._dynamo.reset()
        gc.collect()


class AotEagerEngine(DynamoEngine):
    """Dynamo and AOTAutograd, then the graph's operators one after the other: what of a compiled step isn't Inductor's doing."""

    name = "aot-eager"
    backend = "aot_eager"


class CudagraphsEngine(DynamoEngine):
    """The same graphs, not fused, replayed as CUDA graphs: what launching costs."""

    name = "cudagraphs"
    backend = "cudagraphs"

    def supports(self, job: Job) -> None:
        super().supports(job)
        if self._device(job.device).type != "cuda":
            raise Unavailable("cudagraphs replays CUDA graphs, and there are none on the CPU; use --device cuda")

    def configure(self) -> None:
        # A decode step writes into its KV cache. As torch sets them, the whole cache would be copied in and out of each replay, or the graph
        # would not be made a CUDA graph at all.
        torch._dynamo.config.cudagraph_backend_keep_input_mutation = True
        torch._dynamo.config.cudagraph_backend_support_input_mutation = True

    def chosen(self) -> Settings:
        return {"keep_input_mutation": True}


class TorchCompileNoCudagraphsEngine(TorchCompileEngine):
    """torch-compile in its mode "default" on every device: Inductor's kernels, launched one by one."""

    name = "torch-compile-no-cudagraphs"
    options = ("model", "regional")

    def supports(self, job: Job) -> None:
        if "mode" in job.variant.options:
            raise Unsupported(f"{self.name} has no option 'mode': it is default; torch-compile has others")
        super().supports(job)

    def prepare(self, job: Job) -> Settings:
        return self.compile_both(job, "default")


class NvfuserEngine(DynamoEngine):
    """lightning-thunder's Dynamo backend with NVIDIA's fuser, which left PyTorch itself in 2023 (pytorch/pytorch#105789)."""

    name = "nvfuser"
    needs = "an interpreter of its own with torch 2.10, lightning-thunder 0.2.6 and nvfuser-cu128-torch210 (--python nvfuser=PATH)"

    def supports(self, job: Job) -> None:
        super().supports(job)
        if self._device(job.device).type != "cuda":
            raise Unavailable("nvfuser writes CUDA kernels, and there are none on the CPU; use --device cuda")
        if importlib.util.find_spec("thunder") is None:
            raise Unavailable(f"nvfuser needs {self.needs}")
        if not self._executors():
            raise Unavailable(f"thunder is here, but without nvFuser for torch {torch.__version__}: nvfuser needs {self.needs}")

    def prepare(self, job: Job) -> Settings:
        compiler = thunder_backend(self._executors())
        self.prefill = torch.compile(functions.prefill, fullgraph=True, dynamic=False, backend=compiler)
        self.decode_one_token = torch.compile(functions.decode_one_token, fullgraph=True, dynamic=False, backend=compiler)
        return {"backend": "thunder", "executors": "nvfuser, torch", "fullgraph": True}

    @staticmethod
    def _executors() -> list[Any]:
        """thunder's executors in order of preference, empty without nvFuser."""
        import thunder

        nvfuser = thunder.get_executor("nvfuser")
        torch_executor = thunder.get_executor("torch")
        return [] if nvfuser is None else [nvfuser, *([torch_executor] if torch_executor is not None else [])]

    def versions(self) -> dict[str, str]:
        import thunder

        return {**super().versions(), "thunder": str(thunder.__version__)}


def thunder_backend(executors: list[Any]) -> Callable[..., Any]:
    """thunder's compiler as a Dynamo backend. Raises EngineError where this thunder has none."""
    from thunder.dynamo import ThunderCompiler

    try:
        compiler: Callable[..., Any] = ThunderCompiler(executors=executors)
    except TypeError as error:
        raise EngineError(f"this thunder's ThunderCompiler takes no executors: {error}", Status.LOAD_FAILED) from error
    return compiler
