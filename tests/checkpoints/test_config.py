"""config.json as transformers writes it, and as nobody should."""

import json

import pytest
from small_checkpoints import SMALL, write_config

from llmbench.checkpoints.config import ForeignModel, ModelConfig, Outline, RopeScaling, read_config, read_outline
from llmbench.checkpoints.errors import CheckpointError

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}


def test_defaults_are_those_of_the_class(tmp_path):
    config = read_config(write_config(tmp_path, num_key_value_heads=..., rms_norm_eps=...))
    assert (config.kv_heads, config.head_dim, config.rotary_dim, config.norm_eps) == (4, 4, 4, 1e-6)
    assert (config.rope_theta, config.tied, config.sliding_window, config.dtype) == (10000.0, False, None, "float32")
    mistral = read_config(write_config(tmp_path, architectures=["MistralForCausalLM"], num_attention_heads=8, num_key_value_heads=...))
    assert (mistral.kv_heads, mistral.sliding_window) == (8, 4096)
    assert read_config(write_config(tmp_path, architectures=["MistralForCausalLM"], sliding_window=None)).sliding_window is None
    phi = read_config(write_config(tmp_path, architectures=["PhiForCausalLM"], hidden_size=32))
    assert (phi.norm, phi.rotary_dim, phi.parallel_block, phi.lm_head_bias) == ("layer", 4, True, True)


def test_both_generations_of_transformers_give_the_same_shape(tmp_path):
    four = {"torch_dtype": "bfloat16", "rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}}
    five = {"dtype": "bfloat16", "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}}
    old, new = read_config(write_config(tmp_path / "4", **four)), read_config(write_config(tmp_path / "5", **five))
    assert old == new
    assert old.rope_scaling == RopeScaling(8.0, 1.0, 4.0, 32)
    assert (old.dtype, old.rope_theta) == ("bfloat16", 5e5)


def test_head_dim_and_window_as_given(tmp_path):
    config = read_config(write_config(tmp_path, architectures=["Phi3ForCausalLM"], head_dim=6, sliding_window=7, eos_token_id=[2, 3]))
    assert (config.head_dim, config.rotary_dim, config.sliding_window, config.eos_ids) == (6, 6, 7, (2, 3))
    assert config.fused_names


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["Qwen2ForCausalLM"]}, ["architectures", "'Qwen2ForCausalLM'", "PhiForCausalLM"]),
        ({"architectures": ...}, ["architectures", "LlamaForCausalLM"]),
        ({"architectures": [["LlamaForCausalLM"]]}, ["architectures"]),
        ({"hidden_size": ...}, ["hidden_size is missing"]),
        ({"hidden_size": 0}, ["hidden_size is 0"]),
        ({"hidden_size": -16}, ["hidden_size is -16"]),
        ({"hidden_size": 16.0}, ["hidden_size is 16.0"]),
        ({"hidden_size": True}, ["hidden_size is True"]),
        ({"hidden_size": "16"}, ["hidden_size is '16'"]),
        ({"hidden_size": 18}, ["hidden_size is 18", "num_attention_heads 4"]),
        ({"num_hidden_layers": 10**9}, ["num_hidden_layers is 1000000000"]),
        ({"vocab_size": 10**3000}, ["vocab_size is a number of 9966 bits"]),
        ({"num_key_value_heads": 3}, ["num_key_value_heads is 3", "num_attention_heads 4"]),
        ({"head_dim": 5}, ["head_dim 5"]),
        ({"partial_rotary_factor": 1.5}, ["partial_rotary_factor is 1.5"]),
        ({"rms_norm_eps": -1e-5}, ["rms_norm_eps is -1e-05"]),
        ({"rope_theta": 0}, ["rope_theta is 0"]),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, ["'yarn'", "llama3"]),
        ({"rope_scaling": {"type": "longrope"}}, ["'longrope'"]),
        ({"rope_scaling": {"rope_type": "dynamic"}}, ["'dynamic'"]),
        ({"rope_parameters": {"rope_type": "linear"}}, ["'linear'"]),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "factor": None}}, ["factor is missing"]),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 0.5}}, ["high_freq_factor is 0.5"]),
        ({"rope_scaling": [1]}, ["rope_scaling is a list of 1 entries"]),
        ({"hidden_act": "relu"}, ["hidden_act is 'relu'", "silu"]),
        ({"hidden_act": ["silu"]}, ["hidden_act"]),
        ({"torch_dtype": "float8_e4m3fn"}, ["torch_dtype is 'float8_e4m3fn'", "bfloat16"]),
        ({"dtype": {"x": 1}}, ["dtype"]),
        ({"tie_word_embeddings": "yes"}, ["tie_word_embeddings is 'yes'"]),
        ({"qk_layernorm": True}, ["qk_layernorm is True"]),
        ({"quantization_config": {"bits": 4}}, ["quantization_config"]),
        ({"eos_token_id": ["</s>"]}, ["eos_token_id is '</s>'"]),
        ({"hidden_size": "line\nbreak\x1b[31m"}, ["hidden_size is 'line\\nbreak\\x1b[31m'"]),
    ],
)
def test_refuses_in_one_line_naming_key_and_value(tmp_path, changes, words):
    with pytest.raises(CheckpointError) as caught:
        read_config(write_config(tmp_path, **changes))
    reason = caught.value.reason
    assert reason.isprintable()
    assert str(tmp_path / "config.json") in reason
    for word in words:
        assert word in reason


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b"[1]", "a list of 1 entries"),
        (b'{"hidden_size": NaN}', "NaN"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b" " * (16 * 2**20 + 1), "larger than"),
        (b'{"vocab_size": ' + b"9" * 10_000 + b"}", "not JSON"),
    ],
)
def test_refuses_what_is_no_small_json_object(tmp_path, content, words):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=words):
        read_config(tmp_path)


