"""Whether a variant computes its model: its logits and its greedy ids against float32 arithmetic on the same weights.

Its error passes when it is not much greater than that of plain eager PyTorch in the same dtype, the rule of PyTorch's compiler dashboard
(torch/_dynamo/utils.py, same(): error <= multiple x eager's error + a small absolute part). How far rounding the weights moved the model
from the unquantised one is reported and never fails. How the constants were found is in docs/methodology.md, "Accuracy".

`decide_*` are pure; `check` needs torch and numpy and runs in a process of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llmbench.engines.base import EngineError
from llmbench.protocol import Accuracy, Job

if TYPE_CHECKING:
    from torch import Tensor

    from llmbench.torchfast.reference import Logits

#: How many times eager's error a variant's may be: other kernels sum in another order and round at other places.
MULTIPLE = {"float32": 2.0, "bfloat16": 1.75, "float16": 2.0}
#: The absolute part: below it no error matters.
FLOOR = {"float32": 1e-4, "bfloat16": 5e-4, "float16": 5e-4}
#: Eager's error counts up to this much only: past it a dtype doesn't carry the model, and nothing could be told from noise.
CEILING = 0.1
#: Errors of single logits, in units of tolerance x spread, that two candidates' distance may be wrong by.
MARGIN_SPREADS = 4.0


@dataclass(frozen=True)
class GreedyIds:
    """One sequence's new ids beside the reference's opinion after the same ids: all lists are as long as the new ids."""

    given: Sequence[int]
    best: Sequence[int]
    margins: Sequence[float]  # how much greater the best id's logit is than the given one's; 0 where they are the same
    spreads: Sequence[float]  # root mean square of the position's logits about their mean


def tolerance_of(dtype: str, eager_error: float) -> float:
    """The greatest relative error that passes in a dtype, from that of eager PyTorch in it."""
    return MULTIPLE[dtype] * min(eager_error, CEILING) + FLOOR[dtype]


def decide_error(error: float, tolerance: float, eager_error: float, dtype: str) -> str | None:
    """In words, why logits of this relative error fail; null where they pass."""
    if error <= tolerance:
        return None
    if not math.isfinite(error):
        return "its logits are not finite"
    return (
        f"its logits are off by {_percent(error)} from float32 arithmetic on the same weights; up to {_percent(tolerance)} would pass "
        f"(eager PyTorch in {dtype}: {_percent(eager_error)})"
    )


def decide_ids(ids: GreedyIds, tolerance: float, eos_ids: Sequence[int]) -> tuple[str | None, int | None, float | None]:
    """Why greedy ids fail, or null; then the index of the first id that isn't the reference's, and the reference's margin there (logits).

    Every id counts, not the first difference alone: the reference goes on from the variant's own ids.
    """
    differences = [index for index, (given, best) in enumerate(zip(ids.given, ids.best, strict=True)) if given != best]
    for index in differences:
        allowed = MARGIN_SPREADS * tolerance * ids.spreads[index]
        if not ids.margins[index] <= allowed:
            place = "its first new id" if index == 0 else f"its new id {index + 1} of {len(ids.given)}"
            why = (
                f"{place} is {ids.given[index]}, where the reference prefers {ids.best[index]} by {ids.margins[index]:.3g} logits; "
                f"up to {allowed:.2g} would pass"
            )
            pad = _padding(ids.given, eos_ids)
            if pad is not None and index >= pad:
                why = f"it counts padding: after its end of sequence, new id {pad}, it only repeats id {ids.given[pad]}; {why}"
            return why, index, ids.margins[index]
    first = differences[0] if differences else None
    return None, first, None if first is None else ids.margins[first]


def _padding(given: Sequence[int], eos_ids: Sequence[int]) -> int | None:
    """The index from which one id fills up the rest behind an end-of-sequence id, or null."""
    ends = [index for index, token in enumerate(given) if token in eos_ids]
    if not ends or ends[0] + 1 >= len(given):
        return None
    rest = given[ends[0] + 1 :]
    return ends[0] + 1 if len(set(rest)) == 1 else None


def _percent(value: float) -> str:
    return f"{100 * value:.2g} %" if value < 1 else f"{100 * value:.0f} %"


def check(job: Job, new_ids: Sequence[Sequence[int]], logits: Path | None, first: int, stop: int, cache: Path | None) -> Accuracy:
    """The verdict on a variant.

    new_ids: its distinct generations, the first sequence's first. logits: a file of float32 [stop - first, vocab], what it predicted after ids
    first to stop - 1 of prompt + new_ids[0], where it gives logits. cache: the folder for references, None for none.
    Raises EngineError where the reference can't be computed.
    """
    import torch

    from llmbench.checkpoints.config import ModelConfig, read_outline
    from llmbench.checkpoints.errors import CheckpointError
    from llmbench.torchfast import quantize, reference
    from llmbench.worker.references import References

    scheme, dtype = job.variant.quantization, job.variant.dtype
    greedy = job.request.sampling.temperature == 0
    if logits is None and not greedy:
        return Accuracy("skipped", True, "its ids are drawn by chance and it gives no logits")
    torch.set_num_threads(job.threads)
    torch.set_float32_matmul_precision("highest")  # the reference is float32, whatever a container's variables say of TF32
    prompt = job.request.prompt_ids
    sequences = [[*prompt, *ids] for ids in (new_ids if greedy else new_ids[:1])]
    spans = [(first, stop), *((0, 0) for _ in sequences[1:])]
    judged = scheme is None or scheme in quantize.SCHEMES
    try:
        config = read_outline(Path(job.checkpoint.path))
        references = References(job.checkpoint, job.device, cache)
        exact, eager_error = references.get(sequences, spans, scheme if judged else None, dtype if judged else None)
        unquantised = exact if scheme is None or not judged else references.get(sequences[:1], spans[:1], None)[0]
    except CheckpointError as fault:
        raise EngineError(fault.reason) from None

    if eager_error is not None and not math.isfinite(eager_error):
        return Accuracy(
            "skipped", True, f"eager PyTorch's own logits are not finite in {dtype} on these weights, so there is nothing to hold to"
        )
    theirs, unusable = None, None
    if logits is not None:
        try:
            theirs = read_logits(logits, stop - first, config.vocab)
        except EngineError as fault:  # then its ids have to do
            unusable = f"no logits: {fault.reason}"
            if not greedy:
                return Accuracy("skipped", True, f"its ids are drawn by chance, and {unusable}")
    kl, top1 = (None, None) if theirs is None else reference.divergence(unquantised[0].kept, theirs)
    if theirs is None:
        base = unquantised[0].best_ids[len(prompt) - 1 : -1].tolist()
        top1 = sum(ours == best for ours, best in zip(new_ids[0], base, strict=True)) / len(base)
    if kl is not None and not math.isfinite(kl):
        kl = None
    if not judged or eager_error is None:
        unknown = f"llmbench doesn't know how {scheme!r} rounds weights, so only the distance from the unquantised model is shown"
        return Accuracy("skipped", True, unknown, quality_kl=kl, quality_top1=top1)

    tolerance = tolerance_of(dtype, eager_error)
    error = None if theirs is None else reference.relative_error(theirs, exact[0].kept)
    why = None if error is None else decide_error(error, tolerance, eager_error, dtype)
    difference, margin, remark = None, None, None
    for number, found in enumerate(exact if greedy else ()):
        why_ids, at, by = decide_ids(_greedy(sequences[number], found, len(prompt)), tolerance, config.eos_ids)
        if number == 0:
            difference, margin = at, by
        else:
            remark = f"{len(new_ids)} different generations came back for the batch's one prompt, all within the tolerance"
        if why is None and why_ids is not None:
            why = why_ids if number == 0 else f"another sequence of the batch than the first: {why_ids}"
            difference, margin = at, by
    own = isinstance(config, ModelConfig)
    return Accuracy(
        method="logits" if theirs is not None else "ids",
        passed=why is None,
        reason=why or remark or unusable or (None if own else "held to transformers' own float32 run, the only reference for this family"),
        positions=stop - first if theirs is not None else len(new_ids[0]),
        error=error if error is None or math.isfinite(error) else None,
        eager_error=eager_error,
        tolerance=tolerance,
        first_difference=difference,
        first_margin=margin if margin is None or math.isfinite(margin) else None,
        quality_kl=kl,
        quality_top1=top1,
    )


def _greedy(sequence: Sequence[int], found: Logits, prompt: int) -> GreedyIds:
    places = slice(prompt - 1, len(sequence) - 1)
    margins = (found.best[places] - found.given[places]).tolist()
    return GreedyIds(sequence[prompt:], found.best_ids[places].tolist(), margins, found.spread[places].tolist())


def read_logits(path: Path, positions: int, vocab: int) -> Tensor:
    """The float32 tensor [positions, vocab] that a worker wrote. Raises EngineError where the file has another size."""
    import numpy as np
    import torch

    values = np.fromfile(path, dtype=np.float32)
    if values.size != positions * vocab:
        raise EngineError(f"{values.size} logits came back for {positions} positions and a vocabulary of {vocab}")
    return torch.from_numpy(values.reshape(positions, vocab))


def write_logits(rows: object, first: int, positions: int, into: Path) -> tuple[int, int]:
    """Writes rows `first` to the end of an engine's float32 logits [positions, vocab]; returns their count and vocab.

    Standard library only: it runs in the engine's process. Raises EngineError where they aren't float32 [positions, any].
    """
    view = memoryview(rows)  # type: ignore[arg-type]
    if view.format != "f" or view.ndim != 2 or view.shape is None or view.shape[0] != positions:
        raise EngineError(f"the engine's logits are not float32 [{positions}, vocabulary]: format {view.format!r}, shape {view.shape}")
    with into.open("wb") as stream:
        stream.write(view[first:] if view.c_contiguous else view[first:].tobytes())
    return positions - first, view.shape[1]
