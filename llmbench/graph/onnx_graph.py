"""The pseudo-engine `onnx-graph`: builds the graph as an artifact that other engines load or build from. It is never measured."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from llmbench.checkpoints.config import ModelConfig, read_config
from llmbench.checkpoints.errors import CheckpointError
from llmbench.checkpoints.tensor_files import read_entries
from llmbench.engines.base import EngineError, Unsupported
from llmbench.engines.sources import source_digest
from llmbench.graph.contract import GRAPH_SOURCES, VERSION
from llmbench.graph.decoder import divides_groups, write_graph
from llmbench.protocol import EngineReport, Job, Recipe, Request, Status
from llmbench.torchfast.quantize import GROUP, SCHEMES
from llmbench.torchfast.weights import DTYPES, build_empty, load_dummy, load_safetensors


class OnnxGraph:
    """Builds, and does nothing else."""

    #: Raised whenever another graph is written for the same job.
    ADAPTER = 1

    def supports(self, job: Job) -> None:
        variant = job.variant
        if variant.dtype not in DTYPES:
            raise Unsupported(f"onnx-graph can't write dtype {variant.dtype!r}; known: {', '.join(DTYPES)}")
        if variant.quantization is not None and variant.quantization not in SCHEMES:
            raise Unsupported(f"onnx-graph has no quantization {variant.quantization!r}; known: {', '.join(SCHEMES)}")
        config = shape(job)
        if variant.quantization == "int4" and not divides_groups(config):
            raise Unsupported(f"the inputs of this model's layers are not all multiples of {GROUP}, the group of int4; use int8")

    def recipe(self, job: Job) -> Recipe | None:
        return Recipe(
            adapter=self.ADAPTER,
            versions=self.versions(),
            targets=("any",),
            maxima={"batch": job.request.batch_size, "tokens": job.request.cache_length},
            options={"contract": VERSION, "graph": source_digest(GRAPH_SOURCES)},
        )

    def build(self, job: Job, into: Path, source: Path | None = None) -> None:
        """Peak memory is the weights once and one tensor more; what is written goes straight to its file. Weights to be rounded to few bits are
        held in float32, so that they are rounded once."""
        config, dtype, quantization = shape(job), DTYPES[job.variant.dtype], job.variant.quantization
        model = build_empty(config, dtype if quantization is None else torch.float32, "cpu")
        try:
            if job.checkpoint.load_format == "dummy":
                load_dummy(model, job.checkpoint.dummy_seed)
            else:
                load_safetensors(model, read_entries(Path(job.checkpoint.path), config))
        except CheckpointError as error:
            raise EngineError(error.reason, Status.LOAD_FAILED) from error
        with torch.no_grad():
            write_graph(model, into, job.request.batch_size, job.request.cache_length, quantization, dtype)

    def load(self, job: Job, artifact: Path | None) -> EngineReport:
        raise Unsupported("onnx-graph only writes the graph that other engines run")

    def generate(self, request: Request, on_token: Callable[[int], None] | None = None) -> list[list[int]]:
        raise Unsupported("onnx-graph only writes the graph that other engines run")

    def logits(self, ids: list[int]) -> Any:
        raise Unsupported("onnx-graph only writes the graph that other engines run")

    def versions(self) -> dict[str, str]:
        return {name: importlib.metadata.version(name) for name in ("torch", "onnx")}

    def synchronize(self) -> None:
        pass

    def close(self) -> None:
        pass


def shape(job: Job) -> ModelConfig:
    """The checkpoint's shape. Raises Unsupported for a family that llmbench's own model doesn't know and for a request past its context."""
    try:
        config = read_config(Path(job.checkpoint.path))
    except CheckpointError as error:
        raise Unsupported(error.reason) from error
    if job.request.total_tokens > config.context:
        raise Unsupported(
            f"prompt and new tokens are {job.request.total_tokens}, more than the model's context of {config.context}; ask for fewer"
        )
    return config
