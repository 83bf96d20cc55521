"""The headers of a checkpoint's safetensors files, read with distrust: where every tensor lies, or one line saying what is wrong.

Standard library only, and no tensor data is read: a loader takes the bytes from `file` at `offset`. The format: 8 bytes little-endian
header length, a JSON header {name: {dtype, shape, data_offsets}}, then the data, without gaps.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from llmbench.checkpoints.config import ModelConfig
from llmbench.checkpoints.errors import CheckpointError, shown
from llmbench.checkpoints.files import inside, parse_json, read_json
from llmbench.checkpoints.layout import LM_HEAD, expected_tensors

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

#: safetensors' dtype -> ours, for weights. Others are mis-typed.
WEIGHT_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
DTYPE_SIZES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
DTYPE_SIZES |= {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1}

#: Far above any supported model's header, and small enough to be parsed without a thought for memory.
MAX_HEADER_BYTES = 4 * 2**20
PICKLES = ("*.bin", "*.pth", "*.pt", "*.ckpt")


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor's bytes lie: little-endian, row-major, at `offset` bytes from the start of `file`.

    dtype: "float32", "bfloat16" or "float16".
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int


def read_entries(path: Path, config: ModelConfig) -> dict[str, TensorEntry]:
    """Every tensor that `config` expects, in the order of `expected_tensors`, from model.safetensors or the shards of its index.

    Raises CheckpointError naming the tensor, the file and the value: a header that doesn't fit its file, overlapping or mis-sized tensors,
    missing, extra, duplicate, mis-shaped or mis-typed ones, an index that leads out of the folder, pickles only.
    """
    path = Path(path)
    expected = expected_tensors(config)
    found, source = _read_found(path)

    entries: dict[str, TensorEntry] = {}
    missing = [name for name in expected if name not in found]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(f"{source} has no tensor {missing[0]}{more}")
    extra = [name for name in found if name not in expected and not _harmless(name, config)]
    if extra:
        more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        raise CheckpointError(
            f"{found[extra[0]].file} holds the tensor {shown(extra[0])}{more}, unknown to {config.architecture} of this config.json"
        )
    for name, shape in expected.items():
        entry = found[name]
        if entry.dtype not in WEIGHT_DTYPES:
            raise CheckpointError(f"{entry.file}: tensor {name} has dtype {entry.dtype}; supported are {', '.join(WEIGHT_DTYPES)}")
        if entry.shape != shape:
            raise CheckpointError(f"{entry.file}: tensor {name} has shape {list(entry.shape)}, config.json asks for {list(shape)}")
        entries[name] = TensorEntry(name, WEIGHT_DTYPES[entry.dtype], shape, entry.file, entry.offset, entry.nbytes)
    return entries


def read_every_entry(path: Path) -> dict[str, TensorEntry]:
    """Every float tensor that the checkpoint's files hold, for a model whose own list isn't known here. Raises as `read_entries` does for what is
    wrong with the files themselves."""
    found, _ = _read_found(Path(path))
    return {
        name: TensorEntry(name, WEIGHT_DTYPES[entry.dtype], entry.shape, entry.file, entry.offset, entry.nbytes)
        for name, entry in found.items()
        if entry.dtype in WEIGHT_DTYPES
    }


def _read_found(path: Path) -> tuple[dict[str, TensorEntry], Path]:
    """All tensors of the checkpoint, dtypes under safetensors' names, and the file that they are listed in."""
    if (path / SINGLE).exists():
        return _read_header(path, SINGLE), path / SINGLE
    if (path / INDEX).exists():
        return _read_shards(path), path / INDEX
    raise CheckpointError(_nothing_to_read(path))


def _harmless(name: str, config: ModelConfig) -> bool:
    """Tensors that older exports carry and no model reads: RoPE's frequencies, causal masks, lm_head where it is the embedding table."""
    return name.endswith((".rotary_emb.inv_freq", ".attn.bias", ".masked_bias")) or (name == LM_HEAD and config.tied)


def _nothing_to_read(path: Path) -> str:
    if not path.is_dir():
        return f"{path} is not a folder"
    if any(next(path.glob(pattern), None) for pattern in PICKLES):
        return f"{path} holds its weights as pickles only (*.bin, *.pth), which are never read: take one with *.safetensors"
    others = sorted(entry.name for entry in path.glob("*.safetensors"))
    if others:
        return f"{path} holds {', '.join(others[:3])}, but neither {SINGLE} nor {INDEX}"
    return f"{path} holds no weights: neither {SINGLE} nor {INDEX}"


