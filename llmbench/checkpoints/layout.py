"""What a shape implies: the tensors its checkpoint holds, how many parameters, how many bytes a token reads.

Standard library only. `expected_tensors` is the one list that the file checks, the dummy weights and the model's loader go by.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from llmbench.checkpoints.config import ModelConfig
from llmbench.protocol import Request

EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Hugging Face names -> shapes (linear layers [out, in]) of all tensors of a checkpoint, in the order a forward pass meets them.

    lm_head.weight is absent where it is tied to the embedding table.
    """
    tensors: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab, config.hidden)}
    phi = config.parallel_block
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}"
        tensors.update(_norm(config, f"{prefix}.input_layernorm"))
        for name, rows, columns, bias in _attention(config):
            tensors.update(_linear(f"{prefix}.self_attn.{name}", rows, columns, bias))
        if not phi:
            tensors.update(_norm(config, f"{prefix}.post_attention_layernorm"))
        for name, rows, columns in _mlp(config):
            tensors.update(_linear(f"{prefix}.mlp.{name}", rows, columns, config.mlp_bias))
    tensors.update(_norm(config, "model.final_layernorm" if phi else "model.norm"))
    if not config.tied:
        tensors[LM_HEAD] = (config.vocab, config.hidden)
    if config.lm_head_bias:
        tensors["lm_head.bias"] = (config.vocab,)
    return tensors


def _linear(name: str, rows: int, columns: int, bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (rows, columns)
    if bias:
        yield f"{name}.bias", (rows,)


def _norm(config: ModelConfig, name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (config.hidden,)
    if config.norm == "layer":
        yield f"{name}.bias", (config.hidden,)


def _attention(config: ModelConfig) -> Iterator[tuple[str, int, int, bool]]:
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    bias = config.attention_bias
    if config.fused_names:
        yield "qkv_proj", queries + 2 * keys, config.hidden, bias
    else:
        yield "q_proj", queries, config.hidden, bias
        yield "k_proj", keys, config.hidden, bias
        yield "v_proj", keys, config.hidden, bias
    yield "dense" if config.parallel_block else "o_proj", config.hidden, queries, bias


def _mlp(config: ModelConfig) -> Iterator[tuple[str, int, int]]:
    if config.activation != "silu":
        yield "fc1", config.mlp, config.hidden
        yield "fc2", config.hidden, config.mlp
        return
    if config.fused_names:
        yield "gate_up_proj", 2 * config.mlp, config.hidden
    else:
        yield "gate_proj", config.mlp, config.hidden
        yield "up_proj", config.mlp, config.hidden
    yield "down_proj", config.hidden, config.mlp


def parameter_count(config: ModelConfig) -> int:
    """All elements of all tensors; a table shared by embedding and lm_head counts once."""
    return sum(prod(shape) for shape in expected_tensors(config).values())


def weights_bytes(config: ModelConfig, dtype_bytes: float) -> int:
    """Bytes of all weights at dtype_bytes for each element."""
    return round(parameter_count(config) * dtype_bytes)


def kv_bytes_per_position(config: ModelConfig, dtype_bytes: float) -> float:
    """Bytes that one position of one sequence takes in the KV cache, all layers: 2 x layers x KV heads x head dim x dtype_bytes."""
    return 2 * config.layers * config.kv_heads * config.head_dim * dtype_bytes


def bytes_per_token(config: ModelConfig, dtype_bytes: float, request: Request, kv_dtype_bytes: float | None = None) -> int:
    """Bytes that one decode step has to read from memory (design.md, "What is measured, and its formulas").

    (parameters read for a token) x dtype_bytes + batch x KV cache at mid-length, clipped to the window. The embedding table
    counts only where it is tied to lm_head: otherwise a step reads one row of it. Mid-length = prompt + new tokens / 2.
    kv_dtype_bytes: bytes of a cache element, where it isn't the weights' (quantized weights).
    """
    parameters = parameter_count(config)
    if not config.tied:
        parameters -= config.vocab * config.hidden
    positions = len(request.prompt_ids) + request.max_new_tokens / 2
    if config.sliding_window is not None:
        positions = min(positions, config.sliding_window)
    cache = kv_bytes_per_position(config, dtype_bytes if kv_dtype_bytes is None else kv_dtype_bytes)
    return round(parameters * dtype_bytes + request.batch_size * positions * cache)
