"""The exported graph in OpenVINO's own terms: compressed weights, a cache that is the model's state, attention as one operator.

Three things are changed, each because the CPU plugin is otherwise slower than it can be (it recognises its fast forms by pattern):
- A 16-bit constant becomes constant -> Convert to float32, marked as decompression: the plugin then reads 2 bytes a weight and computes in
  float32. Unmarked, it folds the two into a float32 constant.
- A layer's cache becomes a state that grows by concatenation, read through a Gather by `beam_idx`, and scores, softmax and mix become
  ScaledDotProductAttention. The plugin fuses that into one operator with a cache of its own, written in place; the graph's scatter into a
  cache of fixed length is copied by Assign in every step instead.
- The mask is cut to the positions that there are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import openvino
from openvino import opset6, opset13

from llmbench.engines.base import EngineError
from llmbench.graph.contract import IDS, LOGITS, MODEL_FILE, NEXT_IDS, POSITIONS, GraphInfo, past_names, present_names
from llmbench.protocol import Status

#: int32 [B], which sequence's cache each sequence goes on with: always 0 .. B-1 here.
BEAM_INDEX = "beam_idx"
_HALF = (openvino.Type.bf16, openvino.Type.f16)


def from_graph(folder: Path, info: GraphInfo) -> Any:
    """The openvino.Model of the graph in `folder`: inputs ids, positions and beam_idx, outputs next_ids and logits, the cache inside."""
    model = openvino.Core().read_model(folder / MODEL_FILE)
    compress(model)
    nodes = {node.get_friendly_name(): node for node in model.get_ordered_ops()}
    results = {name: result for result in model.get_results() for name in result.output(0).get_names() | result.input_value(0).get_names()}
    inputs = {parameter.get_friendly_name(): parameter for parameter in model.get_parameters()}
    expected = {IDS, POSITIONS, *past_names(info.layers)}
    if set(inputs) != expected or not {NEXT_IDS, LOGITS, *present_names(info.layers)} <= set(results):
        raise EngineError("the graph's inputs and outputs are not those of llmbench's contract; prune the cache", Status.BUILD_FAILED)

    _cut_mask(nodes["mask/every"], inputs[POSITIONS])
    mask = opset13.unsqueeze(nodes["mask"], _int64([0, 1]))  # [1, 1, T, positions so far]
    beams = opset13.parameter([-1], openvino.Type.i32, name=BEAM_INDEX)
    beams.output(0).set_names({BEAM_INDEX})
    empty_shape = [info.batch, info.kv_heads, 0, info.head_dim]
    empty = opset13.broadcast(opset13.constant(numpy.float32(0)), _int64(empty_shape))
    state_shape = openvino.PartialShape([-1, info.kv_heads, -1, info.head_dim])
    sinks = []
    for layer in range(info.layers):
        at = f"layer.{layer}/attention"
        whole = []
        for part, node in (("key", "k"), ("value", "v")):
            name = f"past_{part}_{layer}"
            state = opset6.read_value(empty, name, openvino.Type.f32, state_shape)
            past = opset13.gather(state, beams, _int64(0))
            grown = opset13.concat([past, nodes[f"{at}/{node}"]], 2)
            sinks.append(opset6.assign(grown, name))
            whole.append(_for_all_heads(grown, info))
        mixed = opset13.scaled_dot_product_attention(nodes[f"{at}/q"], whole[0], whole[1], mask)
        nodes[f"{at}/mixed_by_head"].output(0).replace(mixed.output(0))
    changed = openvino.Model(
        [results[NEXT_IDS], results[LOGITS]], sinks, [inputs[IDS], inputs[POSITIONS], beams], model.get_friendly_name()
    )
    changed.validate_nodes_and_infer_types()
    return changed


def compress(model: Any) -> None:
    """Arithmetic to float32, weights kept in their 16 bits: what was computed in 16 bits between operators is in float32 afterwards."""
    for parameter in model.get_parameters():
        if parameter.get_element_type() in _HALF:
            parameter.set_element_type(openvino.Type.f32)
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        if kind == "Constant" and node.get_output_element_type(0) in _HALF:
            readers = list(node.output(0).get_target_inputs())
            converted = opset13.convert(node, "f32")
            for reader in readers:
                reader.replace_source_output(converted.output(0))
        elif kind == "Convert" and node.get_attributes()["destination_type"] in ("bf16", "f16"):
            source = node.input_value(0)
            half_or_float = source.get_element_type() in (*_HALF, openvino.Type.f32)
            node.output(0).replace(source if half_or_float else opset13.convert(source, "f32").output(0))  # else: values in few bits
    model.validate_nodes_and_infer_types()


def mark_decompression(model: Any) -> int:
    """Marks each Convert of a 16-bit constant as decompression, and returns how many. After reading: a file doesn't keep the mark."""
    count = 0
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Convert":
            continue
        source = node.input_value(0).get_node()
        if source.get_type_name() == "Constant" and source.get_output_element_type(0) in _HALF:
            node.get_rt_info()["decompression_0"] = ""  # the plugin asks for the key alone
            count += 1
    return count


def _cut_mask(every: Any, positions: Any) -> None:
    """Columns of the mask: the positions up to this call's last one, of all that the cache could hold."""
    last = opset13.gather(positions, _int64([-1]), _int64(0))
    count = opset13.add(last, _int64([1]))
    readers = list(every.output(0).get_target_inputs())
    cut = opset13.slice(every, _int64([0]), count, _int64([1]), _int64([1]))
    for reader in readers:
        reader.replace_source_output(cut.output(0))


def _for_all_heads(grown: Any, info: GraphInfo) -> Any:
    """[B, K, P, D] -> [B, H, P, D] in the form that the plugin knows as grouped heads and doesn't carry out."""
    if info.heads == info.kv_heads:
        return grown
    group = info.heads // info.kv_heads
    wide = opset13.broadcast(opset13.unsqueeze(grown, _int64(2)), _int64([1, 1, group, 1, 1]), broadcast_spec="BIDIRECTIONAL")
    return opset13.reshape(wide, _int64([0, info.heads, -1, info.head_dim]), True)


def _int64(values: Any) -> Any:
    return opset13.constant(numpy.array(values, dtype=numpy.int64))
