"""The models that go by a short name: hub id, and the shape as its published config.json gives it.

The embedded configs serve random weights (`--load-format dummy`) and `llmbench models` without any network; a real checkpoint always brings
its own config.json. Standard library only.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from llmbench.checkpoints.config import ModelConfig, parse_config


@dataclass(frozen=True)
class CatalogEntry:
    """One alias. `config` is what stands in config.json, as transformers 4.x writes it; `gated`: the hub asks for a licence to be accepted."""

    alias: str
    hub_id: str
    gated: bool
    config: dict[str, Any]

    @property
    def shape(self) -> ModelConfig:
        return parse_config(self.config, f"the catalog's {self.alias}")


def _llama_like(kind: str, **values: Any) -> dict[str, Any]:
    common: dict[str, Any] = {
        "architectures": [f"{kind}ForCausalLM"],
        "model_type": kind.lower(),
        "hidden_act": "silu",
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
        "initializer_range": 0.02,
        "use_cache": True,
    }
    return {**common, **values}


_ENTRIES = [
    CatalogEntry(
        "llama-2-7b",
        "meta-llama/Llama-2-7b-hf",
        True,
        _llama_like(
            "Llama",
            hidden_size=4096,
            intermediate_size=11008,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=32,
            max_position_embeddings=4096,
            vocab_size=32000,
            torch_dtype="float16",
        ),
    ),
    CatalogEntry(
        "llama-3-8b",
        "meta-llama/Meta-Llama-3-8B",
        True,
        _llama_like(
            "Llama",
            hidden_size=4096,
            intermediate_size=14336,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            max_position_embeddings=8192,
            vocab_size=128256,
            rope_theta=500000.0,
            bos_token_id=128000,
            eos_token_id=128001,
        ),
    ),
    CatalogEntry(
        "mistral-7b-v0.1",
        "mistralai/Mistral-7B-v0.1",
        False,
        _llama_like(
            "Mistral",
            hidden_size=4096,
            intermediate_size=14336,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            max_position_embeddings=32768,
            sliding_window=4096,
            vocab_size=32000,
        ),
    ),
    CatalogEntry(
        "phi-3-mini",
        "microsoft/Phi-3-mini-4k-instruct",
        False,
        _llama_like(
            "Phi3",
            hidden_size=3072,
            intermediate_size=8192,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=32,
            max_position_embeddings=4096,
            original_max_position_embeddings=4096,
            sliding_window=2047,
            vocab_size=32064,
            eos_token_id=32000,
            pad_token_id=32000,
        ),
    ),
    CatalogEntry(
        "phi-2",
        "microsoft/phi-2",
        False,
        {
            "architectures": ["PhiForCausalLM"],
            "model_type": "phi",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "max_position_embeddings": 2048,
            "vocab_size": 51200,
            "hidden_act": "gelu_new",
            "layer_norm_eps": 1e-05,
            "rope_theta": 10000.0,
            "rope_scaling": None,
            "partial_rotary_factor": 0.4,
            "qk_layernorm": False,
            "tie_word_embeddings": False,
            "bos_token_id": 50256,
            "eos_token_id": 50256,
            "torch_dtype": "float16",
            "initializer_range": 0.02,
            "use_cache": True,
        },
    ),
    CatalogEntry(
        "smollm2-135m",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        False,
        _llama_like(
            "Llama",
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            max_position_embeddings=8192,
            vocab_size=49152,
            rope_theta=100000.0,
            tie_word_embeddings=True,
            pad_token_id=2,
        ),
    ),
    CatalogEntry(
        "tinyllama-1.1b",
        "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        False,
        _llama_like(
            "Llama",
            hidden_size=2048,
            intermediate_size=5632,
            num_hidden_layers=22,
            num_attention_heads=32,
            num_key_value_heads=4,
            max_position_embeddings=2048,
            vocab_size=32000,
        ),
    ),
]

CATALOG = {entry.alias: entry for entry in _ENTRIES}


def find(name: str) -> CatalogEntry | None:
    """The entry whose alias or hub id is `name`, upper and lower case alike."""
    folded = name.lower()
    return next((entry for entry in _ENTRIES if folded in (entry.alias, entry.hub_id.lower())), None)


def suggest(name: str, most: int = 3) -> list[str]:
    """The aliases nearest to a name that is none, best first; by alias, hub id or the hub id's second part."""
    spellings: dict[str, str] = {}
    for entry in _ENTRIES:
        for spelling in (entry.alias, entry.hub_id.lower(), entry.hub_id.lower().partition("/")[2]):
            spellings[spelling] = entry.alias
    near = difflib.get_close_matches(name.lower(), spellings, n=3 * most, cutoff=0.5)
    return list(dict.fromkeys(spellings[spelling] for spelling in near))[:most]