def _read_shards(path: Path) -> dict[str, TensorEntry]:
    where = path / INDEX
    weight_map = read_json(path, INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{where}: weight_map is {shown(weight_map)}, not an object of tensor names and files")
    for name, file in weight_map.items():
        if not isinstance(file, str) or not file.endswith(".safetensors"):
            raise CheckpointError(f"{where}: tensor {shown(name)} is said to lie in {shown(file)}, not in a .safetensors file")
    found: dict[str, TensorEntry] = {}
    holder: dict[str, str] = {}
    for file in sorted(set(weight_map.values())):
        for name, entry in _read_header(path, file).items():
            if name in found:
                raise CheckpointError(f"tensor {shown(name)} lies twice in {path}: in {holder[name]} and in {file}")
            found[name], holder[name] = entry, file
    for name, file in weight_map.items():
        if holder.get(name) != file:
            raise CheckpointError(f"{where} says that tensor {shown(name)} lies in {shown(file)}, where it is not")
    return found


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"{shown(key)} stands there twice")
        result[key] = value
    return result


def _read_header(path: Path, name: str) -> dict[str, TensorEntry]:
    """All tensors of one file, dtypes still under safetensors' names."""
    file = inside(path, name)
    where = path / name
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            prefix = stream.read(8)
            if len(prefix) < 8:
                raise CheckpointError(f"{where} is cut off: {size} bytes")
            (length,) = struct.unpack("<Q", prefix)
            if length > size - 8:
                raise CheckpointError(f"{where} says that its header has {length} bytes, but the file has {size}")
            if length > MAX_HEADER_BYTES:
                raise CheckpointError(f"{where} says that its header has {length} bytes; more than {MAX_HEADER_BYTES} are not read")
            header = stream.read(length)
    except OSError as error:
        raise CheckpointError(f"{where} can't be read: {error}") from None
    if len(header) < length:
        raise CheckpointError(f"{where} is cut off within its header")
    data_start = 8 + length
    entries: dict[str, TensorEntry] = {}
    for tensor, fields in parse_json(header, f"the header of {where}", _unique).items():
        if tensor != "__metadata__":
            entries[tensor] = _entry(tensor, fields, file, where, data_start)
    _check_cover(entries, where, data_start, size)
    return entries


def _entry(tensor: str, fields: Any, file: Path, where: Path, data_start: int) -> TensorEntry:
    def wrong(key: str, value: Any) -> CheckpointError:
        return CheckpointError(f"{where}: tensor {shown(tensor)} has {key} {shown(value)}")

    if not isinstance(fields, dict):
        raise wrong("the description", fields)
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_SIZES:
        raise wrong("dtype", dtype)
    if not isinstance(shape, list) or len(shape) > 8 or not all(_natural(entry) for entry in shape):
        raise wrong("shape", shape)
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_natural(entry) for entry in offsets):
        raise wrong("data_offsets", offsets)
    begin, end = offsets
    nbytes = prod(shape) * DTYPE_SIZES[dtype]
    if end - begin != nbytes:
        raise CheckpointError(
            f"{where}: tensor {shown(tensor)} spans {shown(end - begin)} bytes (data_offsets {shown(begin)} to {shown(end)}), "
            f"but shape {[*shape]} of {dtype} takes {shown(nbytes)}"
        )
    return TensorEntry(tensor, dtype, tuple(shape), file, data_start + begin, nbytes)


def _natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _check_cover(entries: dict[str, TensorEntry], where: Path, data_start: int, size: int) -> None:
    """The tensors must lie end to end from the header to the file's end, as the format demands."""
    for entry in entries.values():
        end = entry.offset + entry.nbytes
        if end > size:
            raise CheckpointError(f"{where} is cut off: tensor {shown(entry.name)} ends at byte {end}, but the file has {size}")
    position, last = data_start, "the header"
    for entry in sorted(entries.values(), key=lambda entry: (entry.offset, entry.nbytes)):
        if entry.offset < position:
            raise CheckpointError(f"{where}: tensor {shown(entry.name)} overlaps {shown(last)} at byte {entry.offset}")
        if entry.offset > position:
            raise CheckpointError(f"{where}: {entry.offset - position} bytes before tensor {shown(entry.name)} belong to no tensor")
        position, last = entry.offset + entry.nbytes, entry.name
    if position != size:
        raise CheckpointError(f"{where} has {size - position} bytes more than its header accounts for")
