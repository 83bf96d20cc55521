"""Writes llmbench/suites/huggingface.toml: a small shape for each causal language model of the installed transformers that llmbench can run.

    python benchmarks/make_huggingface_suite.py [MODEL_TYPE ...]

Each shape is built with random weights and run with a static cache, prefilled in part and then step by step, as the torch engines do; it is
taken where that gives the logits of the whole sequence at once. The others are listed with the reason at the file's end. To be run again
when transformers has new families; nothing else reads this.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from llmbench.protocol import CheckpointRef
from llmbench.torchfast.transformers_model import HuggingFaceModel, build, model_class

TARGET = Path(__file__).resolve().parents[1] / "llmbench" / "suites" / "huggingface.toml"

#: The causal language models of PyTorch's compiler dashboard (benchmarks/dynamo/huggingface*.py), by model type: they come first.
DASHBOARD = [
    "gpt2",
    "gpt_neo",
    "gptj",
    "opt",
    "xglm",
    "bart",
    "mbart",
    "plbart",
    "pegasus",
    "blenderbot",
    "blenderbot-small",
    "trocr",
    "megatron-bert",
    "roberta",
    "camembert",
    "electra",
    "bert",
    "llama",
    "mistral",
    "gemma",
    "gemma2",
    "gemma3_text",
    "qwen2",
    "qwen3",
    "gpt_oss",
    "whisper",
    "phi",
]

#: Small values by the names under which families give sizes; each family takes those that it knows.
SMALL: dict[str, Any] = {
    **dict.fromkeys(
        ("hidden_size", "n_embd", "d_model", "embed_dim", "word_embed_proj_dim", "embedding_size", "attention_hidden_size"), 64
    ),
    **dict.fromkeys(
        ("intermediate_size", "n_inner", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "ffn_hidden_size", "d_ff", "dff"), 96
    ),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 128),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "q_lora_rank", "kv_lora_rank"), 32),
    **dict.fromkeys(("head_dim", "global_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 16),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "vocab_size": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

#: What single families need beside or instead of that.
_AS_DECODER = {"is_decoder": True}
_ALL_HEADS = {"num_key_value_heads": 4}
OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        [
            "bert",
            "bert-generation",
            "big_bird",
            "camembert",
            "data2vec-text",
            "dory",
            "electra",
            "ernie",
            "megatron-bert",
            "rembert",
            "roberta",
            "roberta-prelayernorm",
            "roc_bert",
            "roformer",
            "xlm-roberta",
            "xlm-roberta-xl",
        ],
        _AS_DECODER,
    ),
    **dict.fromkeys(
        [
            "axk1",
            "axk2",
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_v32",
            "glm4_moe_lite",
            "glm_moe_dsa",
            "longcat_flash",
            "minicpm3",
            "youtu",
            "dots1",
            "dots3_note_text",
        ],
        _ALL_HEADS,
    ),
    "xmod": {**_AS_DECODER, "languages": ["en_XX"], "default_language": "en_XX"},
    "codegen": {"rotary_dim": 8},
    "gptj": {"rotary_dim": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1},
    "bamba": {"attn_layer_indices": [1]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "qwen3_next": {"layer_types": ["linear_attention", "full_attention"]},
    "qwen3_5_text": {"layer_types": ["linear_attention", "full_attention"]},
    "qwen3_5_moe_text": {"layer_types": ["linear_attention", "full_attention"]},
    "prophetnet": {"num_decoder_layers": 2, "num_encoder_layers": 2, "num_decoder_attention_heads": 4, "num_encoder_attention_heads": 4},
    "zaya": {"num_experts_per_tok": 1},
}


def shape_of(model_type: str, architecture: str) -> dict[str, Any]:
    """The family's own defaults with small sizes. Raises what its configuration class raises."""
    from transformers import CONFIG_MAPPING

    default = CONFIG_MAPPING[model_type]()
    other = getattr(default, "attribute_map", {})
    known = set(default.to_dict()) | set(other)
    sizes = {name: value for name, value in SMALL.items() if name in known and other.get(name) not in SMALL}
    sizes.update(OWN.get(model_type, {}))
    return {"architectures": [architecture], "model_type": model_type, **sizes}


