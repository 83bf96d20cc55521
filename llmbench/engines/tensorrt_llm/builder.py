"""From a checkpoint to a TensorRT-LLM engine: what it is built for, and the three calls that build it (convert, build, save).

The engine is sized to the request: TensorRT-LLM's default of 2048 sequences takes memory and picks other kernels. Lengths are rounded up to
whole blocks of the paged cache, so that a prompt a few ids longer finds the same engine.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmbench.checkpoints.config import ModelConfig
from llmbench.engines.base import EngineError, Unsupported
from llmbench.protocol import Job, Scalar, Status

#: Positions in a block of the paged KV cache, PluginConfig.tokens_per_block.
TOKENS_PER_BLOCK = 32
#: config.json's class -> TensorRT-LLM's.
ARCHITECTURES = {
    "LlamaForCausalLM": "LLaMAForCausalLM",
    "MistralForCausalLM": "LLaMAForCausalLM",
    "PhiForCausalLM": "PhiForCausalLM",
    "Phi3ForCausalLM": "Phi3ForCausalLM",
}
#: --quantization -> QuantAlgo, for those that need no calibration data. The names are TensorRT-LLM's, since its rounding isn't llmbench's own.
QUANT_ALGOS = {"w8a16": "W8A16", "w4a16": "W4A16", "fp8": "FP8_PER_CHANNEL_PER_TOKEN"}
#: Environment that changes what the builder writes.
BUILD_VARIABLES = ("TRTLLM_DISABLE_UNIFIED_CONVERTER",)
TIMING_CACHE = "model.cache"
ENGINE, CONFIG = "rank0.engine", "config.json"


@dataclass(frozen=True)
class Shape:
    """The greatest lengths that an engine is built for."""

    batch: int
    input_len: int
    seq_len: int

    @property
    def num_tokens(self) -> int:
        """Tokens of one step: all prompts at once."""
        return max(self.batch * self.input_len, TOKENS_PER_BLOCK)

    @staticmethod
    def of(job: Job, config: ModelConfig) -> Shape:
        """The request's lengths in whole blocks, within the model's context."""
        request = job.request
        seq_len = max(min(_whole_blocks(request.total_tokens), config.context), request.total_tokens)
        return Shape(request.batch_size, min(_whole_blocks(len(request.prompt_ids)), seq_len - 1), seq_len)


def _whole_blocks(length: int) -> int:
    return -(-length // TOKENS_PER_BLOCK) * TOKENS_PER_BLOCK


def check_quantization(quantization: str | None, architecture: str, sm: tuple[int, int]) -> None:
    """Raises Unsupported where TensorRT-LLM can't quantize this architecture so on a GPU of compute capability `sm`."""
    if quantization is None:
        return
    if quantization not in QUANT_ALGOS:
        raise Unsupported(
            f"tensorrt-llm has no quantization {quantization!r}; known: {', '.join(QUANT_ALGOS)} (others need calibration data, or round "
            "differently from llmbench's int8 and int4)"
        )
    if architecture == "PhiForCausalLM":
        raise Unsupported(f"TensorRT-LLM runs PhiForCausalLM in float16 and bfloat16 alone, not in {quantization}; leave quantization out")
    if quantization == "fp8" and sm < (8, 9):
        raise Unsupported(f"fp8 needs compute capability 8.9 or more; this GPU has {sm[0]}.{sm[1]}")


def build_options(job: Job, config: ModelConfig) -> dict[str, Scalar]:
    """All that is chosen for the build beside shape, dtype and checkpoint, for the artifact's key."""
    quantization = job.variant.quantization
    options: dict[str, Scalar] = {
        "architecture": ARCHITECTURES[config.architecture],
        "quant_algo": QUANT_ALGOS[quantization] if quantization else "none",
        "platform": f"{platform.system()} {platform.machine()}",
        "tp_size": 1,
        "max_beam_width": 1,
        "gemm_plugin": "auto",
        "tokens_per_block": TOKENS_PER_BLOCK,
    }
    options.update({f"env {name}": os.environ[name] for name in BUILD_VARIABLES if name in os.environ})
    return options


