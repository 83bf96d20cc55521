"""Small checkpoint folders written without torch: the shapes of tests that only read headers and values."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from llmbench.checkpoints.config import read_config
from llmbench.checkpoints.dummy import chunks, header, stored
from llmbench.checkpoints.layout import expected_tensors

SMALL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}


def write_config(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({key: value for key, value in {**SMALL, **changes}.items() if value is not ...}))
    return folder


def write_small(folder: Path, dtype: str = "float32", **changes: Any) -> Path:
    """config.json and model.safetensors with the values of llmbench.checkpoints.dummy."""
    write_config(folder, **changes)
    shapes = expected_tensors(read_config(folder))
    parts = [header(shapes, dtype)]
    for name, shape in shapes.items():
        parts += [np.ascontiguousarray(stored(piece, dtype)).tobytes() for piece in chunks(name, int(np.prod(shape)), 0)]
    (folder / "model.safetensors").write_bytes(b"".join(parts))
    return folder


def split_file(file: Path) -> tuple[dict[str, Any], bytes]:
    """Header and data of a safetensors file."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def join_file(file: Path, head: dict[str, Any] | bytes, data: bytes) -> None:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)
