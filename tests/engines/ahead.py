"""Tiny shapes of every family, and the way from a job to its artifact and a worker that loads it, as a block goes it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # before torch: a pool takes longer to start than these graphs to compile

from llmbench.building import Provided, Provider
from llmbench.engines import registry
from llmbench.protocol import CheckpointRef, Job, Request, Variant, encode
from llmbench.schedule import worker_environment
from llmbench.supervise import Worker

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "torch_dtype": "float32",
    "rope_theta": 10000.0,
}
LLAMA_LIKE = {"rms_norm_eps": 1e-5, "hidden_act": "silu", "num_key_value_heads": 2}
PHI_2 = {
    "model_type": "phi",
    "num_key_value_heads": 4,
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu_new",
    "partial_rotary_factor": 0.5,
    "tie_word_embeddings": False,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {"model_type": "llama", "tie_word_embeddings": True, **LLAMA_LIKE},
    "Mistral": {"model_type": "mistral", "tie_word_embeddings": False, "sliding_window": 6, **LLAMA_LIKE},
    "Phi3": {"model_type": "phi3", "tie_word_embeddings": False, "sliding_window": None, **LLAMA_LIKE},
    "Phi": PHI_2,
}
REQUEST = Request(prompt_ids=(1, 17, 42, 9, 100), max_new_tokens=12)


def job_for(folder: Path, engine: str, family: str = "Llama", request: Request = REQUEST, *, options: Any = None, **changes: Any) -> Job:
    """A job on `family`'s tiny shape with random weights; `changes` go into its config.json."""
    folder.mkdir(exist_ok=True)
    config = {"architectures": [f"{family}ForCausalLM"], **SMALL, **FAMILIES[family], **changes}
    (folder / "config.json").write_text(json.dumps(config))
    checkpoint = CheckpointRef("tiny", str(folder), "dummy", 5, identity="c" * 64)
    return Job(checkpoint, Variant(engine, engine, "float32", options=options or {}), request, "cpu", 2)


def environment(threads: int, caches: Path) -> dict[str, str]:
    return {**worker_environment(threads, caches), "TORCHINDUCTOR_COMPILE_THREADS": "1"}


def provide(provider: Provider, job: Job, log: Path) -> Provided:
    """The artifact of a job, built by a process of its own where it isn't there."""
    spec = registry.find(job.variant.engine)
    provided = provider.provide(spec, job, provider.recipe(spec, job, log), log)
    assert provided is not None
    return provided


@contextmanager
def worker_for(job: Job, log: Path, variables: dict[str, str]) -> Iterator[Worker]:
    """A process with the job open."""
    worker = Worker(log, environment=variables)
    try:
        worker.ask("open", timeout_s=300, target=registry.find(job.variant.engine).target, job=encode(job))
        yield worker
    finally:
        worker.end()
