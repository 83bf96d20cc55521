"""Runs as flat records and as pandas frames: one record for each row, or one for each timed generation.

The columns of rows are those of every other format (views.fields); pandas is imported only when a frame is made.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llmbench.protocol import Row, Run, Sample
from llmbench.results.startup import StartUp, start_ups
from llmbench.results.summary import RowSummary, summarise
from llmbench.views import fields

if TYPE_CHECKING:
    import pandas

#: The parts of a start, as results.startup names them.
START_PARTS = ("process_s", "build_s", "load_s", "compile_s", "ready_s", "to_first_token_s")
#: Columns of numbers that may be null.
_NUMBERS = {
    "noise_floor",
    *(f"{name}_{part}" for name in ("cold", "warm") for part in START_PARTS),
    *(field.name for field in dataclasses.fields(RowSummary) if str(field.type) in ("float | None", "int | None")),
}


class PandasMissing(ImportError):
    """pandas isn't installed; the text says how to get it."""


def row_records(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One record for each row of each run: the run's identity, the row's figures, its starts as cold_ready_s, warm_ready_s and so on, versions.

    Null where it wasn't measured, and for what is no finite number. Units stand in the names.
    """
    records = []
    for run in runs:
        for row, summary, start in zip(run.rows, summarise(run), start_ups(run), strict=True):
            found = {**fields.identity(run), **fields.record(summary), **_starts(start), "versions": _versions(row)}
            records.append({key: _finite(value) for key, value in found.items()})
    return records


def sample_records(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One record for each timed generation, warm-ups and first tokens too: what it was, its wall in seconds, tokens/s of one sequence."""
    return [
        {
            "run_id": run.run_id,
            "suite_id": run.suite_id,
            "model": run.model.name,
            "run_dtype": run.dtype,
            "batch_size": run.request.batch_size,
            "max_new_tokens": run.request.max_new_tokens,
            "label": row.variant.label,
            "engine": row.variant.engine,
            "round": block.round,
            "cold": block.cold,
            "block_status": block.status.value,
            "kind": sample.kind,
            "index": index,
            "started_s": _finite(sample.started_s),
            "wall_s": sample.wall_s,
            "new_tokens": sum(sample.new_tokens),
            "tokens_per_s": _rate(sample),
            "energy_j": None if sample.energy_j is None else _finite(sample.energy_j),
        }
        for run in runs
        for row in run.rows
        for block in row.blocks
        for index, sample in enumerate(block.samples)
    ]


def rows_frame(runs: Sequence[Run]) -> pandas.DataFrame:
    """row_records as a frame, started_at as times in UTC. Raises PandasMissing."""
    pandas = _pandas()
    frame = pandas.DataFrame.from_records(row_records(runs))
    if "started_at" in frame:
        frame["started_at"] = pandas.to_datetime(frame["started_at"], utc=True, errors="coerce", format="ISO8601")
    for name in _NUMBERS.intersection(frame):  # null in every row is still a number that wasn't measured
        frame[name] = pandas.to_numeric(frame[name])
    return frame


def samples_frame(runs: Sequence[Run]) -> pandas.DataFrame:
    """sample_records as a frame. Raises PandasMissing."""
    pandas = _pandas()
    frame = pandas.DataFrame.from_records(sample_records(runs))
    if "energy_j" in frame:
        frame["energy_j"] = pandas.to_numeric(frame["energy_j"])
    return frame


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise PandasMissing("frames need pandas, which isn't installed: pip install 'llmbench[pandas]'") from None
    return pandas


def _starts(start: StartUp) -> dict[str, Any]:
    return {
        f"{name}_{part}": None if moment is None else getattr(moment, part)
        for name, moment in (("cold", start.cold), ("warm", start.warm))
        for part in START_PARTS
    }


def _versions(row: Row) -> str:
    """`torch 2.13.0+cpu`, of all the row's blocks."""
    found = {(name, version): None for block in row.blocks for name, version in sorted(block.versions.items())}
    return ", ".join(f"{name} {version}" for name, version in found)


def _rate(sample: Sample) -> float | None:
    return sample.new_tokens[0] / sample.wall_s if sample.new_tokens else None


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
