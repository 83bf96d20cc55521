"""What all engines that run the exported graph share: what they refuse, the loop over tokens, sampling, and teacher-forced logits.

A subclass runs one call of the graph at a time, `run`, and keeps the cache; this module decides what is run. numpy and the standard library.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

from llmbench.checkpoints.config import read_outline
from llmbench.checkpoints.errors import CheckpointError
from llmbench.engines.base import EngineError, Unsupported
from llmbench.graph.contract import GraphInfo
from llmbench.protocol import Job, Request, Sampling

Array = Any  # numpy.ndarray; numpy's annotations are skipped by the checker

DTYPES = ("float32", "bfloat16", "float16")


class GraphEngine:
    """Runs the graph of contract.py. A subclass sets `info` when it has loaded."""

    name = ""
    options: tuple[str, ...] = ()
    quantizations: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.info: GraphInfo | None = None

    def supports(self, job: Job) -> None:
        """Raises Unsupported for what no engine of the graph can do."""
        variant = job.variant
        unknown = sorted(set(variant.options) - set(self.options))
        if unknown:
            known = f"known: {', '.join(self.options)}" if self.options else "it has none"
            raise Unsupported(f"{self.name} has no option {unknown[0]!r}; {known}")
        if variant.dtype not in DTYPES:
            raise Unsupported(f"{self.name} can't run in dtype {variant.dtype!r}; known: {', '.join(DTYPES)}")
        if variant.quantization is not None and variant.quantization not in self.quantizations:
            known = f"known: {', '.join(self.quantizations)}" if self.quantizations else "leave quantization out"
            raise Unsupported(f"{self.name} has no quantization {variant.quantization!r}; {known}")
        try:
            outline = read_outline(Path(job.checkpoint.path))
        except CheckpointError as error:
            raise Unsupported(error.reason) from error
        if getattr(outline, "why", None):  # no ModelConfig: the graph can't be written
            raise Unsupported(f"{self.name} runs llmbench's own model as a graph: {getattr(outline, 'why', '')}")
        if outline.context is not None and job.request.total_tokens > outline.context:
            raise Unsupported(
                f"prompt and new tokens are {job.request.total_tokens}, more than the model's context of {outline.context}; ask for fewer"
            )

    # ------------------------------------------------------------------------------------------------- what a subclass gives

    def start(self) -> None:
        """Makes the cache ready for a prompt at position 0."""
        raise NotImplementedError

    def run(self, ids: Array | None, position: int) -> None:
        """One call of the graph: int64 ids [B, T] at `position` on, or, where null, the last call's next_ids. Fills the cache."""
        raise NotImplementedError

    def next_ids(self) -> Array:
        """int64 [B, 1]: the most likely ids after the last call, on the host; the caller's own copy."""
        raise NotImplementedError

    def last_logits(self) -> Array:
        """float32 [B, V] after the last call, on the host; good until the next call."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------------------------- generating

    def generate(self, request: Request, on_token: Callable[[int], None] | None = None) -> list[list[int]]:
        """batch_size x max_new_tokens ids. Greedy ids are the graph's own argmax and go from call to call where they lie; at a temperature they
        are drawn on the host by `draw`, seeded anew each time: two calls with the same request give the same ids."""
        if request.max_new_tokens < 1 or request.batch_size < 1:
            raise EngineError(f"can't generate {request.max_new_tokens} tokens for {request.batch_size} sequences: at least 1 of each")
        prompt = self._checked(list(request.prompt_ids), request.batch_size, request.total_tokens)
        sampling = request.sampling
        random = numpy.random.default_rng(sampling.seed)
        columns = []
        token: Array | None = prompt
        position = 0
        self.start()
        for index in range(request.max_new_tokens):
            self.run(token, position)
            position = prompt.shape[1] + index
            if sampling.temperature == 0.0:
                token = None
                columns.append(self.next_ids())
            else:
                token = draw(self.last_logits(), sampling, random)
                columns.append(token)
            if on_token is not None:
                on_token(index + 1)
        return numpy.concatenate(columns, axis=1).tolist()  # type: ignore[no-any-return]

    def logits(self, ids: list[int]) -> Array:
        """float32 [len(ids), V] of the first sequence, each row from the calls that `generate` makes.

        The graph gives the last position's logits only. So the first half's rows come one at a time, all but the last; then the cache is
        emptied, the half is prefilled in one call, which gives its last row, and the rest follows one at a time on that cache.
        """
        info = self._loaded()
        batch = self._checked(ids, info.batch, len(ids))
        length = batch.shape[1]
        half = max(1, length // 2)
        rows = numpy.empty((length, info.vocab), dtype=numpy.float32)
        self.start()
        for index in range(half - 1):
            self.run(batch[:, index : index + 1], index)
            rows[index] = self.last_logits()[0]
        self.start()
        self.run(batch[:, :half], 0)
        rows[half - 1] = self.last_logits()[0]
        for index in range(half, length):
            self.run(batch[:, index : index + 1], index)
            rows[index] = self.last_logits()[0]
        return rows

    def _checked(self, ids: list[int], batch: int, total: int) -> Array:
        """One sequence repeated batch times, int64 [B, T], checked against the vocabulary and the cache."""
        info = self._loaded()
        wrong = [token for token in ids if not 0 <= token < info.vocab]
        if wrong:
            raise EngineError(f"token id {wrong[0]} is not in the vocabulary of {info.vocab} ids")
        if not ids:
            raise EngineError("the prompt is empty: at least one token id is needed")
        if total > info.length or batch != info.batch:
            raise EngineError(f"asked for {batch} sequences of {total} tokens; loaded for {info.batch} of {info.length} at most")
        return numpy.tile(numpy.array([ids], dtype=numpy.int64), (batch, 1))

    def _loaded(self) -> GraphInfo:
        if self.info is None:
            raise EngineError("no weights are loaded")
        return self.info

    def synchronize(self) -> None:
        """Every call of the graph waits for its own end."""


def draw(logits: Array, sampling: Sampling, random: Any) -> Array:
    """int64 ids [B, 1] from softmax(logits / temperature) over the top_k greatest of logits [B, V], by an exponential race: id i wins
    argmax(p_i / e_i), e exponentially distributed, with probability p_i, as torchfast.generate.sample draws (with torch's generator, so
    other ids for the same seed)."""
    scaled = logits.astype(numpy.float32) / sampling.temperature
    ids = None
    if sampling.top_k is not None and sampling.top_k < scaled.shape[1]:
        ids = numpy.argpartition(-scaled, sampling.top_k - 1, axis=1)[:, : sampling.top_k]
        scaled = numpy.take_along_axis(scaled, ids, axis=1)
    weights = numpy.exp(scaled - scaled.max(axis=1, keepdims=True))
    winner = (weights / random.exponential(size=weights.shape)).argmax(axis=1, keepdims=True)
    return (winner if ids is None else numpy.take_along_axis(ids, winner, axis=1)).astype(numpy.int64)
