"""The torchfast model as nodes of an ONNX graph: walks a Transformer's modules and writes what each computes, in contract.py's form.

Written node by node, not traced. A tracer writes what PyTorch's library does inside (keys and values copied for every query head, weights
transposed at run time), holds the weights twice, and takes minutes where this takes seconds. What keeps the two descriptions of the model
equal are the tests, which compare them for every family.

All linear layers are Gemm on two axes with the weight as [out, in], the layout that the checkpoint has and every runtime reads by rows.
Quantized ones are DequantizeLinear and MatMul with the weight as [in, out], the one form that onnxruntime makes a product of few bits of. Query
heads that share keys are rows of one product, as in torchfast's decode step, so keys and values are never copied.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from onnx import TensorProto
from torch import Tensor, nn

from llmbench.checkpoints.config import ModelConfig
from llmbench.graph.contract import IDS, LOGITS, NEXT_IDS, POSITIONS, GraphInfo, past_names, present_names
from llmbench.graph.writer import ONNX_TYPES, GraphWriter
from llmbench.torchfast.model import Attention, Block, GatedMLP, PlainMLP, Transformer, rotary_tables
from llmbench.torchfast.quantize import GROUP, Quantized, quantize

#: Added to the scores of hidden positions: exp gives 0, and unlike infinity it survives any rewriting of the sum.
HIDDEN = -1e30
FLOAT = TensorProto.FLOAT


def write_graph(
    model: Transformer, folder: Path, batch: int, length: int, quantization: str | None = None, dtype: torch.dtype | None = None
) -> GraphInfo:
    """Writes the model's graph, weights and graph.json into a folder, for `batch` sequences and a cache of `length` positions.

    quantization: "int8" or "int4", torchfast.quantize's schemes of the linear layers' matrices; for int4 `divides_groups` has to hold.
    dtype: the graph's, where it isn't the model's: what is rounded to few bits should not be rounded to 16 first.
    """
    return _Decoder(model, folder, batch, length, quantization, dtype or model.embed.weight.dtype).write()


def divides_groups(config: ModelConfig) -> bool:
    """Whether each linear layer's inputs are whole groups of int4: DequantizeLinear's blocks are all of one size."""
    return all(inputs % GROUP == 0 for inputs in (config.hidden, config.mlp, config.heads * config.head_dim))


class _Decoder:
    def __init__(self, model: Transformer, folder: Path, batch: int, length: int, quantization: str | None, dtype: torch.dtype) -> None:
        self.quantization, self.dtype = quantization, dtype
        self.model, self.config, self.batch, self.length = model, model.config, batch, length
        self.folder = folder
        self.kind: int = ONNX_TYPES[dtype]
        self.g = GraphWriter(folder)

    def write(self) -> GraphInfo:
        config, g = self.config, self.g
        past, present = past_names(config.layers), present_names(config.layers)
        cache = (self.batch, config.kv_heads, self.length, config.head_dim)
        g.add_input(IDS, TensorProto.INT64, [self.batch, "tokens"])
        g.add_input(POSITIONS, TensorProto.INT64, ["tokens"])
        for name in past:
            g.add_input(name, self.kind, cache)
        g.add_output(NEXT_IDS, TensorProto.INT64, [self.batch, 1])
        g.add_output(LOGITS, FLOAT, [self.batch, config.vocab])
        for name in present:
            g.add_output(name, self.kind, cache)

        table = self.stored("embed.weight", self.model.embed.weight)
        self.mask, self.indices = self.hidden_positions(), self.cache_indices()
        self.cos, self.sin = self.rotary()
        x = g.node("Gather", [table, IDS], "embed", axis=0)
        x = g.node("Reshape", [x, g.integers([-1, config.hidden])], "rows")
        for index, block in enumerate(self.model.blocks):
            x = self.block(f"layer.{index}", block, x, past[2 * index : 2 * index + 2], present[2 * index : 2 * index + 2])
        self.head(x, table)
        g.close(config.architecture)
        info = GraphInfo(
            layers=config.layers,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            length=self.length,
            vocab=config.vocab,
            batch=self.batch,
            dtype=str(self.dtype).removeprefix("torch."),
            quantization=self.quantization,
            window=config.sliding_window,
            heads=config.heads,
            weights_bytes=g.weights_bytes,
        )
        info.write(self.folder)
        return info

    # ------------------------------------------------------------------------------------------------------- shared by all layers

    def hidden_positions(self) -> str:
        """float32 [T, L], added to scores: 0 where a token sees a position, HIDDEN elsewhere."""
        g, window = self.g, self.config.sliding_window
        own = g.node("Unsqueeze", [POSITIONS, g.integers([1])], "mask/own")
        every = g.weight("mask/every", torch.arange(self.length)[None])
        seen = g.node("LessOrEqual", [every, own], "mask/causal")
        if window is not None and window < self.length:
            oldest = g.node("Sub", [own, g.integers([window])], "mask/before_window")
            seen = g.node("And", [seen, g.node("Greater", [every, oldest], "mask/window")], "mask/seen")
        return g.node("Where", [seen, g.number(0.0), g.number(HIDDEN)], "mask")

    def cache_indices(self) -> str:
        """int64 [B, K, T, 3]: the (sequence, head, position) that each row of new keys and values goes to."""
        g, batch, heads = self.g, self.batch, self.config.kv_heads
        tokens = g.node("Shape", [POSITIONS], "cache/tokens")
        shape = g.node("Concat", [g.integers([batch, heads]), tokens, g.integers([1])], "cache/shape", axis=0)
        pair_shape = g.node("Concat", [g.integers([batch, heads]), tokens, g.integers([2])], "cache/pair_shape", axis=0)
        pairs = torch.cartesian_prod(torch.arange(batch), torch.arange(heads)).view(batch, heads, 1, 2)
        places = g.node("Reshape", [POSITIONS, g.integers([1, 1, -1, 1])], "cache/positions")
        parts = [
            g.node("Expand", [g.weight("cache/pair_values", pairs), pair_shape], "cache/pairs"),
            g.node("Expand", [places, shape], "cache/places"),
        ]
        return g.node("Concat", parts, "cache/indices", axis=3)

    def rotary(self) -> tuple[str, str]:
        """cos and sin of this call's positions, float32 [T, 1, rotary_dim / 2]."""
        g = self.g
        found = []
        for name, table in zip(("cos", "sin"), rotary_tables(self.config, self.length), strict=True):
            rows = g.node("Gather", [g.weight(f"rotary/{name}_table", table), POSITIONS], f"rotary/{name}_rows", axis=0)
            found.append(g.node("Unsqueeze", [rows, g.integers([1])], f"rotary/{name}"))
        return found[0], found[1]

    # ------------------------------------------------------------------------------------------------------------------ one layer

    def block(self, at: str, block: Block, x: str, past: list[str], present: list[str]) -> str:
        g = self.g
        normed = self.norm(f"{at}/attention_norm", block.attention_norm, x)
        attended = self.attention(f"{at}/attention", block.attention, normed, past, present)
        if block.mlp_norm is None:
            sides = g.node("Add", [x, attended], f"{at}/attended")
            return g.node("Add", [sides, self.mlp(f"{at}/mlp", block.mlp, normed)], f"{at}/out")
        x = g.node("Add", [x, attended], f"{at}/attended")
        normed = self.norm(f"{at}/mlp_norm", block.mlp_norm, x)
        return g.node("Add", [x, self.mlp(f"{at}/mlp", block.mlp, normed)], f"{at}/out")

    def attention(self, at: str, attention: Attention, x: str, past: list[str], present: list[str]) -> str:
        """[B T, hidden] -> [B T, hidden]; writes this call's keys and values into the cache and attends to all of it."""
        g, batch, heads, kv_heads, dim = self.g, self.batch, attention.heads, attention.kv_heads, attention.head_dim
        qkv = self.linear(f"{at}/qkv", attention.qkv, x)
        qkv = g.node("Reshape", [qkv, g.integers([batch, -1, heads + 2 * kv_heads, dim])], f"{at}/heads")
        qk, v = g.nodes("Split", [qkv, g.integers([heads + kv_heads, kv_heads])], f"{at}/split", [f"{at}/qk", f"{at}/v_rows"], axis=2)
        qk = self.rotate(f"{at}/rotary", qk, attention)
        q, k = g.nodes("Split", [qk, g.integers([heads, kv_heads])], f"{at}/split_qk", [f"{at}/q_rows", f"{at}/k_rows"], axis=2)
        q, k, v = (g.node("Transpose", [rows], f"{at}/{name}", perm=[0, 2, 1, 3]) for name, rows in (("q", q), ("k", k), ("v", v)))
        keys, values = (
            g.nodes("ScatterND", [old, self.indices, new], f"{at}/write_{part}", [into])[0]
            for part, old, new, into in zip(("k", "v"), past, (k, v), present, strict=True)
        )
        # Query head h reads key head h // (H / K), so the heads that share one are neighbours: H x T rows are K x (H / K x T).
        q = g.node("Reshape", [q, g.integers([batch, kv_heads, -1, dim])], f"{at}/q_grouped")
        scores = g.node("MatMul", [q, g.node("Transpose", [keys], f"{at}/keys", perm=[0, 1, 3, 2])], f"{at}/scores")
        scores = g.node("Mul", [self.cast(f"{at}/scores_float", scores, FLOAT), g.number(1.0 / math.sqrt(dim))], f"{at}/scaled")
        scores = g.node("Reshape", [scores, g.integers([batch, heads, -1, self.length])], f"{at}/by_head")
        scores = g.node("Add", [scores, self.mask], f"{at}/masked")
        weights = self.cast(f"{at}/weights", g.node("Softmax", [scores], f"{at}/softmax", axis=-1), self.kind)
        weights = g.node("Reshape", [weights, g.integers([batch, kv_heads, -1, self.length])], f"{at}/weights_grouped")
        y = g.node("MatMul", [weights, values], f"{at}/mixed")
        y = g.node("Reshape", [y, g.integers([batch, heads, -1, dim])], f"{at}/mixed_by_head")
        y = g.node("Transpose", [y], f"{at}/mixed_by_token", perm=[0, 2, 1, 3])
        y = g.node("Reshape", [y, g.integers([-1, heads * dim])], f"{at}/mixed_rows")
        return self.linear(f"{at}/out", attention.out, y)

    def rotate(self, at: str, x: str, attention: Attention) -> str:
        """torchfast.model.rotate of [B, T, heads, D]."""
        g, half, dim = self.g, attention.rotary_dim // 2, attention.head_dim
        rest = dim - 2 * half
        sizes = [half, half, *([rest] if rest else [])]
        names = [f"{at}/first", f"{at}/second", *([f"{at}/rest"] if rest else [])]
        first, second, *kept = g.nodes("Split", [self.cast(f"{at}/float", x, FLOAT), g.integers(sizes)], f"{at}/halves", names, axis=3)
        parts = []
        for name, plus, minus, operator in (("left", first, second, "Sub"), ("right", second, first, "Add")):
            by_cos = g.node("Mul", [plus, self.cos], f"{at}/{name}_cos")
            parts.append(g.node(operator, [by_cos, g.node("Mul", [minus, self.sin], f"{at}/{name}_sin")], f"{at}/{name}"))
        return self.cast(f"{at}/rotated", g.node("Concat", [*parts, *kept], f"{at}/turned", axis=3), self.kind)

    def mlp(self, at: str, mlp: nn.Module, x: str) -> str:
        g = self.g
        if isinstance(mlp, GatedMLP):
            both = self.linear(f"{at}/gate_up", mlp.gate_up, x)
            width = mlp.down.in_features
            gate, up = g.nodes("Split", [both, g.integers([width, width])], f"{at}/split", [f"{at}/gate", f"{at}/up"], axis=1)
            gate = g.node("Mul", [gate, g.node("Sigmoid", [gate], f"{at}/sigmoid")], f"{at}/silu")
            return self.linear(f"{at}/down", mlp.down, g.node("Mul", [gate, up], f"{at}/gated"))
        assert isinstance(mlp, PlainMLP)
        up = g.node("Gelu", [self.linear(f"{at}/up", mlp.up, x)], f"{at}/gelu", approximate="tanh")
        return self.linear(f"{at}/down", mlp.down, up)

    # ----------------------------------------------------------------------------------------------------------------- the pieces

    def head(self, x: str, table: str) -> None:
        """logits and next_ids from the last token's row of each sequence."""
        g, config = self.g, self.config
        x = g.node("Reshape", [x, g.integers([self.batch, -1, config.hidden])], "head/by_sequence")
        x = g.node("Slice", [x, g.integers([-1]), g.integers([2**31 - 1]), g.integers([1])], "head/last")
        x = g.node("Reshape", [x, g.integers([self.batch, config.hidden])], "head/rows")
        x = self.norm("head/norm", self.model.norm, x)
        lm_head = self.model.lm_head
        raw = g.node("Gemm", [x, table], "head/logits", transB=1) if lm_head is None else self.linear("head/logits", lm_head, x)
        g.nodes("Cast", [raw], "head/float", [LOGITS], to=FLOAT)
        g.nodes("ArgMax", [LOGITS], "head/argmax", [NEXT_IDS], axis=1, keepdims=1)

    def linear(self, at: str, layer: nn.Linear, x: str) -> str:
        g = self.g
        bias = [] if layer.bias is None else [self.stored(f"{at}.bias", layer.bias)]
        if self.quantization is not None:
            y = self.quantized_product(at, quantize(layer.weight, self.quantization), x)
            return g.node("Add", [y, *bias], f"{at}/biased") if bias else y
        return g.node("Gemm", [x, self.stored(f"{at}.weight", layer.weight), *bias], at, transB=1)

    def quantized_product(self, at: str, weight: Quantized, x: str) -> str:
        """x [N, in] times a matrix in few bits -> [N, out].

        int4's value * scale + minimum is (value - 8) * scale, which DequantizeLinear's signed 4 bits hold, and in each group of inputs a
        constant, minimum + 8 * scale, for which the sum of the group's inputs is enough: a second, 32 times smaller product.
        """
        g = self.g
        scales = weight.scales.T.contiguous()  # [groups, out]
        if weight.minimums is None:
            values = g.weight(f"{at}.values", weight.values.T)
            matrix = g.node("DequantizeLinear", [values, g.weight(f"{at}.scales", scales[0].to(self.dtype))], f"{at}/weight", axis=1)
            return g.node("MatMul", [x, matrix], at)
        signed = (weight.values.T.contiguous().flatten().to(torch.int16) - 8) & 15
        packed = (signed[0::2] | (signed[1::2] << 4)).to(torch.uint8)
        shape = [weight.values.shape[1], weight.values.shape[0]]
        values = g.weight(f"{at}.values", packed, TensorProto.INT4, shape)
        stored = g.weight(f"{at}.scales", scales.to(self.dtype))
        matrix = g.node("DequantizeLinear", [values, stored], f"{at}/weight", axis=0, block_size=GROUP)
        groups = g.node("Reshape", [x, g.integers([-1, len(scales), GROUP])], f"{at}/groups")
        sums = g.node("ReduceSum", [groups, g.integers([2])], f"{at}/sums", keepdims=0)
        constants = g.weight(f"{at}.constants", (weight.minimums.T + 8 * scales).to(self.dtype))
        offset = g.node("MatMul", [sums, constants], f"{at}/offset")
        return g.node("Add", [g.node("MatMul", [x, matrix], f"{at}/product"), offset], at)

    def norm(self, at: str, norm: nn.Module, x: str) -> str:
        """RMSNorm or LayerNorm of the last axis, in float32."""
        g = self.g
        assert isinstance(norm, (nn.RMSNorm, nn.LayerNorm))
        weight = self.cast(f"{at}/weight_float", self.stored(f"{at}.weight", norm.weight), FLOAT)
        x = self.cast(f"{at}/float", x, FLOAT)
        if isinstance(norm, nn.LayerNorm):
            bias = self.cast(f"{at}/bias_float", self.stored(f"{at}.bias", norm.bias), FLOAT)
            return self.cast(at, g.node("LayerNormalization", [x, weight, bias], f"{at}/normed", axis=-1, epsilon=norm.eps), self.kind)
        assert norm.eps is not None
        squares = g.node("ReduceMean", [g.node("Pow", [x, g.number(2.0)], f"{at}/squares"), g.integers([-1])], f"{at}/mean", keepdims=1)
        size = g.node("Sqrt", [g.node("Add", [squares, g.number(norm.eps)], f"{at}/shifted")], f"{at}/size")
        normed = g.node("Mul", [g.node("Div", [x, size], f"{at}/unit"), weight], f"{at}/normed")
        return self.cast(at, normed, self.kind)

    def stored(self, name: str, value: Tensor) -> str:
        """A weight in the graph's dtype."""
        return self.g.weight(name, value.to(self.dtype))

    def cast(self, at: str, x: str, kind: int) -> str:
        """x as `kind`; x itself where all of the graph is float32."""
        return x if self.kind == FLOAT else self.g.node("Cast", [x], at, to=kind)
