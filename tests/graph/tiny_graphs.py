"""Tiny checkpoints of every family with random weights, without transformers' weights, and their exported graphs."""

from pathlib import Path

import torch
from torchfast.tiny_checkpoints import FAMILIES, SMALL, load

from llmbench.checkpoints.config import read_config
from llmbench.checkpoints.dummy import write_shards
from llmbench.graph.contract import GraphInfo
from llmbench.graph.decoder import write_graph
from llmbench.torchfast.model import Transformer


def tiny_checkpoint(folder: Path, family: str) -> Path:
    """folder, holding config.json and weights of the family."""
    import transformers

    name, options = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(**SMALL, **options, architectures=[f"{name}ForCausalLM"])
    config.save_pretrained(folder)
    write_shards(read_config(folder), folder, "float32", seed=3)
    return folder


def sharpened(model: Transformer) -> Transformer:
    """Greater weights, norms and biases that are not all alike: random ones of small size hide what attention does."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter.dtype) * 0.2)
            else:
                parameter.mul_(0.15 / parameter.float().std())
    return model


def tiny_graph(
    folder: Path, family: str, dtype: str = "float32", batch: int = 2, length: int = 64, quantization: str | None = None
) -> tuple[Transformer, Path, GraphInfo]:
    """(the model in PyTorch, the folder of its graph, the graph's numbers)."""
    model = sharpened(load(tiny_checkpoint(folder / "checkpoint", family), dtype, batch, length))
    into = folder / "graph"
    into.mkdir()
    with torch.no_grad():
        return model, into, write_graph(model, into, batch, length, quantization)
