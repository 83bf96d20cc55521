"""`llmbench build` as users call it, and that a run finds what it built."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny import compare, environment, interruptible, llmbench, run_files, tiny_folder

from llmbench.results.files import load

ONE = "fake[artifact_bytes=3000]"


def arguments(home: Path, engine: str, *more: object) -> tuple[object, ...]:
    """The same request as tiny.compare's."""
    fixed = ("--model", tiny_folder(home), "--load-format", "dummy", "--engine", engine, "--input-len", 4, "--max-new-tokens", 8)
    return ("build", *fixed, *more)


def build(home: Path, engine: str, *more: object, **variables: str) -> subprocess.CompletedProcess[str]:
    return llmbench(home, *arguments(home, engine, *more), **variables)


def outcomes(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def beside_locks(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "engines/fake").iterdir() if path.suffix != ".lock")


def test_built_then_found_then_loaded_by_a_run(tmp_path: Path) -> None:
    """The run's job is settled in the same way, so its key is the same; the run file and the table say that it was there."""
    done = build(tmp_path, ONE, "--format", "json")
    assert done.returncode == 0, done.stderr
    assert "building the artifact of fake[artifact_bytes=3000], kept for later runs" in done.stderr
    (first,) = outcomes(done)
    place = tmp_path / "engines/fake" / first["key"]
    assert first["path"] == str(place)
    assert (first["status"], first["hit"], first["bytes"], first["targets"]) == ("ok", False, 3000, ["any"])
    assert first["build_s"] > 0
    assert (place / "weights.bin").stat().st_size == 3000
    done = build(tmp_path, ONE)
    assert done.returncode == 0
    assert "found, built before" in done.stdout
    assert f"fake/{first['key']}" in done.stdout.replace("\n", "").replace("    ", "")
    assert "2.93 KiB, for any" in done.stdout
    done = compare(tmp_path, ONE, "--quick", "--num-iters", 1)
    assert done.returncode == 0, done.stderr
    assert f"reuses engines/fake/{first['key']}" in " ".join(done.stdout.split())
    (path,) = run_files(tmp_path)
    (block,) = load(path).rows[0].blocks
    assert block.artifact is not None
    assert (block.artifact.key, block.artifact.hit) == (first["key"], True)


def test_for_hardware_that_is_not_here(tmp_path: Path) -> None:
    """No GPU is asked for, an alias means the same card, and what is built for two serves one."""
    done = build(tmp_path, ONE, "--target", "rtx-4090,RTX 3090,4090", "--format", "json")
    assert done.returncode == 0, done.stderr
    (both,) = outcomes(done)
    assert both["targets"] == ["rtx-3090", "rtx-4090"]
    (one,) = outcomes(build(tmp_path, ONE, "--target", "4090", "--format", "json"))
    assert (one["key"], one["hit"]) == (both["key"], True)
    (here,) = outcomes(build(tmp_path, ONE, "--format", "json"))
    assert (here["targets"], here["hit"]) == (["any"], False)


