"""Every family against transformers on tiny random configs: the same logits, by prefill and step by step."""

import pytest
import torch
from tiny_checkpoints import FAMILIES

from llmbench.torchfast.generate import generate, teacher_forced_logits

pytestmark = pytest.mark.xdist_group("torch")
PROMPT, STEPS = 19, 32


def random_ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 199, (batch, length), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_prefill_and_decode_logits_are_transformers(name, checkpoint, load_model):
    folder, reference = checkpoint(name)
    model = load_model(folder, batch=3)
    ids = random_ids(3, PROMPT + STEPS)
    expected = reference(ids, use_cache=False).logits
    assert expected.abs().max() > 1  # else a small difference says nothing
    whole = model.prefill(ids[:, :PROMPT], last_only=False)
    assert (whole - expected[:, :PROMPT]).abs().max() <= 1e-4
    assert torch.allclose(model.prefill(ids[:, :PROMPT]), whole[:, -1:], atol=1e-5)
    for position in range(PROMPT, PROMPT + STEPS):
        logits = model.step(ids[:, position : position + 1], torch.tensor([position]))
        assert (logits - expected[:, position : position + 1]).abs().max() <= 1e-4, position


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_greedy_ids_are_transformers(name, checkpoint, load_model):
    folder, reference = checkpoint(name)
    model = load_model(folder)
    prompt = random_ids(1, PROMPT)
    new = generate(model, prompt, STEPS)
    logits = reference(torch.cat([prompt, torch.tensor(new)], dim=1), use_cache=False).logits[0, PROMPT - 1 : -1]
    best = logits.topk(2, dim=-1)
    for step, token in enumerate(new[0]):
        margin = best.values[step, 0] - best.values[step, 1]
        assert token == best.indices[step, 0] or margin < 1e-3, step


@torch.no_grad()
def test_teacher_forced_logits_are_transformers(checkpoint, load_model):
    folder, reference = checkpoint("llama-gqa-tied")
    ids = random_ids(1, 21)
    logits = teacher_forced_logits(load_model(folder), ids)
    assert logits.shape == (21, 199)
    assert logits.dtype == torch.float32
    assert (logits - reference(ids, use_cache=False).logits[0]).abs().max() <= 1e-4
    assert teacher_forced_logits(load_model(folder), ids[:, :1]).shape == (1, 199)


@torch.no_grad()
def test_a_smaller_batch_uses_the_same_cache(checkpoint, load_model):
    model = load_model(checkpoint("llama")[0], batch=3)
    prompt = random_ids(1, 8)
    three = generate(model, prompt.repeat(3, 1), 6)
    assert three[0] == three[1] == three[2]
    assert generate(model, prompt, 6) == three[:1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@torch.no_grad()
def test_half_precision_stays_near_float32(dtype, checkpoint, load_model):
    folder, reference = checkpoint("llama-gqa-tied")
    ids = random_ids(1, 40)
    logits = teacher_forced_logits(load_model(folder, dtype), ids)
    expected = reference(ids, use_cache=False).logits[0]
    relative = (logits - expected).norm() / expected.norm()
    assert relative < {"bfloat16": 3e-2, "float16": 4e-3}[dtype]


@torch.no_grad()
def test_late_positions_keep_float32_rotation_in_bfloat16(checkpoint, load_model):
    model = load_model(checkpoint("llama")[0], "bfloat16", length=128)
    assert model.cos.dtype == torch.float32
    angles = torch.tensor(127.0) / 10000 ** (torch.arange(0, 16, 2) / 16)
    assert torch.allclose(model.cos[127], angles.cos(), atol=1e-5)
