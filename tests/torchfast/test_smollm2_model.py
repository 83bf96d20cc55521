"""The real checkpoint against transformers: logits, greedy ids, and the same tensors under other families' names."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from tiny_checkpoints import load

from llmbench.torchfast.generate import generate

pytestmark = pytest.mark.xdist_group("torch")

PROMPT = "Gravity is"
NEW = 64


@pytest.fixture(scope="module")
def reference(smollm2):
    """(prompt ids, transformers' 64 greedy ids, its logits over prompt and those ids), float32."""
    import transformers

    from llmbench.checkpoints.tokenizer import Tokenizer

    tokenizer = Tokenizer.open(Path(smollm2.ref.path), smollm2.config)
    prompt = tokenizer.encode(PROMPT)
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2.ref.path, dtype=torch.float32).eval()
    with torch.no_grad():
        whole = model.generate(torch.tensor([prompt]), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0)
        logits = model(whole).logits[0]
    text = tokenizer.decode(whole[0, len(prompt) :].tolist())
    assert text.startswith(" a fundamental concept in physics that describes the curvature of spacetime caused by the presence of matter")
    return prompt, whole[0, len(prompt) :].tolist(), logits


@pytest.fixture(scope="module")
def model(smollm2):
    return load(Path(smollm2.ref.path), length=128)


@torch.no_grad()
def test_prefill_and_decode_steps_give_transformers_logits(model, reference):
    prompt, new, expected = reference
    ids = torch.tensor([prompt + new])
    prefilled = model.prefill(ids[:, : len(prompt)], last_only=False)[0]
    assert (prefilled - expected[: len(prompt)]).abs().max() <= 1e-4
    for position in range(len(prompt), len(prompt) + 32):
        step = model.step(ids[:, position : position + 1], torch.tensor([position]))[0, 0]
        assert (step - expected[position]).abs().max() <= 1e-4


@torch.no_grad()
def test_greedy_ids_equal_transformers(model, reference):
    prompt, new, _ = reference
    assert generate(model, torch.tensor([prompt]), NEW)[0] == new


@pytest.mark.parametrize("family", ["Mistral", "Phi3"])
@torch.no_grad()
def test_the_same_tensors_in_another_family_give_the_same_ids(family, smollm2, reference, tmp_path):
    prompt, new, _ = reference
    folder = repacked(Path(smollm2.ref.path), tmp_path, family)
    assert generate(load(folder, length=128), torch.tensor([prompt]), NEW)[0] == new


def repacked(source: Path, folder: Path, family: str) -> Path:
    """SmolLM2's tensors under another family's names: Mistral's are Llama's, Phi-3 joins q, k, v and gate, up."""
    from safetensors.torch import load_file

    tensors = load_file(source / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    config |= {"architectures": [f"{family}ForCausalLM"], "model_type": family.lower(), "sliding_window": None}
    if family == "Phi3":
        config["pad_token_id"] = 0
        for layer in range(config["num_hidden_layers"]):
            attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
            tensors[f"{attention}.qkv_proj.weight"] = torch.cat([tensors.pop(f"{attention}.{name}_proj.weight") for name in "qkv"])
            tensors[f"{mlp}.gate_up_proj.weight"] = torch.cat([tensors.pop(f"{mlp}.{name}_proj.weight") for name in ("gate", "up")])
    (folder / "config.json").write_text(json.dumps(config))
    _write(folder / "model.safetensors", tensors)
    return folder


def _write(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """A safetensors file written plainly: safetensors' own save keeps a second copy of all."""
    header, offset = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.contiguous().numpy().data)