def test_missing_and_linked_out(tmp_path):
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        read_config(tmp_path)
    outside = tmp_path / "outside.json"
    outside.write_text(json.dumps(SMALL))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").symlink_to(outside)
    with pytest.raises(CheckpointError, match="outside the checkpoint's folder"):
        read_config(folder)


def test_a_family_that_only_transformers_knows_has_an_outline(tmp_path):
    """No shape, so that nothing follows from one; what a request has to fit into, and why."""
    raw = {"n_positions": 1024, "max_position_embeddings": ..., "torch_dtype": "float16", "eos_token_id": [5, 6], "bos_token_id": 4}
    outline = read_outline(write_config(tmp_path, architectures=["GPT2LMHeadModel"], **raw))
    assert isinstance(outline, Outline)
    assert (outline.architecture, outline.vocab, outline.context) == ("GPT2LMHeadModel", SMALL["vocab_size"], 1024)
    assert (outline.dtype, outline.bos_id, outline.eos_ids) == ("float16", 4, (5, 6))
    assert outline.why.startswith("config.json: architectures is 'GPT2LMHeadModel'")
    assert str(tmp_path) not in outline.why
    assert isinstance(read_outline(write_config(tmp_path / "own")), ModelConfig)
    alibi = read_outline(write_config(tmp_path / "alibi", architectures=["BloomForCausalLM"], max_position_embeddings=...))
    assert isinstance(alibi, Outline)
    assert alibi.context is None
    inner = {"vocab_size": 99, "max_position_embeddings": 64}
    sees = read_outline(write_config(tmp_path / "sees", architectures=["XForCausalLM"], text_config=inner))
    assert (sees.vocab, sees.context) == (99, 64)


@pytest.mark.parametrize(
    "changes", [{"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, {"qk_layernorm": True}, {"hidden_act": "relu"}], ids=str
)
def test_a_known_family_in_a_way_that_is_not_has_an_outline_too(tmp_path, changes):
    path = write_config(tmp_path, **changes)
    assert isinstance(read_outline(path), Outline)
    with pytest.raises(ForeignModel):
        read_config(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["GPT2LMHeadModel\n; rm"]}, "no class's name"),
        ({"architectures": ["../GPT2"]}, "no class's name"),
        ({"architectures": ["GPT2LMHeadModel"], "vocab_size": -1}, "vocab_size is -1"),
        ({"architectures": ["GPT2LMHeadModel"], "vocab_size": ...}, "vocab_size is missing"),
        ({"architectures": ["GPT2LMHeadModel"], "quantization_config": {}}, "stored quantized"),
        ({"architectures": ["GPT2LMHeadModel"], "torch_dtype": "int8"}, "torch_dtype is 'int8'"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"rope_scaling": {"rope_type": 3}}, "rope_scaling of type 3"),
    ],
)
def test_an_outline_is_no_way_round_a_bad_file(tmp_path, changes, words):
    with pytest.raises(CheckpointError, match=words) as caught:
        read_outline(write_config(tmp_path, **changes))
    assert not isinstance(caught.value, ForeignModel)
