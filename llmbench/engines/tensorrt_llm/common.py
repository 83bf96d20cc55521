"""What both TensorRT-LLM engines ask before they run, and how sampling is told to either."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from llmbench.checkpoints.config import ModelConfig, read_config
from llmbench.checkpoints.errors import CheckpointError
from llmbench.engines.base import EngineError, Unavailable, Unsupported
from llmbench.engines.tensorrt_llm import contract, install
from llmbench.engines.tensorrt_llm.builder import TOKENS_PER_BLOCK
from llmbench.protocol import DTYPE_BYTES, EngineReport, Job, Request, Sampling, Scalar

#: An end-of-sequence id that no token has: generation goes on to max_new_tokens.
NO_END = -1
#: Of the GPU memory that is free once the weights are loaded, the most that the paged KV cache may take; the request needs far less.
KV_FRACTION = 0.9


class TensorRTLLMEngine:
    """The part that is the same for both ways."""

    name = "tensorrt-llm"
    options: Collection[str] = ("cuda_graphs", "kv_fraction")
    architectures: Collection[str] = ()

    def __init__(self) -> None:
        self.config: ModelConfig | None = None
        self.request: Request | None = None

    def supports(self, job: Job) -> None:
        """Needs the library and a GPU; reads config.json alone."""
        self.available()
        variant, request = job.variant, job.request
        for name in variant.options:
            if name not in self.options:
                raise Unsupported(f"{self.name} has no option {name!r}; it has {', '.join(self.options)}")
        if not job.device.startswith("cuda"):
            raise Unsupported(f"{self.name} runs on NVIDIA GPUs only, not on {job.device}; use --device cuda")
        if variant.dtype not in DTYPE_BYTES:
            raise Unsupported(f"{self.name} can't run in dtype {variant.dtype!r}; known: {', '.join(DTYPE_BYTES)}")
        graphs, fraction = variant.options.get("cuda_graphs", True), variant.options.get("kv_fraction", KV_FRACTION)
        if not isinstance(graphs, bool):
            raise Unsupported(f"cuda_graphs is true or false, not {graphs!r}")
        if isinstance(fraction, (str, bool)) or not 0 < fraction <= 1:
            raise Unsupported(f"kv_fraction is a number above 0 and up to 1, not {fraction!r}")
        self.config = self.read_config(job)
        if request.total_tokens > self.config.context:
            raise Unsupported(
                f"prompt and new tokens are {request.total_tokens}, more than the model's context of {self.config.context}; ask for fewer"
            )
        self.check_model(job, self.config, self._capability(job.device))

    def available(self) -> None:
        """Raises Unavailable where the library isn't here or lacks what this engine needs."""
        install.library()

    def check_model(self, job: Job, config: ModelConfig, sm: tuple[int, int]) -> None:
        """Raises Unsupported for what this way can't do."""

    def read_config(self, job: Job) -> ModelConfig:
        try:
            config = read_config(Path(job.checkpoint.path))
        except CheckpointError as error:
            raise Unsupported(f"{self.name}: {error.reason}") from error
        if config.architecture not in self.architectures:
            raise Unsupported(f"{self.name} has no {config.architecture}; known: {', '.join(self.architectures)}")
        return config

    def _capability(self, device: str) -> tuple[int, int]:
        import torch

        index, count = device_index(device), torch.cuda.device_count()
        if index >= count:
            raise Unavailable(f"{device} isn't here: torch {torch.__version__} under this interpreter sees {count} CUDA devices")
        major, minor = torch.cuda.get_device_capability(device)
        return major, minor

    def report(self, job: Job, settings: dict[str, Scalar]) -> EngineReport:
        """Bytes of weights are those of the checkpoint in the variant's dtype; null where they are quantized, since the plan doesn't tell."""
        from llmbench.checkpoints import layout

        assert self.config is not None
        size, request = DTYPE_BYTES[job.variant.dtype], job.request
        position = layout.kv_bytes_per_position(self.config, size)
        return EngineReport(
            storage_dtype=job.variant.quantization or job.variant.dtype,
            arithmetic_dtype=job.variant.dtype,
            weights_bytes=layout.weights_bytes(self.config, size) if job.variant.quantization is None else None,
            kv_cache_bytes=round(position * request.total_tokens * request.batch_size),
            settings={
                "block_reuse": False,
                "kv_pool_bytes": round(position * pool_tokens(request)),  # what is preallocated; kv_cache_bytes is what the request uses
                **settings,
            },
        )

    def logits(self, ids: list[int]) -> Any:
        raise Unsupported(f"{self.name} can't be fed given ids through the decode step that is timed; its ids are checked instead")

    def contract(self) -> list[str]:
        """How the installed library differs from the recorded API, one line each."""
        install.library()
        return contract.differences()

    def versions(self) -> dict[str, str]:
        return install.versions()

    def synchronize(self) -> None:
        """Both libraries' calls return once the ids are on the host; other streams' work is waited for where torch has a context."""
        import sys

        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def fits(self, request: Request) -> None:
        """Raises EngineError for a request that this engine wasn't loaded for."""
        if self.request is None:
            raise EngineError("nothing is loaded")
        if request.batch_size > self.request.batch_size or request.total_tokens > self.request.total_tokens:
            raise EngineError(
                f"asked for {request.batch_size} x {request.total_tokens} positions; loaded for {self.request.batch_size} x "
                f"{self.request.total_tokens}"
            )


def device_index(device: str) -> int:
    """The i of "cuda:i"."""
    return int(device.partition(":")[2] or 0)


def pool_tokens(request: Request) -> int:
    """Positions that the paged KV cache is given: whole blocks for each sequence and one more, which the scheduler wants before a block is full."""
    return request.batch_size * (-(-request.total_tokens // TOKENS_PER_BLOCK) + 1) * TOKENS_PER_BLOCK


def sampling_arguments(sampling: Sampling) -> dict[str, Any]:
    """What either library calls the request's sampling: {"temperature", "top_k", "top_p"?, "seed"?}. Greedy is top_k 1."""
    if sampling.temperature == 0:
        return {"top_k": 1}
    if sampling.top_k is not None:
        return {"temperature": sampling.temperature, "top_k": sampling.top_k, "seed": sampling.seed}
    # top_k 0 with top_p 1 is the whole vocabulary; top_k alone at 0 is greedy.
    return {"temperature": sampling.temperature, "top_k": 0, "top_p": 1.0, "seed": sampling.seed}
