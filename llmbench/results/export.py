"""Runs for other programs: CSV, JSON lines, Parquet, and the records of PyTorch's benchmark database.

The database's records are those of the table oss_ci_benchmark_v3 (pytorch/test-infra, clickhouse_db_schema/oss_ci_benchmark_v3/schema.sql), as a
list with one record for each row and metric, which its upload step takes as a JSON file; time, repository and commit are added by that step.
Every extra_info there maps texts to texts, and benchmark_values are numbers.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from llmbench.protocol import Block, Row, Run, Status
from llmbench.results.diff_metrics import METRICS
from llmbench.results.frames import row_records, sample_records
from llmbench.results.startup import start_ups
from llmbench.results.summary import RowSummary, good_blocks, summarise
from llmbench.views.text import csv_cell, plain

FORMATS = ("csv", "jsonl", "parquet", "pytorch")
WHAT = ("rows", "samples")

#: Metric of the database -> a row's values, one for each process that has one. The first three go by the names that PyTorch's own gpt-fast
#: benchmark gives them. Its tokens/s is this one; its bandwidth counts the weights alone, its compile time a generation too.
_PYTORCH_METRICS: dict[str, Callable[[Run, Row, RowSummary], list[float | None]]] = {
    "token_per_sec": lambda run, row, summary: [*METRICS["tokens"].values(run, row)],
    "memory_bandwidth(GB/s)": lambda run, row, summary: [_bandwidth(run, summary)],
    "compilation_time(s)": lambda run, row, summary: [summary.compile_s],
    "decode_token_per_sec": lambda run, row, summary: [*METRICS["decode"].values(run, row)],
    "ttft(s)": lambda run, row, summary: [*METRICS["ttft"].values(run, row)],
    "speedup": lambda run, row, summary: [summary.speedup],
    "peak_memory(GiB)": lambda run, row, summary: [*METRICS["memory"].values(run, row)],
    "compression_ratio": lambda run, row, summary: [summary.memory_compression],
    "build_time(s)": lambda run, row, summary: [summary.build_s],
    "load_time(s)": lambda run, row, summary: [block.load_s for block in good_blocks(run, row)],
    "cold_start_time(s)": lambda run, row, summary: [_cold_start(run, row)],
    "logit_error": lambda run, row, summary: [summary.accuracy_error],
}


class ExportError(ValueError):
    """What can't be exported as asked: one line. `exit_code` as the command line gives it."""

    def __init__(self, text: str, exit_code: int = 2) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def export_bytes(runs: Sequence[Run], format: str, what: str = "rows") -> bytes:
    """The runs as a file's content. Raises ExportError for an unknown format or kind, and for Parquet without pyarrow."""
    if format not in FORMATS or what not in WHAT:
        raise ExportError(f"can't export {plain(what)!r} as {plain(format)!r}; there are {', '.join(FORMATS)} of {' and '.join(WHAT)}")
    if format == "pytorch":
        if what != "rows":
            raise ExportError("PyTorch's benchmark database takes rows: a metric's values are one for each process")
        return (json.dumps(pytorch_records(runs), indent=1, allow_nan=False) + "\n").encode()
    records = row_records(runs) if what == "rows" else sample_records(runs)
    if format == "csv":
        return _csv(records)
    if format == "jsonl":
        return "".join(json.dumps(record, allow_nan=False) + "\n" for record in records).encode()
    return _parquet(records)


def _csv(records: Sequence[dict[str, Any]]) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(records[0]) if records else [], lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({key: csv_cell(value) for key, value in record.items()})
    return out.getvalue().encode()


def _parquet(records: Sequence[dict[str, Any]]) -> bytes:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ExportError("parquet needs pyarrow, which isn't installed: pip install 'llmbench[parquet]'", 1) from None
    out = io.BytesIO()
    # A column whose first value is null takes its type from the others: pyarrow looks at all of them.
    columns = {key: [_arrow_value(record[key]) for record in records] for key in (records[0] if records else ())}
    pyarrow.parquet.write_table(pyarrow.table(columns), out)
    return out.getvalue()