def build_engine(job: Job, config: ModelConfig, into: Path) -> None:
    """Writes config.json, rank0.engine and the timing cache into the empty folder `into`. Raises EngineError (build failed)."""
    from tensorrt_llm import builder, models
    from tensorrt_llm.models.modeling_utils import QuantConfig
    from tensorrt_llm.plugin.plugin import PluginConfig
    from tensorrt_llm.quantization import QuantAlgo

    quantization, shape = job.variant.quantization, Shape.of(job, config)
    scratch = into / ".checkpoint"  # on the artifact's disk, as random weights of 7 billion parameters take 14 GB; gone before this returns
    try:
        checkpoint = write_dummy(job, config, scratch) if job.checkpoint.load_format == "dummy" else Path(job.checkpoint.path)
        quant_config = QuantConfig(quant_algo=QuantAlgo[QUANT_ALGOS[quantization]]) if quantization else None
        model = getattr(models, ARCHITECTURES[config.architecture]).from_hugging_face(
            str(checkpoint), dtype=job.variant.dtype, quant_config=quant_config
        )
        engine = builder.build(model, builder.BuildConfig(**build_arguments(job, shape, into, PluginConfig)))
        if engine is None:
            raise EngineError("tensorrt_llm.build gave no engine; its log says why", Status.BUILD_FAILED)
        engine.save(str(into))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    forget_place(into)
    check_engine(into, None)


def build_arguments(job: Job, shape: Shape, into: Path, plugin_config: Any) -> dict[str, Any]:
    """BuildConfig's arguments."""
    return {
        "max_batch_size": shape.batch,
        "opt_batch_size": shape.batch,
        "max_input_len": shape.input_len,
        "max_seq_len": shape.seq_len,
        "max_num_tokens": shape.num_tokens,
        "max_beam_width": 1,
        "output_timing_cache": str(into / TIMING_CACHE),  # else it is written into the current folder
        "plugin_config": plugin_config(dtype=job.variant.dtype, gemm_plugin="auto", tokens_per_block=TOKENS_PER_BLOCK),
    }


def write_dummy(job: Job, config: ModelConfig, folder: Path) -> Path:
    """A whole checkpoint with llmbench's random weights, the same that every engine gets, for a library that reads files only."""
    from llmbench.checkpoints.dummy import write_shards

    folder.mkdir()
    shutil.copyfile(Path(job.checkpoint.path) / CONFIG, folder / CONFIG)
    write_shards(config, folder, job.variant.dtype, job.checkpoint.dummy_seed)
    return folder


def forget_place(artifact: Path) -> None:
    """Takes the building folder's path out of the saved config.json: an artifact is moved once it is whole."""
    path = artifact / CONFIG
    saved = json.loads(path.read_text(encoding="utf-8"))
    settings = saved.get("build_config", {})
    for name in ("input_timing_cache", "output_timing_cache"):
        if settings.get(name):
            settings[name] = Path(settings[name]).name
    path.write_text(json.dumps(saved, indent=1), encoding="utf-8")


def check_engine(artifact: Path, installed: str | None) -> None:
    """Raises EngineError (load failed) where the folder holds no engine, or one of another release than `installed`."""
    try:
        saved = json.loads((artifact / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EngineError(f"{artifact / CONFIG} can't be read: {error}", Status.LOAD_FAILED) from None
    if not (artifact / ENGINE).is_file():
        raise EngineError(f"{artifact} has no {ENGINE}; remove it and build again", Status.LOAD_FAILED)
    if installed is not None and saved.get("version") != installed:
        raise EngineError(
            f"{artifact} was built by tensorrt_llm {saved.get('version')}, and {installed} is installed; its plans don't load",
            Status.LOAD_FAILED,
        )
