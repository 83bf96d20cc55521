"""Several runs in one call: what is run, what is kept, and what happens where one of them can't be."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny import CONFIG, compare, environment, interruptible, llmbench, tiny_folder

from llmbench.comparison import Options, UsageError
from llmbench.grid import expand, share_of
from llmbench.protocol import Plan, Status
from llmbench.results.files import load

QUICK = ("--rounds", 1, "--num-iters", 1, "--num-iters-warmup", 1)


def suites(home: Path) -> list[Path]:
    return sorted((home / "results").glob("*-suite*"))


# ------------------------------------------------------------------------------------------------------------------------------ expand


def test_every_combination_the_last_axis_fastest() -> None:
    cells = expand(Options("x"), {"batch_size": "1,4", "input_len": "128, 1024", "model": "a,b", "max_new_tokens": "32", "dtype": "auto"})
    assert [(cell.options.model, cell.options.input_len, cell.options.batch_size) for cell in cells] == [
        (model, length, batch) for model in "ab" for length in (128, 1024) for batch in (1, 4)
    ]
    assert all(cell.options.max_new_tokens == 32 for cell in cells)
    assert cells[1].words == "a, input 128, batch 4"
    assert cells[1].suffix == "-in128-batch4"


def test_single_values_are_one_run_with_nothing_to_tell_apart() -> None:
    (cell,) = expand(Options("x"), {"model": "m", "batch_size": "2", "input_len": None, "max_new_tokens": "7", "dtype": "float32"})
    assert (cell.options, cell.words, cell.suffix) == (Options("m", batch_size=2, max_new_tokens=7, dtype="float32"), "", "")


def test_dtypes_go_by_their_full_names() -> None:
    assert [cell.options.dtype for cell in expand(Options("x"), {"dtype": "fp32,bf16"})] == ["float32", "bfloat16"]


def test_a_folder_with_a_comma_in_its_name_is_one_model(tmp_path: Path) -> None:
    folder = tmp_path / "a,b"
    folder.mkdir()
    assert len(expand(Options("x"), {"model": str(folder)})) == 1


@pytest.mark.parametrize(
    ("axis", "text", "words"),
    [
        ("batch_size", "1,x", "'x' is no whole number"),
        ("batch_size", "1,", "'' is no whole number"),
        ("batch_size", "1.5", "'1.5' is no whole number"),
        ("batch_size", "9" * 5000, "is no whole number"),
        ("input_len", "4,4", "4 is named twice"),
        ("dtype", "float32,fp32", "float32 is named twice"),
        ("model", "a,,b", "a name is missing"),
    ],
)
def test_a_list_that_is_none(axis: str, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        expand(Options("x"), {axis: text})


def test_a_time_budget_is_shared_and_what_a_run_leaves_goes_to_the_others() -> None:
    assert share_of(60, 0, 3) == 20
    assert share_of(60, 10, 2) == 25
    assert share_of(60, 100, 1) == 1


# ------------------------------------------------------------------------------------------------------------------------------ a suite


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    home = tmp_path_factory.mktemp("suite")
    return home, compare(home, "fake,fake[tokens_per_s=400]", *QUICK, "--batch-size", "1,2", "--dtype", "float32,bfloat16")


def test_each_combination_is_a_run_file_in_one_folder(suite: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    home, done = suite
    assert done.returncode == 0, done.stderr
    (folder,) = suites(home)
    assert [path for path in (home / "results").iterdir() if path != folder] == []
    runs = [load(path) for path in sorted(folder.glob("*.json"))]
    assert [(run.dtype, run.request.batch_size) for run in runs] == [("float32", 1), ("float32", 2), ("bfloat16", 1), ("bfloat16", 2)]
    assert {run.suite_id for run in runs} == {folder.name}
    assert all(run.finished_at and run.run_id in {path.stem for path in folder.iterdir()} for run in runs)
    assert all((folder / (block.log or "")).is_file() for run in runs for row in run.rows for block in row.blocks)
    assert (folder / "bars.png").read_bytes()[:4] == b"\x89PNG"
    assert "run 4 of 4: bfloat16, batch 2" in done.stderr


def test_the_table_groups_the_runs_and_a_folder_can_be_shown(suite: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    home, done = suite
    (folder,) = suites(home)
    words = " ".join(done.stdout.split())  # headings may wrap
    for batch in (1, 2):  # a group for each run
        assert len(re.findall(rf"batch {batch} (?:· )?\d", words)) == 2
    assert words.count("(random weights") == 1  # the model stands above its runs
    assert llmbench(home, "show", folder).stdout == done.stdout
    shown = json.loads(llmbench(home, "show", folder, "--format", "json").stdout)
    assert [run["request"]["batch_size"] for run in shown] == [1, 2, 1, 2]
    assert llmbench(home, "plot", folder, "-o", "all.svg").returncode == 0
    assert (home / "all.svg").is_file()


def test_output_and_chart_go_where_they_are_told(tmp_path: Path) -> None:
    done = compare(
        tmp_path, "fake", *QUICK, "--batch-size", "1,2", "--format", "json", "-o", "out.json", "--chart", "c.svg", "-q", "--show-text"
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads((tmp_path / "out.json").read_text())) == 2
    assert (tmp_path / "c.svg").is_file()
    assert done.stdout == ""
    assert done.stderr.count("fake: ids [") == 2


def call(home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return llmbench(home, "compare", "--load-format", "dummy", "--engines", "fake", "--input-len", 4, *QUICK, *arguments)


def test_a_model_that_can_not_be_had_leaves_the_others(tmp_path: Path) -> None:
    model = tiny_folder(tmp_path)
    done = call(tmp_path, "--model", f"nobody/nothing,{model}", "--max-new-tokens", "4,8", "--format", "json", "--offline")
    assert done.returncode == 3, done.stderr
    assert [run["request"]["max_new_tokens"] for run in json.loads(done.stdout)] == [4, 8]
    assert done.stderr.count("llmbench: nobody/nothing: ") == 2  # before and after the measurement
    assert "(2 runs)" in done.stderr
    assert "Traceback" not in done.stderr


def test_json_is_an_array_where_one_run_is_left(tmp_path: Path) -> None:
    model = tiny_folder(tmp_path)
    done = call(tmp_path, "--model", f"nobody/nothing,{model}", "--max-new-tokens", 4, "--format", "json", "--offline")
    assert done.returncode == 3, done.stderr
    assert [run["request"]["max_new_tokens"] for run in json.loads(done.stdout)] == [4]


def test_no_model_can_be_had(tmp_path: Path) -> None:
    done = call(tmp_path, "--model", "nobody/nothing,nobody/else", "--offline")
    assert done.returncode == 1
    assert "nobody/else" in done.stderr
    assert not (tmp_path / "results").exists()


def test_all_usage_errors_are_told_before_anything_is_measured(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    (small / "config.json").write_text(json.dumps({**CONFIG, "max_position_embeddings": 8}))
    model = tiny_folder(tmp_path)
    done = call(tmp_path, "--model", f"{model},{small}", "--max-new-tokens", "4,50,5")
    assert done.returncode == 2
    assert "context of 8" in done.stderr
    assert "small, 50 new tokens" in done.stderr
    assert "small, 5 new tokens" in done.stderr
    assert not (tmp_path / "results").exists()
    done = compare(tmp_path, "fake", "--batch-size", "0,-1,2")
    assert done.returncode == 2
    assert "at least 1, not 0" in done.stderr
    assert "at least 1, not -1" in done.stderr


def test_a_failed_row_is_no_failure_of_the_suite(tmp_path: Path) -> None:
    done = compare(tmp_path, "fake[fault=error],fake", *QUICK, "--batch-size", "1,2")
    assert done.returncode == 3
    (folder,) = suites(tmp_path)
    for path in folder.glob("*.json"):
        assert [row.status for row in load(path).rows] == [Status.FAILED, Status.OK]


def test_a_dry_run_shows_each_card_and_writes_nothing(tmp_path: Path) -> None:
    done = compare(tmp_path, "fake", "--batch-size", "1,2", "--max-new-tokens", "8,16", "--time-budget", "80s", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("budget 20 s") == 4
    assert "run 4 of 4: 16 new tokens, batch 2" in done.stdout
    assert not (tmp_path / "results").exists()


def test_an_interrupt_keeps_and_shows_what_was_measured(tmp_path: Path) -> None:
    model = tiny_folder(tmp_path)
    command: list[Any] = [sys.executable, "-m", "llmbench", "compare", "--model", model, "--load-format", "dummy"]
    command += [
        "--engines",
        "fake[tokens_per_s=50]",
        "--input-len",
        "4",
        "--max-new-tokens",
        "1,60,5",
        "--rounds",
        "1",
        "--num-iters",
        "10",
    ]
    process = subprocess.Popen(
        command,
        env=environment(tmp_path),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
        preexec_fn=interruptible,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("run 2 of 3"):
            break
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    (folder,) = suites(tmp_path)
    runs = [load(path) for path in sorted(folder.glob("*.json"))]
    assert runs[0].finished_at
    assert not runs[0].interrupted
    assert len(runs) <= 2  # the second one where it had begun
    assert out.count("fake[tokens_per_s=50]") >= 1
    assert "Traceback" not in errors


@pytest.mark.parametrize("place", ["reserve", "save"])
def test_an_interrupt_before_a_runs_first_block_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    from llmbench import grid
    from llmbench.views.progress import Silent

    options = Options(
        str(tiny_folder(tmp_path)), engines="fake", load_format="dummy", home=tmp_path, plan=Plan(rounds=1, num_iters=1, num_iters_warmup=1)
    )
    suite = grid.settle(expand(options, {"max_new_tokens": "2,3", "input_len": "4"}))
    original = getattr(grid.files, place)
    second = iter([False, True])

    def interrupted(*arguments: Any) -> Any:
        result = original(*arguments)
        if place == "reserve" and next(second):
            raise KeyboardInterrupt
        if place == "save" and arguments[0].request.max_new_tokens == 3:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(grid.files, place, interrupted)
    grid.measure(suite, Silent(), lambda words, prepared: None)
    assert suite.exit_code == 130
    assert [run.request.max_new_tokens for run in suite.runs] == [2]
    assert suite.folder is not None
    assert sorted(path.suffix for path in suite.folder.iterdir()) == [".json", ".logs", ".plan"]


def test_a_single_call_is_no_suite(tmp_path: Path) -> None:
    assert compare(tmp_path, "fake", *QUICK).returncode == 0
    assert suites(tmp_path) == []
    assert len(list((tmp_path / "results").glob("*.json"))) == 1


def test_a_folder_without_run_files(tmp_path: Path) -> None:
    done = llmbench(tmp_path, "show", tmp_path)
    assert done.returncode == 1
    assert "no run files" in done.stderr
