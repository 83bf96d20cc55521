"""Tiny random checkpoints of every family, written by transformers, which is also what they are compared with."""

from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoints import FAMILIES, SMALL, load


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory):
    """A function from a name in FAMILIES to (folder, transformers' float32 model)."""
    import torch
    import transformers

    made: dict[str, tuple[Path, Any]] = {}

    def make(name: str) -> tuple[Path, Any]:
        if name not in made:
            family, options = FAMILIES[name]
            config = getattr(transformers, f"{family}Config")(**SMALL, **options)
            torch.manual_seed(len(made))
            model = getattr(transformers, f"{family}ForCausalLM")._from_config(config, attn_implementation="eager")
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.dim() == 1:  # biases and norms start at 0 and 1, which would hide a mix-up
                        parameter.add_(torch.randn_like(parameter) * 0.2)
            folder = tmp_path_factory.mktemp(name)
            model.float().eval().save_pretrained(folder)
            made[name] = folder, model
        return made[name]

    return make


@pytest.fixture(scope="session")
def load_model():
    return load
