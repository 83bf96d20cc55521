"""Which interpreter an engine runs under, and a worker that really runs under another Python: another version where there is one here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from tiny import compare, llmbench, run_files, tiny_folder

from llmbench.interpreters import InterpreterError, remember, remembered, remembered_file, settled, variable
from llmbench.results import files


def script(folder: Path, name: str = "python") -> Path:
    path = folder / name
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    path.chmod(0o755)
    return path


def test_the_command_line_goes_before_the_environment_and_that_before_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMBENCH_HOME", str(tmp_path))
    python = str(script(tmp_path))
    assert settled({}, ["fake"]) == {}
    assert remember("fake", python) == python
    assert settled({}, ["fake", "eager"]) == {"fake": python}
    assert settled({}, ["eager"]) == {}
    monkeypatch.setenv("LLMBENCH_PYTHON_FAKE", "/from/environment")
    assert settled({}, ["fake"]) == {"fake": "/from/environment"}
    assert settled({"fake": "/given"}, ["fake"]) == {"fake": "/given"}
    assert variable("tensorrt-llm") == "LLMBENCH_PYTHON_TENSORRT_LLM"
    assert remember("fake", None) is None
    assert remembered() == {}


def test_a_folder_that_one_stands_in_names_no_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What such a file names would be started, and the folder may be anybody's."""
    monkeypatch.delenv("LLMBENCH_HOME", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "interpreters.json").write_text(json.dumps({"fake": "/bin/false"}))
    assert settled({}, ["fake"]) == {}
    assert remembered_file() == tmp_path / "config" / "llmbench" / "interpreters.json"


@pytest.mark.parametrize("text", ["{", "[]", '{"fake": 3}', "\udcff"])
def test_a_broken_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("LLMBENCH_HOME", str(tmp_path))
    (tmp_path / "interpreters.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InterpreterError, match=r"interpreters\.json can't be read"):
        settled({}, ["fake"])


def test_set_and_a_run_under_it(tmp_path: Path) -> None:
    python = script(tmp_path, "mine")
    assert llmbench(tmp_path, "engines", "set", "fake", python).stdout == f"fake runs under {python}\n"
    done = compare(tmp_path, "fake", "--rounds", 1, "-q")
    assert done.returncode == 0, done.stderr
    python.unlink()
    gone = compare(tmp_path, "fake", "--rounds", 1)
    assert gone.returncode == 2
    assert "llmbench engines set" in gone.stderr
    assert len(gone.stderr.splitlines()) == 1
    assert llmbench(tmp_path, "engines", "set", "fake", "--forget").returncode == 0
    assert compare(tmp_path, "fake", "--rounds", 1, "-q").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fake", "/no/such/python"), "there is no program"),
        (("fkae", sys.executable), "did you mean fake"),
        (("fake",), "give ENGINE and the path"),
        (("fake", sys.executable, "--forget"), "give ENGINE and the path"),
    ],
)
def test_what_set_refuses(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = llmbench(tmp_path, "engines", "set", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert not list(tmp_path.iterdir())


# --------------------------------------------------------------------------------------------------------------- another Python's worker


def other_python() -> str:
    """An interpreter of another version than this one, from PATH or pyenv's folder; else this one's own base, told by a warning."""
    own = sys.version_info[:2]
    wanted = [minor for minor in range(10, 16) if (3, minor) != own]
    places = [shutil.which(f"python3.{minor}") for minor in wanted]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    places += [str(path) for minor in wanted for path in sorted(pyenv.glob(f"3.{minor}.*/bin/python"))]
    for place in places:
        if place is not None and _version(place) not in (None, own):
            return place
    warnings.warn("no other Python version is here; a second interpreter of the same version is used", stacklevel=2)
    return sys.executable


def _version(python: str) -> tuple[int, int] | None:
    try:
        code = "import sys; print(*sys.version_info[:2])"
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
        major, minor = done.stdout.split()
        return int(major), int(minor)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


SECOND = '''
"""A small engine with a library that prints a banner when it is imported, and can crash."""
import sys
from llmbench.engines.fake import FakeEngine
import second_library

class Engine(FakeEngine):
    def supports(self, job):
        second_library.start(job.variant.options.get("crash", False))
    def versions(self):
        return {"python": sys.version.split()[0], "second_library": second_library.__version__}
'''
LIBRARY = """
import os, signal, sys
print('{"number": 1, "status": "ok"}  a banner, on stdout, that looks like a reply')
sys.stdout.flush()
os.write(1, b"and one past Python's own stream\\n")
__version__ = "7.0"
def start(crash):
    if crash:
        os.kill(os.getpid(), signal.SIGSEGV)
"""
SPEC = """
from llmbench.engines.registry import EngineSpec
SPEC = EngineSpec("second", "second_engine:Engine", "another interpreter's", requires=("second_library",), default=False,
                  reads_weights=False, options={"crash": "true or false"})
"""


def test_a_worker_under_another_python(tmp_path: Path) -> None:
    """The engine's packages are installed in the other interpreter alone, the parent knows its name alone."""
    base = other_python()
    subprocess.run([base, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True, timeout=120)
    python = tmp_path / "venv" / "bin" / "python"
    (packages,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    (packages / "second_engine.py").write_text(SECOND)
    (packages / "second_library.py").write_text(LIBRARY)
    ours = tmp_path / "ours"
    (ours / "second-1.dist-info").mkdir(parents=True)
    (ours / "second-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: second\nVersion: 1\n")
    (ours / "second-1.dist-info" / "entry_points.txt").write_text("[llmbench.engines]\nsecond = second_spec:SPEC\n")
    (ours / "second_spec.py").write_text(SPEC)
    done = compare(tmp_path, "second,second[crash=true]", "--python", f"second={python}", "--rounds", 1, PYTHONPATH=str(ours))
    assert done.returncode == 3, done.stderr
    good, crashed = files.load(run_files(tmp_path)[0]).rows
    assert good.status.value == "ok", good.reason
    assert good.blocks[0].versions["second_library"] == "7.0"
    major, minor = _version(base) or (0, 0)
    assert good.blocks[0].versions["python"].startswith(f"{major}.{minor}.")
    assert crashed.status.value == "crashed"
    assert "SIGSEGV" in (crashed.reason or "")
    logs = [path.read_text() for path in (tmp_path / "results").rglob("*.log")]
    assert any("and one past Python's own stream" in text for text in logs)


def test_an_engine_that_is_not_installed_is_a_row_with_the_install_line(tmp_path: Path) -> None:
    """As the published suite is run on a machine without it: random weights, the suite's own prompt."""
    done = compare(tmp_path, "fake,tensorrt-llm", "--rounds", 1, "-q")
    assert done.returncode == 3
    good, absent = files.load(run_files(tmp_path)[0]).rows
    assert good.status.value == "ok"
    assert absent.status.value == "unavailable"
    assert "pip install tensorrt_llm==1.2.1" in (absent.reason or "")


def test_the_default_prompt_needs_no_tokenizer(tmp_path: Path) -> None:
    """It stands for any short one, also where a suite names it; another prompt is refused."""
    model = tiny_folder(tmp_path)
    fixed = ("compare", "--model", model, "--load-format", "dummy", "--engines", "fake", "-n", 4, "--rounds", 1, "-q", "--prompt")
    done = llmbench(tmp_path, *fixed, "Hello, my name is")
    assert done.returncode == 0, done.stderr
    run = files.load(run_files(tmp_path)[0])
    assert (len(run.request.prompt_ids), run.prompt) == (6, None)
    assert llmbench(tmp_path, *fixed, "Another").returncode == 2