def fault(shape: dict[str, Any]) -> str | None:
    """Why the shape can't be taken, a line; null where it can."""
    ids = torch.tensor([[5, 17, 42, 9, 100, 7, 8, 11]])
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        (Path(folder) / "config.json").write_text(json.dumps(shape))
        checkpoint = CheckpointRef("shape", folder, "dummy", 0)
        try:
            text = model_class(checkpoint)[1].get_text_config(decoder=True)
            if text.num_hidden_layers > 4:
                return f"its number of layers can't be set: {text.num_hidden_layers}"
            model = build(checkpoint, "float32", "cpu")
            whole = model(input_ids=ids, use_cache=False, return_dict=True).logits
            cached = HuggingFaceModel(model, 1, 24)
            rows = [cached.prefill(ids[:, :4], last_only=False)]
            rows += [cached.step(ids[:, at : at + 1], torch.tensor([at])) for at in range(4, ids.shape[1])]
        except Exception as error:
            return f"{type(error).__name__}: {' '.join(str(error).split())}"[:160]
        error = float((torch.cat(rows, 1) - whole).abs().max() / whole.std())
        parameters = sum(parameter.numel() for parameter in model.parameters())
    if not error < 1e-3:
        return f"with a static cache its logits are off by {error:.2g} of their spread"
    return f"{parameters} parameters are not small" if parameters > 20_000_000 else None


def toml(value: Any) -> str:
    """A value as TOML writes it; JSON's text is the same for all that shapes hold."""
    return json.dumps(value)


def main() -> None:
    from transformers import __version__
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as FAMILIES

    logging.disable(logging.WARNING)
    wanted = sys.argv[1:]
    order = [*(name for name in DASHBOARD if name in FAMILIES), *sorted(set(FAMILIES) - set(DASHBOARD))]
    taken: list[tuple[str, dict[str, Any]]] = []
    refused: list[tuple[str, str]] = []
    classes: set[str] = set()
    for model_type in order:
        if wanted and model_type not in wanted:
            continue
        names = FAMILIES[model_type]
        architecture = names if isinstance(names, str) else names[0]
        if architecture in classes:
            continue
        try:
            shape = shape_of(model_type, architecture)
            why = fault(shape)
        except Exception as error:
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"[:160]
        print(f"{model_type}: {why or 'taken'}", flush=True)
        if why is None:
            taken.append((model_type, shape))
            classes.add(architecture)
        else:
            refused.append((model_type, why))
    if not wanted:
        TARGET.write_text(_file(taken, refused, __version__), encoding="utf-8")
        print(f"{len(taken)} shapes in {TARGET}, {len(refused)} families left out")


def _file(taken: list[tuple[str, dict[str, Any]]], refused: list[tuple[str, str]], version: str) -> str:
    lines = [
        f"# Made by benchmarks/make_huggingface_suite.py from transformers {version}: a small shape with random weights for each causal",
        "# language model that it can build and run with a static cache. Those of PyTorch's compiler dashboard come first.",
        f'description = "{len(taken)} causal language models of transformers, two layers each: which way of compiling takes which model"',
        "",
        "[compare]",
        'engines = "eager,aot-eager,torch-compile"',
        "quick = true",
        "input-len = 6",
        "max-new-tokens = 16",
        "num-iters = 2",
        'dtype = "float32"',
        'timeout = "10m"',
    ]
    for name, shape in taken:
        lines += ["", "[[models]]", f'name = "{name}"', "[models.shape]", *(f"{key} = {toml(value)}" for key, value in shape.items())]
    return "\n".join([*lines, "", "# Left out, with the reason:", *(f"# {name}: {why}" for name, why in refused), ""])


if __name__ == "__main__":
    main()
