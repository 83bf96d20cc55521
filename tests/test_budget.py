"""What a time budget cuts: samples first, rounds last."""

from __future__ import annotations

import pytest

from llmbench.budget import first_block_iters, fit


@pytest.mark.parametrize(
    ("remaining_s", "expected"),
    [
        (400.0, (4, 3)),  # 4 x (10 + 3 x 20) = 280: all fits
        (280.0, (4, 3)),
        (279.0, (4, 2)),  # one sample less
        (120.0, (4, 1)),
        (119.0, (3, 1)),  # one round less, only now
        (30.0, (1, 1)),
        (29.0, (0, 0)),
        (-5.0, (0, 0)),
    ],
)
def test_samples_are_cut_before_rounds(remaining_s: float, expected: tuple[int, int]) -> None:
    assert fit(remaining_s, rounds_left=4, fixed_s=10.0, sample_s=20.0, num_iters=3) == expected


def test_nothing_left_to_measure() -> None:
    assert fit(100.0, rounds_left=0, fixed_s=1.0, sample_s=1.0, num_iters=3) == (0, 0)


def test_the_first_round_keeps_one_sample_at_least() -> None:
    assert first_block_iters(remaining_s=100.0, blocks_left=2, sample_s=10.0, num_iters=3) == 2
    assert first_block_iters(remaining_s=1000.0, blocks_left=2, sample_s=10.0, num_iters=3) == 3
    assert first_block_iters(remaining_s=-1.0, blocks_left=2, sample_s=10.0, num_iters=3) == 1
    assert first_block_iters(remaining_s=1.0, blocks_left=0, sample_s=0.0, num_iters=3) == 3
