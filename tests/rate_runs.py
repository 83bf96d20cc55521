"""Runs whose every block has a chosen rate, for tests of what reads several runs: diffs, suites, exports, frames."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from views.make_runs import NEW_TOKENS, make_block, make_row, make_run

from llmbench.protocol import Row, Run, Status


def row_at(label: str, rates: Sequence[float], *, compile_s: float = 0.0, peak_gib: float | None = 0.5, **fields: Any) -> Row:
    """A good row, one block for each rate in tokens/s, its three samples alike; the first block's first warm-up takes compile_s longer."""
    blocks = []
    for number, rate in enumerate(rates):
        wall = NEW_TOKENS / rate
        warmups = (wall + (compile_s if number == 0 else 0.0), wall)
        block = make_block(number, (wall,) * 3, warmups=warmups, peak_gib=peak_gib, load_s=1.0)
        block.start_s = 2.0
        block.versions = {"torch": "2.13.0"}
        blocks.append(block)
    return make_row(label, blocks, **fields)


def run_at(rates: Mapping[str, Sequence[float]], **fields: Any) -> Run:
    """A run of such rows."""
    return make_run([row_at(label, values) for label, values in rates.items()], **fields)


def failed_row(label: str, status: Status = Status.CRASHED, reason: str = "signal 11") -> Row:
    return make_row(label, status=status, reason=reason)


def noisy(rate: float, seed: int, count: int = 5, noise: float = 0.01) -> list[float]:
    """Rates around one, drawn from a seed."""
    draws = random.Random(seed)
    return [rate * draws.gauss(1, noise) for _ in range(count)]
