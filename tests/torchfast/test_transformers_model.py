"""transformers' models behind the calls of llmbench's own: the cache and the steps give what the whole sequence at once gives."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from llmbench.engines.base import EngineError, Unsupported
from llmbench.engines.torch_engines import EagerEngine
from llmbench.protocol import CheckpointRef, Job, Request, Status, Variant
from llmbench.suite_files import load as load_suite
from llmbench.torchfast import transformers_reference
from llmbench.torchfast.transformers_model import HuggingFaceModel, build

pytestmark = pytest.mark.xdist_group("torch")

IDS = torch.tensor([[5, 17, 42, 9, 100, 7, 8, 11, 3, 60, 61, 4]])
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


def checkpoint(folder: Path, shape: dict, seed: int = 0) -> CheckpointRef:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape))
    return CheckpointRef("tiny", str(folder), "dummy", seed)


def shape(name: str) -> dict:
    found = load_suite("huggingface").model(name)
    assert found is not None
    assert found.shape is not None
    return found.shape


# Positions that are learnt and that begin at 2, alibi, a window shorter than the sequence, experts, a state in place of keys and values.
@pytest.mark.parametrize("name", ["gpt2", "roberta", "bloom", "gemma2", "mixtral", "mamba", "falcon"])
def test_prefill_and_steps_give_the_logits_of_the_whole_sequence(tmp_path, name):
    own = {"sliding_window": 5} if name == "gemma2" else {}
    model = build(checkpoint(tmp_path, {**shape(name), **own}), "float32", "cpu")
    with torch.no_grad():
        whole = model(input_ids=IDS, use_cache=False).logits
        cached = HuggingFaceModel(model, 1, 16)
        for half in (7, 4):  # the second time over what the first left in the cache
            rows = [cached.prefill(IDS[:, :half], last_only=False)]
            rows += [cached.step(IDS[:, at : at + 1], torch.tensor([at])) for at in range(half, IDS.shape[1])]
            torch.testing.assert_close(torch.cat(rows, 1), whole, atol=1e-4 * float(whole.std()), rtol=1e-4)
        assert cached.prefill(IDS[:, :4]).shape == (1, 1, whole.shape[-1])


def test_random_weights_are_those_of_the_own_model(tmp_path):
    job = Job(checkpoint(tmp_path, LLAMA, 3), Variant("eager", "eager", "float32"), Request((1, 2, 3), 5), "cpu", 1)
    own, theirs = EagerEngine(), EagerEngine()
    assert own.load(job).settings["model"] == "own"
    variant = dataclasses.replace(job.variant, options={"model": "transformers"})
    report = theirs.load(dataclasses.replace(job, variant=variant))
    assert (report.settings["model"], report.settings["model_class"]) == ("transformers", "LlamaForCausalLM")
    ids = [1, 2, 3, 77, 200, 9]
    torch.testing.assert_close(torch.from_numpy(own.logits(ids)), torch.from_numpy(theirs.logits(ids)), atol=1e-5, rtol=1e-4)
    assert own.generate(job.request) == theirs.generate(job.request)
    assert report.weights_bytes == own._loaded().weights_bytes()


def test_norms_of_families_that_name_them_otherwise_lie_around_one(tmp_path):
    model = build(checkpoint(tmp_path, shape("gpt2")), "float32", "cpu")
    assert abs(float(model.transformer.h[0].ln_1.weight.mean()) - 1) < 0.02
    assert abs(float(model.transformer.h[0].mlp.c_fc.weight.mean())) < 0.02


def test_real_weights_are_read_and_missing_ones_named(tmp_path):
    from safetensors.torch import load_file, save_file

    model = build(checkpoint(tmp_path / "shape", shape("gpt2")), "float32", "cpu")
    model.save_pretrained(tmp_path / "saved")
    real = CheckpointRef("saved", str(tmp_path / "saved"))
    again = build(real, "float32", "cpu")
    with torch.no_grad():
        assert torch.equal(again(input_ids=IDS).logits, model(input_ids=IDS).logits)
    file = tmp_path / "saved" / "model.safetensors"
    tensors = load_file(file)
    del tensors["transformer.h.1.ln_1.weight"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(EngineError, match=r"lacks the tensor transformer\.h\.1\.ln_1\.weight") as caught:
        build(real, "float32", "cpu")
    assert caught.value.status is Status.LOAD_FAILED


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"architectures": ["GPT2ForSequenceClassification"]},
            "no causal language model GPT2ForSequenceClassification; for gpt2 it has GPT2LMHeadModel",
        ),
        ({"model_type": "gpt2000"}, "can't read this config.json"),
        ({"architectures": ["OwnModel"], "model_type": "own", "auto_map": {"AutoConfig": "evil.Config"}}, "can't read this config.json"),
    ],
)
def test_what_transformers_has_no_model_for_is_refused_in_a_line(tmp_path, changes, words):
    marker = tmp_path / "executed"
    found = checkpoint(tmp_path / "model", {**shape("gpt2"), **changes})
    (tmp_path / "model" / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Config: pass\n")
    with pytest.raises(Unsupported, match=words) as caught:
        build(found, "float32", "cpu")
    assert "\n" not in caught.value.reason
    assert not marker.exists()


def test_a_model_without_a_cache_made_beforehand_is_refused_by_name(tmp_path):
    small = {
        "architectures": ["XLNetLMHeadModel"],
        "model_type": "xlnet",
        "d_model": 32,
        "n_layer": 1,
        "n_head": 2,
        "d_inner": 64,
        "vocab_size": 99,
    }
    model = build(checkpoint(tmp_path, small), "float32", "cpu")
    with pytest.raises(Unsupported, match="XLNetLMHeadModel takes no cache"):
        HuggingFaceModel(model, 1, 16)


def test_the_reference_is_the_model_in_float32_over_the_whole_sequence(tmp_path):
    found = checkpoint(tmp_path, shape("gpt2"))
    ids = IDS[0].tolist()
    exact, rounded = transformers_reference.run(found, [ids], [(3, 12)], None, "bfloat16")
    with torch.no_grad():
        whole = build(found, "float32", "cpu")(input_ids=IDS, use_cache=False).logits[0]
    torch.testing.assert_close(exact[0].kept, whole[3:12])
    assert exact[0].best_ids.tolist() == whole.argmax(-1).tolist()
    assert 1e-4 < float((rounded[0].kept - exact[0].kept).abs().max() / whole.std()) < 0.5
    with pytest.raises(EngineError, match="int8 have no reference"):
        transformers_reference.run(found, [ids], [(3, 12)], "int8", None)


def test_a_reference_beyond_memory_is_refused_before_it_is_built(tmp_path, monkeypatch):
    monkeypatch.setattr(transformers_reference, "memory_available", lambda: 1000)
    with pytest.raises(EngineError, match="GiB of float32 weights don't fit"):
        transformers_reference.run(checkpoint(tmp_path, shape("gpt2")), [[1, 2]], [(0, 2)], None, None)
