"""How many samples and rounds fit in a time budget: samples are cut first, rounds last. Pure functions."""

from __future__ import annotations


def fit(remaining_s: float, rounds_left: int, fixed_s: float, sample_s: float, num_iters: int) -> tuple[int, int]:
    """(rounds, samples a block) that fit in remaining_s.

    fixed_s: one round without samples (start, load, warm-ups of all variants); sample_s: one sample of each variant. A round has at least one
    sample; (0, 0) where not even one round fits.
    """
    if rounds_left < 1 or num_iters < 1:
        return 0, 0
    for iters in range(num_iters, 0, -1):
        if rounds_left * (fixed_s + iters * sample_s) <= remaining_s:
            return rounds_left, iters
    rounds = int(remaining_s // (fixed_s + sample_s)) if fixed_s + sample_s > 0 else rounds_left
    return (min(rounds, rounds_left), 1) if rounds > 0 else (0, 0)


def first_block_iters(remaining_s: float, blocks_left: int, sample_s: float, num_iters: int) -> int:
    """Samples for a block of the first round, before any round's cost is known: half of the block's even share goes to samples, at least one."""
    if sample_s <= 0:
        return num_iters
    return max(1, min(num_iters, int(0.5 * remaining_s / max(1, blocks_left) / sample_s)))
