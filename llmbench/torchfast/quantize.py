"""What `int8` and `int4` mean here: how a weight is rounded to few bits and read back. Every engine's weights are judged by this definition.

- int8: each output channel (row) has one scale, its greatest magnitude / 127; values are round(weight / scale), -127 to 127.
- int4: each group of 32 neighbouring inputs of a row has a scale, (greatest - least) / 15, and a minimum, its least weight; values are
  round((weight - minimum) / scale), 0 to 15. A row's last group is shorter where 32 doesn't divide it.

Both act on the rows of a matrix alone, so q, k and v may be rounded apart or as one matrix with the same result. Rounded are the linear
layers' matrices, lm_head among them where it is one of its own; the embedding table (also as a tied lm_head), norms and biases stay. Scales
and minimums are float32; an engine may keep them in its arithmetic dtype, as it may keep read-back weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SCHEMES = ("int8", "int4")
#: Inputs that share a scale and a minimum in int4.
GROUP = 32


@dataclass(frozen=True)
class Quantized:
    """A matrix [out, in] in few bits. weight = values * scales (+ minimums), each scale standing for its group of inputs."""

    scheme: str
    values: Tensor  # [out, in], int8 for int8, uint8 (0 to 15) for int4
    scales: Tensor  # float32 [out, groups]; one group for int8
    minimums: Tensor | None = None  # float32 [out, groups], int4 only


def applies_to(name: str) -> bool:
    """Whether a checkpoint's tensor of that name (Hugging Face's) is rounded: the linear layers' matrices."""
    inside = name.startswith("model.layers.") and name.endswith(".weight") and "norm" not in name
    return inside or name == "lm_head.weight"


def quantize(weight: Tensor, scheme: str) -> Quantized:
    """A float matrix [out, in] rounded by a scheme of SCHEMES; arithmetic in float32. Raises ValueError for an unknown scheme."""
    weight = weight.float()
    if scheme == "int8":
        scales = _not_zero(weight.abs().amax(dim=1, keepdim=True) / 127)
        return Quantized(scheme, torch.round(weight / scales).clamp_(-127, 127).to(torch.int8), scales)
    if scheme == "int4":
        grouped = _grouped(weight)
        minimums, greatest = grouped.amin(dim=2), grouped.amax(dim=2)
        scales = _not_zero((greatest - minimums) / 15)
        values = torch.round((grouped - minimums[:, :, None]) / scales[:, :, None]).clamp_(0, 15).to(torch.uint8)
        return Quantized(scheme, values.flatten(1)[:, : weight.shape[1]].contiguous(), scales, minimums)
    raise ValueError(f"unknown quantization {scheme!r}; there are {', '.join(SCHEMES)}")


def dequantize(quantized: Quantized) -> Tensor:
    """The float32 matrix [out, in] that the few bits stand for."""
    values = quantized.values.float()
    if quantized.minimums is None:
        return values * quantized.scales
    inputs = values.shape[1]
    weight = _grouped(values) * quantized.scales[:, :, None] + quantized.minimums[:, :, None]
    return weight.flatten(1)[:, :inputs].contiguous()


def _grouped(matrix: Tensor) -> Tensor:
    """[out, groups, GROUP]; the last column is repeated to fill the last group, which changes neither its least nor its greatest."""
    missing = -matrix.shape[1] % GROUP
    if missing:
        matrix = torch.cat([matrix, matrix[:, -1:].expand(-1, missing)], dim=1)
    return matrix.view(matrix.shape[0], -1, GROUP)


def _not_zero(scales: Tensor) -> Tensor:
    """Scales of constant groups are 0; with 1 in their place nothing is divided by 0 and the values come out as 0."""
    return torch.where(scales > 0, scales, torch.ones_like(scales))
