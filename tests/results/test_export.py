"""Runs for other programs: the same figures in every format, and PyTorch's records in the shape its table takes."""

from __future__ import annotations

import csv
import io
import json

import pandas
import pyarrow.parquet
import pytest
from rate_runs import failed_row, row_at
from views.make_runs import make_run

from llmbench.protocol import Run
from llmbench.results.export import ExportError, export_bytes, pytorch_records
from llmbench.results.frames import row_records, rows_frame, sample_records, samples_frame


def a_run() -> Run:
    return make_run([row_at("eager", [50.0, 52.0]), row_at("torch-compile", [100.0, 104.0], compile_s=30.0), failed_row("openvino")])


def test_a_record_for_each_row_with_its_runs_identity_and_starts() -> None:
    eager, compiled, failed = row_records([a_run()])
    assert (eager["model"], eager["label"], eager["tokens_per_s"], eager["versions"]) == ("smollm2-135m", "eager", 51.0, "torch 2.13.0")
    assert (compiled["speedup"], compiled["cold_ready_s"], compiled["warm_ready_s"]) == (
        pytest.approx(2.0),
        pytest.approx(33.0),
        pytest.approx(3.0),
    )
    assert (failed["status"], failed["reason"], failed["tokens_per_s"], failed["cold_ready_s"]) == ("crashed", "signal 11", None, None)


def test_a_record_for_each_generation() -> None:
    records = sample_records([a_run()])
    assert len(records) == 4 * (2 + 3 + 3)
    first = records[0]
    assert (first["label"], first["round"], first["cold"], first["kind"], first["index"]) == ("eager", 0, True, "warmup", 0)
    assert {record["tokens_per_s"] for record in records if record["kind"] == "sample" and record["label"] == "eager"} == {50.0, 52.0}
    one = next(record for record in records if record["kind"] == "first_token")
    assert (one["new_tokens"], one["wall_s"], one["tokens_per_s"]) == (1, 0.01, pytest.approx(100.0))


def test_frames() -> None:
    rows, samples = rows_frame([a_run()]), samples_frame([a_run()])
    assert list(rows["label"]) == ["eager", "torch-compile", "openvino"]
    assert str(rows["started_at"].iloc[0]) == "2026-11-30 23:30:00+00:00"
    assert pandas.api.types.is_float_dtype(rows["accuracy_error"])  # null in every row
    assert pandas.isna(rows["tokens_per_s"].iloc[2])
    assert samples.groupby(["label", "round"])["wall_s"].count().eq(8).all()
    assert rows_frame([]).empty
    assert samples_frame([]).empty


def test_csv_and_json_lines_agree() -> None:
    lines = [json.loads(line) for line in export_bytes([a_run()], "jsonl").decode().splitlines()]
    cells = list(csv.DictReader(io.StringIO(export_bytes([a_run()], "csv").decode())))
    assert [line["label"] for line in lines] == [cell["label"] for cell in cells] == ["eager", "torch-compile", "openvino"]
    assert [float(cell["tokens_per_s"]) for cell in cells[:2]] == [line["tokens_per_s"] for line in lines[:2]] == [51.0, 102.0]
    assert cells[2]["tokens_per_s"] == ""
    assert len(export_bytes([a_run()], "csv", "samples").decode().splitlines()) == 33


def test_parquet_keeps_types() -> None:
    rows = pyarrow.parquet.read_table(io.BytesIO(export_bytes([a_run()], "parquet")))
    assert rows.column("tokens_per_s").to_pylist() == [51.0, 102.0, None]
    assert rows.column("flags").to_pylist()[2] == []
    assert rows.num_rows == 3
    samples = pyarrow.parquet.read_table(io.BytesIO(export_bytes([a_run()], "parquet", "samples")))
    assert samples.num_rows == 32


def test_hostile_text_in_every_format() -> None:
    run = a_run()
    run.rows[2].reason = '=HYPERLINK("x")\x1b[31m\ud800'
    cell = list(csv.DictReader(io.StringIO(export_bytes([run], "csv").decode())))[2]["reason"]
    assert cell == '\'=HYPERLINK("x")'
    assert pyarrow.parquet.read_table(io.BytesIO(export_bytes([run], "parquet"))).column("reason").to_pylist()[2].startswith("=HYPER")
    assert json.loads(export_bytes([run], "jsonl").decode().splitlines()[2])["reason"] == run.rows[2].reason
    json.loads(export_bytes([run], "pytorch"))


def test_pytorchs_records_have_the_tables_shape() -> None:
    run = a_run()
    run.machine.memory_bytes, run.machine.cpu_count = 24 * 2**30, 2
    records = pytorch_records([run])
    for record in records:
        assert set(record) == {"benchmark", "model", "runners", "dependencies", "metric"}
        assert set(record["benchmark"]) == {"name", "mode", "dtype", "extra_info"}
        assert set(record["model"]) == {"name", "type", "backend", "origins", "extra_info"}
        maps = [record["benchmark"]["extra_info"], record["model"]["extra_info"], record["metric"].get("extra_info", {})]
        assert all(isinstance(value, str) for entry in maps for value in entry.values())
        assert all(isinstance(value, float) for value in record["metric"]["benchmark_values"])
        assert record["metric"]["benchmark_values"]
    found = {(record["model"]["backend"], record["metric"]["name"]): record for record in records}
    assert found["torch-compile", "token_per_sec"]["metric"]["benchmark_values"] == [100.0, 104.0]
    assert found["torch-compile", "compilation_time(s)"]["metric"]["benchmark_values"] == [pytest.approx(30.0)]
    assert found["torch-compile", "speedup"]["metric"]["benchmark_values"] == [pytest.approx(2.0)]
    assert found["torch-compile", "token_per_sec"]["dependencies"] == {"torch": {"version": "2.13.0"}}
    assert found["eager", "passed"]["runners"][0]["avail_mem_in_gb"] == 24
    assert found["openvino", "passed"]["metric"]["benchmark_values"] == [0.0]
    assert found["openvino", "passed"]["metric"]["extra_info"]["status"] == "crashed"
    assert ("openvino", "token_per_sec") not in found
    # 134.5 million parameters in float32, read at the decode rate.
    assert found["eager", "memory_bandwidth(GB/s)"]["metric"]["benchmark_values"][0] == pytest.approx(27.5, rel=0.02)


def test_what_can_not_be_exported() -> None:
    with pytest.raises(ExportError, match="takes rows"):
        export_bytes([a_run()], "pytorch", "samples")
    with pytest.raises(ExportError, match="there are csv"):
        export_bytes([a_run()], "xml")


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ExportError, match=r"pip install 'llmbench\[parquet\]'") as caught:
        export_bytes([a_run()], "parquet")
    assert caught.value.exit_code == 1
