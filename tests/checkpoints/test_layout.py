"""Names, shapes and counts against transformers' own models; bytes against numbers worked out by hand."""

from dataclasses import replace

import pytest
import torch
import transformers

from llmbench.checkpoints.catalog import CATALOG, suggest
from llmbench.checkpoints.config import parse_config, read_config
from llmbench.checkpoints.layout import bytes_per_token, expected_tensors, parameter_count, weights_bytes
from llmbench.checkpoints.tensor_files import read_entries
from llmbench.protocol import Request

TINY = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": 2,
}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("Llama", {}),
        ("Llama", {"head_dim": 6, "attention_bias": True, "mlp_bias": True}),
        ("Mistral", {"sliding_window": 5}),
        ("Phi3", {"sliding_window": 9}),
        ("Phi", {"partial_rotary_factor": 0.5}),
    ],
)
def test_tensors_are_those_of_transformers(tmp_path, family, more, tied):
    settings = getattr(transformers, f"{family}Config")(**TINY, **more, tie_word_embeddings=tied)
    model = transformers.AutoModelForCausalLM.from_config(settings)
    model.save_pretrained(tmp_path)
    config = read_config(tmp_path)
    expected = expected_tensors(config)
    saved = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if not (tied and name == "lm_head.weight")}
    assert expected == saved
    assert parameter_count(config) == model.num_parameters()
    assert config.tied is tied
    entries = read_entries(tmp_path, config)
    assert list(entries) == list(expected)
    for name, entry in entries.items():
        with entry.file.open("rb") as stream:
            stream.seek(entry.offset)
            values = torch.frombuffer(bytearray(stream.read(entry.nbytes)), dtype=getattr(torch, entry.dtype)).view(entry.shape)
        assert torch.equal(values, model.state_dict()[name])


@pytest.mark.parametrize("alias", CATALOG)
def test_catalog_shapes_are_those_of_transformers(alias):
    entry = CATALOG[alias]
    values = dict(entry.config)
    settings = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(settings)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if settings.tie_word_embeddings:
        del shapes["lm_head.weight"]
    assert expected_tensors(entry.shape) == shapes
    # What transformers makes of the same dictionary and writes again reads as the same shape.
    again = {**settings.to_dict(), "architectures": entry.config["architectures"]}
    assert parse_config(again, alias) == entry.shape
    window = entry.shape.sliding_window
    assert getattr(settings, "sliding_window", None) == window
    rotated = settings.rope_parameters.get("partial_rotary_factor", 1.0) * entry.shape.head_dim
    assert entry.shape.rotary_dim == int(rotated)
    assert entry.shape.norm_eps == getattr(settings, "rms_norm_eps", None) or entry.shape.norm_eps == settings.layer_norm_eps


@pytest.mark.parametrize(
    ("alias", "parameters"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-3-8b", 8_030_261_248),
        ("mistral-7b-v0.1", 7_241_732_096),
        ("phi-3-mini", 3_821_079_552),
        ("phi-2", 2_779_683_840),
        ("smollm2-135m", 134_515_008),
        ("tinyllama-1.1b", 1_100_048_384),
    ],
)
def test_parameter_counts_as_published(alias, parameters):
    assert parameter_count(CATALOG[alias].shape) == parameters


def test_bytes_per_token_by_hand():
    llama = CATALOG["llama-2-7b"].shape
    request = Request(prompt_ids=(1,) * 6, max_new_tokens=200)
    # All parameters but the table of 32000 x 4096, two bytes each; 106 positions of 2 x 32 layers x 32 heads x 128 x 2 bytes.
    assert bytes_per_token(llama, 2, request) == (6_738_415_616 - 131_072_000) * 2 + 106 * 524_288
    assert bytes_per_token(llama, 2, replace(request, batch_size=4)) == 13_214_687_232 + 4 * 106 * 524_288
    assert bytes_per_token(llama, 0.5, request, kv_dtype_bytes=2) == 6_607_343_616 // 2 + 106 * 524_288
    smollm2 = CATALOG["smollm2-135m"].shape  # tied: the table counts; 2 x 30 x 3 x 64 x 4 bytes for a position
    assert bytes_per_token(smollm2, 4, Request((1,), 1)) == 134_515_008 * 4 + round(1.5 * 46_080)
    assert weights_bytes(smollm2, 2) == 269_030_016
    mistral = CATALOG["mistral-7b-v0.1"].shape  # the window of 4096 tokens cuts the cache's part
    long = Request((1,) * 8000, 100)
    assert bytes_per_token(mistral, 2, long) == (7_241_732_096 - 131_072_000) * 2 + 4096 * 131_072


def test_near_names():
    assert suggest("phi2") == ["phi-2"]
    assert suggest("Llama-2-7b")[0] == "llama-2-7b"
    assert suggest("mistralai/Mistral-7B")[0] == "mistral-7b-v0.1"
    assert suggest("zzz") == []
