"""Brings a checkpoint's weights into a Transformer, tensor by tensor, each straight to its place.

The peak is what the weights take and a few MB: pieces are read with preadv, into the parameter's own memory where the dtype is the same,
else into a small staging buffer and cast from there. Files are never mapped: mapped pages count as this process's memory, and the peak
would be near twice the weights. q, k and v (and gate and up) are rows of one matrix here, so a tensor's place is a range of rows.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from llmbench.checkpoints.config import ModelConfig
from llmbench.checkpoints.tensor_files import TensorEntry
from llmbench.engines.base import EngineError
from llmbench.protocol import Status
from llmbench.torchfast.model import Transformer

#: Bytes of the staging buffer: large enough for a disk's full speed, too small to matter beside any weights.
PIECE_BYTES = 4 * 2**20

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Place:
    """Where a checkpoint's tensor goes: rows [start, stop) of a parameter, all of it where stop is None."""

    parameter: str
    start: int = 0
    stop: int | None = None

    def of(self, parameters: Mapping[str, Tensor]) -> Tensor:
        parameter = parameters[self.parameter]
        return parameter if self.stop is None else parameter[self.start : self.stop]


def places(config: ModelConfig) -> dict[str, Place]:
    """Hugging Face tensor names -> their places in Transformer(config)."""
    phi2 = config.parallel_block
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    found: dict[str, Place] = {}

    def put(name: str, parameter: str, biased: bool, start: int = 0, stop: int | None = None) -> None:
        for kind in ("weight", "bias") if biased else ("weight",):
            found[f"{name}.{kind}"] = Place(f"{parameter}.{kind}", start, stop)

    norm_bias = config.norm == "layer"
    put("model.embed_tokens", "embed", False)
    for layer in range(config.layers):
        theirs, ours = f"model.layers.{layer}", f"blocks.{layer}"
        put(f"{theirs}.input_layernorm", f"{ours}.attention_norm", norm_bias)
        if config.fused_names:
            put(f"{theirs}.self_attn.qkv_proj", f"{ours}.attention.qkv", config.attention_bias)
        else:
            start = 0
            for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
                put(f"{theirs}.self_attn.{name}", f"{ours}.attention.qkv", config.attention_bias, start, start + rows)
                start += rows
        out = "dense" if phi2 else "o_proj"
        put(f"{theirs}.self_attn.{out}", f"{ours}.attention.out", config.attention_bias)
        if not config.parallel_block:
            put(f"{theirs}.post_attention_layernorm", f"{ours}.mlp_norm", norm_bias)
        if config.activation != "silu":
            put(f"{theirs}.mlp.fc1", f"{ours}.mlp.up", config.mlp_bias)
            put(f"{theirs}.mlp.fc2", f"{ours}.mlp.down", config.mlp_bias)
            continue
        if config.fused_names:
            put(f"{theirs}.mlp.gate_up_proj", f"{ours}.mlp.gate_up", config.mlp_bias)
        else:
            put(f"{theirs}.mlp.gate_proj", f"{ours}.mlp.gate_up", config.mlp_bias, 0, config.mlp)
            put(f"{theirs}.mlp.up_proj", f"{ours}.mlp.gate_up", config.mlp_bias, config.mlp, 2 * config.mlp)
        put(f"{theirs}.mlp.down_proj", f"{ours}.mlp.down", config.mlp_bias)
    put("model.final_layernorm" if phi2 else "model.norm", "norm", norm_bias)
    if not config.tied:
        put("lm_head", "lm_head", config.lm_head_bias)
    return found


