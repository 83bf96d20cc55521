"""Writes an ONNX model node by node, its weights straight into an external file: each is in memory once, while it is written.

onnx's own save would hold all weights in protobuf messages first, a second copy of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor

from llmbench.graph.contract import MODEL_FILE, OPSET, WEIGHTS_FILE

ONNX_TYPES = {
    torch.float32: TensorProto.FLOAT,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.int64: TensorProto.INT64,
    torch.int8: TensorProto.INT8,
    torch.uint8: TensorProto.UINT8,
}
#: Runtimes map the file into memory: a page's multiple lets every tensor be used where it lies.
ALIGNMENT = 4096
_PIECE_BYTES = 16 * 2**20


class GraphWriter:
    """Collects nodes, writes weights as they come, and at `close` the graph. Values are handled by their names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._nodes: list[Any] = []
        self._initializers: list[Any] = []
        self._constants: dict[tuple[Any, ...], str] = {}
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._file = (folder / WEIGHTS_FILE).open("wb")
        self.weights_bytes = 0

    def add_input(self, name: str, kind: int, shape: Sequence[int | str]) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, kind, list(shape)))
        return name

    def add_output(self, name: str, kind: int, shape: Sequence[int | str]) -> str:
        self._outputs.append(helper.make_tensor_value_info(name, kind, list(shape)))
        return name

    def node(self, operator: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """Adds a node with one output, called as the node is; returns its name."""
        return self.nodes(operator, inputs, name, [name], **attributes)[0]

    def nodes(self, operator: str, inputs: Sequence[str], name: str, outputs: Sequence[str], **attributes: Any) -> Sequence[str]:
        """The same with several outputs."""
        self._nodes.append(helper.make_node(operator, list(inputs), list(outputs), name=name, **attributes))
        return outputs

    def integers(self, values: Sequence[int]) -> str:
        """A constant int64 vector for shapes and axes, each value once in the graph."""
        key = ("int64", *values)
        if key not in self._constants:
            name = f"int64_{'_'.join(map(str, values))}".replace("-", "m")
            self._initializers.append(helper.make_tensor(name, TensorProto.INT64, [len(values)], list(values)))
            self._constants[key] = name
        return self._constants[key]

    def number(self, value: float) -> str:
        """A constant float32 scalar."""
        key = ("float32", value)
        if key not in self._constants:
            name = f"float32_{len(self._constants)}"
            self._initializers.append(helper.make_tensor(name, TensorProto.FLOAT, [], [value]))
            self._constants[key] = name
        return self._constants[key]

    def weight(self, name: str, value: Tensor, kind: int | None = None, shape: Sequence[int] | None = None) -> str:
        """A tensor in the external file. kind and shape: ONNX's where torch has no such type (two 4-bit values in a byte of uint8)."""
        value = value.detach().contiguous()
        tensor = TensorProto()
        tensor.name, tensor.data_type = name, ONNX_TYPES[value.dtype] if kind is None else kind
        tensor.dims.extend(value.shape if shape is None else shape)
        tensor.data_location = TensorProto.EXTERNAL
        offset = -(-self._file.tell() // ALIGNMENT) * ALIGNMENT
        self._file.seek(offset)
        for key, text in (("location", WEIGHTS_FILE), ("offset", str(offset)), ("length", str(value.nbytes))):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, text
        flat: numpy.ndarray[Any, Any] = value.flatten().view(torch.uint8).numpy()
        for start in range(0, len(flat), _PIECE_BYTES):
            self._file.write(flat[start : start + _PIECE_BYTES].data)
        self._initializers.append(tensor)
        self.weights_bytes += value.nbytes
        return name

    def close(self, name: str) -> None:
        """Writes the graph's file."""
        self._file.close()
        graph = helper.make_graph(self._nodes, name, self._inputs, self._outputs, self._initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10, producer_name="llmbench")
        (self._folder / MODEL_FILE).write_bytes(model.SerializeToString())
        onnx.checker.check_model(str(self._folder / MODEL_FILE))
