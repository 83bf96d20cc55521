"""Weights land where they belong, whatever their dtype and shards; broken files are refused; the peak stays near the weights' size."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_checkpoints import FAMILIES

from llmbench.checkpoints.config import ModelConfig, read_config
from llmbench.checkpoints.dummy import write_shards
from llmbench.checkpoints.layout import expected_tensors
from llmbench.checkpoints.tensor_files import read_entries
from llmbench.engines.base import EngineError
from llmbench.protocol import Status
from llmbench.torchfast import weights

pytestmark = pytest.mark.xdist_group("torch")

LLAMA = ModelConfig("LlamaForCausalLM", 64, 2, 4, 2, 16, 96, 199, 128, rotary_dim=16)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_expected_tensor_has_a_place_and_every_row_is_taken_once(name, checkpoint):
    config = read_config(checkpoint(name)[0])
    places = weights.places(config)
    shapes = expected_tensors(config)
    assert set(places) == set(shapes)
    model = weights.build_empty(config, torch.float32, "cpu")
    parameters = dict(model.named_parameters())
    for parameter in parameters.values():
        parameter.zero_()
    for tensor, place in places.items():
        target = place.of(parameters)
        assert tuple(target.shape) == shapes[tensor]
        target += 1
    assert all((parameter == 1).all() for parameter in parameters.values())


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("wanted", ["float32", "bfloat16", "float16"])
def test_values_are_cast_as_torch_casts_them(stored, wanted, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "PIECE_BYTES", 1000)  # a tensor is several pieces, the last one short
    write_shards(LLAMA, tmp_path, stored, seed=3, shard_bytes=60_000)
    model = weights.build_empty(LLAMA, weights.DTYPES[wanted], "cpu")
    weights.load_safetensors(model, read_entries(tmp_path, LLAMA))
    drawn = weights.build_empty(LLAMA, torch.float32, "cpu")
    weights.load_dummy(drawn, seed=3)
    for (name, parameter), (_, source) in zip(model.named_parameters(), drawn.named_parameters(), strict=True):
        expected = source.to(weights.DTYPES[stored]).to(weights.DTYPES[wanted])
        assert torch.equal(parameter, expected), name


def test_dummy_values_differ_by_seed_and_tensor():
    first, second = (weights.build_empty(LLAMA, torch.float32, "cpu") for _ in range(2))
    weights.load_dummy(first, seed=1)
    weights.load_dummy(second, seed=2)
    assert not torch.equal(first.embed.weight, second.embed.weight)
    assert not torch.equal(first.blocks[0].mlp.down.weight, first.blocks[1].mlp.down.weight)
    assert (first.norm.weight - 1).abs().max() < 0.2


def test_a_file_cut_short_after_its_header_was_read_is_refused(tmp_path):
    write_shards(LLAMA, tmp_path, "float32", seed=0)
    entries = read_entries(tmp_path, LLAMA)
    file = next(iter(entries.values())).file
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size - 100)
    with pytest.raises(EngineError, match=r"safetensors ends within the tensor lm_head\.weight") as caught:
        weights.load_safetensors(weights.build_empty(LLAMA, torch.float32, "cpu"), entries)
    assert caught.value.status is Status.LOAD_FAILED


def test_a_missing_or_misshapen_tensor_or_file_is_named(tmp_path):
    write_shards(LLAMA, tmp_path, "float32", seed=0)
    entries = read_entries(tmp_path, LLAMA)
    model = weights.build_empty(LLAMA, torch.float32, "cpu")
    fewer = {name: entry for name, entry in entries.items() if name != "model.norm.weight"}
    with pytest.raises(EngineError, match=r"lacks the tensor model\.norm\.weight"):
        weights.load_safetensors(model, fewer)
    wrong = dataclasses.replace(entries["model.norm.weight"], shape=(3,))
    with pytest.raises(EngineError, match=r"model\.norm\.weight has the shape \(3,\), not \(64,\)"):
        weights.load_safetensors(model, {**entries, "model.norm.weight": wrong})
    wrong = dataclasses.replace(entries["model.norm.weight"], file=tmp_path / "gone.safetensors")
    with pytest.raises(EngineError, match=r"can't open gone\.safetensors"):
        weights.load_safetensors(model, {**entries, "model.norm.weight": wrong})


MEASURE = """
import json, sys
from pathlib import Path
import torch
from llmbench.checkpoints.config import ModelConfig
from llmbench.checkpoints.tensor_files import read_entries
from llmbench.torchfast import weights
import llmbench.checkpoints.dummy

def status(field):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024

config = ModelConfig(**json.loads(sys.argv[1]))
torch.zeros(8).to(torch.bfloat16) + 1
Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
model = weights.build_empty(config, torch.bfloat16, "cpu")
if sys.argv[2] == "dummy":
    weights.load_dummy(model, seed=0)
else:
    weights.load_safetensors(model, read_entries(Path(sys.argv[2]), config))
print(json.dumps([status("VmHWM") - before, model.weights_bytes()]))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc to measure a peak")
@pytest.mark.parametrize("stored", ["dummy", "bfloat16", "float32"])
def test_loading_peaks_near_the_weights_size(stored, tmp_path):
    config = ModelConfig("LlamaForCausalLM", 1024, 8, 8, 4, 128, 3584, 16384, 128, rotary_dim=128)
    if stored != "dummy":
        write_shards(config, tmp_path, stored, seed=0, shard_bytes=100 * 2**20)
    arguments = [json.dumps(dataclasses.asdict(config)), "dummy" if stored == "dummy" else str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", MEASURE, *arguments], capture_output=True, text=True, check=True)
    peak, size = json.loads(done.stdout)
    assert size > 250 * 10**6
    assert size * 0.95 < peak <= size * 1.3
