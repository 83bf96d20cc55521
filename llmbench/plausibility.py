"""What makes a row unbelievable: wrong counts, impossible ids, rates above what the memory can deliver. Pure functions.

Published comparisons counted padding after an early end, and showed rates above the memory's bandwidth. Such a row fails here.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmbench.protocol import Sample

#: Use of the probed read bandwidth above which a rate is not believed; the 5 % are the probe's own error.
MAX_BANDWIDTH_USE = 1.05


def count_fault(sample: Sample, batch_size: int, new_tokens: int) -> str | None:
    """In words, how a generation's ids differ from exactly new_tokens for each of batch_size sequences; null where they don't."""
    if len(sample.new_tokens) != batch_size:
        return f"{len(sample.new_tokens)} sequences came back for a batch of {batch_size}"
    wrong = [count for count in sample.new_tokens if count != new_tokens]
    return f"a sequence of {wrong[0]} new ids came back instead of {new_tokens}" if wrong else None


def vocabulary_fault(ids: Sequence[Sequence[int]], vocab: int) -> str | None:
    """Names the first id outside 0..vocab-1, or null."""
    for sequence in ids:
        for number in sequence:
            if not 0 <= number < vocab:
                return f"id {number} is outside the vocabulary of {vocab}"
    return None


def bandwidth_fault(bandwidth_use: float | None) -> str | None:
    """In words, that a rate is above the memory's limit; null where it isn't or no limit is known."""
    if bandwidth_use is None or bandwidth_use <= MAX_BANDWIDTH_USE:
        return None
    return f"its decode rate would need {bandwidth_use:.0%} of the read bandwidth probed around it"
