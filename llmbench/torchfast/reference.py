"""What a checkpoint's logits are by definition: float32 arithmetic, spelled out, over the whole sequence, one layer in memory at a time.

Every engine's accuracy is judged by this, so it shares no code with the timed model: no KV cache, no fused matrices, no fused operators. A
layer's weights are read, used for all sequences and forgotten, embedding rows are picked one by one and lm_head is read in pieces of its
rows, so that a model of 27 GB in float32 needs little more than one layer. The weights may be rounded by a scheme of `quantize` first.

Beside it, `Plain` is the same model in a smaller dtype by PyTorch's own operators: how far plain eager PyTorch in that dtype strays from
the reference is the measure for what an engine in that dtype may stray.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor

from llmbench.checkpoints import dummy
from llmbench.checkpoints.config import ModelConfig, read_config
from llmbench.checkpoints.layout import EMBEDDING, LM_HEAD, expected_tensors
from llmbench.checkpoints.tensor_files import read_entries
from llmbench.protocol import CheckpointRef
from llmbench.torchfast import quantize

#: Elements of one piece of lm_head (256 MiB in float32) and of one piece of attention scores.
PIECE = 2**26

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Source:
    """A checkpoint's tensors, float32, read on demand. `scheme` rounds what `quantize.applies_to` names and reads it back."""

    def __init__(self, checkpoint: CheckpointRef, scheme: str | None = None) -> None:
        """Raises CheckpointError where the folder's config or files can't be read."""
        path = Path(checkpoint.path)
        self.config: ModelConfig = read_config(path)
        self.shapes = expected_tensors(self.config)
        self._scheme = scheme
        self._seed = checkpoint.dummy_seed
        self._entries = None if checkpoint.load_format == "dummy" else read_entries(path, self.config)

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Rows start to stop of a tensor, on the host."""
        shape = self.shapes[name]
        stop = shape[0] if stop is None else min(stop, shape[0])
        width = math.prod(shape[1:])
        flat = self._drawn(name, start * width, stop * width) if self._entries is None else self._read(name, start * width, stop * width)
        rows = flat.view(stop - start, *shape[1:])
        if self._scheme is not None and quantize.applies_to(name):
            rows = quantize.dequantize(quantize.quantize(rows, self._scheme))
        return rows

    def _read(self, name: str, start: int, stop: int) -> Tensor:
        assert self._entries is not None
        entry = self._entries[name]
        dtype = DTYPES[entry.dtype]
        data = bytearray((stop - start) * dtype.itemsize)
        with entry.file.open("rb", buffering=0) as stream:
            stream.seek(entry.offset + start * dtype.itemsize)
            view = memoryview(data)
            while view:
                count = stream.readinto(view)
                if not count:
                    raise OSError(f"{entry.file.name} ends within the tensor {name}")
                view = view[count:]
        return torch.frombuffer(data, dtype=dtype).float()

    def _drawn(self, name: str, start: int, stop: int) -> Tensor:
        flat = torch.empty(stop - start, dtype=torch.float32)
        at = 0
        for values in dummy.chunks(name, stop, self._seed):
            if at + len(values) > start:
                piece = values[max(start - at, 0) :]
                begin = max(at - start, 0)
                flat[begin : begin + len(piece)] = torch.from_numpy(piece if piece.flags.writeable else piece.copy())
            at += len(values)
        return flat


@dataclass(frozen=True)
class Logits:
    """One sequence of T ids through the model. Per-position arrays hold T entries: what is predicted after each id."""

    kept: Tensor  # float32 [stop - first, vocab], the rows asked for
    best_ids: Tensor  # int64 [T], the most likely next id
    best: Tensor  # float32 [T], its logit
    given: Tensor  # float32 [T - 1], the logit of the id that follows in the sequence
    spread: Tensor  # float64 [T], root mean square of the logits about their mean


class Arithmetic:
    """float32, spelled out. Weights come as {short name: tensor}; x is [T, hidden]."""

    dtype = torch.float32

    def norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        if bias is None:
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
        centred = x - x.mean(-1, keepdim=True)
        return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps) * weight + bias

    def attention(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """q [H, T, D], k and v [K, T, D], mask [T, T] -> [H, T, D], a few query rows at a time."""
        heads, length, dim = q.shape
        group = heads // k.shape[0]
        out = torch.empty_like(q)
        rows = max(1, PIECE // length)
        for head in range(heads):
            keys, values = k[head // group], v[head // group]
            for start in range(0, length, rows):
                scores = (q[head, start : start + rows] @ keys.T) / math.sqrt(dim)
                scores = scores.masked_fill(~mask[start : start + rows], float("-inf"))
                scores = torch.exp(scores - scores.amax(-1, keepdim=True))
                out[head, start : start + rows] = (scores / scores.sum(-1, keepdim=True)) @ values
        return out

    def gelu(self, x: Tensor) -> Tensor:
        """gelu's tanh form (arXiv:1606.08415)."""
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    def silu(self, x: Tensor) -> Tensor:
        return x / (1 + torch.exp(-x))


