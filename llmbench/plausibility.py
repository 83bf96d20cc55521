"""What makes a row unbelievable: wrong counts, impossible ids, rates above what the memory can deliver. Pure functions.

Published comparisons counted padding after an early end, and showed rates above the memory's bandwidth. Such a row fails here.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmbench.protocol import Block, Sample, Status

#: Use of the probed read bandwidth above which a rate is not believed; the 5 % are the probe's own error.
MAX_BANDWIDTH_USE = 1.05
#: Ids that a prompt needs before reading it again can be told from looking it up.
MIN_REUSE_PROMPT = 64
#: A repeated prompt that takes less than this share of what never-seen ones take was not read.
MAX_REUSE_SHARE = 0.5
#: Shorter first tokens decide nothing: on a busy machine the scheduler's pauses are as long.
MIN_REUSE_S = 5e-3


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
    return f"its decode rate would need {bandwidth_use:.0%} of the highest read bandwidth probed in this run"


def block_fault(block: Block, prompt_length: int) -> tuple[Status, str] | None:
    """What a block's samples say against it, all of them taken together: status and reason, or null."""
    repeats = repetition_fault(block.samples)
    if repeats is not None:
        return Status.NONDETERMINISTIC, repeats
    reuse = reuse_fault(block.samples, prompt_length)
    return None if reuse is None else (Status.IMPLAUSIBLE, reuse)


def repetition_fault(samples: Sequence[Sample]) -> str | None:
    """In words, that generations of one request gave different ids; null where all agree.

    Samples are compared with samples and first tokens with first tokens. Where there is one sample alone, the last warm-up is the second look.
    """
    for kinds, words in ((("sample",), "generations"), (("first_token", "repeated_first_token"), "first tokens")):
        chosen = [sample for sample in samples if sample.kind in kinds]
        if "sample" in kinds and len(chosen) == 1:
            chosen += [sample for sample in samples if sample.kind == "warmup" and sample.new_tokens == chosen[0].new_tokens][-1:]
        different = len({sample.ids_sha256 for sample in chosen})
        if different > 1:
            return f"the same request gave {different} different {words} in {len(chosen)}"
    return None


def reuse_fault(samples: Sequence[Sample], prompt_length: int) -> str | None:
    """In words, that the repeated prompt is served from an earlier request's cache; null where it isn't, or can't be told.

    It can be told from prompts of MIN_REUSE_PROMPT ids on. Every first token after the repeated prompt must have come in under half the time of
    every one after a prompt of the same length that the process hadn't seen: a disturbance slows some, never all of one kind alone.
    """
    repeated = [sample.wall_s for sample in samples if sample.kind == "repeated_first_token"]
    fresh = [sample.wall_s for sample in samples if sample.kind == "fresh_first_token"]
    if prompt_length < MIN_REUSE_PROMPT or len(fresh) < 2 or not repeated or min(fresh) < MIN_REUSE_S:
        return None
    if max(repeated) >= MAX_REUSE_SHARE * min(fresh):
        return None
    return (
        f"it serves the prompt from an earlier request's cache: its first token comes after {1e3 * max(repeated):.3g} ms at most, after prompts "
        f"never seen before in {1e3 * min(fresh):.3g} ms at least"
    )
