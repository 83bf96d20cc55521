"""Tiny configs of every family, in transformers' words, and the way to load what it saves."""

import os
from pathlib import Path
from typing import Any

# Before torch is imported: one compile process is enough for tiny graphs, and starts faster than a pool.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

SMALL = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "initializer_range": 0.15,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"num_key_value_heads": 4, "tie_word_embeddings": False}),
    "llama-gqa-tied": ("Llama", {"num_key_value_heads": 2, "tie_word_embeddings": True, "rope_theta": 1e5}),
    "llama-mqa-wide-heads": ("Llama", {"num_key_value_heads": 1, "head_dim": 24}),
    "llama-3-scaled-rope": ("Llama", {"num_key_value_heads": 2, "rope_parameters": LLAMA3_ROPE}),
    "llama-biases": ("Llama", {"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True}),
    "mistral": ("Mistral", {"num_key_value_heads": 2, "sliding_window": None}),
    "mistral-window": ("Mistral", {"num_key_value_heads": 2, "sliding_window": 11}),
    "phi-3": ("Phi3", {"num_key_value_heads": 4, "sliding_window": None}),
    "phi-3-window-gqa": ("Phi3", {"num_key_value_heads": 2, "sliding_window": 7}),
    "phi-2": ("Phi", {"num_key_value_heads": 4, "hidden_act": "gelu_new", "partial_rotary_factor": 0.5}),
}


def load(folder: Path, dtype: str = "float32", batch: int = 1, length: int = 64):
    """The folder's checkpoint in llmbench's own model, ready to run."""
    from llmbench.checkpoints.config import read_config
    from llmbench.checkpoints.tensor_files import read_entries
    from llmbench.torchfast import weights

    config = read_config(folder)
    model = weights.build_empty(config, weights.DTYPES[dtype], "cpu")
    weights.load_safetensors(model, read_entries(folder, config))
    model.setup_caches(batch, length, "cpu")
    return model