class Plain(Arithmetic):
    """PyTorch's own operators in one dtype: eager as anyone would write it."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        if bias is None:
            return F.rms_norm(x, weight.shape, weight, eps)
        return F.layer_norm(x, weight.shape, weight, bias, eps)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q[None], k[None], v[None], mask, enable_gqa=True)[0]

    def gelu(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")

    def silu(self, x: Tensor) -> Tensor:
        return F.silu(x)


@torch.no_grad()
def run(
    source: Source,
    sequences: Sequence[Sequence[int]],
    spans: Sequence[tuple[int, int]],
    arithmetics: Sequence[Arithmetic],
    device: str = "cpu",
) -> list[list[Logits]]:
    """The logits of all sequences in all arithmetics, in one sweep over the weights: [arithmetic][sequence].

    spans: for each sequence the rows (first, stop) to keep in full. Host and device hold one layer's weights, float32 and once more in each
    other dtype. Raises OSError and CheckpointError where the weights can't be read.
    """
    config = source.config
    hidden = [[_embed(source, ids).to(device, way.dtype) for ids in sequences] for way in arithmetics]
    tables = [_rotation(config, len(ids), device) for ids in sequences]
    masks = [_mask(config, len(ids), device) for ids in sequences]
    for index in range(config.layers):
        weights = {name: tensor.to(device) for name, tensor in _layer(source, index).items()}
        for number, way in enumerate(arithmetics):
            cast = {name: tensor.to(way.dtype) for name, tensor in weights.items()}
            hidden[number] = [
                _block(way, config, cast, x, table, mask) for x, table, mask in zip(hidden[number], tables, masks, strict=True)
            ]
    return _head(source, sequences, spans, arithmetics, hidden, device)


def _embed(source: Source, ids: Sequence[int]) -> Tensor:
    rows = {token: source.rows(EMBEDDING, token, token + 1)[0] for token in sorted(set(ids))}
    return torch.stack([rows[token] for token in ids])


def _layer(source: Source, index: int) -> dict[str, Tensor]:
    """One layer's tensors by the last parts of their names, q, k and v and gate and up apart."""
    config = source.config
    prefix = f"model.layers.{index}."
    found = {name.removeprefix(prefix): source.rows(name) for name in source.shapes if name.startswith(prefix)}
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    splits = {
        "self_attn.qkv_proj": (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)),
        "mlp.gate_up_proj": (("gate_proj", config.mlp), ("up_proj", config.mlp)),
    }
    layer: dict[str, Tensor] = {}
    for name, tensor in found.items():
        stem, _, kind = name.rpartition(".")
        short = {"dense": "o_proj", "fc1": "up_proj", "fc2": "down_proj"}.get(stem.rpartition(".")[2], stem.rpartition(".")[2])
        if stem not in splits:
            layer[f"{short}.{kind}"] = tensor
            continue
        parts = tensor.split([size for _, size in splits[stem]])
        layer.update({f"{part}.{kind}": piece for (part, _), piece in zip(splits[stem], parts, strict=True)})
    return layer


