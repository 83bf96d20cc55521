"""`llmbench diff`, `export` and the suite's summary as users call them, on made runs and on some that were measured here with the fake engine."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from pathlib import Path

import pytest
from rate_runs import failed_row, noisy, run_at
from tiny import compare, llmbench, run_files

from llmbench.results.files import load, save

FAKE = "fake[tokens_per_s=400]"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with two measured runs of the same, old.json and new.json beside its results."""
    home = tmp_path_factory.mktemp("home")
    for name in ("old", "new"):
        done = compare(home, FAKE, "--rounds", 3, "--num-iters", 3, "--num-iters-warmup", 1, "--quiet")
        assert done.returncode == 0, done.stderr
        save(load(run_files(home)[-1]), home / f"{name}.json")
    return home


def diff(home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return llmbench(home, "diff", *arguments)


def test_two_measured_runs_of_the_same(measured: Path) -> None:
    # Whatever else this machine does meanwhile, it doesn't halve a rate in every process of one run.
    done = diff(measured, "old.json", "new.json", "--fail-if-slower", "100%")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing is shown to be worse by more than 100 %" in done.stdout
    assert "changed: nothing that the run files tell of" in done.stdout


def test_a_slowdown_of_a_tenth_fails_the_gate_and_is_named(tmp_path: Path) -> None:
    for name, rate, seed in (("old", 100.0, 1), ("same", 100.0, 2), ("slow", 90.0, 3)):
        save(run_at({"eager": noisy(50.0, seed + 10), "torch-compile": noisy(rate, seed)}), tmp_path / f"{name}.json")
    same = diff(tmp_path, "old.json", "same.json", "--fail-if-slower", "3%")
    assert same.returncode == 0, same.stdout + same.stderr
    assert "nothing is shown to be worse by more than 3 %" in same.stdout
    slow = diff(tmp_path, "old.json", "slow.json", "--fail-if-slower", "3%")
    assert slow.returncode == 1
    assert "worse by more than 3 %: torch-compile (tokens/s 0." in " ".join(slow.stdout.split())
    assert diff(tmp_path, "old.json", "slow.json").returncode == 0
    assert diff(tmp_path, "old.json", "slow.json", "--fail-if-worse", "0.5").returncode == 0


def test_another_machine_and_another_model_are_refused(tmp_path: Path) -> None:
    old, machine, model = (run_at({"eager": noisy(50.0, seed)}) for seed in range(3))
    machine.threads, model.model.name = 8, "phi-2\x1b[31m"
    for name, run in (("old", old), ("machine", machine), ("model", model)):
        save(run, tmp_path / f"{name}.json")
    refused = diff(tmp_path, "old.json", "machine.json")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        "llmbench: not comparable: threads: 2 → 8; not the same machine; --across-machines compares them all the same\n"
    )
    assert diff(tmp_path, "old.json", "machine.json", "--across-machines").returncode == 0
    other = diff(tmp_path, "old.json", "model.json", "--across-machines")
    assert other.returncode == 2
    assert "model: smollm2-135m → phi-2" in other.stderr
    assert "\x1b" not in other.stderr
    assert diff(tmp_path, "old.json", "model.json", "--force").returncode == 0


