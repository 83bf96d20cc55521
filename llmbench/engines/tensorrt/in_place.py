"""Has TensorRT's own layers write the KV cache where it lies, in place of the graph's ScatterND, which gives out a new cache.

INetworkDefinition.add_kv_cache_update writes this call's keys or values at an index into a cache whose input and output are one buffer; that is
the only aliasing that TensorRT's API promises, so the graph's own route has two buffers and swaps them.
"""

from __future__ import annotations

from typing import Any

from llmbench.engines.base import Unsupported
from llmbench.engines.tensorrt.bindings import log
from llmbench.graph.contract import POSITIONS, GraphInfo, past_names, present_names
from llmbench.protocol import Status


def has_layers(trt: Any) -> bool:
    """Whether this release has the layer."""
    return hasattr(trt.INetworkDefinition, "add_kv_cache_update")


def update_in_place(trt: Any, network: Any, info: GraphInfo) -> None:
    """Replaces each layer that writes present_* by a KV-cache update of past_*; the old ones lose their readers and are dropped by the builder.

    The graph's positions are consecutive, so the first of them is where a call's keys go. Raises EngineError where the network is not the
    contract's.
    """
    if not has_layers(trt):
        raise Unsupported(f"{trt.__name__} {trt.__version__} has no layer that updates a cache in place; leave kv_cache=in-place out")
    inputs = {network.get_input(index).name: network.get_input(index) for index in range(network.num_inputs)}
    outputs = {network.get_output(index).name: network.get_output(index) for index in range(network.num_outputs)}
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    first = _write_indices(trt, network, inputs[POSITIONS], info.batch)
    wanted = set(present_names(info.layers))
    writers = {layer.get_output(0).name: layer for layer in layers if layer.num_outputs and layer.get_output(0).name in wanted}
    readers: dict[str, list[tuple[Any, int]]] = {}
    for layer in layers:
        for index in range(layer.num_inputs):
            source = layer.get_input(index)
            if source is not None and source.name in wanted:
                readers.setdefault(source.name, []).append((layer, index))
    for past, present in zip(past_names(info.layers), present_names(info.layers), strict=True):
        # ScatterND's inputs: the old cache, the indices, the new rows [B, K, T, D].
        update = network.add_kv_cache_update(inputs[past], writers[present].get_input(2), first, trt.KVCacheMode.LINEAR)
        if update is None:
            raise log.failure(f"{present} can't be updated in place", Status.BUILD_FAILED)
        cache = update.get_output(0)
        for layer, index in readers.get(present, []):
            layer.set_input(index, cache)
        old = outputs[present]
        network.unmark_output(old)
        old.name = f"{present}_replaced"
        cache.name = present
        network.mark_output(cache)


def _write_indices(trt: Any, network: Any, positions: Any, batch: int) -> Any:
    """int32 [B]: where this call's tokens begin, the same in every sequence."""
    first = network.add_slice(positions, (0,), (1,), (1,)).get_output(0)
    first = network.add_cast(first, trt.DataType.INT32).get_output(0)
    return network.add_concatenation([first] * batch).get_output(0) if batch > 1 else first