def _block(
    way: Arithmetic, config: ModelConfig, weights: dict[str, Tensor], x: Tensor, table: tuple[Tensor, Tensor], mask: Tensor
) -> Tensor:
    def linear(name: str, value: Tensor) -> Tensor:
        product = value @ weights[f"{name}.weight"].T
        bias = weights.get(f"{name}.bias")
        return product if bias is None else product + bias

    def norm(name: str, value: Tensor) -> Tensor:
        return way.norm(value, weights[f"{name}.weight"], weights.get(f"{name}.bias"), config.norm_eps)

    def heads(value: Tensor, count: int) -> Tensor:
        return value.view(len(value), count, config.head_dim).transpose(0, 1)

    def feed_forward(value: Tensor) -> Tensor:
        if config.activation == "silu":
            return linear("down_proj", way.silu(linear("gate_proj", value)) * linear("up_proj", value))
        return linear("down_proj", way.gelu(linear("up_proj", value)))

    normed = norm("input_layernorm", x)
    q = _turn(heads(linear("q_proj", normed), config.heads), table)
    k = _turn(heads(linear("k_proj", normed), config.kv_heads), table)
    v = heads(linear("v_proj", normed), config.kv_heads)
    attended = linear("o_proj", way.attention(q, k, v, mask).transpose(0, 1).reshape(len(x), -1))
    if config.parallel_block:
        return x + attended + feed_forward(normed)
    x = x + attended
    return x + feed_forward(norm("post_attention_layernorm", x))


