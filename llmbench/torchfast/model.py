"""The Transformer that the torch engines run: one module for Llama, Mistral, Phi-3 and Phi-2, its shape taken from ModelConfig.

It is written for decoding one token at a time. q, k and v are one matrix and so are gate and up, since a product with few rows costs what
its weights cost to read, and fewer, larger reads are faster. The KV cache has one fixed length and is written in place, so that every step
has the same shapes and one compiled graph, or one CUDA graph, serves them all. Positions not yet written are hidden by a mask.

Shapes: B sequences, T positions, L the cache's length, D head_dim, H query heads, K key and value heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from llmbench.checkpoints.config import ModelConfig


class Linear(nn.Linear):
    def reset_parameters(self) -> None:
        """Nothing: weights.py fills it, and drawing numbers first would take longer than loading."""


class Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        """Nothing, as in Linear."""


def run_block(block: Block, x: Tensor, cos: Tensor, sin: Tensor, input_pos: Tensor | None, mask: Tensor | None) -> Tensor:
    return block(x, cos, sin, input_pos, mask)


class Transformer(nn.Module):
    """A decoder-only Transformer. `setup_caches` comes before the first `prefill` or `step`."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        # No attribute may be a torch.dtype: torch's pickled guards lose every tensor's dtype then, and a saved compilation can't be loaded.
        self.embed = Embedding(config.vocab, config.hidden, dtype=dtype)
        self.blocks = nn.ModuleList(Block(config, dtype) for _ in range(config.layers))
        self.norm = _norm(config, dtype)
        # A tied lm_head is the embedding table itself, so there is no second parameter to keep equal.
        self.lm_head = None if config.tied else Linear(config.hidden, config.vocab, config.lm_head_bias, dtype=dtype)
        self.length = 0
        # How a layer is called: to have one function compiled once for all layers, a compiled engine puts its own here.
        self.run_block: Callable[..., Tensor] = run_block

    def setup_caches(self, batch: int, length: int, device: torch.device | str) -> None:
        """Makes the KV caches, 2 x layers x [batch, kv_heads, length, head_dim], and the rotary tables for `length` positions."""
        self.length = length
        dtype = self.norm.weight.dtype
        for block in self.blocks:
            block.attention.setup_cache(batch, length, dtype, device)
        cos, sin = rotary_tables(self.config, length)
        self.register_buffer("cos", cos.to(device), persistent=False)
        self.register_buffer("sin", sin.to(device), persistent=False)
        self.register_buffer("positions", torch.arange(length, device=device), persistent=False)

    @property
    def vocab(self) -> int:
        return self.config.vocab

    def settings(self) -> dict[str, str | int | float | bool]:
        """What was chosen for this model, for EngineReport.settings."""
        return {"model": "own", "attention": "grouped matmul, float32 softmax", "kv_cache_length": self.length}

    def kv_cache_bytes(self) -> int:
        return sum(2 * block.attention.k_cache.nbytes for block in self.blocks)

    def weights_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.parameters())

    def prefill(self, ids: Tensor, last_only: bool = True) -> Tensor:
        """Logits [B, 1, vocab] after the prompt ids [B, T], or [B, T, vocab]; the caches hold positions 0 to T - 1 afterwards."""
        length = ids.shape[1]
        window = self.config.sliding_window
        mask = None
        if window is not None and window < length:
            behind = self.positions[:length, None] - self.positions[None, :length]
            mask = (behind >= 0) & (behind < window)
        cos, sin = self.cos[:length, None], self.sin[:length, None]
        x = self.embed(ids)
        for block in self.blocks:
            x = self.run_block(block, x, cos, sin, None, mask)
        # The other positions' logits would be a product with the whole vocabulary that nothing reads.
        return self.head(x[:, -1:] if last_only else x)

    def step(self, ids: Tensor, input_pos: Tensor) -> Tensor:
        """Logits [B, 1, vocab] after ids [B, 1], which stand at position input_pos [1] (int64) of every sequence."""
        window = self.config.sliding_window
        mask = self.positions <= input_pos
        if window is not None and window < self.length:
            mask = mask & (self.positions > input_pos - window)
        cos, sin = self.cos[input_pos, None], self.sin[input_pos, None]
        x = self.embed(ids)
        for block in self.blocks:
            x = self.run_block(block, x, cos, sin, input_pos, mask)
        return self.head(x)

    def head(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return F.linear(x, self.embed.weight) if self.lm_head is None else self.lm_head(x)


class Block(nn.Module):
    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.parallel = config.parallel_block
        self.attention_norm = _norm(config, dtype)
        self.attention = Attention(config, dtype)
        self.mlp_norm = None if self.parallel else _norm(config, dtype)
        self.mlp = (GatedMLP if config.activation == "silu" else PlainMLP)(config, dtype)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, input_pos: Tensor | None, mask: Tensor | None) -> Tensor:
        normed = self.attention_norm(x)
        attended = self.attention(normed, cos, sin, input_pos, mask)
        if self.mlp_norm is None:
            return x + attended + self.mlp(normed)
        x = x + attended
        return x + self.mlp(self.mlp_norm(x))