def build_empty(config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> Transformer:
    """The model with its parameters' memory given out and nothing in it yet, since its layers skip their initialisation."""
    with torch.device(device):
        model = Transformer(config, dtype)
    model.requires_grad_(False).eval()
    return model


def load_safetensors(model: Transformer, entries: Mapping[str, TensorEntry]) -> None:
    """Fills the model from the files that `entries` point into, casting to the model's dtype.

    Raises EngineError (load failed) naming the tensor and the file where one is missing, of another shape or type, or cut short.
    """
    parameters = dict(model.named_parameters())
    wanted = places(model.config)
    missing = sorted(set(wanted) - set(entries))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise _failed(f"the checkpoint lacks the tensor {missing[0]}{more}; download or convert it again")
    staging: Tensor | None = None
    # In the order of the files, so that each is opened once and read from front to back.
    order = sorted(wanted, key=lambda name: (str(entries[name].file), entries[name].offset))
    with _files() as open_file:
        for name in order:
            entry, target = entries[name], wanted[name].of(parameters)
            if entry.dtype not in DTYPES:
                raise _failed(f"tensor {name} has the type {entry.dtype}; known: {', '.join(DTYPES)}")
            if tuple(entry.shape) != tuple(target.shape):
                raise _failed(f"tensor {name} has the shape {tuple(entry.shape)}, not {tuple(target.shape)}")
            source = DTYPES[entry.dtype]
            if entry.nbytes != target.numel() * source.itemsize:
                raise _failed(f"tensor {name} takes {entry.nbytes} bytes, not {target.numel() * source.itemsize}")
            descriptor, flat = open_file(entry.file), target.reshape(-1)
            if source == target.dtype and flat.device.type == "cpu":
                _read(descriptor, entry, 0, flat)
                continue
            if staging is None:
                pinned = flat.device.type == "cuda"
                staging = torch.empty(PIECE_BYTES, dtype=torch.uint8, device="cpu", pin_memory=pinned)
            piece = PIECE_BYTES // source.itemsize
            for start in range(0, flat.numel(), piece):
                stop = min(start + piece, flat.numel())
                staged = staging[: (stop - start) * source.itemsize].view(source)
                _read(descriptor, entry, start * source.itemsize, staged)
                flat[start:stop].copy_(staged)


def load_dummy(model: Transformer, seed: int) -> None:
    """Fills the model with llmbench.checkpoints.dummy's values: the same in every engine for the same seed."""
    from llmbench.checkpoints.dummy import chunks

    parameters = dict(model.named_parameters())
    for name, place in places(model.config).items():
        flat = place.of(parameters).reshape(-1)
        at = 0
        for values in chunks(name, flat.numel(), seed):
            flat[at : at + len(values)].copy_(_as_tensor(values))
            at += len(values)
        if at != flat.numel():
            raise _failed(f"dummy values for {name} ended at {at} of {flat.numel()}")


def _as_tensor(values: object) -> Tensor:
    # from_numpy warns about read-only arrays, and these may be views of one shared block.
    array = values if values.flags.writeable else values.copy()  # type: ignore[attr-defined]
    return torch.from_numpy(array)


def _read(descriptor: int, entry: TensorEntry, skip: int, into: Tensor) -> None:
    """Fills a contiguous host tensor with the entry's bytes from `skip` on."""
    total = into.numel() * into.element_size()
    memory = memoryview((ctypes.c_char * total).from_address(into.data_ptr())).cast("B")
    done = 0
    while done < total:
        # In pieces, as one read moves at most 2 GiB.
        count = os.preadv(descriptor, [memory[done : done + 16 * PIECE_BYTES]], entry.offset + skip + done)
        if count == 0:
            raise _failed(f"{entry.file.name} ends within the tensor {entry.name}; download or convert it again")
        done += count


@contextmanager
def _files() -> Iterator[Callable[[Path], int]]:
    """A function from a path to its open descriptor; the last one stays open until the next or the end."""
    current: tuple[Path, int] | None = None

    def open_file(path: Path) -> int:
        nonlocal current
        if current is None or current[0] != path:
            if current is not None:
                os.close(current[1])
                current = None
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise _failed(f"can't open {path.name}: {error.strerror}") from error
            current = (path, descriptor)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)  # twice the read-ahead
        return current[1]

    try:
        yield open_file
    finally:
        if current is not None:
            os.close(current[1])


def _failed(reason: str) -> EngineError:
    return EngineError(reason, Status.LOAD_FAILED)
