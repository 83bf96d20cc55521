"""Plans built by the real wheel: what the network and the configuration are when building begins, and what failures are called."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from ahead import REQUEST, job_for

pytest.importorskip("tensorrt_rtx_bindings", reason="NVIDIA's wheels exist for Linux on x86-64 alone")

import tensorrt_rtx_bindings as trt

from llmbench.engines.base import EngineError, Unsupported
from llmbench.engines.tensorrt import in_place
from llmbench.engines.tensorrt.bindings import CLASSIC, RTX, Edition, capabilities, load, log
from llmbench.engines.tensorrt.builder import PLAN_FILE, PlanOptions, build_plan
from llmbench.graph.contract import IDS, LOGITS, MODEL_FILE, NEXT_IDS, POSITIONS, WEIGHTS_FILE, past_names, present_names, read_info
from llmbench.graph.onnx_graph import OnnxGraph
from llmbench.protocol import Status

pytestmark = pytest.mark.xdist_group("torch")


class Spied:
    """The wheel, with a builder that says what it is given."""

    def __init__(self) -> None:
        self.__name__, self.__version__ = trt.__name__, trt.__version__
        self.seen: dict[str, Any] = {}
        self.profiles: list[Any] = []
        self.flags = 0
        spied = self

        class Builder(trt.Builder):  # type: ignore[misc]
            def create_network(self, flags: int = 0) -> Any:
                spied.flags = flags
                return super().create_network(flags)

            def create_optimization_profile(self) -> Any:
                profile = super().create_optimization_profile()
                spied.profiles.append(profile)
                return profile

            def build_serialized_network(self, network: Any, config: Any) -> Any:
                spied.seen = look(network, config)
                return super().build_serialized_network(network, config)

        self.Builder = Builder

    def __getattr__(self, name: str) -> Any:
        return getattr(trt, name)


def look(network: Any, config: Any) -> dict[str, Any]:
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    return {
        "strongly_typed": network.get_flag(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED),
        "tf32": config.get_flag(trt.BuilderFlag.TF32),
        "workspace": config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE),
        "targets": [config.get_compute_capability(index) for index in range(config.num_compute_capabilities)],
        "profiles": config.num_optimization_profiles,
        "inputs": {tensor.name: (tensor.dtype, tuple(tensor.shape)) for tensor in inputs},
        "outputs": {tensor.name: (tensor.dtype, tuple(tensor.shape)) for tensor in outputs},
        "updates": sum(network.get_layer(index).type == trt.LayerType.KV_CACHE_UPDATE for index in range(network.num_layers)),
    }


def graph_for(folder: Path, dtype: str = "float32", batch: int = 1, family: str = "Llama") -> Path:
    job = job_for(folder / "checkpoint", "onnx-graph", family, dataclasses.replace(REQUEST, batch_size=batch))
    graph = folder / "graph"
    graph.mkdir()
    OnnxGraph().build(dataclasses.replace(job, variant=dataclasses.replace(job.variant, dtype=dtype)), graph)
    return graph


@pytest.mark.parametrize(("dtype", "kind"), [("float32", "FLOAT"), ("float16", "HALF"), ("bfloat16", "BF16")])
@pytest.mark.parametrize("in_place", [False, True])
def test_what_is_built(tmp_path: Path, dtype: str, kind: str, in_place: bool) -> None:
    graph, module = graph_for(tmp_path, dtype), Spied()
    options = PlanOptions(8, ("sm_86", "sm_89"), in_place, 64)
    info = build_plan(RTX, module, graph, tmp_path, options)
    seen = module.seen
    assert seen["strongly_typed"]
    # This edition is always so; the classic one only when asked.
    assert module.flags == 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    assert not seen["tf32"]
    assert seen["workspace"] == 64 * 2**20
    assert seen["targets"] == [trt.ComputeCapability.SM86, trt.ComputeCapability.SM89]
    assert seen["profiles"] == 1
    assert [tuple(shape) for shape in module.profiles[0].get_shape(IDS)] == [(1, 1), (1, 1), (1, 8)]
    assert [tuple(shape) for shape in module.profiles[0].get_shape(POSITIONS)] == [(1,), (1,), (8,)]
    cache, integers = (getattr(trt.DataType, kind), info.cache_shape), trt.DataType.INT64
    assert seen["inputs"] == {IDS: (integers, (1, -1)), POSITIONS: (integers, (-1,)), **dict.fromkeys(past_names(2), cache)}
    assert seen["outputs"] == {
        NEXT_IDS: (integers, (1, 1)),
        LOGITS: (trt.DataType.FLOAT, (1, 128)),
        **dict.fromkeys(present_names(2), cache),
    }
    assert seen["updates"] == (4 if in_place else 0)
    assert (tmp_path / PLAN_FILE).read_bytes()[:4] == b"vtrt"
    assert read_info(tmp_path) == read_info(graph)


@pytest.mark.parametrize(("family", "in_place"), [("Mistral", True), ("Phi", True), ("Phi", False)])
def test_families_and_batches(tmp_path: Path, family: str, in_place: bool) -> None:
    """A window, partial rotary embedding and biases; two sequences."""
    build_plan(RTX, trt, graph_for(tmp_path, batch=2, family=family), tmp_path, PlanOptions(8, ("sm_89",), in_place))
    assert (tmp_path / PLAN_FILE).stat().st_size > 100_000


def test_in_place_updates_replace_every_reader(tmp_path: Path) -> None:
    """After the change nothing reads what ScatterND writes, each update begins at the first position, and readers have the new cache."""
    graph = graph_for(tmp_path)
    builder = trt.Builder(log.logger(trt))
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log.logger(trt))
    assert parser.parse_from_file(str(graph / MODEL_FILE))
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    readers = dict.fromkeys(present_names(2), 0)
    for layer in layers:
        for index in range(layer.num_inputs):
            source = layer.get_input(index)
            if source is not None and source.name in readers:
                readers[source.name] += 1
    assert all(readers.values()), "each cache is read by attention"
    in_place.update_in_place(trt, network, read_info(graph))
    now = dict.fromkeys(readers, 0)
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        for at in range(layer.num_inputs):
            source = layer.get_input(at)
            if source is None:
                continue
            assert not source.name.endswith("_replaced"), f"{layer.name} still reads {source.name}"
            if source.name in now:
                now[source.name] += 1
        if layer.type == trt.LayerType.KV_CACHE_UPDATE:
            assert layer.get_input(0).name == layer.get_output(0).name.replace("present", "past")
            assert (layer.get_input(2).dtype, tuple(layer.get_input(2).shape)) == (trt.DataType.INT32, (1,))
    assert now == readers
    del parser


def test_failures_are_one_line(tmp_path: Path) -> None:
    graph = graph_for(tmp_path)
    cases: list[tuple[str, Any, str]] = []
    with pytest.raises(EngineError, match="no compute capability to build for"):
        build_plan(RTX, trt, graph, tmp_path, PlanOptions(8))
    with pytest.raises(EngineError, match="the profile of 1 to 0 tokens is refused"):
        build_plan(RTX, trt, graph, tmp_path, PlanOptions(0, ("sm_89",)))
    cases.append((WEIGHTS_FILE, None, "the ONNX graph can't be parsed: "))
    cases.append((MODEL_FILE, b"not a graph", "the ONNX graph can't be parsed: "))
    for name, content, words in cases:
        (graph / name).unlink()
        if content is not None:
            (graph / name).write_bytes(content)
        with pytest.raises(EngineError, match=words) as caught:
            build_plan(RTX, trt, graph, tmp_path, PlanOptions(8, ("sm_89",)))
        assert caught.value.status is Status.BUILD_FAILED
        assert "\n" not in caught.value.reason
        assert "does not say why" not in caught.value.reason
    assert not (tmp_path / PLAN_FILE).exists()


def test_a_release_without_cache_layers_is_told(tmp_path: Path) -> None:
    module = Spied()
    module.INetworkDefinition = object  # type: ignore[attr-defined]
    with pytest.raises(Unsupported, match="no layer that updates a cache in place"):
        build_plan(RTX, module, graph_for(tmp_path), tmp_path, PlanOptions(8, ("sm_89",), in_place=True))


def test_editions() -> None:
    assert load(RTX) is trt
    assert capabilities(trt) == ["sm_75", "sm_80", "sm_86", "sm_89", "sm_120", "sm_121"]
    missing: Edition = dataclasses.replace(CLASSIC, module="no_such_tensorrt")
    with pytest.raises(EngineError, match=r"'no_such_tensorrt' is not installed; pip install 'llmbench\[tensorrt\]'") as caught:
        load(missing)
    assert caught.value.status is Status.UNAVAILABLE


#: What the shared code calls on either edition, and how.
SHARED_CALLS = {
    "Builder": ("create_network", "create_builder_config", "create_optimization_profile", "build_serialized_network"),
    "OnnxParser": ("parse_from_file", "get_error"),
    "IBuilderConfig": ("clear_flag", "set_memory_pool_limit", "add_optimization_profile"),
    "IOptimizationProfile": ("set_shape",),
    "Runtime": ("deserialize_cuda_engine",),
    "ICudaEngine": (
        "get_tensor_name",
        "get_tensor_mode",
        "get_tensor_dtype",
        "get_tensor_profile_shape",
        "create_execution_context",
    ),
    "IExecutionContext": ("set_optimization_profile_async", "set_input_shape", "set_tensor_address", "execute_async_v3"),
}


@pytest.mark.parametrize("module", [RTX.module, CLASSIC.module])
def test_both_editions_have_what_is_shared(module: str) -> None:
    """The classic one only where it is installed, which NVIDIA's own index makes rare."""
    edition = pytest.importorskip(module)
    for kind, methods in SHARED_CALLS.items():
        for method in methods:
            assert callable(getattr(getattr(edition, kind), method)), f"{kind}.{method}"
    assert edition.NetworkDefinitionCreationFlag.STRONGLY_TYPED is not None
    assert edition.BuilderFlag.TF32 is not None
