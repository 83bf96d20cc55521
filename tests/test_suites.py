"""Suites from files through the command line: what is run, what goes first, what can't be had, and what a killed one leaves for --resume."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny import CONFIG, environment, llmbench, run_files, tiny_folder

from llmbench.comparison import Options, UsageError
from llmbench.protocol import Run, Status
from llmbench.results.files import load
from llmbench.suite_plan import NAME

QUICK = "quick = true\nnum-iters = 1\nnum-iters-warmup = 1\n"


def toml(value: Any) -> str:
    return json.dumps(value)


def shape(name: str, **changes: Any) -> str:
    return f'[[models]]\nname = "{name}"\n[models.shape]\n' + "".join(
        f"{key} = {toml(value)}\n" for key, value in {**CONFIG, **changes}.items()
    )


def write(home: Path, *models: str, options: str = QUICK + 'engines = "fake"\nmax-new-tokens = 8\ninput-len = 4\n') -> Path:
    path = home / "mine.toml"
    path.write_text("[compare]\n" + options + "\n" + "\n".join(models))
    return path


def folder_of(home: Path) -> Path:
    (folder,) = (home / "results").glob("*-suite*")
    return folder


def runs_in(folder: Path) -> list[Run]:
    return [load(path) for path in sorted(folder.glob("*.json"))]


def test_a_suites_shapes_are_runs_under_their_names(tmp_path: Path) -> None:
    write(tmp_path, shape("small-one"), shape("small-two", num_hidden_layers=3))
    done = llmbench(tmp_path, "compare", "--suite", "mine.toml")
    assert done.returncode == 0, done.stderr
    runs = runs_in(folder_of(tmp_path))
    assert [(run.model.name, run.model.config["layers"], run.request.max_new_tokens) for run in runs] == [
        ("small-one", 2, 8),
        ("small-two", 3, 8),
    ]
    assert {run.model.load_format for run in runs} == {"dummy"}
    assert "run 2 of 2: small-two, about " in done.stderr  # the time left
    assert sorted(path.name.partition("@")[0] for path in (tmp_path / "checkpoints").iterdir() if not path.name.startswith(".")) == [
        "small-one",
        "small-two",
    ]
    (first, _) = sorted(folder_of(tmp_path).glob("*.json"))
    assert llmbench(tmp_path, "compare", "--resume", first, "-q").returncode == 0  # one of its runs alone
    assert load(first).model.name == "small-one"
    assert not (tmp_path / "results" / "checkpoints").exists()


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    write(tmp_path, shape("small-one"), shape("small-two"))
    done = llmbench(
        tmp_path, "compare", "-n", 5, "--suite", "mine.toml", "--model", "small-two", "--engines", "fake,fake[tokens_per_s=500]"
    )
    assert done.returncode == 0, done.stderr
    (run,) = runs_in(folder_of(tmp_path))
    assert (run.model.name, run.request.max_new_tokens, len(run.rows)) == ("small-two", 5, 2)
    done = llmbench(tmp_path, "compare", "--suite", "mine.toml", "--dry-run", "--rounds", 3)
    assert "3 rounds x (1 warm-up + 1 sample)" in done.stdout
    done = llmbench(tmp_path, "compare", "--suite", "mine.toml", "--dry-run")
    assert "run 2 of 2: small-two" in done.stdout
    assert len(list((tmp_path / "results").iterdir())) == 1


def test_a_model_that_can_not_be_had_is_a_run_with_its_reason(tmp_path: Path) -> None:
    write(tmp_path, shape("here"), '[[models]]\nname = "nobody/nothing"\n', shape("bad", vocab_size=-1))
    done = llmbench(tmp_path, "compare", "--suite", "mine.toml", "--offline")
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    here, nothing, bad = runs_in(folder_of(tmp_path))
    assert [row.status for row in here.rows] == [Status.OK]
    assert [row.status for row in nothing.rows] == [row.status for row in bad.rows] == [Status.UNAVAILABLE]
    assert "--offline is given" in str(nothing.rows[0].reason)
    assert "vocab_size is -1" in str(bad.rows[0].reason)
    assert "nobody/nothing" in done.stdout
    # It may be there now.
    plan = folder_of(tmp_path) / NAME
    text = (
        plan.read_text()
        .replace('"nobody/nothing"', json.dumps(str(tiny_folder(tmp_path))))
        .replace('"load_format": "auto"', '"load_format": "dummy"')
    )
    plan.write_text(text)
    done = llmbench(tmp_path, "compare", "--resume", folder_of(tmp_path), "--offline")
    assert done.returncode == 3, done.stderr
    statuses = {run.model.name.rpartition("/")[2]: run.rows[0].status for run in runs_in(folder_of(tmp_path))}
    assert statuses == {"here": Status.OK, "tiny": Status.OK, "bad": Status.UNAVAILABLE}


def test_killed_in_the_middle_and_resumed_it_has_the_rows_of_one_that_was_not(tmp_path: Path) -> None:
    options = "rounds = 2\nnum-iters = 2\nnum-iters-warmup = 1\n"
    options += 'engines = "fake[tokens_per_s=400],fake[fault=error,fault_at=load]"\nmax-new-tokens = 40\ninput-len = 4\n'
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for home in (whole, cut):
        home.mkdir()
        write(home, *(shape(f"model-{letter}") for letter in "abc"), options=options)
    done = llmbench(whole, "compare", "--suite", "mine.toml", "-q")
    assert done.returncode == 3, done.stderr
    command = [sys.executable, "-m", "llmbench", "compare", "--suite", "mine.toml"]
    process = subprocess.Popen(command, env=environment(cut), cwd=cut, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    seen = False
    for line in process.stderr:
        seen = seen or line.startswith("run 2 of 3")
        if seen and line.startswith("round 1 of 2"):
            break
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert len(runs_in(folder_of(cut))) == 2
    done = llmbench(cut, "compare", "--resume", folder_of(cut))
    assert done.returncode == 3, done.stderr
    assert "1 of 3 runs are kept whole" in done.stderr

    def rows(home: Path) -> list[Any]:
        return [
            (run.model.name, row.variant, row.status, row.reason, [(block.round, len(block.of_kind("sample"))) for block in row.blocks])
            for run in runs_in(folder_of(home))
            for row in run.rows
        ]

    assert rows(cut) == rows(whole)
    assert [run.finished_at is not None for run in runs_in(folder_of(cut))] == [True] * 3
    before = [path.read_bytes() for path in sorted(folder_of(cut).glob("*.json"))]
    done = llmbench(cut, "compare", "--resume", folder_of(cut))  # nothing is left to do
    assert "3 of 3 runs are kept whole" in done.stderr
    assert [path.read_bytes() for path in sorted(folder_of(cut).glob("*.json"))] == before
    assert "model-c" in done.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "it has no suite.plan"),
        ("{", "no plan of a suite"),
        ("[]", "its version is not 1"),
        ('{"version": 1, "cells": [{"options": {"model": 3, "plan": {}}, "words": "", "suffix": "", "file": null}]}', "options.model"),
        (
            '{"version": 1, "cells": [{"options": {"model": "m", "plan": {}}, "words": "", "suffix": "", "file": "../x.json"}]}',
            "no run file's name",
        ),
        ('{"version": 1, "cells": []}', "there is nothing in it"),
    ],
)
def test_a_folder_that_is_no_suites(tmp_path: Path, text: str | None, words: str) -> None:
    from llmbench.grid import reopen

    if text is not None:
        (tmp_path / NAME).write_text(text)
    with pytest.raises(UsageError, match=words) as caught:
        reopen(tmp_path, Options(""))
    assert "\n" not in str(caught.value)


def test_resuming_takes_away_no_run_file_that_it_can_not_read(tmp_path: Path) -> None:
    write(tmp_path, shape("small-one"), shape("small-two"))
    assert llmbench(tmp_path, "compare", "--suite", "mine.toml", "-q").returncode == 0
    first, second = sorted(folder_of(tmp_path).glob("*.json"))
    first.write_text("not a run")
    done = llmbench(tmp_path, "compare", "--resume", folder_of(tmp_path))
    assert done.returncode == 2
    assert f"{first.name}: not JSON that llmbench reads" in done.stderr
    assert "take it out of the way" in done.stderr
    assert first.read_text() == "not a run"
    first.unlink()
    data = json.loads(second.read_text())
    data["rows"][0]["blocks"], data["finished_at"], data["model"]["identity"] = [], None, "another"
    second.write_text(json.dumps(data))
    done = llmbench(tmp_path, "compare", "--resume", folder_of(tmp_path))
    assert done.returncode == 2
    assert f"{second.name}: this run can't be resumed: its checkpoint was another" in done.stderr


def test_a_shape_is_kept_in_checkpoints_and_nowhere_else(tmp_path: Path) -> None:
    from llmbench.checkpoints.errors import CheckpointError
    from llmbench.checkpoints.fetch import from_shape

    with pytest.raises(CheckpointError, match="a shape can't be called"):
        from_shape("../../outside", CONFIG, home=tmp_path)
    assert list(tmp_path.iterdir()) == []
    found = from_shape("inside", CONFIG, home=tmp_path)
    assert Path(found.ref.path).parent == tmp_path / "checkpoints"
    assert from_shape("inside", {**CONFIG, "num_hidden_layers": 3}, home=tmp_path).ref.path != found.ref.path


def test_a_trace_is_written_beside_the_run_file_and_said_where_there_is_none(tmp_path: Path) -> None:
    fixed = ("--model", tiny_folder(tmp_path), "--load-format", "dummy", "--input-len", 4, "-n", 4, "--quick", "--num-iters", 1)
    done = llmbench(tmp_path, "compare", *fixed, "--engines", "eager,fake", "--profile")
    assert done.returncode == 0, done.stderr
    (path,) = run_files(tmp_path)
    eager, fake = load(path).rows
    assert eager.blocks[0].trace == f"{path.stem}.traces/0-eager.json.gz"
    with gzip.open(path.parent / str(eager.blocks[0].trace)) as file:
        assert any("aten::" in event.get("name", "") for event in json.load(file)["traceEvents"])
    assert fake.blocks[0].trace is None
    assert "fake: no trace: this engine writes no trace" in done.stderr


def test_a_fault_of_our_own_in_one_run_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from llmbench import grid
    from llmbench.protocol import Plan
    from llmbench.views.progress import Silent

    options = Options(
        str(tiny_folder(tmp_path)), engines="fake", load_format="dummy", home=tmp_path, plan=Plan(rounds=1, num_iters=1, num_iters_warmup=1)
    )
    suite = grid.settle(grid.expand(options, {"max_new_tokens": "2,3", "input_len": "4"}))
    original = grid.execute

    def broken(prepared: Any, *arguments: Any) -> Any:
        if prepared.run.request.max_new_tokens == 2:
            raise KeyError("broken")
        return original(prepared, *arguments)

    monkeypatch.setattr(grid, "execute", broken)
    grid.measure(suite, Silent(), lambda words, prepared: None)
    assert suite.failures == ["2 new tokens: KeyError: 'broken'"]
    assert suite.folder is not None
    assert [run.request.max_new_tokens for run in runs_in(suite.folder)] == [3]
    assert "Traceback" in capsys.readouterr().err
    assert [row.status for run in suite.runs if run.request.max_new_tokens == 3 for row in run.rows] == [Status.OK]
    assert suite.exit_code == 3


def test_what_needs_cuda_is_an_unavailable_row_on_the_cpu(tmp_path: Path) -> None:
    write(tmp_path, shape("small-one"))
    done = llmbench(tmp_path, "compare", "--suite", "mine.toml", "--engines", "fake,cudagraphs", "--device", "cpu", "-q")
    assert done.returncode == 3, done.stderr
    (run,) = runs_in(folder_of(tmp_path))
    assert [row.status for row in run.rows] == [Status.OK, Status.UNAVAILABLE]
    assert "does not run on cpu" in str(run.rows[1].reason)
