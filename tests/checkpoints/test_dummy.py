"""Random weights: the same values in memory and in files, rounded as torch rounds."""

import numpy as np
import pytest
import torch
from safetensors import safe_open
from small_checkpoints import write_config

from llmbench.checkpoints.config import read_config
from llmbench.checkpoints.dummy import BLOCK, chunks, to_bfloat16, write_shards
from llmbench.checkpoints.errors import CheckpointError
from llmbench.checkpoints.layout import expected_tensors
from llmbench.checkpoints.tensor_files import read_entries


def values(name, numel, seed=0):
    return np.concatenate(list(chunks(name, numel, seed)))


def test_values_are_seeded_and_differ_between_tensors():
    first = values("model.layers.0.mlp.up_proj.weight", 3 * BLOCK)
    assert first.dtype == np.float32
    assert np.array_equal(first, values("model.layers.0.mlp.up_proj.weight", 3 * BLOCK))
    assert np.array_equal(first[:1000], values("model.layers.0.mlp.up_proj.weight", 1000))
    assert not np.array_equal(first[:1000], values("model.layers.1.mlp.up_proj.weight", 1000))
    assert not np.array_equal(first[:1000], values("model.layers.0.mlp.up_proj.weight", 1000, seed=1))
    assert abs(float(first.std()) - 0.02) < 1e-3
    rows = first[: 4096 * 700].reshape(700, 4096)
    assert len(np.unique(rows[:, :4], axis=0)) == 700


def test_norm_weights_lie_about_one_and_biases_about_zero():
    for name in ("model.norm.weight", "model.layers.0.input_layernorm.weight", "model.final_layernorm.weight"):
        assert abs(float(values(name, 5000).mean()) - 1) < 0.01
    assert abs(float(values("model.layers.0.input_layernorm.bias", 5000).mean())) < 0.01


def test_bfloat16_rounds_as_torch_does():
    bits = np.random.default_rng(0).integers(0, 2**32, 500_000, dtype=np.uint32)
    halves = np.arange(2**16, dtype=np.uint32) << 16 | 0x8000  # ties, every exponent and sign
    edges = np.array([0, 0x80000000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 1, 0x00007FFF, 0x00008001], dtype=np.uint32)
    numbers = np.concatenate([bits, halves, edges]).view(np.float32)
    ours = torch.from_numpy(to_bfloat16(numbers).view(np.int16).copy()).view(torch.bfloat16)
    theirs = torch.from_numpy(numbers).to(torch.bfloat16)
    assert torch.equal(ours.isnan(), theirs.isnan())
    finite = ~theirs.isnan()
    assert torch.equal(ours[finite].view(torch.int16), theirs[finite].view(torch.int16))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("family", ["LlamaForCausalLM", "PhiForCausalLM", "Phi3ForCausalLM"])
def test_shards_hold_the_values_of_chunks(tmp_path, family, dtype):
    config = read_config(write_config(tmp_path, architectures=[family], hidden_size=32, vocab_size=123))
    write_shards(config, tmp_path, dtype, seed=7, shard_bytes=10_000)
    entries = read_entries(tmp_path, config)
    files = sorted({entry.file for entry in entries.values()})
    assert len(files) > 2
    seen = 0
    for file in files:
        with safe_open(file, framework="pt") as reader:
            for name in reader.keys():  # noqa: SIM118 - no dict
                shape = expected_tensors(config)[name]
                expected = torch.from_numpy(values(name, int(np.prod(shape)), 7)).view(shape).to(getattr(torch, dtype))
                assert torch.equal(reader.get_tensor(name), expected)
                seen += 1
    assert seen == len(expected_tensors(config))
    assert not list(tmp_path.glob("*.partial"))


def test_shards_are_not_written_over_weights(tmp_path):
    config = read_config(write_config(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"a user's")
    with pytest.raises(CheckpointError, match="already holds weights"):
        write_shards(config, tmp_path, "float32", 0)
