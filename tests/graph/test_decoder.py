"""The exported graph, run by onnxruntime, against the torchfast model in PyTorch, which is itself checked against transformers."""

import dataclasses
import json
import math

import numpy
import onnx
import pytest
import torch
from graph.graph_jobs import make_job
from graph.tiny_graphs import tiny_graph
from torchfast.tiny_checkpoints import FAMILIES

from llmbench.engines.base import EngineError, Unsupported
from llmbench.graph.contract import (
    IDS,
    INFO_FILE,
    LOGITS,
    MODEL_FILE,
    NEXT_IDS,
    OPSET,
    POSITIONS,
    WEIGHTS_FILE,
    past_names,
    present_names,
    read_info,
)
from llmbench.graph.onnx_graph import OnnxGraph

pytestmark = pytest.mark.xdist_group("torch")

PROMPT, STEPS = 13, 32


def graph_logits(folder, info, ids):
    """[1 + STEPS, B, V] by onnxruntime: a prefill of PROMPT ids, then one at a time, each id's cache from the call before."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(folder / MODEL_FILE), providers=["CPUExecutionProvider"])
    past = [numpy.zeros(info.cache_shape, info.dtype) for _ in past_names(info.layers)]
    found = []
    for start, stop in [(0, PROMPT), *((index, index + 1) for index in range(PROMPT, ids.shape[1]))]:
        feeds = {
            IDS: ids[:, start:stop].numpy(),
            POSITIONS: numpy.arange(start, stop),
            **dict(zip(past_names(info.layers), past, strict=True)),
        }
        next_ids, logits, *past = session.run([NEXT_IDS, LOGITS, *present_names(info.layers)], feeds)
        assert (next_ids[:, 0] == logits.argmax(axis=-1)).all()
        found.append(logits)
    return numpy.stack(found)


def torch_logits(model, ids):
    with torch.no_grad():
        rows = [model.prefill(ids[:, :PROMPT])[:, -1]]
        rows += [model.step(ids[:, index : index + 1], torch.tensor([index]))[:, -1] for index in range(PROMPT, ids.shape[1])]
    return torch.stack(rows).float().numpy()


def ids_of(batch: int) -> torch.Tensor:
    return torch.randint(0, 199, (batch, PROMPT + STEPS), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_familys_logits_are_pytorchs_in_prefill_and_32_decode_steps(family, tmp_path):
    model, folder, info = tiny_graph(tmp_path, family)
    ids = ids_of(2)
    expected = torch_logits(model, ids)
    found = graph_logits(folder, info, ids)
    assert expected.std() > 0.3  # else agreement says little
    assert abs(expected[:, 0] - expected[:, 1]).max() > 0.3  # two different sequences
    assert abs(found - expected).max() < 1e-4 * expected.std()


def test_a_window_hides_what_lies_behind_it(tmp_path):
    model, folder, info = tiny_graph(tmp_path, "mistral-window", batch=1)
    assert info.window == 11
    ids = ids_of(1)
    model.config.__dict__["sliding_window"] = None  # frozen, but the oracle without a window is wanted
    assert abs(graph_logits(folder, info, ids) - torch_logits(model, ids)).max() > 1e-2


def test_float16_weights_stay_in_their_type_and_the_logits_in_its_error(tmp_path):
    model, folder, info = tiny_graph(tmp_path, "llama-gqa-tied", "float16")
    ids = ids_of(2)
    expected = torch_logits(model, ids)
    assert abs(graph_logits(folder, info, ids) - expected).max() < 0.05 * expected.std()
    assert info.weights_bytes < 2.2 * sum(parameter.numel() for parameter in model.parameters()) + 64 * 1024


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_file_is_what_the_contract_says(dtype, tmp_path):
    _, folder, info = tiny_graph(tmp_path, "phi-3-window-gqa", dtype, batch=3, length=24)
    assert sorted(path.name for path in folder.iterdir()) == sorted([MODEL_FILE, WEIGHTS_FILE, INFO_FILE])
    model = onnx.load(folder / MODEL_FILE, load_external_data=False)
    kind = {"float32": onnx.TensorProto.FLOAT, "bfloat16": onnx.TensorProto.BFLOAT16, "float16": onnx.TensorProto.FLOAT16}[dtype]

    def shapes(values):
        return {
            value.name: (value.type.tensor_type.elem_type, [side.dim_param or side.dim_value for side in value.type.tensor_type.shape.dim])
            for value in values
        }

    cache = (kind, [3, 2, 24, 16])
    assert shapes(model.graph.input) == {
        IDS: (onnx.TensorProto.INT64, [3, "tokens"]),
        POSITIONS: (onnx.TensorProto.INT64, ["tokens"]),
        **dict.fromkeys(past_names(3), cache),
    }
    assert shapes(model.graph.output) == {
        NEXT_IDS: (onnx.TensorProto.INT64, [3, 1]),
        LOGITS: (onnx.TensorProto.FLOAT, [3, 199]),
        **dict.fromkeys(present_names(3), cache),
    }
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", OPSET)]
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    assert types["layer.0/attention/qkv.weight"] == types["embed.weight"] == kind
    for name in past_names(3):  # so that past and present may be one buffer
        assert [node.op_type for node in model.graph.node if name in node.input] == ["ScatterND"]
    assert read_info(folder) == info


def test_weights_lie_in_the_file_once_and_byte_for_byte(tmp_path):
    model, folder, _ = tiny_graph(tmp_path, "llama-gqa-tied", "bfloat16")
    graph = onnx.load(folder / MODEL_FILE, load_external_data=False).graph
    places = {
        tensor.name: {entry.key: entry.value for entry in tensor.external_data} for tensor in graph.initializer if tensor.external_data
    }
    content = (folder / WEIGHTS_FILE).read_bytes()
    for name, weight in (("embed.weight", model.embed.weight), ("layer.2/mlp/down.weight", model.blocks[2].mlp.down.weight)):
        offset, length = int(places[name]["offset"]), int(places[name]["length"])
        assert places[name]["location"] == WEIGHTS_FILE
        assert offset % 4096 == 0
        assert content[offset : offset + length] == weight.detach().view(torch.uint8).numpy().tobytes()
    matrices = [tensor for tensor in graph.initializer if len(tensor.dims) == 2 and math.prod(tensor.dims) == 199 * 64]
    assert len(matrices) == 1  # the tied lm_head is the embedding table


def test_int4_needs_whole_groups_and_says_so(tmp_path):
    job = make_job(tmp_path, "onnx-graph", "llama-mqa-wide-heads", quantization="int4")  # 4 heads of 24
    OnnxGraph().supports(job)
    config = tmp_path / "llama-mqa-wide-heads" / "config.json"
    config.write_text(config.read_text().replace('"intermediate_size": 96', '"intermediate_size": 90'))
    with pytest.raises(Unsupported, match="not all multiples of 32, the group of int4; use int8"):
        OnnxGraph().supports(job)
    OnnxGraph().supports(dataclasses.replace(job, variant=dataclasses.replace(job.variant, quantization="int8")))


@pytest.mark.parametrize("change", [{"version": 99}, {"layers": "3"}, {"vocab": 0}, None])
def test_a_foreign_info_file_is_refused_in_one_line(change, tmp_path):
    _, folder, _ = tiny_graph(tmp_path, "llama", length=16)
    text = json.dumps({**json.loads((folder / INFO_FILE).read_text()), **change}) if change else "[]"
    (folder / INFO_FILE).write_text(text)
    with pytest.raises(EngineError, match=r"graph\.json can't be read") as caught:
        read_info(folder)
    assert "\n" not in caught.value.reason