def test_a_changed_weight_is_built_anew(tmp_path: Path) -> None:
    """Real weights on disk, one bit of which changes."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "checkpoints"))
    from small_checkpoints import write_small

    folder = write_small(tmp_path / "small")
    call = ("build", "--model", folder, "--engine", ONE, "--input-len", 4, "--max-new-tokens", 8, "--format", "json", "-q")
    keys = []
    for change in (False, False, True):
        if change:
            content = bytearray((folder / "model.safetensors").read_bytes())
            content[-1] ^= 1
            (folder / "model.safetensors").write_bytes(content)
        done = llmbench(tmp_path, *call)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        keys += [(outcome["key"], outcome["hit"]) for outcome in outcomes(done)]
    assert [hit for _, hit in keys] == [False, True, False]
    assert keys[0][0] == keys[1][0] != keys[2][0]


def test_some_and_none(tmp_path: Path) -> None:
    """Exit codes as compare's, each variant with its reason and the log of what failed."""
    failing = "fake[artifact_bytes=10,fault=error,fault_at=build]"
    done = build(tmp_path, f"{ONE},{failing},fake,eager", "--format", "json")
    assert done.returncode == 3
    good, failed, bare, eager = outcomes(done)
    assert (good["status"], failed["status"]) == ("ok", "build_failed")
    assert "told to fail" in failed["reason"]
    assert "Traceback" in Path(failed["log"]).read_text()
    assert failed["log"] in done.stderr
    assert (bare["status"], bare["reason"]) == ("unsupported", "fake builds nothing with these options")
    assert (eager["status"], eager["reason"]) == ("unsupported", "eager builds nothing that could be kept")
    assert beside_locks(tmp_path) == [good["key"]]
    done = build(tmp_path, failing)
    assert done.returncode == 1
    assert "build failed" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("engine", "more", "why"),
    [
        ("fkae", (), "unknown engine 'fkae'; did you mean fake"),
        ("fake[colour=red]", (), "fake has no option 'colour'"),
        (ONE, ("--max-new-tokens", 100), "context of 64"),
        (ONE, ("--batch-size", 0), "--batch-size must be at least 1"),
        (ONE, ("--device", "tpu"), "device 'tpu' is not supported"),
        (ONE, ("--format", "xml"), "there are table and json"),
        (ONE, ("--target", ","), "--target names nothing"),
        ("eager", ("--target", "rtx-4090"), "eager builds for the device that is here and no other"),
        (ONE, ("--target", "rtx-4091"), "unknown hardware 'rtx-4091'; did you mean"),
    ],
)
def test_what_cannot_be_asked_for(tmp_path: Path, engine: str, more: tuple[object, ...], why: str) -> None:
    """One line, exit code 2, nothing written."""
    done = build(tmp_path, engine, *more)
    assert done.returncode == 2, done.stderr
    assert why in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2, "a look at the machine may be told before"
    assert done.stdout == ""
    assert not (tmp_path / "engines").exists()


def test_of_two_at_once_one_builds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "llmbench", *map(str, arguments(tmp_path, "fake[artifact_bytes=3000,build_s=1]", "-f", "json", "-q"))]
    both = [subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, text=True) for _ in range(2)]
    found = [json.loads(process.communicate(timeout=120)[0])[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(one["hit"] for one in found) == [False, True]
    assert beside_locks(tmp_path) == [found[0]["key"]]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_while_building(tmp_path: Path, number: signal.Signals) -> None:
    """Exit code 130, one line, and nothing half-built."""
    command = [sys.executable, "-m", "llmbench", *map(str, arguments(tmp_path, "fake[artifact_bytes=3000,build_s=600]"))]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(tmp_path),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=interruptible,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("building the artifact"):
                break
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip() == "llmbench: interrupted; what was complete is kept, the rest is gone"
    assert beside_locks(tmp_path) == []


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "engines").mkdir()
    words = " ".join(f"'{word}'" for word in arguments(tmp_path, "fake[artifact_bytes=3000000]"))
    script = f"mount -t tmpfs -o size=1m,mode=755 none {tmp_path}/engines && {sys.executable} -m llmbench {words}; code=$?; "
    script += f"ls -A {tmp_path}/engines/fake | wc -l; exit $code"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    if "unshare:" in done.stderr:
        pytest.skip(f"no user namespaces here: {done.stderr.strip()}")
    assert done.returncode == 1, done.stderr
    assert "no room for the artifact of fake: " in done.stdout
    assert "llmbench cache prune" in " ".join(done.stdout.split())
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].strip() == "0"


def test_a_broken_one_is_told_and_built_anew(tmp_path: Path) -> None:
    (first,) = outcomes(build(tmp_path, ONE, "--format", "json"))
    os.truncate(tmp_path / "engines/fake" / first["key"] / "weights.bin", 5)
    done = build(tmp_path, ONE, "--format", "json")
    assert done.returncode == 0
    assert "is set aside in" in done.stderr
    assert "'weights.bin' has 5 bytes, 3000 were written" in done.stderr
    assert outcomes(done)[0]["hit"] is False
    shutil.rmtree(tmp_path / "engines/fake/.aside")
