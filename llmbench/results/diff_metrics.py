"""What two runs can be compared by: each metric's values, one for each process of a variant, and which way is better."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from llmbench import statistics
from llmbench.protocol import Block, Row, Run
from llmbench.results.startup import Start, start_ups
from llmbench.results.summary import GIB, block_rate, block_rates, compile_s, good_blocks, median_wall, steady_peaks

#: Errors of logits and divergences under this are float32's own rounding: they count as equal.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Metric:
    """One figure. `values`: one for each process that has it, above 0. `exact`: computed once and not timed, so that one value is enough."""

    name: str
    title: str  # unit included
    higher_is_better: bool
    better: str
    worse: str
    values: Callable[[Run, Row], list[float]]
    exact: bool = False
    is_timed: bool = True  # differences below the machine's noise floor are noise
    scale: float = 1.0  # as people read it: value x scale
    applies: Callable[[Run, Row], bool] = lambda run, row: True


def _of_blocks(figure: Callable[[Run, Block], float | None]) -> Callable[[Run, Row], list[float]]:
    def values(run: Run, row: Row) -> list[float]:
        found = (figure(run, block) for block in good_blocks(run, row))
        return [value for value in found if value is not None and 0 < value < math.inf]

    return values


def _decode_rate(run: Run, block: Block) -> float | None:
    rate, ttft_s, count = block_rate(run, block), median_wall(block, "first_token"), run.request.max_new_tokens
    if rate is None or ttft_s is None or count < 2 or count / rate <= ttft_s:
        return None
    return (count - 1) / (count / rate - ttft_s)


def _speedups(run: Run, row: Row) -> list[float]:
    baseline = run.row(run.baseline) if run.baseline else None
    return statistics.paired_ratios(block_rates(run, row), block_rates(run, baseline)) if baseline else []


def _cold(run: Run, row: Row) -> list[float]:
    found = next((entry.cold for entry in start_ups(run) if entry.label == row.variant.label), None)
    return [found.ready_s] if found is not None and found.ready_s and found.ready_s < math.inf else []


def _warm(run: Run, block: Block) -> float | None:
    if block.cold:
        return None
    return Start(block.start_s, block.build_s or 0.0, block.load_s, compile_s(run, block), None).ready_s


def _peaks(run: Run, row: Row) -> list[float]:
    return [peak / GIB for peak in steady_peaks(good_blocks(run, row))]


def _accuracy(name: str) -> Callable[[Run, Row], list[float]]:
    def values(run: Run, row: Row) -> list[float]:
        found = (getattr(block.accuracy, name) for block in row.blocks if block.accuracy is not None)
        return [max(value, _ROUNDING) for value in found if value is not None][:1]

    return values


_ALL = (
    Metric("tokens", "tokens/s", True, "faster", "slower", _of_blocks(block_rate)),
    Metric("decode", "decode tokens/s", True, "faster", "slower", _of_blocks(_decode_rate)),
    Metric("ttft", "TTFT ms", False, "faster", "slower", _of_blocks(lambda run, block: median_wall(block, "first_token")), scale=1e3),
    Metric("speedup", "ratio to baseline", True, "faster", "slower", _speedups, applies=lambda run, row: row.variant.label != run.baseline),
    Metric("startup", "cold start s", False, "faster", "slower", _cold),
    Metric("startup-warm", "warm start s", False, "faster", "slower", _of_blocks(_warm)),
    Metric("memory", "peak GiB", False, "less", "more", _peaks, is_timed=False),
    Metric("accuracy", "logit error %", False, "better", "worse", _accuracy("error"), exact=True, is_timed=False, scale=100.0),
    Metric("quality", "KL from unquantised", False, "better", "worse", _accuracy("quality_kl"), exact=True, is_timed=False),
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}