def test_suites_and_formats(tmp_path: Path) -> None:
    for side, factor in (("old", 1.0), ("new", 1.25)):
        (tmp_path / side).mkdir()
        for name in ("a", "b"):
            run = run_at({"eager": noisy(50.0, 1), "torch-compile": noisy(100.0 / (factor if name == "b" else 1.0), 2)}, name=name)
            save(run, tmp_path / side / f"{name}.json")
    done = diff(tmp_path, "old", "new", "--fail-if-slower", "3 %", "--metric", "tokens,memory", "--format", "json")
    assert done.returncode == 1
    data = json.loads(done.stdout)
    assert [(pair["model"], row["label"]) for pair in data["pairs"] for row in pair["rows"] if row["is_regression"]] == [
        ("b", "torch-compile")
    ]
    page = diff(tmp_path, "old", "new", "--fail-if-slower", "3%", "-f", "md", "-o", "page.md")
    assert (page.returncode, page.stdout) == (1, "")
    assert "torch-compile on b, 5 prompt ids, 200 new tokens, batch 1" in (tmp_path / "page.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("x.json", "x.json"), "x.json: No such file"),
        (("old.json", "old.json", "--metric", "speed"), "--metric 'speed'; there are tokens, decode"),
        (("old.json", "old.json", "--fail-if-slower", "3"), "'3' is no threshold; write 3% or 0.03"),
        (("old.json", "old.json", "--fail-if-slower", "-3%"), "is no threshold"),
        (("old.json", "old.json", "--format", "html"), "--format 'html'; there are table, markdown, json"),
        (("bad.json", "old.json"), "bad.json: not a run file"),
    ],
)
def test_bad_input_is_one_line_and_never_code_1(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    save(run_at({"eager": [50.0, 50.0]}), tmp_path / "old.json")
    (tmp_path / "bad.json").write_text("{}")
    done = diff(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_an_unreadable_file_among_others_is_told_and_not_passed(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    save(run_at({"eager": noisy(50.0, 1)}), tmp_path / "runs" / "a.json")
    (tmp_path / "runs" / "b.json").write_text("{")
    done = diff(tmp_path, "runs", "runs/a.json", "--fail-if-slower", "3%")
    assert done.returncode == 3
    assert "b.json: not JSON" in done.stderr


# --------------------------------------------------------------------------------------------------------------------------------- export


def test_export_of_a_measured_run(measured: Path) -> None:
    rows = llmbench(measured, "export", "old.json", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(rows.stdout))
    assert row["label"] == FAKE
    assert float(row["tokens_per_s"]) > 0
    samples = llmbench(measured, "export", "old.json", "--format", "jsonl", "--what", "samples")
    kinds = [json.loads(line)["kind"] for line in samples.stdout.splitlines()]
    assert kinds.count("sample") == 9
    records = llmbench(measured, "export", "old.json", "new.json", "--format", "pytorch")
    assert sum(record["metric"]["name"] == "token_per_sec" for record in json.loads(records.stdout)) == 2
    kept = llmbench(measured, "export", "old.json", "--format", "parquet", "-o", "rows.parquet")
    assert (kept.returncode, kept.stdout) == (0, "")
    assert (measured / "rows.parquet").read_bytes()[:4] == b"PAR1"


def test_export_refuses_in_one_line(tmp_path: Path) -> None:
    save(run_at({"eager": [50.0, 50.0]}), tmp_path / "old.json")
    for arguments, code, words in (
        (("--format", "parquet"), 2, "name a file with --output"),
        (("--format", "xml"), 2, "there are csv, jsonl, parquet, pytorch"),
        (("--format", "csv", "--what", "runs"), 2, "there are rows, samples"),
        (("--format", "pytorch", "--what", "samples"), 2, "takes rows"),
        (("--format", "csv", "--output", "rows.csv", "x.json"), 3, "x.json: No such file"),
    ):
        done = llmbench(tmp_path, "export", "old.json", *arguments)
        assert done.returncode == code, done.stderr
        assert words in done.stderr


# ----------------------------------------------------------------------------------------------------------------------- a suite's summary


def test_show_ends_with_the_summary_of_several_models(tmp_path: Path) -> None:
    (tmp_path / "suite").mkdir()
    first, second = (run_at({"eager": [50.0] * 3, "torch-compile": [rate] * 3}, name=name) for name, rate in (("a", 100.0), ("b", 25.0)))
    second.rows.append(failed_row("openvino"))
    save(first, tmp_path / "suite" / "1-a.json")
    alone = llmbench(tmp_path, "show", "suite")
    assert "models together" not in alone.stdout
    save(second, tmp_path / "suite" / "2-b.json")
    shown = llmbench(tmp_path, "show", "suite")
    assert "2 models together" in shown.stdout
    line = [line for line in shown.stdout.splitlines() if line.startswith("torch-compile")][2]
    assert line.split()[:5] == ["torch-compile", "100", "%,", "2/2", "1.00x"]
    assert "| openvino | 0 %, 0/1 |" in llmbench(tmp_path, "show", "suite", "--format", "markdown").stdout
    assert len(json.loads(llmbench(tmp_path, "show", "suite", "--format", "json").stdout)) == 2
