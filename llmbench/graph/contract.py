"""What the exported graph is, for the engines that load it or build from it: file names, inputs, outputs and a few numbers in graph.json.

One graph serves prefill and decoding: its only dynamic axis is T, the tokens of this call. Batch B and cache length L are fixed when it is
written. K key and value heads, D elements a head, V ids in the vocabulary; all names are in this module.

    inputs   ids            int64  [B, T]        the tokens of this call
             positions      int64  [T]           where they stand, the same in every sequence: 0 .. T-1 in prefill, [p] in a decode step
             past_key_i     dtype  [B, K, L, D]  for each layer i; past_value_i likewise. What is not written yet must be finite: zeros
    outputs  next_ids       int64  [B, 1]        the most likely id after the last token: feeds `ids` of the next step as it is
             logits         float32 [B, V]       after the last token
             present_key_i  dtype  [B, K, L, D]  past_key_i with this call's positions written; present_value_i likewise

Nothing but the write itself reads past_key_i, so past and present may be one buffer where a runtime writes in place. A token sees the positions
up to its own, in a model with a window the last `window` of them. `dtype` is that of the weights and of the activations between operators;
norms, rotary embedding and softmax are computed in float32, as in torchfast. The opset is 21, operators are those of ONNX's own domain.

Standard library only: whoever runs a graph may live in another interpreter.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from llmbench.engines.base import EngineError
from llmbench.protocol import Status

#: The graph, without weights, the file its weights lie in, and the numbers of `GraphInfo`.
MODEL_FILE, WEIGHTS_FILE, INFO_FILE = "model.onnx", "model.onnx.data", "graph.json"
OPSET = 21
IDS, POSITIONS, NEXT_IDS, LOGITS = "ids", "positions", "next_ids", "logits"
#: Raised whenever a reader of the older form could misread the newer one.
VERSION = 1
#: The modules that decide what is written, for the keys of the graph and of all that is built from it.
GRAPH_SOURCES = (
    "llmbench.graph.decoder",
    "llmbench.graph.writer",
    "llmbench.graph.onnx_graph",
    "llmbench.torchfast.model",
    "llmbench.torchfast.quantize",
    "llmbench.torchfast.weights",
)


def past_names(layers: int) -> list[str]:
    """past_key_0, past_value_0, past_key_1, ...: the cache's inputs in the graph's order."""
    return [f"past_{part}_{layer}" for layer in range(layers) for part in ("key", "value")]


def present_names(layers: int) -> list[str]:
    """The cache's outputs, in the order of `past_names`."""
    return [f"present_{part}_{layer}" for layer in range(layers) for part in ("key", "value")]


@dataclass(frozen=True)
class GraphInfo:
    """graph.json."""

    layers: int
    kv_heads: int
    head_dim: int
    length: int  # L, positions in the cache
    vocab: int
    batch: int
    dtype: str  # float32, float16 or bfloat16
    quantization: str | None = None  # int8 or int4 of the linear layers' matrices, as torchfast.quantize has them
    window: int | None = None  # tokens that a query sees, itself included; null: all
    heads: int = 0  # query heads
    weights_bytes: int = 0  # of all stored weights, tables included
    version: int = VERSION

    @property
    def cache_shape(self) -> tuple[int, int, int, int]:
        return (self.batch, self.kv_heads, self.length, self.head_dim)

    def write(self, folder: Path) -> None:
        (folder / INFO_FILE).write_text(json.dumps(asdict(self), indent=1, sort_keys=True) + "\n", encoding="utf-8")


def read_info(folder: Path) -> GraphInfo:
    """The numbers of the graph in `folder`. Raises EngineError (load failed) where graph.json is missing or of another form."""
    path = folder / INFO_FILE
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        known = {field.name for field in fields(GraphInfo)}
        info = GraphInfo(**{name: value for name, value in found.items() if name in known})
        numbers = (info.layers, info.kv_heads, info.head_dim, info.length, info.vocab, info.batch)
        if info.version != VERSION or not all(type(number) is int and number > 0 for number in numbers):
            raise ValueError(f"version {info.version}, sizes {numbers}")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise EngineError(f"{INFO_FILE} can't be read: {error}; prune the cache and build again", Status.LOAD_FAILED) from error
    return info
