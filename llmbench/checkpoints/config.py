"""A checkpoint's shape: what config.json says, as one dataclass for all supported families.

Standard library only: the parent reads it for the card and the limits, the worker to build the model. `read_config` refuses what can't be
run by name, so that no later part meets a shape it doesn't know.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RopeScaling:
    """Llama-3's frequency scaling (rope_type "llama3")."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True)
class ModelConfig:
    """One decoder-only Transformer. Lengths in elements, context in tokens."""

    architecture: str  # config.json's class, "LlamaForCausalLM"
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int  # width of the feed-forward layer
    vocab: int
    context: int
    norm: str = "rms"  # "rms": RMSNorm; "layer": LayerNorm with bias
    norm_eps: float = 1e-5
    activation: str = "silu"  # "silu" (gated, gate and up) or "gelu_new" (plain, fc1 and fc2)
    rope_theta: float = 10000.0
    rotary_dim: int = 0  # leading elements of a head that are rotated: head_dim, or less (phi-2)
    rope_scaling: RopeScaling | None = None
    sliding_window: int | None = None  # tokens that a query sees, itself included
    tied: bool = False  # lm_head is the embedding table
    parallel_block: bool = False  # phi-2: attention and feed-forward side by side from one norm
    attention_bias: bool = False  # q, k, v and the output projection
    mlp_bias: bool = False
    lm_head_bias: bool = False
    fused_names: bool = False  # phi-3: qkv_proj and gate_up_proj in the checkpoint
    dtype: str = "float32"  # what the checkpoint is meant to run in
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
