"""`llmbench cache` beside a command that builds, and one that measures."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tiny import environment, interruptible, llmbench, tiny_folder


@contextmanager
def running(home: Path, *arguments: object, until: str) -> Iterator[None]:
    """The command, once a line of its stderr contains `until`; ended by Ctrl-C."""
    fixed = ("--model", tiny_folder(home), "--load-format", "dummy", "--input-len", 4, "--max-new-tokens", 8)
    command = [sys.executable, "-m", "llmbench", *map(str, (*arguments, *fixed))]
    with subprocess.Popen(
        command, cwd=home, env=environment(home), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, preexec_fn=interruptible
    ) as process:
        assert process.stderr is not None
        assert any(until in line for line in process.stderr), f"it ended before it said {until!r}"
        try:
            yield
            assert process.poll() is None
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
    assert process.returncode == 130


def test_beside_a_build(tmp_path: Path) -> None:
    """What is half built is told as that, and neither pruned nor removed."""
    with running(tmp_path, "build", "--engine", "fake[artifact_bytes=3000,build_s=600]", until="building the artifact"):
        (entry,) = json.loads(llmbench(tmp_path, "cache", "ls", "-f", "json").stdout)["entries"]
        assert (entry["kind"], entry["busy"]) == ("leftover", True)
        assert "being built or removed" in llmbench(tmp_path, "cache", "ls", COLUMNS="200").stdout
        assert "removed 0 entries" in llmbench(tmp_path, "cache", "prune", "--max-size", "0b", "--aside").stdout
        assert Path(entry["path"]).is_dir()
    done = llmbench(tmp_path, "cache", "ls")
    assert "holds no artifacts" in done.stdout


def test_beside_a_measurement(tmp_path: Path) -> None:
    """What a block has loaded stays; verify and export only read, so they may."""
    slow = "fake[artifact_bytes=3000,tokens_per_s=0.01]"
    arguments = ("--model", tiny_folder(tmp_path), "--load-format", "dummy", "--input-len", 4, "--max-new-tokens", 8)
    assert llmbench(tmp_path, "build", "--engine", slow, *arguments).returncode == 0
    with running(tmp_path, "compare", "--engines", slow, "--quick", until="reuses engines/fake/"):
        (entry,) = json.loads(llmbench(tmp_path, "cache", "ls", "-f", "json").stdout)["entries"]
        assert (entry["kind"], entry["busy"]) == ("artifact", True)
        done = llmbench(tmp_path, "cache", "rm", entry["key"])
        assert (done.returncode, done.stdout.partition(":")[0]) == (1, f"left fake/{entry['key']} ({entry['bytes'] / 1024:.2f} KiB)")
        assert "removed 0 entries" in llmbench(tmp_path, "cache", "prune", "--max-size", "0b").stdout
        assert llmbench(tmp_path, "cache", "verify").returncode == 0
        assert llmbench(tmp_path, "cache", "export", entry["key"], "-o", "out.tar").returncode == 0
        assert (Path(entry["path"]) / "weights.bin").stat().st_size == 3000
    assert llmbench(tmp_path, "cache", "rm", entry["key"]).returncode == 0