class Attention(nn.Module):
    """Self-attention with grouped keys and values: query head h reads key head h // (H / K)."""

    k_cache: Tensor
    v_cache: Tensor

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.rotary_dim = config.rotary_dim or config.head_dim
        rows = (config.heads + 2 * config.kv_heads) * config.head_dim
        self.qkv = Linear(config.hidden, rows, config.attention_bias, dtype=dtype)
        self.out = Linear(config.heads * config.head_dim, config.hidden, config.attention_bias, dtype=dtype)

    def setup_cache(self, batch: int, length: int, dtype: torch.dtype, device: torch.device | str) -> None:
        shape = (batch, self.kv_heads, length, self.head_dim)
        # Zeros, not empty: a masked position weighs 0, and 0 x NaN from stale memory would be NaN.
        self.register_buffer("k_cache", torch.zeros(shape, dtype=dtype, device=device), persistent=False)
        self.register_buffer("v_cache", torch.zeros(shape, dtype=dtype, device=device), persistent=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, input_pos: Tensor | None, mask: Tensor | None) -> Tensor:
        batch, length, _ = x.shape
        qkv = self.qkv(x).view(batch, length, self.heads + 2 * self.kv_heads, self.head_dim)
        qk, v = qkv.split([self.heads + self.kv_heads, self.kv_heads], dim=2)
        q, k = rotate(qk, cos, sin, self.rotary_dim).split([self.heads, self.kv_heads], dim=2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        # A smaller batch than the cache's uses its first rows.
        k_cache, v_cache = self.k_cache[:batch], self.v_cache[:batch]
        if input_pos is None:
            k_cache[:, :, :length] = k
            v_cache[:, :, :length] = v
            grouped = self.heads != self.kv_heads
            y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, enable_gqa=grouped)
            y = y.transpose(1, 2)
        else:
            assert mask is not None
            k_cache.index_copy_(2, input_pos, k)
            v_cache.index_copy_(2, input_pos, v)
            y = self.attend_one(q, k_cache, v_cache, mask)
        return self.out(y.reshape(batch, length, self.heads * self.head_dim))

    def attend_one(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """One query position [B, H, 1, D] against the caches [B, K, L, D]; mask [L]. The heads that share keys are a product's rows, so
        that each key is read once and never copied."""
        batch = q.shape[0]
        q = q.reshape(batch, self.kv_heads, self.heads // self.kv_heads, self.head_dim)
        scores = (q @ k.transpose(2, 3)).float() * (1.0 / math.sqrt(self.head_dim))
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1).to(q.dtype)
        return weights @ v


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)), gate and up being one matrix's halves."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate_up = Linear(config.hidden, 2 * config.mlp, config.mlp_bias, dtype=dtype)
        self.down = Linear(config.mlp, config.hidden, config.mlp_bias, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class PlainMLP(nn.Module):
    """down(gelu(up(x))) with gelu's tanh form, which checkpoints call gelu_new."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.up = Linear(config.hidden, config.mlp, config.mlp_bias, dtype=dtype)
        self.down = Linear(config.mlp, config.hidden, config.mlp_bias, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


def _norm(config: ModelConfig, dtype: torch.dtype) -> nn.Module:
    kind = nn.RMSNorm if config.norm == "rms" else nn.LayerNorm
    return kind(config.hidden, eps=config.norm_eps, dtype=dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, rotary_dim: int) -> Tensor:
    """Rotary embedding of x [B, T, heads, D] with tables [T, 1, rotary_dim / 2], in the half-split order of Hugging Face's weights: element
    i turns with element i + rotary_dim / 2 (arXiv:2104.09864, eq. 34, pairs reordered). The tables are float32, and so is the arithmetic: in
    bfloat16, which has 8 bits, positions past 256 run together."""
    half = rotary_dim // 2
    first, second = x[..., :half], x[..., half:rotary_dim]
    parts = [first * cos - second * sin, second * cos + first * sin]
    turned = torch.cat(parts, dim=-1).to(x.dtype)
    return turned if rotary_dim == x.shape[-1] else torch.cat([turned, x[..., rotary_dim:]], dim=-1)


def rotary_tables(config: ModelConfig, length: int) -> tuple[Tensor, Tensor]:
    """cos and sin, float32 [length, rotary_dim / 2], of position / theta ** (2 i / rotary_dim).

    With rope_scaling, Llama-3.1's: wavelengths over original_context / low_freq_factor are stretched by `factor`, those under
    original_context / high_freq_factor stay, and between them the two are blended linearly in original_context / wavelength.
    """
    rotary_dim = config.rotary_dim or config.head_dim
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32, device="cpu") / rotary_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if scaling is not None:
        turns = scaling.original_context * frequencies / (2 * math.pi)  # full turns within the original context
        kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        kept = kept.clamp(0.0, 1.0)
        frequencies = frequencies * (kept + (1.0 - kept) / scaling.factor)
    angles = torch.outer(torch.arange(length, dtype=torch.float32, device="cpu"), frequencies)
    return angles.cos(), angles.sin()