def _arrow_value(value: Any) -> Any:
    """Lone surrogates, which JSON may hold, are no UTF-8."""
    if isinstance(value, list):
        return [_arrow_value(entry) for entry in value]
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


# -------------------------------------------------------------------------------------------------------- PyTorch's benchmark database


def pytorch_records(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One record for each row and metric that it has, and for each row one of the metric `passed`: 1, or 0 with the status beside it."""
    records = []
    for run in runs:
        for row, summary in zip(run.rows, summarise(run), strict=True):
            shared = _shared(run, row)
            good = summary.status is Status.OK
            verdict = {"status": summary.status.value, "reason": plain(summary.reason or ""), "accuracy": summary.accuracy or "not checked"}
            records.append({**shared, "metric": {"name": "passed", "benchmark_values": [float(good)], "extra_info": verdict}})
            for name, values in _PYTORCH_METRICS.items() if good else ():
                found = [float(value) for value in values(run, row, summary) if value is not None and math.isfinite(value)]
                if found:
                    records.append({**shared, "metric": {"name": name, "benchmark_values": found}})
    return records


def _shared(run: Run, row: Row) -> dict[str, Any]:
    variant, request, machine = row.variant, run.request, run.machine
    is_gpu = machine.device.startswith("cuda")
    versions = {name: version for block in row.blocks for name, version in block.versions.items()}
    return {
        "benchmark": {
            "name": "llmbench",
            "mode": "inference",
            "dtype": variant.quantization or variant.dtype,
            "extra_info": _texts(
                run_id=run.run_id,
                suite_id=run.suite_id,
                started_at=run.started_at,
                device=machine.device.partition(":")[0],
                arch=machine.device_name or machine.cpu,
                storage_dtype=next((block.report.storage_dtype for block in row.blocks if block.report), variant.dtype),
                batch_size=request.batch_size,
                prompt_tokens=len(request.prompt_ids),
                max_new_tokens=request.max_new_tokens,
                temperature=request.sampling.temperature,
                threads=run.threads,
                rounds=len(_measured(row)),
                llmbench_version=run.llmbench_version,
            ),
        },
        "model": {
            "name": plain(run.model.name),
            "type": "OSS model",
            "backend": plain(variant.label),
            "origins": ["huggingface"] if run.model.source.startswith("hub ") else [],
            "extra_info": _texts(
                source=run.model.source,
                load_format=run.model.load_format,
                architecture=run.model.architecture,
                parameters=run.model.parameters,
            ),
        },
        "runners": [
            {
                "name": "",
                "type": plain(machine.platform),
                "cpu_info": plain(machine.cpu),
                "cpu_count": machine.cpu_count,
                "avail_mem_in_gb": machine.memory_bytes // 2**30,
                "gpu_info": plain(machine.device_name) if is_gpu else "",
                "gpu_count": int(is_gpu),
                "avail_gpu_mem_in_gb": (machine.device_memory_bytes or 0) // 2**30,
                "extra_info": _texts(driver=machine.driver),
            }
        ],
        "dependencies": {plain(name): {"version": plain(version)} for name, version in sorted(versions.items())},
    }


def _measured(row: Row) -> list[Block]:
    return [block for block in row.blocks if block.of_kind("sample")]


def _texts(**values: object) -> dict[str, str]:
    return {key: plain(str(value)) for key, value in values.items() if value is not None and value != ""}


def _bandwidth(run: Run, summary: RowSummary) -> float | None:
    """Bytes that decoding reads in a second, by the bytes that one step must read: 10**9 bytes/s."""
    if summary.decode_tokens_per_s is None or summary.bytes_per_token is None:
        return None
    return summary.decode_tokens_per_s * summary.bytes_per_token / 1e9


def _cold_start(run: Run, row: Row) -> float | None:
    found = next((entry.cold for entry in start_ups(run) if entry.label == row.variant.label), None)
    return found.ready_s if found is not None else None
