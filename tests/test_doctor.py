"""`llmbench doctor`: what it finds, broken libraries that are lines and no end, and nothing private in what it prints."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny import llmbench

from llmbench import doctor
from llmbench.engines.registry import UnknownEngine
from llmbench.views.doctor_page import page


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No bandwidth probe and no hub: neither is what the test is about."""
    answer = [{"device": "cpu", "gb_per_s": None, "reason": "not probed", "last_level_cache_bytes": None}]
    monkeypatch.setattr(doctor._Workers, "bandwidth", lambda *_: answer)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def interpreter(folder: Path, torch: str | None) -> str:
    """A Python without site-packages, with a torch of the given source."""
    modules = folder / "modules"
    if torch is not None:
        (modules / "torch").mkdir(parents=True)
        (modules / "torch/__init__.py").write_text(torch)
    wrapper = folder / "other-python"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH="{modules}" exec "{sys.executable}" -S "$@"\n')
    wrapper.chmod(0o755)
    return str(wrapper)


def engine(found: dict[str, Any], name: str) -> dict[str, Any]:
    (entry,) = (entry for entry in found["engines"] if entry["name"] == name)
    return dict(entry)


def test_the_commands_output(tmp_path: Path) -> None:
    done = llmbench(tmp_path, "doctor", "--format", "json", "-q", HF_TOKEN="hf_secretsecretsecret")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["machine"]["cpu_count"] >= 1
    assert engine(found, "eager")["versions"]["torch"] == found["interpreters"][0]["torch"]
    assert engine(found, "fake")["usable"]
    assert found["bandwidth"][0]["gb_per_s"] > 1
    assert [folder["bytes"] for folder in found["folders"][:3]] == [None] * 3
    assert found["hub"] == {**found["hub"], "reachable": None, "token": True}
    assert "secret" not in done.stdout
    text = page(found, 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "a token is set" in " ".join(text.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("torch", "reason", "remedy"),
    [
        (None, "'torch' is missing", "-m pip install torch"),
        ("raise OSError('libcudart.so.99: cannot open shared object file')", "libcudart.so.99", "--force-reinstall torch"),
        ("import os; os.kill(os.getpid(), 11)", "SIGSEGV", "--force-reinstall torch"),
        ("import sys; sys.exit(3)", "exit code 3", "--force-reinstall torch"),
    ],
)
def test_a_broken_torch_is_told(tmp_path: Path, quick: None, torch: str | None, reason: str, remedy: str) -> None:
    found = doctor.examine(home=tmp_path, engine="eager", python={"eager": interpreter(tmp_path, torch)})
    entry = engine(found, "eager")
    assert not entry["usable"]
    assert reason in entry["reason"]
    assert remedy in entry["remedy"]
    assert "other-python" in entry["remedy"]
    assert doctor.exit_code(found) == 1
    assert "not usable" in page(found)


def test_an_interpreter_that_does_not_start(tmp_path: Path, quick: None) -> None:
    found = doctor.examine(home=tmp_path, engine="fake", python={"fake": str(tmp_path / "none")})
    assert "can't be started" in engine(found, "fake")["reason"]
    assert engine(found, "fake")["remedy"].startswith("--python fake=PATH")
    assert "can't be started" in found["interpreters"][0]["fault"]


def test_an_engine_under_another_interpreter(tmp_path: Path, quick: None) -> None:
    found = doctor.examine(home=tmp_path, engine="fake", python={"fake": interpreter(tmp_path, None)})
    assert engine(found, "fake")["usable"]
    assert doctor.exit_code(found) == 0
    assert found["interpreters"][0] == {**found["interpreters"][0], "own": False, "torch": None, "fault": None}


def test_unknown_engines(tmp_path: Path, quick: None) -> None:
    for arguments in ({"engine": "egaer"}, {"python": {"egaer": "x"}}):
        with pytest.raises(UnknownEngine, match="did you mean eager"):
            doctor.examine(home=tmp_path, **arguments)  # type: ignore[arg-type]
    assert llmbench(tmp_path, "doctor", "--format", "xml").returncode == 2


# ------------------------------------------------------------------------------------------------------------------------------- privacy


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/ada/.cache/x", "~/.cache/x"),
        ("/home/ada: no", "~: no"),
        ("/home/adam/x", "/home/USER/x"),
        ("/Users/grace/x is missing", "/Users/USER/x is missing"),
        ("/data/ada/models", "/data/USER/models"),
        ("/data/adamant", "/data/adamant"),
        ("token hf_AbCdEfGhIjKl is bad", "token hf_*** is bad"),
        ("https://ada:pw@hub.example/x", "https://***@hub.example/x"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_private(text: str, expected: str) -> None:
    assert doctor.private(text, home="/home/ada", user="ada") == expected


def test_no_text_of_the_findings_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/srv/people/ada")
    assert doctor._private({"a": [{"b": "/srv/people/ada/x", "c": 3, "d": None}]}) == {"a": [{"b": "~/x", "c": 3, "d": None}]}


# ------------------------------------------------------------------------------------------------------------------------------ the rest


def test_sizes_of_folders(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/b").write_bytes(b"x" * 50)
    (tmp_path / "deep/link").symlink_to(tmp_path / "a")
    (tmp_path / "deep/circle").symlink_to(tmp_path)
    assert doctor.folder_size(tmp_path) == {"bytes": 150, "whole": True}
    assert doctor.folder_size(tmp_path, limit_s=-1) == {"bytes": 0, "whole": False}
    assert doctor.folder_size(tmp_path / "none") == {"bytes": None, "whole": True}


class Response(Exception):
    def __init__(self, status: int) -> None:
        super().__init__("no")
        self.response = SimpleNamespace(status_code=status)


@pytest.mark.parametrize(
    ("error", "reachable", "words"),
    [
        (None, True, "it answers"),
        (Response(429), True, "it answered 429"),
        (ConnectionError("no route\nto host"), False, "no route to host"),
    ],
)
def test_the_hub(monkeypatch: pytest.MonkeyPatch, error: Exception | None, reachable: bool, words: str) -> None:
    import huggingface_hub

    def model_info(self: Any, name: str, timeout: float) -> None:
        assert timeout <= 10
        if error is not None:
            raise error

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    found = doctor._hub(False, lambda text: None)
    assert found["reachable"] is reachable
    assert words in found["words"]
    assert doctor._hub(True, lambda text: None)["reachable"] is None


def test_a_gpu_that_torch_does_not_find_is_a_remark() -> None:
    gpu = {"name": "NVIDIA H200", "memory_bytes": 2**37, "free_bytes": 2**36}
    own = {"path": "python", "own": True, "fault": None, "python": "3.12", "torch": "2.9+cpu", "cuda": None, "devices": []}
    found = {"gpus": {"driver": "1", "cuda": "13.0", "devices": [gpu]}, "interpreters": [own], "hub": {"reachable": True}}
    (remark, *_) = doctor._remarks(found)
    assert "there is an NVIDIA H200, but torch 2.9+cpu finds no CUDA device: it is a CPU build" in str(remark["text"])
    assert "pip install" in str(remark["remedy"])


def test_gpus_by_the_drivers_library(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlSystemGetDriverVersion=lambda: "580.65",
        nvmlSystemGetCudaDriverVersion=lambda: 13010,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=2**37, free=2**36),
        nvmlDeviceGetName=lambda handle: "NVIDIA H200",
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    gpu = {"name": "NVIDIA H200", "memory_bytes": 2**37, "free_bytes": 2**36}
    assert doctor._gpus() == {"driver": "580.65", "cuda": "13.1", "devices": [gpu]}
    del nvml.nvmlSystemGetDriverVersion
    assert doctor._gpus()["driver"] is None


def test_compilers_that_answer_and_that_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = tmp_path / "g++", tmp_path / "clang++"
    good.write_text("#!/bin/sh\necho 'g++ 12.2.0'\n")
    bad.write_text("not a program")
    for path in (good, bad):
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    found = doctor._compilers()
    assert found["g++"] == "g++ 12.2.0"
    assert found["clang++"] is None