def _rotation(config: ModelConfig, length: int, device: str) -> tuple[Tensor, Tensor]:
    """cos and sin, float32 [length, rotary_dim], each angle twice (Hugging Face's order), angles computed in float64.

    With rope_scaling, Llama-3.1's published rule: wavelengths over original_context / low_freq_factor are divided down by `factor`, those
    below original_context / high_freq_factor stay, and those between are blended.
    """
    dim = config.rotary_dim or config.head_dim
    frequencies = []
    for index in range(0, dim, 2):
        frequency = config.rope_theta ** (-index / dim)
        scaling = config.rope_scaling
        if scaling is not None:
            ratio = scaling.original_context * frequency / (2 * math.pi)
            if ratio < scaling.low_freq_factor:
                frequency /= scaling.factor
            elif ratio < scaling.high_freq_factor:
                smooth = (ratio - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
                frequency = (1 - smooth) * frequency / scaling.factor + smooth * frequency
        frequencies.append(frequency)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * torch.tensor(frequencies, dtype=torch.float64)
    angles = torch.cat([angles, angles], dim=1)
    return angles.cos().float().to(device), angles.sin().float().to(device)


def _turn(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding (arXiv:2104.09864) of x [heads, T, head_dim]: the first rotary_dim elements, in float32, i with i + rotary_dim / 2."""
    cos, sin = table
    dim = cos.shape[1]
    part, rest = x[..., :dim].float(), x[..., dim:]
    swapped = torch.cat([-part[..., dim // 2 :], part[..., : dim // 2]], dim=-1)
    return torch.cat([(part * cos + swapped * sin).to(x.dtype), rest], dim=-1)


def _mask(config: ModelConfig, length: int, device: str) -> Tensor:
    """bool [T, T]: what each position sees, itself and those before it within the window."""
    mask = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return mask if config.sliding_window is None else mask.triu(1 - config.sliding_window)


def _head(
    source: Source,
    sequences: Sequence[Sequence[int]],
    spans: Sequence[tuple[int, int]],
    arithmetics: Sequence[Arithmetic],
    hidden: list[list[Tensor]],
    device: str,
) -> list[list[Logits]]:
    config = source.config
    norm = "model.final_layernorm" if "model.final_layernorm.weight" in source.shapes else "model.norm"
    norm_bias = source.rows(f"{norm}.bias").to(device) if f"{norm}.bias" in source.shapes else None
    norm_weight = source.rows(f"{norm}.weight").to(device)
    for number, way in enumerate(arithmetics):
        weight, bias = norm_weight.to(way.dtype), None if norm_bias is None else norm_bias.to(way.dtype)
        hidden[number] = [way.norm(x, weight, bias, config.norm_eps) for x in hidden[number]]
    table = EMBEDDING if config.tied else LM_HEAD
    sums = [[_Sums(ids, span, config.vocab) for ids, span in zip(sequences, spans, strict=True)] for _ in arithmetics]
    longest = max(len(ids) for ids in sequences)
    rows = max(1, PIECE // max(config.hidden, longest))
    for start in range(0, config.vocab, rows):
        piece = source.rows(table, start, start + rows).to(device)
        bias = source.rows("lm_head.bias", start, start + rows).to(device) if config.lm_head_bias else None
        for number, way in enumerate(arithmetics):
            matrix = piece.to(way.dtype)
            for x, total in zip(hidden[number], sums[number], strict=True):
                logits = x @ matrix.T
                total.add(start, (logits if bias is None else logits + bias.to(way.dtype)).float().cpu())
    return [[total.logits() for total in line] for line in sums]


def collect(logits: Tensor, ids: Sequence[int], span: tuple[int, int]) -> Logits:
    """What is kept of one sequence's logits, float32 [T, vocab] on the host, that came in one piece."""
    sums = _Sums(ids, span, logits.shape[1])
    sums.add(0, logits)
    return sums.logits()


class _Sums:
    """What is kept of one sequence's logits while they come in pieces of the vocabulary."""

    def __init__(self, ids: Sequence[int], span: tuple[int, int], vocab: int) -> None:
        length = len(ids)
        self.first, self.stop = span
        self.vocab = vocab
        self.following = torch.tensor(ids[1:], dtype=torch.int64)
        self.kept = torch.empty(self.stop - self.first, vocab)
        self.best = torch.full((length,), float("-inf"))
        self.best_ids = torch.zeros(length, dtype=torch.int64)
        self.given = torch.zeros(length - 1)
        self.total = torch.zeros(length, dtype=torch.float64)
        self.squares = torch.zeros(length, dtype=torch.float64)

    def add(self, start: int, logits: Tensor) -> None:
        """logits: float32 [T, rows], of the ids from `start` on."""
        stop = start + logits.shape[1]
        self.kept[:, start:stop] = logits[self.first : self.stop]
        best, at = logits.max(dim=-1)
        better = best > self.best
        self.best = torch.where(better, best, self.best)
        self.best_ids = torch.where(better, at + start, self.best_ids)
        here = (self.following >= start) & (self.following < stop)
        column = torch.where(here, self.following - start, 0)
        self.given = torch.where(here, logits[:-1].gather(1, column[:, None])[:, 0], self.given)
        self.total += logits.sum(-1, dtype=torch.float64)
        self.squares += logits.double().square().sum(-1)

    def logits(self) -> Logits:
        mean = self.total / self.vocab
        spread = (self.squares / self.vocab - mean.square()).clamp(min=0).sqrt()
        return Logits(self.kept, self.best_ids, self.best, self.given, spread)


def relative_error(logits: Tensor, reference: Tensor) -> float:
    """Root mean square of the difference over the reference's, both [positions, vocab] and centred per position; sums in float64.

    A constant added to a position's logits changes no probability, hence the centring. NaN where logits are not finite.
    """
    difference = _centred_squares(logits, reference)
    return math.sqrt(difference / _centred_squares(reference, None))


def _centred_squares(logits: Tensor, subtract: Tensor | None) -> float:
    total = 0.0
    for index in range(len(logits)):  # row by row: float64 copies of all would be large
        row = logits[index].double() if subtract is None else logits[index].double() - subtract[index].double()
        total += float((row - row.mean()).square().sum())
    return total


def divergence(reference: Tensor, logits: Tensor) -> tuple[float, float]:
    """Mean Kullback-Leibler divergence (nats) of softmax(logits) from softmax(reference), and the share of equal most likely ids."""
    kl, same = 0.0, 0
    for theirs, ours in zip(reference, logits, strict=True):
        expected, seen = theirs.double().log_softmax(-1), ours.double().log_softmax(-1)
        kl += float((expected.exp() * (expected - seen)).sum())
        same += int(theirs.argmax() == ours.argmax())
    return max(0.0, kl / len(reference)), same / len(reference)
