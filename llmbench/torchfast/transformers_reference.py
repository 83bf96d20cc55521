"""The reference logits of a family that only transformers' model knows: that model in float32 over the whole sequence, without a cache.

It is not independent of the engines that run the same model: a fault in transformers' code shows in neither. What it does show is what an
engine adds: caches, compiling, smaller dtypes, other loops. The whole model is in memory in float32, so a large one is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from llmbench.engines.base import EngineError
from llmbench.machine_state import memory_available
from llmbench.protocol import CheckpointRef
from llmbench.torchfast import transformers_model
from llmbench.torchfast.reference import Logits, collect

#: Share of the free memory that float32 weights may take.
ROOM = 0.8


@torch.no_grad()
def run(
    checkpoint: CheckpointRef,
    sequences: Sequence[Sequence[int]],
    spans: Sequence[tuple[int, int]],
    scheme: str | None,
    dtype: str | None,
    device: str = "cpu",
) -> list[list[Logits]]:
    """Each sequence's logits in float32, and where `dtype` is given those of the same model in it: [way][sequence], as reference.run.

    Raises EngineError where float32 weights don't fit in the free memory or weights are to be rounded, CheckpointError for broken files.
    """
    if scheme is not None:
        raise EngineError(f"weights rounded by {scheme} have no reference in this family")
    _check_room(checkpoint, device)
    found = []
    for way in ("float32", *([dtype] if dtype is not None else [])):
        model = transformers_model.build(checkpoint, way, device)
        line = []
        for ids, span in zip(sequences, spans, strict=True):
            logits = model(input_ids=torch.tensor([list(ids)], device=device), use_cache=False, return_dict=True).logits[0]
            line.append(collect(logits.float().cpu(), ids, span))
        found.append(line)
        del model
    return found


def _check_room(checkpoint: CheckpointRef, device: str) -> None:
    factory, config = transformers_model.model_class(checkpoint)
    with torch.device("meta"):
        needed = 4 * sum(parameter.numel() for parameter in factory._from_config(config).parameters())
    free = _free_bytes(device)
    if free is not None and needed > ROOM * free:
        raise EngineError(f"{needed / 2**30:.1f} GiB of float32 weights don't fit in the {free / 2**30:.1f} GiB that are free")


def _free_bytes(device: str) -> int | None:
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[0])
    return memory_available()
