"""`llmbench compare` as a user calls it: real processes, the fake engine, real faults."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import compare, environment, interruptible, llmbench, run_files, tiny_folder

from llmbench.protocol import Status
from llmbench.results.files import load

QUICK = ("--rounds", 2, "--num-iters", 2, "--num-iters-warmup", 1)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    home = tmp_path_factory.mktemp("good")
    return home, compare(home, "fake[tokens_per_s=100],fake[tokens_per_s=400]", *QUICK, "--baseline", "fake[tokens_per_s=100]")


def test_a_good_run_is_shown_and_kept(good: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    home, done = good
    assert done.returncode == 0, done.stderr
    assert "fake[tokens_per_s=400]" in done.stdout
    (path,) = run_files(home)
    assert str(path) in done.stderr
    assert path.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"
    run = load(path)
    assert run.finished_at
    assert [len(row.blocks) for row in run.rows] == [2, 2]
    for row in run.rows:
        assert row.status is Status.OK
        for block in row.blocks:
            assert [len(block.of_kind(kind)) for kind in ("warmup", "first_token", "sample")] == [1, 2, 2]
            assert [len(sequence) for sequence in block.ids or []] == [8]
            assert (path.parent / (block.log or "")).is_file()
    assert [block.cold for block in run.rows[0].blocks] == [True, False]
    assert run.request.prompt_ids == load(path).request.prompt_ids
    assert len(run.request.prompt_ids) == 4


def test_tokens_per_s_follow_from_the_raw_samples(good: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    home, _ = good
    (path,) = run_files(home)
    raw = json.loads(path.read_text())
    shown = json.loads(llmbench(home, "show", path, "--format", "json").stdout)
    all_medians = []
    for row, figures in zip(raw["rows"], shown["summary"], strict=True):
        medians = [
            statistics.median(
                raw["request"]["max_new_tokens"] / sample["wall_s"] for sample in block["samples"] if sample["kind"] == "sample"
            )
            for block in row["blocks"]
        ]
        assert figures["tokens_per_s"] == pytest.approx(statistics.median(medians))
        all_medians.append(medians)
    ratios = [fast / slow for slow, fast in zip(*all_medians, strict=True)]
    assert shown["summary"][1]["speedup"] == pytest.approx(statistics.geometric_mean(ratios))


def test_every_format_has_the_same_rows(good: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    home, _ = good
    (path,) = run_files(home)
    for name in ("table", "markdown", "csv", "jsonl", "json"):
        done = llmbench(home, "show", path, "--format", name)
        assert done.returncode == 0, done.stderr
        assert "tokens_per_s=400" in done.stdout.replace("\\", "")
        assert done.stderr == ""
    assert llmbench(home, "plot", path, "-o", "bars.svg").returncode == 0
    assert (home / "bars.svg").read_text().lstrip().startswith("<?xml")


def test_a_failed_row_leaves_the_other_whole(tmp_path: Path) -> None:
    done = compare(
        tmp_path, "fake[fault=kill],fake[fault=hang,fault_at=load],fake[fault=short,fault_at=load],fake", *QUICK, "--timeout", "2"
    )
    assert done.returncode == 3, done.stderr
    (path,) = run_files(tmp_path)
    run = load(path)
    assert [row.status for row in run.rows] == [Status.CRASHED, Status.TIMED_OUT, Status.WRONG_COUNT, Status.OK]
    assert "SIGKILL" in (run.rows[0].reason or "")
    assert "7 new ids came back instead of 8" in (run.rows[2].reason or "")
    assert [len(block.of_kind("sample")) for block in run.rows[3].blocks] == [2, 2]
    assert len(run.rows[0].blocks) == 1  # not tried again
    assert "SIGKILL" in done.stdout


def test_nothing_measured(tmp_path: Path) -> None:
    done = compare(tmp_path, "fake[fault=vocabulary]", *QUICK)
    assert done.returncode == 1
    (path,) = run_files(tmp_path)
    assert load(path).rows[0].status is Status.WRONG_COUNT
    assert not path.with_suffix(".png").exists() or load(path).rows[0].blocks[0].of_kind("sample")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_and_shows_what_was_measured(tmp_path: Path, number: signal.Signals) -> None:
    model = tiny_folder(tmp_path)
    engines = "fake,fake[tokens_per_s=0.01]"
    command = [sys.executable, "-m", "llmbench", "compare", "--model", model, "--load-format", "dummy", "--engines", engines]
    command += [
        "--input-len",
        "4",
        "--max-new-tokens",
        "8",
        "--rounds",
        "2",
        "--num-iters",
        "1",
        "--seed",
        _seed_with_first("fake", engines),
    ]
    process = subprocess.Popen(
        command,
        env=environment(tmp_path),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=interruptible,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("round 1 of 2  fake "):
            break
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "fake" in out
    (path,) = run_files(tmp_path)
    run = load(path)
    assert run.interrupted
    assert run.rows[0].status is Status.OK
    assert len(run.rows[0].blocks) == 1


def _seed_with_first(label: str, engines: str) -> str:
    """A seed under which `label` comes first in round 0."""
    import random

    for seed in range(100):
        order = engines.split(",")
        random.Random(f"{seed}/0").shuffle(order)
        if order[0] == label:
            return str(seed)
    raise AssertionError


def test_a_killed_parent_leaves_a_whole_run_file(tmp_path: Path) -> None:
    model = tiny_folder(tmp_path)
    engines = "fake,fake[tokens_per_s=0.01]"
    command = [sys.executable, "-m", "llmbench", "compare", "--model", model, "--load-format", "dummy", "--engines", engines]
    command += [
        "--input-len",
        "4",
        "--max-new-tokens",
        "8",
        "--rounds",
        "2",
        "--num-iters",
        "1",
        "--seed",
        _seed_with_first("fake", engines),
    ]
    process = subprocess.Popen(command, env=environment(tmp_path), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("round 1 of 2  fake "):
            break
    process.kill()
    process.communicate(timeout=60)
    (path,) = run_files(tmp_path)
    run = load(path)
    assert run.finished_at is None
    assert len(run.rows[0].blocks) == 1
    assert run.rows[0].blocks[0].of_kind("sample")


def test_a_time_budget_cuts_and_says_so(tmp_path: Path) -> None:
    done = compare(tmp_path, "fake", "--rounds", 1000, "--num-iters", 3, "--num-iters-warmup", 1, "--time-budget", "3s")
    assert done.returncode == 0, done.stderr
    (path,) = run_files(tmp_path)
    run = load(path)
    assert 1 <= len(run.rows[0].blocks) < 1000
    assert any("time budget of 3 s" in note for note in run.notes)


def test_another_interpreter_runs_an_engine(tmp_path: Path) -> None:
    """--python: here the same interpreter behind a wrapper without site-packages."""
    wrapper = tmp_path / "bare-python"
    wrapper.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    wrapper.chmod(0o755)
    done = compare(tmp_path, "fake", "--python", f"fake={wrapper}", "--rounds", 1)
    assert done.returncode == 0, done.stderr + done.stdout


# ------------------------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--engines", "egaer"), "did you mean eager"),
        (("--engines", "eager[mode"), "can't read"),
        (("--max-new-tokens", "0"), "--max-new-tokens must be at least 1"),
        (("--max-new-tokens", "61"), "context of 64"),
        (("--batch-size", "-1"), "--batch-size"),
        (("--rounds", "0"), "--rounds"),
        (("--num-iters", "0"), "--num-iters"),
        (("--temperature", "nan"), "--temperature"),
        (("--top-k", "5"), "--top-k needs --temperature"),
        (("--prompt", "x"), "give one of"),
        (("--dtype", "int4"), "unknown dtype 'int4'"),
        (("--device", "mps"), "'mps' is not supported"),
        (("--device", "cuda:x"), "'cuda:x' is not supported"),
        (("--time-budget", "soon"), "no duration"),
        (("--load-format", "pickle"), "unknown --load-format"),
        (("--python", "fake"), "ENGINE=PATH"),
        (("--python", "nope=/bin/true"), "unknown engine 'nope'"),
        (("--baseline", "eager"), "not among what is run"),
        (("--format", "xml"), "table, markdown"),
        (("--output", "no/such/folder/x"), "no such folder"),
        (("--chart", "x.gif"), ".png and .svg"),
    ],
)
def test_a_usage_error_is_one_line_and_measures_nothing(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = compare(tmp_path, "fake", "--dry-run", *arguments)
    assert done.returncode == 2, done.stderr + done.stdout
    assert words in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr
    assert not run_files(tmp_path)


def test_a_device_that_is_not_here(tmp_path: Path) -> None:
    done = compare(tmp_path, "fake", "--device", "cuda:99")
    assert done.returncode == 2
    assert "'cuda:99' is not here" in done.stderr
    assert not run_files(tmp_path)


def test_an_unknown_model_gets_near_matches(tmp_path: Path) -> None:
    done = llmbench(tmp_path, "compare", "--model", "smolm2-135m", "--dry-run")
    assert done.returncode == 1
    assert "smollm2-135m" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("place", ["a file", "no permission"])
def test_a_place_that_cannot_keep_results_is_told_first(tmp_path: Path, place: str) -> None:
    if place == "a file":
        (tmp_path / "results").write_text("")
    elif os.geteuid() == 0:
        (tmp_path / "results").symlink_to("/proc/self")  # root may write anywhere but there
    else:
        (tmp_path / "results").mkdir(mode=0o500)
    done = compare(tmp_path, "fake", "--dry-run")
    assert done.returncode == 1
    assert "results can't be written" in done.stderr


def test_a_dry_run_writes_nothing_and_imports_no_torch(tmp_path: Path) -> None:
    model = tiny_folder(tmp_path)
    script = (
        "import sys\nfrom llmbench.cli import app\n"
        f"sys.argv = ['llmbench', 'compare', '--model', {str(model)!r}, '--load-format', 'dummy', '--max-new-tokens', '8', '--dry-run']\n"
        "try:\n    app()\nexcept SystemExit as done:\n    assert not done.code, done.code\n"
        "heavy = {'torch', 'transformers', 'openvino', 'onnxruntime', 'tensorrt', 'tensorrt_llm'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "eager" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


# ------------------------------------------------------------------------------------------------------- interleaving, going on, lost files


def test_interleaved_samples_alternate(tmp_path: Path) -> None:
    done = compare(tmp_path, "fake,fake[tokens_per_s=500]", "--rounds", 1, "--num-iters", 4, "--interleave")
    assert done.returncode == 0, done.stderr
    (path,) = run_files(tmp_path)
    blocks = [row.blocks[0] for row in load(path).rows]
    assert [len(block.of_kind("sample")) for block in blocks] == [4, 4]
    assert all(block.ids for block in blocks)


def test_interleaved_faults_leave_the_other_row_whole(tmp_path: Path) -> None:
    done = compare(tmp_path, "fake[fault=kill],fake[fault=crash,fault_at=load],fake", *QUICK, "--interleave")
    assert done.returncode == 3, done.stderr
    (path,) = run_files(tmp_path)
    run = load(path)
    assert [row.status for row in run.rows] == [Status.CRASHED, Status.CRASHED, Status.OK]
    assert [len(block.of_kind("sample")) for block in run.rows[2].blocks] == [2, 2]


def cut_run(home: Path) -> Path:
    """A run of two variants and three rounds whose last rounds are missing, as a killed parent leaves it."""
    done = compare(home, "fake,fake[tokens_per_s=500]", "--rounds", 3, "--num-iters", 1, "--num-iters-warmup", 1)
    assert done.returncode == 0, done.stderr
    (path,) = run_files(home)
    data = json.loads(path.read_text())
    data["rows"][0]["blocks"] = data["rows"][0]["blocks"][:2]
    data["rows"][1]["blocks"] = data["rows"][1]["blocks"][:1]
    data["finished_at"] = None
    path.write_text(json.dumps(data))
    return path


def test_resume_measures_what_is_missing(tmp_path: Path) -> None:
    path = cut_run(tmp_path)
    before = load(path)
    done = llmbench(tmp_path, "compare", "--resume", path)
    assert done.returncode == 0, done.stderr
    assert "3 blocks are kept" in done.stderr
    run = load(path)
    assert run_files(tmp_path) == [path]
    assert [sorted(block.round for block in row.blocks) for row in run.rows] == [[0, 1, 2], [0, 1, 2]]
    assert run.rows[0].blocks[:2] == before.rows[0].blocks
    assert run.finished_at
    assert run.started_at == before.started_at


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (("request", "prompt_ids"), [1, 2, 3, 4], "its request was"),
        (("model", "identity"), "another", "its checkpoint was"),
        (("machine", "cpu"), "Another CPU", "its processor was"),
    ],
)
def test_resume_refuses_another_run(tmp_path: Path, key: tuple[str, ...], value: object, words: str) -> None:
    path = cut_run(tmp_path)
    data = json.loads(path.read_text())
    place = data
    for part in key[:-1]:
        place = place[part]
    place[key[-1]] = value
    path.write_text(json.dumps(data))
    before = path.read_bytes()
    done = llmbench(tmp_path, "compare", "--resume", path)
    assert path.read_bytes() == before
    assert done.returncode == 2, done.stderr
    assert words in done.stderr


def test_resume_takes_no_options_that_the_run_file_settles(tmp_path: Path) -> None:
    done = llmbench(tmp_path, "compare", "--resume", "run.json", "--rounds", 9, "--dtype", "float32")
    assert done.returncode == 2
    assert "--rounds and --dtype come from the run file" in done.stderr


def test_a_removed_results_folder_loses_nothing_measured(tmp_path: Path) -> None:
    """The folder goes while the second block runs; its run file is back at the end with all blocks."""
    model = tiny_folder(tmp_path)
    command = [sys.executable, "-m", "llmbench", "compare", "--model", model, "--load-format", "dummy", "--engines", "fake"]
    command += ["--input-len", "4", "--max-new-tokens", "8", "--rounds", "10", "--num-iters", "1"]
    process = subprocess.Popen(command, env=environment(tmp_path), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("round 1 of 10"):
            (tmp_path / "results").rename(tmp_path / "gone")  # at once: a removal races with what is being written
            break
    process.communicate(timeout=60)
    assert process.returncode == 0
    (path,) = run_files(tmp_path)
    assert len(load(path).rows[0].blocks) == 10


def test_a_checkpoint_that_changes_between_rounds_fails_the_rest(tmp_path: Path) -> None:
    model = tiny_folder(tmp_path)
    command = [sys.executable, "-m", "llmbench", "compare", "--model", model, "--load-format", "dummy", "--engines", "fake"]
    command += ["--input-len", "4", "--max-new-tokens", "8", "--rounds", "500", "--num-iters", "1"]
    process = subprocess.Popen(command, env=environment(tmp_path), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("round 1 of 500"):
            (model / "config.json").write_text((model / "config.json").read_text() + "\n")
            break
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the checkpoint changed" in out
    (path,) = run_files(tmp_path)
    row = load(path).rows[0]
    assert row.status is Status.LOAD_FAILED
    assert row.blocks[0].of_kind("sample")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_costs_the_file_and_not_the_measurement(tmp_path: Path) -> None:
    """On 64 KiB the run file can't grow any more after some blocks: it stays readable, measuring goes on, and the table has all."""
    model = tiny_folder(tmp_path)
    (tmp_path / "results").mkdir()
    arguments = f"compare --model {model} --load-format dummy --engines fake[tokens_per_s=1e6] --input-len 4 --max-new-tokens 8"
    arguments += " --rounds 30 --num-iters 3 --timeout 60"
    copy = tmp_path / "copy"
    script = (
        f"mount -t tmpfs -o size=64k none {tmp_path}/results && {{ {sys.executable} -m llmbench {arguments}; code=$?; "
        f"cp -r {tmp_path}/results {copy}; exit $code; }}"
    )
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    if "unshare:" in done.stderr:
        pytest.skip(f"no user namespaces here: {done.stderr.strip()}")
    assert done.returncode == 1, done.stderr
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr
    assert "30 rounds" in done.stdout
    (path,) = copy.glob("*.json")
    assert 1 <= len(load(path).rows[0].blocks) < 30


