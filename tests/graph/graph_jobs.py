"""Jobs for the engines that run the graph, and the oracle: eager PyTorch on the same checkpoint."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy
import pytest
from graph.tiny_graphs import tiny_checkpoint

from llmbench.engines.base import EngineError
from llmbench.graph.onnx_graph import OnnxGraph
from llmbench.protocol import CheckpointRef, Job, Request, Sampling, Variant

REQUEST = Request(prompt_ids=(1, 17, 42, 9, 100, 55, 3), max_new_tokens=20, batch_size=2)


def make_job(folder: Path, engine: str, family: str = "mistral-window", **variant: Any) -> Job:
    checkpoint = CheckpointRef("tiny", str(tiny_checkpoint(folder / family, family)))
    return Job(checkpoint, Variant(engine, engine, **{"dtype": "float32", **variant}), REQUEST, "cpu", 1)


def loaded(engine: Any, job: Job, folder: Path) -> tuple[Any, Any]:
    """(the engine, its report), its artifact built first, from the graph, as the parent has it done."""
    graph, own = folder / "graph", folder / "own"
    graph.mkdir()
    builder = OnnxGraph()
    builder.supports(job)
    builder.build(job, graph)
    engine.supports(job)
    artifact = graph
    if engine.recipe(job) is not None:
        own.mkdir()
        type(engine)().build(job, own, graph)
        artifact = own
    return engine, engine.load(job, artifact)


def eager(job: Job) -> Any:
    from llmbench.engines.torch_engines import EagerEngine

    oracle = EagerEngine()
    oracle.load(dataclasses.replace(job, variant=Variant("eager", "eager", job.variant.dtype)), None)
    return oracle


def rounded(job: Job) -> Any:
    """The oracle with its matrices rounded by the job's scheme and read back."""
    import torch

    from llmbench.torchfast.quantize import dequantize, quantize

    oracle = eager(job)
    with torch.no_grad():
        for name, parameter in oracle.model.named_parameters():
            if parameter.dim() == 2 and name != "embed.weight":
                parameter.copy_(dequantize(quantize(parameter, job.variant.quantization)))
    return oracle


def relative_error(found: Any, expected: Any) -> float:
    return float(numpy.sqrt(((found - expected) ** 2).mean()) / expected.std())


def check_generations(engine: Any, job: Job) -> None:
    """What the protocol asks of generate and logits, in float32: eager's ids, exact counts, prompts in any order, sampling with a seed."""
    oracle = eager(job)
    expected = oracle.generate(REQUEST)
    assert engine.generate(REQUEST) == expected
    ids = [*REQUEST.prompt_ids, *expected[0]]
    logits = engine.logits(ids)
    assert logits.shape == (27, 199)
    assert logits.dtype == numpy.float32
    assert abs(logits - oracle.logits(ids)).max() < 1e-4 * logits.std()
    counts: list[int] = []
    assert engine.generate(REQUEST, counts.append) == expected  # what logits left in the cache is never read
    assert counts == list(range(1, 21))
    one = dataclasses.replace(REQUEST, max_new_tokens=1)
    assert engine.generate(one) == [ids[7:8], ids[7:8]]
    assert engine.generate(dataclasses.replace(REQUEST, prompt_ids=(5,))) == oracle.generate(dataclasses.replace(REQUEST, prompt_ids=(5,)))

    def drawn(seed: int, top_k: int | None = 50, temperature: float = 1.0) -> Any:
        return engine.generate(dataclasses.replace(REQUEST, sampling=Sampling(temperature, top_k, seed)))

    first = drawn(1)
    assert drawn(2) != first
    assert drawn(1) == first
    assert first[0] != first[1]
    assert drawn(1, top_k=1) == expected
    assert drawn(1, top_k=None, temperature=1e-4) == expected


def check_refusals_when_loaded(engine: Any) -> None:
    for changes, words in (
        ({"batch_size": 1}, "asked for 1 sequences of 27 tokens; loaded for 2 of 32 at most"),
        ({"max_new_tokens": 60}, "loaded for 2 of 32"),
        ({"prompt_ids": (3, 199)}, "token id 199 is not in the vocabulary of 199"),
        ({"prompt_ids": ()}, "empty"),
        ({"max_new_tokens": 0}, "can't generate 0 tokens"),
    ):
        with pytest.raises(EngineError, match=words):
            engine.generate(dataclasses.replace(REQUEST, **changes))
    engine.close()
    with pytest.raises(EngineError, match="no weights are loaded"):
        engine.generate(REQUEST)
