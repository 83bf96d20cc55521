"""benchmarks/gpu_check.py on the fake engine: steps and their files, the budget, what is missing. On a GPU it has not been run yet."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import run_files

from llmbench.protocol import Status
from llmbench.results import files

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu_check.py"
_spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
gpu_check = importlib.util.module_from_spec(_spec)
sys.modules["gpu_check"] = gpu_check
_spec.loader.exec_module(gpu_check)


def check(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OUT": str(out)}
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, env=environment, cwd=out, capture_output=True, text=True, timeout=300)


def test_each_step_leaves_its_run_file_and_chart(tmp_path: Path) -> None:
    done = check(tmp_path, "--tiny", "--engines", "fake", "--only", "phi-2,batch 8", "--minutes", "5")
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = (files.load(path) for path in run_files(tmp_path))
    assert (first.request.batch_size, second.request.batch_size) == (1, 8)
    assert all(row.status is Status.OK for run in (first, second) for row in run.rows)
    assert {path.name for path in tmp_path.glob("*.png")} == {"phi-2.png", "batch-8.png"}
    assert "104.9 tokens/s, about 67 %" in done.stdout
    assert (tmp_path / "summary.txt").read_text() == done.stdout


def test_a_step_that_fails_is_told_and_the_next_one_runs(tmp_path: Path) -> None:
    done = check(tmp_path, "--tiny", "--engines", "fake[fault=error]", "--only", "phi-2,float16", "--minutes", "5")
    assert done.returncode == 3
    assert len(run_files(tmp_path)) == 2
    assert "failed" in done.stdout


def test_no_step_begins_without_time(tmp_path: Path) -> None:
    done = check(tmp_path, "--tiny", "--engines", "fake", "--minutes", "0.1")
    assert done.returncode == 0
    assert done.stdout.count("not begun") == len(gpu_check.STEPS)


def test_at_the_budget_a_step_is_stopped_and_its_file_kept(tmp_path: Path) -> None:
    step, tiny = gpu_check.STEPS[1], gpu_check._tiny(tmp_path)
    arguments = gpu_check.command(step, tiny, "fake[load_s=600]", 600.0, tmp_path / "chart.png")
    assert gpu_check.carry_out(arguments, tmp_path, tmp_path / "log.txt", 15.0) == 130
    (path,) = run_files(tmp_path)
    assert files.load(path).interrupted


def test_what_is_missing_is_told_at_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(gpu_check.NEEDED, "no_such_module", "no-such-package")
    monkeypatch.setattr(sys, "argv", ["gpu_check.py"])
    assert gpu_check.main() == 1
    assert "lacks no-such-package" in capsys.readouterr().err


def test_the_steps_are_the_ones_a_gpu_is_asked_for() -> None:
    names = [step.name for step in gpu_check.STEPS]
    assert names == ["accuracy", "phi-2", "llama-2-7b", "no CUDA graphs", "float16", "batch 8", "long prompt"]
    assert gpu_check.STEPS[0].accuracy
    line = gpu_check.command(gpu_check.STEPS[2], None, None, 100.0, Path("a.png"))
    for pair in (("--model", "llama-2-7b"), ("--dtype", "bfloat16"), ("--max-new-tokens", "200"), ("--engines", "eager,torch-compile")):
        assert line[line.index(pair[0]) + 1] == pair[1]
