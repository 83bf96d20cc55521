"""The run file: whole or absent, and read with distrust."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmbench.protocol import Bandwidth, Block, Machine, Memory, Model, Plan, Request, Row, Run, Sample, Status, Variant, encode
from llmbench.results.files import MAX_BYTES, RunFileError, load, logs_of, reserve, save


def a_run() -> Run:
    block = Block(
        round=0,
        samples=[Sample("sample", 0.5, (8,), "ab" * 32)],
        memory=Memory(steady_peak_bytes=5),
        bandwidth=[Bandwidth(30.0)],
        ids=[[1, 2]],
    )
    row = Row(Variant("eager", "eager", "float32"), blocks=[block])
    failed = Row(Variant("fake[noise=0.5]", "fake", "float32", options={"noise": 0.5}), Status.CRASHED, "ended by SIGSEGV")
    return Run("id", Model("m", "s", "p", "a", "float32"), Request((1, 2), 8), Plan(), Machine(), 2, "float32", [row, failed])


def test_what_is_written_is_read(tmp_path: Path) -> None:
    save(a_run(), tmp_path / "run.json")
    assert load(tmp_path / "run.json") == a_run()
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_field_of_a_newer_version_is_passed_over(tmp_path: Path) -> None:
    data = encode(a_run()) | {"mood": "good"}
    data["rows"][0]["blocks"][0]["colour"] = 3
    (tmp_path / "run.json").write_text(json.dumps(data))
    assert load(tmp_path / "run.json") == a_run()


def test_two_runs_of_one_second_have_names_of_their_own(tmp_path: Path) -> None:
    paths = [reserve(tmp_path / "results", "2026-01-02T03:04:05+00:00", "a/b c") for _ in range(3)]
    assert [path.name for path in paths] == ["20260102-030405-b-c.json", "20260102-030405-b-c-2.json", "20260102-030405-b-c-3.json"]
    assert all(logs_of(path).is_dir() for path in paths)


def mutated(change: str) -> Any:
    data = encode(a_run())
    sample = data["rows"][0]["blocks"][0]["samples"][0]
    if change == "wrong type":
        sample["wall_s"] = "fast"
    elif change == "zero seconds":
        sample["wall_s"] = 0.0
    elif change == "negative bandwidth":
        data["rows"][0]["blocks"][0]["bandwidth"][0]["gb_per_s"] = -1.0
    elif change == "unknown status":
        data["rows"][1]["status"] = "splendid"
    elif change == "no tokens":
        data["request"]["max_new_tokens"] = 0
    elif change == "missing":
        del data["machine"]
    elif change == "newer":
        data["schema_version"] = 999
    elif change == "version of another type":
        data["schema_version"] = True
    elif change == "list":
        data = [data]
    return data


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("wrong type", "wall_s"),
        ("zero seconds", "wall_s of 0.0 s"),
        ("negative bandwidth", "gb_per_s"),
        ("unknown status", "status"),
        ("no tokens", "max_new_tokens"),
        ("missing", "machine"),
        ("newer", "newer llmbench"),
        ("version of another type", "no schema_version"),
        ("list", "not a JSON object"),
    ],
)
def test_a_wrong_file_gets_one_line(tmp_path: Path, change: str, words: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(mutated(change)))
    with pytest.raises(RunFileError, match=words) as error:
        load(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"schema_version": NaN, "rows": []}',
        b'{"a": 1e999}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
    ids=["empty", "cut", "not text", "NaN", "infinite", "deep lists", "deep objects", "a number of 5000 digits"],
)
def test_hostile_text_gets_one_line(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(text)
    with pytest.raises(RunFileError) as error:
        load(path)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(RunFileError, match="no run file"):
        load(path)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match="No such file"):
        load(tmp_path / "none.json")
    with pytest.raises(RunFileError, match="directory"):
        load(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """On a file system with no room for the new text, the file stays as it was and nothing else is left."""
    script = (
        "import sys; from pathlib import Path; from llmbench.results.files import *; sys.path.insert(0, sys.argv[2])\n"
        "from test_files import a_run; run = a_run(); folder = Path(sys.argv[1])\n"
        "save(run, folder / 'run.json'); run.notes.append('x' * 200_000)\n"
        "try: save(run, folder / 'run.json')\n"
        "except RunFileError as error: print(error)\n"
        "print(load(folder / 'run.json') == a_run(), [path.name for path in folder.iterdir()])\n"
    )
    command = f'mount -t tmpfs -o size=64k none {tmp_path} && exec {sys.executable} -c "$0" {tmp_path} {Path(__file__).parent}'
    done = subprocess.run(["unshare", "-rm", "sh", "-c", command, script], capture_output=True, text=True, timeout=60)
    if done.returncode and "unshare" in done.stderr:
        pytest.skip(f"no user namespaces here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    message, state = done.stdout.strip().splitlines()
    assert "No space left" in message
    assert state == "True ['run.json']"


@pytest.mark.parametrize("place", ["request", "report", "memory", "config"])
def test_absurd_integers_and_shapes_get_one_line(tmp_path: Path, place: str) -> None:
    data = encode(a_run())
    block = data["rows"][0]["blocks"][0]
    huge = 10**400
    if place == "request":
        data["request"]["max_new_tokens"] = huge
    elif place == "report":
        block["report"] = {"storage_dtype": "a", "arithmetic_dtype": "b", "weights_bytes": huge}
    elif place == "memory":
        block["memory"]["steady_peak_bytes"] = huge
    else:
        data["model"]["config"] = {"architecture": "LlamaForCausalLM", "hidden": "wide"}
    path = tmp_path / "run.json"
    path.write_text(json.dumps(data))
    with pytest.raises(RunFileError) as error:
        load(path)
    assert "\n" not in str(error.value)


def test_a_figure_that_is_no_number_is_a_write_error(tmp_path: Path) -> None:
    run = a_run()
    run.noise_floor = float("nan")
    with pytest.raises(RunFileError, match="can't be written"):
        save(run, tmp_path / "run.json")
