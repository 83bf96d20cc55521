"""The reference against transformers, its own modest memory, and what plain arithmetic in other dtypes costs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_checkpoints import FAMILIES

from llmbench.checkpoints.config import read_config
from llmbench.checkpoints.dummy import write_shards
from llmbench.protocol import CheckpointRef
from llmbench.torchfast import reference
from llmbench.torchfast.reference import Arithmetic, Plain, Source, divergence, relative_error

pytestmark = pytest.mark.xdist_group("torch")


def random_ids(length: int, seed: int = 7) -> list[int]:
    return torch.randint(0, 199, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_every_family_is_transformers(name, checkpoint, monkeypatch):
    monkeypatch.setattr(reference, "PIECE", 2000)  # lm_head and attention in several pieces
    folder, model = checkpoint(name)
    sequences = [random_ids(40), random_ids(9, seed=8)]
    source = Source(CheckpointRef("tiny", str(folder)))
    (found,) = reference.run(source, sequences, [(3, 40), (0, 9)], [Arithmetic()])
    for ids, (first, stop), logits in zip(sequences, [(3, 40), (0, 9)], found, strict=True):
        expected = model(torch.tensor([ids]), use_cache=False).logits[0]
        assert (logits.kept - expected[first:stop]).abs().max() < 1e-4
        assert relative_error(logits.kept, expected[first:stop]) < 1e-5
        assert torch.equal(logits.best_ids, expected.argmax(-1))
        assert torch.allclose(logits.best, expected.amax(-1), atol=1e-4)
        assert torch.allclose(logits.given, expected[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0], atol=1e-4)
        assert torch.allclose(logits.spread, expected.double().std(-1, unbiased=False), atol=1e-4)


@pytest.mark.parametrize("name", ["llama-3-scaled-rope", "mistral-window", "phi-2", "phi-3-window-gqa"])
def test_plain_operators_are_the_same_model(name, checkpoint):
    source = Source(CheckpointRef("tiny", str(checkpoint(name)[0])))
    ways = [Arithmetic(), *(Plain(dtype) for dtype in reference.DTYPES.values())]
    exact, *others = (line[0].kept for line in reference.run(source, [random_ids(40)], [(0, 40)], ways))
    errors = [relative_error(other, exact) for other in others]
    assert 0 < errors[0] < 1e-5
    assert 1e-4 < errors[2] < errors[1] < 0.05  # float16 has 3 bits more than bfloat16


def test_dummy_weights_are_those_of_the_file_with_the_same_seed(checkpoint, tmp_path):
    folder = checkpoint("llama")[0]
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    write_shards(read_config(folder), tmp_path, "float32", seed=3, shard_bytes=60_000)
    drawn, read = Source(CheckpointRef("d", str(tmp_path), "dummy", 3)), Source(CheckpointRef("d", str(tmp_path)))
    for name in drawn.shapes:
        assert torch.equal(drawn.rows(name), read.rows(name)), name
        assert torch.equal(drawn.rows(name, 2, 5), read.rows(name)[2:5]), name


def test_a_scheme_rounds_linear_layers_alone(checkpoint):
    checkpoint_ref = CheckpointRef("tiny", str(checkpoint("phi-2")[0]))
    exact, rounded = Source(checkpoint_ref), Source(checkpoint_ref, "int8")
    changed = {name for name in exact.shapes if not torch.equal(exact.rows(name), rounded.rows(name))}
    assert "lm_head.weight" in changed
    assert "model.layers.1.self_attn.q_proj.weight" in changed
    assert not [name for name in changed if "norm" in name or "embed" in name or name.endswith("bias")]


def test_errors_and_divergences_by_hand():
    exact = torch.tensor([[1.0, -1.0, 0.0, 0.0], [2.0, -2.0, 1.0, -1.0]])
    assert relative_error(exact + torch.tensor([[5.0], [-3.0]]), exact) == pytest.approx(0, abs=1e-7)  # a constant changes nothing
    assert relative_error(1.02 * exact, exact) == pytest.approx(0.02, rel=1e-4)
    assert not relative_error(torch.full_like(exact, float("nan")), exact) < 1
    assert divergence(exact, exact) == (0.0, 1.0)
    kl, same = divergence(torch.log(torch.tensor([[0.5, 0.5], [0.9, 0.1]])), torch.log(torch.tensor([[0.25, 0.75], [0.9, 0.1]])))
    assert kl == pytest.approx((0.5 * torch.tensor(2.0).log() + 0.5 * torch.tensor(2 / 3).log()).item() / 2, rel=1e-5)
    assert same in (0.5, 1.0)


MEASURE = """
import json, sys
from pathlib import Path
from llmbench.protocol import CheckpointRef
from llmbench.torchfast.reference import Arithmetic, Plain, Source, run
import torch

def status(field):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024

Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
source = Source(CheckpointRef("d", sys.argv[1], "dummy"))
run(source, [list(range(32))], [(0, 32)], [Arithmetic(), Plain(torch.bfloat16)])
print(json.dumps(status("VmHWM") - before))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc to measure a peak")
def test_one_layer_is_in_memory_at_a_time(tmp_path):
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": 2000,
        "max_position_embeddings": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = subprocess.run([sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True, check=True)
    layer = 4 * (4 * 512 * 512 + 3 * 512 * 2048)
    assert json.loads(done.stdout) < 6 * layer  # of 24: float32, bfloat16, what is being read, and the libraries' own