def test_weights_that_cannot_fit_are_told_before_loading(tmp_path: Path) -> None:
    """The row says the sizes; no worker is started for it."""
    model = tiny_folder(tmp_path)
    config = json.loads((model / "config.json").read_text()) | {"hidden_size": 16384, "intermediate_size": 65536, "num_hidden_layers": 200}
    (model / "config.json").write_text(json.dumps(config))
    arguments = ("--load-format", "dummy", "--engines", "eager,fake", "--input-len", 4, "--max-new-tokens", 8, "--rounds", 1)
    done = llmbench(tmp_path, "compare", "--model", model, *arguments)
    assert done.returncode == 3, done.stderr
    (path,) = run_files(tmp_path)
    rows = load(path).rows
    assert [row.status for row in rows] == [Status.OUT_OF_HOST_MEMORY, Status.OK]
    assert "GiB of weights in float32" in (rows[0].reason or "")
    assert rows[0].blocks == []


# ------------------------------------------------------------------------------------------------- what a newcomer's hour of breaking found


def test_auto_dtype_is_not_taken_for_one_that_a_variant_names(tmp_path: Path) -> None:
    """The tiny shape is float32: naming bfloat16 is a second row, naming float32 is the same row twice."""
    done = compare(tmp_path, "fake,fake[dtype=bfloat16]", "--dry-run")
    assert done.returncode == 0, done.stderr
    done = compare(tmp_path, "fake,fake[dtype=float32]", "--dry-run")
    assert done.returncode == 2
    assert "fake is named twice" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_stdout_is_one_line(tmp_path: Path) -> None:
    compare(tmp_path, "fake", "--rounds", 1)
    (path,) = run_files(tmp_path)
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "llmbench", "show", path]
        done = subprocess.run(command, env=environment(tmp_path), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.strip() == "llmbench: the output can't be written: No space left on device"


def test_an_absurd_input_len_is_refused_before_ids_are_drawn(tmp_path: Path) -> None:
    model = tiny_folder(tmp_path)
    fixed = ("--model", model, "--load-format", "dummy", "--engines", "fake", "--dry-run")
    done = llmbench(tmp_path, "compare", *fixed, "--input-len", 999_999_999_999, "--max-new-tokens", 8)
    assert done.returncode == 2
    assert "the prompt must be shorter" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--engines", "fake[bogus=1]"), "fake has no option 'bogus'"),
        (("--threads", "99999"), "this machine has"),
        (("--seed", "99999999999999999999999"), "--seed must be"),
        (("--python", "fake=/no/such/python"), "there is no such program"),
        (("--quick", "--rounds", "5"), "--quick is one round"),
    ],
)
def test_values_that_cannot_work_are_told_at_once(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = compare(tmp_path, "fake", "--dry-run", *arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr


def test_a_bad_file_hides_no_good_one(tmp_path: Path) -> None:
    compare(tmp_path, "fake", "--rounds", 1)
    (tmp_path / "bad.json").write_text("{")
    done = llmbench(tmp_path, "show", *run_files(tmp_path), tmp_path / "bad.json")
    assert done.returncode == 3
    assert "fake" in done.stdout
    assert "bad.json" in done.stderr
    assert llmbench(tmp_path, "show", tmp_path / "bad.json").returncode == 1


def test_a_cut_run_says_so_and_a_row_without_samples_is_not_ok(tmp_path: Path) -> None:
    path = cut_run(tmp_path)
    data = json.loads(path.read_text())
    data["rows"][1]["blocks"] = []
    path.write_text(json.dumps(data))
    done = llmbench(tmp_path, "show", path)
    assert done.returncode == 0
    assert "not measured" in done.stdout
    assert "not finished" in done.stdout


def test_folders_of_a_killed_parent_are_swept_by_the_next_run(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = tmp_path / f"llmbench-caches-{dead.pid}-abc"
    left.mkdir()
    alive = tmp_path / f"llmbench-caches-{os.getpid()}-abc"
    alive.mkdir()
    assert compare(tmp_path, "fake", "--rounds", 1, TMPDIR=str(tmp_path)).returncode == 0
    assert not left.exists()
    assert alive.exists()
