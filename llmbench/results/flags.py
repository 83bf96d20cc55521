"""What a reader should know of a row's unsteadiness, in words. Flagged, never dropped: every sample stays in the figures.

A disturbed block, outliers, drift over the run or within the blocks, and first samples that are slower than the rest. How often pure noise
sets each flag off is in docs/methodology.md.
"""

from __future__ import annotations

import math
import re
import statistics as stdlib_statistics
from collections.abc import Sequence

from llmbench import statistics
from llmbench.machine_state import block_disturbances
from llmbench.protocol import Block, Run


def row_flags(run: Run, blocks: Sequence[tuple[Block, Sequence[float]]]) -> list[str]:
    """One line for each kind of unsteadiness. `blocks`: a row's good blocks in their order, each with its good samples' tokens/s."""
    rates = {block.round: stdlib_statistics.median(samples) for block, samples in blocks if samples}
    apart = statistics.disturbed(rates)
    flags = _disturbed(run, blocks, apart)
    calm = [samples for block, samples in blocks if samples and block.round not in apart]
    first = _slow_first(calm)
    flags += first
    flags += _outliers([samples[1:] if first else samples for samples in calm])
    if not first:
        flags += _drift_within(calm)
    flags += _drift(rates)
    return flags


def _disturbed(run: Run, blocks: Sequence[tuple[Block, Sequence[float]]], apart: dict[int, float]) -> list[str]:
    """Blocks that stand apart from the others, and blocks around which the machine's state tells of a disturbance; one line for each cause."""
    lines = [f"round {number + 1} is disturbed: {_percent_off(ratio)} than its other blocks" for number, ratio in apart.items()]
    causes: dict[str, list[tuple[int, str]]] = {}
    for block, _ in blocks:
        for cause in block_disturbances(run, block):
            causes.setdefault(re.sub(r"[\d.]+", "#", cause), []).append((block.round, cause))
    for found in causes.values():
        (number, worst), count = max(found, key=lambda entry: _first_number(entry[1])), len(found)
        rounds = f"round {number + 1} is" if count == 1 else f"{count} of {len(blocks)} rounds are"
        lines.append(f"{rounds} disturbed: {worst}{f' (round {number + 1})' if count > 1 else ''}")
    return lines


def _first_number(text: str) -> float:
    found = re.search(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", text)
    return float(found.group()) if found else 0.0


def _slow_first(calm: Sequence[Sequence[float]]) -> list[str]:
    """First samples slower than the rest of their block, in block after block: the warm-ups were too few."""
    shift = statistics.common_shift([samples[0] / stdlib_statistics.median(samples[1:]) for samples in calm if len(samples) > 1])
    if shift is None or shift >= 1:
        return []
    return [f"the first sample of a block is {_percent_off(shift)} than the rest: more warm-ups may be needed (--num-iters-warmup)"]


def _drift_within(calm: Sequence[Sequence[float]]) -> list[str]:
    """Blocks whose samples get faster or slower, in block after block."""
    changes = [math.exp(statistics.slope([math.log(rate) for rate in samples])) for samples in calm if len(samples) > 2]
    shift = statistics.common_shift(changes)
    return [f"drift within blocks: the last sample is {_percent_off(shift)} than the first"] if shift is not None else []


def _drift(rates: dict[int, float]) -> list[str]:
    """Blocks that get faster or slower from round to round. Pairing takes out what the baseline shares of it."""
    numbers = sorted(rates)
    shift = statistics.trend([rates[number] for number in numbers])
    if shift is None:
        return []
    return [f"drift over the run: round {numbers[-1] + 1} is {_percent_off(shift)} than round {numbers[0] + 1}"]


def _outliers(calm: Sequence[Sequence[float]]) -> list[str]:
    """Samples far from the row's others, disturbed blocks and slow first samples aside."""
    values = [rate for samples in calm for rate in samples]
    places = statistics.outliers(values)
    if not places:
        return []
    furthest = max((values[place] / stdlib_statistics.median(values) for place in places), key=lambda ratio: max(ratio, 1 / ratio))
    words = "1 sample is an outlier" if len(places) == 1 else f"{len(places)} samples are outliers"
    return [f"{words} of {len(values)}: {'' if len(places) == 1 else 'up to '}{_percent_off(furthest)} than the median"]


def _percent_off(ratio: float) -> str:
    """A ratio of rates as `12 % slower`."""
    return f"{100 * abs(1 - ratio):.3g} % {'slower' if ratio < 1 else 'faster'}"
