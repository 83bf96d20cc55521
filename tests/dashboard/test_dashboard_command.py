"""`llmbench dashboard`: what it writes, what it says of bad input, and --watch."""

import json

import pytest
from make_history import GPUS, make_run, write_runs
from typer.testing import CliRunner

from llmbench.cli import app
from llmbench.commands.dashboard import keep_writing
from llmbench.dashboard.parts import Choices


@pytest.fixture
def folder(tmp_path):
    write_runs(tmp_path / "runs", [make_run(gpu, "phi-2", 0, 1) for gpu in GPUS])
    return tmp_path / "runs"


def call(*arguments):
    return CliRunner().invoke(app, ["dashboard", *map(str, arguments)])


def test_it_writes_html_and_markdown_by_the_name(folder, tmp_path):
    for suffix, begins in (("html", "<!DOCTYPE html>"), ("md", "### Which engine is fastest: phi-2")):
        result = call(folder, "-o", tmp_path / f"report.{suffix}")
        assert result.exit_code == 0, result.output
        assert (tmp_path / f"report.{suffix}").read_text().lstrip().startswith(begins)


def test_a_single_run_is_answered_in_its_headline(tmp_path):
    write_runs(tmp_path, [make_run(GPUS[1], "phi-2", 19, 20)])
    assert call(tmp_path, "-o", tmp_path / "report.md").exit_code == 0
    told = (tmp_path / "report.md").read_text().splitlines()[2]
    assert "torch-compile 1." in told
    assert "95 % interval" in told
    assert GPUS[1].name in told


def test_files_that_are_no_runs_are_named_and_the_page_is_written(folder, tmp_path):
    (folder / "notes.json").write_text("{}")
    result = call(folder, "-o", tmp_path / "report.html")
    assert result.exit_code == 3
    assert "notes.json" in result.output
    assert "notes.json" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nowhere"], 1, "nowhere: no such file or folder"),
        (["{folder}", "-o", "report.pdf"], 2, ".html and .md can be written"),
        (["{folder}", "-o", "{folder}/none/report.html"], 2, "there is no such folder"),
        (["{folder}", "--flag-speedup", "nan"], 2, "flags nothing"),
        (["{empty}", "-o", "{empty}/report.html"], 1, "no run files"),
    ],
)
def test_bad_input_gets_one_line_and_writes_nothing(folder, tmp_path, arguments, code, words):
    empty = tmp_path / "empty"
    empty.mkdir()
    result = call(*(word.format(folder=folder, empty=empty) for word in arguments))
    assert result.exit_code == code
    assert words in result.output
    assert "Traceback" not in result.output
    assert not list(tmp_path.rglob("report.*"))


def test_worst_and_limits_are_the_readers(folder, tmp_path):
    write_runs(folder / "suite", [make_run(GPUS[0], model, 0, 1) for model in ("llama-2-7b", "phi-3-mini")])
    output = tmp_path / "report.md"
    assert (
        call(folder, "-o", output, "--worst", "1", "--flag-compile", "10", "--flag-compression", "0", "--flag-speedup", "0").exit_code == 0
    )
    text = output.read_text()
    assert "The worst 1 model by each metric" in text
    flagged = text.partition("Flagged: ")[2].partition("###")[0]
    assert "over 10 s of compiling" in flagged
    assert "compile time" in flagged
    assert "| speedup |" not in flagged


def test_watching_writes_again_when_a_run_comes_and_not_otherwise(folder, tmp_path):
    output = tmp_path / "report.md"
    told = []

    def pause():
        told.append(output.read_text())
        if len(told) == 2:
            (folder / "late.json").write_text(json.dumps({"half": "written"}))
        if len(told) == 3:
            write_runs(folder / "suite", [make_run(GPUS[0], "phi-3-mini", 0, 1)])
        return len(told) < 4

    assert keep_writing([folder], output, Choices(), pause) == 3
    assert told[0] == told[1]
    assert "Not read" in told[2]
    assert "late.json" in told[2]
    assert "phi-3-mini" in told[3]
    assert "phi-3-mini" not in told[2]
