"""Random weights at a model's exact shape: seeded, the same for every engine, at memory speed.

Random normals come at some 165 million a second, which is 41 s for 7 billion weights in each process. So one block is drawn per seed and
tiled, each tensor from an offset of its own; the block's length is prime, so that rows of a matrix don't repeat. The standard deviation
0.02 is the usual initialisation: activations stay finite through any number of layers. Needs numpy.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from llmbench.checkpoints.config import ModelConfig
from llmbench.checkpoints.errors import CheckpointError
from llmbench.checkpoints.layout import expected_tensors
from llmbench.checkpoints.tensor_files import INDEX, SINGLE, WEIGHT_DTYPES
from llmbench.protocol import DTYPE_BYTES

Float32 = np.ndarray[Any, np.dtype[np.float32]]
Bits16 = np.ndarray[Any, np.dtype[np.uint16]]

BLOCK = 1048573  # the largest prime below 2**20
SCALE = 0.02


@lru_cache(maxsize=1)
def _block(seed: int) -> Float32:
    block: Float32 = np.random.default_rng(seed).standard_normal(BLOCK, dtype=np.float32) * np.float32(SCALE)
    block.flags.writeable = False
    return block


def _tiles(name: str, numel: int) -> Iterator[slice]:
    """Which parts of the block make up a tensor: from its own offset to the end, then whole blocks."""
    start = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") % BLOCK
    while numel > 0:
        tile = slice(start, min(start + numel, BLOCK))
        start, numel = 0, numel - (tile.stop - tile.start)
        yield tile


def _around_one(name: str) -> bool:
    return name.endswith("norm.weight")


def chunks(name: str, numel: int, seed: int) -> Iterator[Float32]:
    """The `numel` values of tensor `name`, in order, as read-only float32 arrays of at most BLOCK elements.

    Norm weights are 1 + values, everything else values: normals x 0.02. The values depend on the name, the seed and the position only.
    """
    for tile in _tiles(name, numel):
        piece = _block(seed)[tile]
        yield piece + np.float32(1) if _around_one(name) else piece


def to_bfloat16(values: Float32) -> Bits16:
    """The bits of `values` in bfloat16, rounded to nearest, ties to even, as torch does; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded: Bits16 = ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)
    nan = np.isnan(values)
    if nan.any():  # the carry would turn some NaNs into infinity or zero
        rounded[nan] = 0x7FC0
    return rounded


def stored(values: Float32, dtype: str) -> np.ndarray[Any, Any]:
    """`values` as they lie in a file of `dtype`: "float32", "float16", or "bfloat16" as uint16 bits."""
    if dtype == "bfloat16":
        return to_bfloat16(values)
    return values.astype({"float32": "<f4", "float16": "<f2"}[dtype], copy=False)


@lru_cache(maxsize=2)
def _stored_block(seed: int, dtype: str, around_one: bool) -> np.ndarray[Any, Any]:
    """The whole block as it lies in a file: rounding 14 GB once per value would take longer than writing them."""
    block = _block(seed)
    whole: np.ndarray[Any, Any] = np.ascontiguousarray(stored(block + np.float32(1) if around_one else block, dtype))
    return whole


def write_shards(config: ModelConfig, path: Path, dtype: str, seed: int, shard_bytes: int = 2 * 2**30) -> None:
    """Writes the values of `chunks` into safetensors shards of about `shard_bytes` bytes, and their index, into the folder `path`.

    For engines that need files. Streamed: memory stays at one block. The index comes last, so that a folder with an index is whole.
    Raises CheckpointError where `path` holds weights already: they may be a user's.
    """
    path.mkdir(parents=True, exist_ok=True)
    if (path / INDEX).exists() or (path / SINGLE).exists():
        raise CheckpointError(f"{path} already holds weights; random ones are not written over them")
    size = DTYPE_BYTES[dtype]
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    filled = 0
    for name, shape in expected_tensors(config).items():
        nbytes = prod(shape) * size
        if shards[-1] and filled + nbytes > shard_bytes:
            shards.append({})
            filled = 0
        shards[-1][name] = shape
        filled += nbytes
    weight_map: dict[str, str] = {}
    total = 0
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write_shard(path / file, shard, dtype, seed)
        weight_map.update(dict.fromkeys(shard, file))
        total += sum(prod(shape) for shape in shard.values()) * size
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=1)
    with atomic(path / INDEX) as stream:
        stream.write(text.encode())


class atomic:  # noqa: N801 - read as a word: `with atomic(path) as stream`
    """A binary file that appears under its name only once it is whole and on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")

    def __enter__(self) -> Any:
        self.stream = self.temporary.open("wb")
        return self.stream

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                self.stream.flush()
                os.fsync(self.stream.fileno())
        finally:
            self.stream.close()
            if kind is not None:
                self.temporary.unlink(missing_ok=True)
        if kind is None:
            self.temporary.replace(self.path)


def header(tensors: dict[str, tuple[int, ...]], dtype: str, metadata: dict[str, str] | None = None) -> bytes:
    """The first bytes of a safetensors file that holds `tensors` in this order, all of `dtype`."""
    code = next(code for code, name in WEIGHT_DTYPES.items() if name == dtype)
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    position = 0
    for name, shape in tensors.items():
        nbytes = prod(shape) * DTYPE_BYTES[dtype]
        entries[name] = {"dtype": code, "shape": list(shape), "data_offsets": [position, position + nbytes]}
        position += nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begins on a multiple of 8 bytes
    return struct.pack("<Q", len(text)) + text


def _write_shard(file: Path, tensors: dict[str, tuple[int, ...]], dtype: str, seed: int) -> None:
    with atomic(file) as stream:
        stream.write(header(tensors, dtype))
        for name, shape in tensors.items():
            block = _stored_block(seed, dtype, _around_one(name))
            for tile in _tiles(name, prod(shape)):
                stream.write(block[tile].data.cast("B"))
