"""The engine `tensorrt-llm-pytorch`: TensorRT-LLM's PyTorch backend through its LLM API, a different engine from the built one.

It reads a checkpoint and builds no plan. Its own random weights would be others than those of all other engines, so for --load-format dummy
llmbench's are kept as an artifact in Hugging Face layout. Not yet run on a GPU by this project.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmbench.checkpoints.config import ModelConfig
from llmbench.engines.base import EngineError, Unsupported
from llmbench.engines.tensorrt_llm.builder import write_dummy
from llmbench.engines.tensorrt_llm.common import KV_FRACTION, NO_END, TensorRTLLMEngine, device_index, pool_tokens, sampling_arguments
from llmbench.engines.tensorrt_llm.contract import recorded
from llmbench.protocol import EngineReport, Job, Recipe, Request, Status


class TensorRTLLMPyTorchEngine(TensorRTLLMEngine):
    """Runs a checkpoint with tensorrt_llm.LLM."""

    ADAPTER = 1
    name = "tensorrt-llm-pytorch"
    architectures = ("LlamaForCausalLM", "MistralForCausalLM", "Phi3ForCausalLM")  # no Phi-2 in this backend

    def __init__(self) -> None:
        super().__init__()
        self._llm: Any = None

    def check_model(self, job: Job, config: ModelConfig, sm: tuple[int, int]) -> None:
        if job.variant.quantization is not None:
            raise Unsupported(f"{self.name} has no quantization {job.variant.quantization!r} here; tensorrt-llm has")
        if device_index(job.device):
            raise Unsupported(f"{self.name} takes the first GPU that it sees; set CUDA_VISIBLE_DEVICES and use cuda:0")
        if config.sliding_window is not None and job.request.total_tokens > config.sliding_window:
            raise Unsupported(
                f"the PyTorch backend of this release has no sliding window, and {job.request.total_tokens} positions are more than the "
                f"model's {config.sliding_window}; ask for fewer, or take tensorrt-llm"
            )

    # ------------------------------------------------------------------------------------------------------------- random weights

    def recipe(self, job: Job) -> Recipe | None:
        if job.checkpoint.load_format != "dummy":
            return None
        return Recipe(adapter=self.ADAPTER, versions={}, targets=("any",), options={"files": "safetensors"})

    def build(self, job: Job, into: Path, source: Path | None = None) -> None:
        folder = write_dummy(job, self.read_config(job), into / ".checkpoint")
        for path in sorted(folder.iterdir()):
            path.rename(into / path.name)
        folder.rmdir()

    # -------------------------------------------------------------------------------------------------------------------- running

    def load(self, job: Job, artifact: Path | None) -> EngineReport:
        if artifact is None and job.checkpoint.load_format == "dummy":
            raise EngineError(f"{self.name} reads files, and there are none of the random weights", Status.LOAD_FAILED)
        from tensorrt_llm import LLM
        from tensorrt_llm.llmapi import CudaGraphConfig, KvCacheConfig

        self.config = self.read_config(job)
        arguments = self.llm_arguments(job, KvCacheConfig, CudaGraphConfig)
        _check_llm_arguments(arguments)
        self._llm = LLM(str(artifact or job.checkpoint.path), **arguments)
        self.request = job.request
        return self.report(job, {"cuda_graphs": arguments["cuda_graph_config"] is not None, "attention": "TRTLLM"})

    def llm_arguments(self, job: Job, kv_cache_config: Any, cuda_graph_config: Any) -> dict[str, Any]:
        """LLM's arguments beside the model."""
        request, options = job.request, job.variant.options
        graphs = bool(options.get("cuda_graphs", True))
        return {
            "skip_tokenizer_init": True,
            "dtype": job.variant.dtype,
            "max_batch_size": request.batch_size,
            "max_input_len": len(request.prompt_ids),
            "max_seq_len": request.total_tokens,
            "max_num_tokens": max(request.batch_size * len(request.prompt_ids), request.batch_size),
            "kv_cache_config": kv_cache_config(
                enable_block_reuse=False,  # on by default: then the second generation skips the prompt
                max_tokens=pool_tokens(request),
                free_gpu_memory_fraction=float(options.get("kv_fraction", KV_FRACTION)),
            ),
            "cuda_graph_config": cuda_graph_config(max_batch_size=request.batch_size) if graphs else None,
        }

    def generate(self, request: Request, on_token: Callable[[int], None] | None = None) -> list[list[int]]:
        self.fits(request)
        from tensorrt_llm import SamplingParams

        parameters = SamplingParams(**sampling_parameters(request))
        prompt = {"prompt_token_ids": list(request.prompt_ids)}
        if on_token is None:
            answers = self._llm.generate([prompt] * request.batch_size, sampling_params=parameters, use_tqdm=False)
        else:
            running = [self._llm.generate_async(prompt, sampling_params=parameters, streaming=True) for _ in range(request.batch_size)]
            for step in running[0]:
                on_token(len(step.outputs[0].token_ids))
            answers = [one.result() for one in running]
        return [list(answer.outputs[0].token_ids) for answer in answers]

    def close(self) -> None:
        if self._llm is not None:
            self._llm.shutdown()
            self._llm = None


def sampling_parameters(request: Request) -> dict[str, Any]:
    """SamplingParams' arguments: no end of sequence, no text."""
    return {
        "max_tokens": request.max_new_tokens,
        "end_id": NO_END,
        "pad_id": NO_END,
        "ignore_eos": True,
        "detokenize": False,
        **sampling_arguments(request.sampling),
    }


def _check_llm_arguments(arguments: dict[str, Any]) -> None:
    fields = recorded()["fields"]
    unknown = sorted(set(arguments) - set(fields["BaseLlmArgs"]) - set(fields["TorchLlmArgs"]))
    if unknown:
        raise EngineError(f"tensorrt_llm.LLM has no argument {unknown[0]!r}")
