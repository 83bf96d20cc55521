"""The engine `tensorrt-llm`: a checkpoint converted, built to a TensorRT plan and run by ModelRunnerCpp.

Prompt ids go in and exactly max_new_tokens ids come out: no end-of-sequence id ends a generation (end_id -1), what came back is counted by its
own sequence lengths, as the rows are padded with -1 to the runner's length. Not yet run on a GPU by this project; see docs/tensorrt-llm.md.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmbench.checkpoints.config import ModelConfig
from llmbench.engines.base import EngineError
from llmbench.engines.tensorrt_llm import builder, install
from llmbench.engines.tensorrt_llm.common import KV_FRACTION, NO_END, TensorRTLLMEngine, device_index, pool_tokens, sampling_arguments
from llmbench.engines.tensorrt_llm.contract import SAMPLING_ARGUMENTS, check_arguments
from llmbench.protocol import EngineReport, Job, Recipe, Request, Status
from llmbench.worker.targets import device_target


class TensorRTLLMBuiltEngine(TensorRTLLMEngine):
    """Builds with tensorrt_llm.build, runs with ModelRunnerCpp."""

    ADAPTER = 1
    architectures = tuple(builder.ARCHITECTURES)

    def __init__(self) -> None:
        super().__init__()
        self._runner: Any = None

    def available(self) -> None:
        install.engine_flow()

    def check_model(self, job: Job, config: ModelConfig, sm: tuple[int, int]) -> None:
        builder.check_quantization(job.variant.quantization, config.architecture, sm)

    # ------------------------------------------------------------------------------------------------------------------- building

    def recipe(self, job: Job) -> Recipe:
        """A plan runs under the release of TensorRT, and on the kind of GPU, that built it; how it is run later is no part of it."""
        config = self.read_config(job)
        shape = builder.Shape.of(job, config)
        return Recipe(
            adapter=self.ADAPTER,
            versions={name: version for name, version in self.versions().items() if name != "python"},
            targets=(device_target(job.device),),
            maxima={"batch": shape.batch, "input_len": shape.input_len, "seq_len": shape.seq_len},
            options=builder.build_options(job, config),
            executes=True,
        )

    def build(self, job: Job, into: Path, source: Path | None = None) -> None:
        import torch

        torch.cuda.set_device(device_index(job.device))
        builder.build_engine(job, self.read_config(job), into)

    # -------------------------------------------------------------------------------------------------------------------- loading

    def load(self, job: Job, artifact: Path | None) -> EngineReport:
        if artifact is None:
            raise EngineError("tensorrt-llm runs an artifact, and there is none", Status.LOAD_FAILED)
        import torch
        from tensorrt_llm.runtime import ModelRunnerCpp

        self.config = self.read_config(job)
        builder.check_engine(artifact, install.versions()["tensorrt_llm"])
        torch.cuda.set_device(device_index(job.device))
        arguments = self.runner_arguments(job)
        check_arguments("ModelRunnerCpp.from_dir", {"engine_dir": None, **arguments})
        self._runner = ModelRunnerCpp.from_dir(str(artifact), **arguments)
        self.request = job.request
        return self.report(
            job,
            {
                "cuda_graphs": arguments["cuda_graph_mode"],
                "gemm_plugin": "auto",
                "attention_window": self.config.sliding_window or "none",
                "plan_bytes": (artifact / builder.ENGINE).stat().st_size,
            },
        )

    def runner_arguments(self, job: Job) -> dict[str, Any]:
        """ModelRunnerCpp.from_dir's arguments. The lengths are the request's, since every returned row is padded to their sum in Python."""
        assert self.config is not None
        request, options = job.request, job.variant.options
        return {
            "rank": 0,
            "max_batch_size": request.batch_size,
            "max_input_len": len(request.prompt_ids),
            "max_output_len": request.max_new_tokens,
            "max_beam_width": 1,
            # The plan doesn't know the checkpoint's sliding window: without this, Mistral-7B-v0.1 attends to everything.
            "max_attention_window_size": [self.config.sliding_window] if self.config.sliding_window else None,
            "max_tokens_in_paged_kv_cache": pool_tokens(request),
            "kv_cache_free_gpu_memory_fraction": float(options.get("kv_fraction", KV_FRACTION)),
            "kv_cache_enable_block_reuse": False,  # else the second generation skips the prompt
            "enable_chunked_context": False,
            "cuda_graph_mode": bool(options.get("cuda_graphs", True)),
            "device_ids": [device_index(job.device)],
        }

    # ----------------------------------------------------------------------------------------------------------------- generating

    def generate(self, request: Request, on_token: Callable[[int], None] | None = None) -> list[list[int]]:
        self.fits(request)
        import torch

        prompt = torch.tensor(request.prompt_ids, dtype=torch.int32)
        arguments = generate_arguments(request, streaming=on_token is not None)
        answer = self._runner.generate([prompt] * request.batch_size, **arguments)
        if on_token is not None:
            answer = _follow(answer, len(request.prompt_ids), on_token)
        return new_ids(answer, len(request.prompt_ids))

    def close(self) -> None:
        self._runner = None


def generate_arguments(request: Request, streaming: bool = False) -> dict[str, Any]:
    """ModelRunnerCpp.generate's arguments beside the prompt, held to the names that it really reads. Raises EngineError for any other."""
    sampling = sampling_arguments(request.sampling)
    if "seed" in sampling:
        sampling["random_seed"] = sampling.pop("seed")
    arguments = {
        "max_new_tokens": request.max_new_tokens,
        "end_id": NO_END,
        "pad_id": NO_END,
        "streaming": streaming,
        "return_dict": True,
        "output_sequence_lengths": True,
        **sampling,
    }
    check_arguments("ModelRunnerCpp.generate", arguments, SAMPLING_ARGUMENTS)
    return arguments


def new_ids(answer: dict[str, Any], prompt_length: int) -> list[list[int]]:
    """The ids behind the prompt, each sequence as long as its own length says, which includes the prompt; padding isn't counted.

    answer: "output_ids" int32 [batch, 1, positions], "sequence_lengths" [batch, 1].
    """
    rows, lengths = answer["output_ids"][:, 0, prompt_length:].tolist(), answer["sequence_lengths"][:, 0].tolist()
    return [row[: length - prompt_length] for row, length in zip(rows, lengths, strict=True)]


def _follow(steps: Any, prompt_length: int, on_token: Callable[[int], None]) -> dict[str, Any]:
    """Reads a streaming generation to its end; each step's answer holds all ids so far. Returns the last."""
    last: dict[str, Any] | None = None
    for last in steps:
        on_token(int(last["sequence_lengths"].min()) - prompt_length)
    if last is None:
        raise EngineError("the streaming generation gave nothing")
    return last
