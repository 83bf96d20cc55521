"""Which interpreter an engine runs under: --python, else the environment, else what `llmbench engines set` remembered, else llmbench's own.

Remembered paths are a matter of the machine and not of a folder of results, so they are kept in the user's configuration
($XDG_CONFIG_HOME/llmbench, ~/.config/llmbench). Where LLMBENCH_HOME is set they are kept there instead: whoever moves everything moves them too.
A file in the current folder is never read: what it names would be started. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

FILE = "interpreters.json"
_PREFIX = "LLMBENCH_PYTHON_"


class InterpreterError(ValueError):
    """An interpreter that can't be used or a file that can't be read or written; one line says which, and what to do."""


def remembered_file() -> Path:
    """Where remembered interpreters are kept."""
    home = os.environ.get("LLMBENCH_HOME")
    if home:
        return Path(home).resolve() / FILE
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "llmbench" / FILE


def variable(engine: str) -> str:
    """The environment variable for an engine: "tensorrt-llm" -> LLMBENCH_PYTHON_TENSORRT_LLM."""
    return _PREFIX + engine.upper().replace("-", "_").replace(".", "_")


def remembered() -> dict[str, str]:
    """Engine -> absolute path. Raises InterpreterError where the file isn't one of ours."""
    path = remembered_file()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            raise ValueError("it is no table of engines and paths")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InterpreterError(f"{path} can't be read: {error}; remove it, then `llmbench engines set ENGINE PATH` again") from None
    return dict(found)


def remember(engine: str, python: str | None) -> str | None:
    """Keeps an engine's interpreter, or forgets it where `python` is null. Returns the path that is kept, absolute, its links as they are.

    Raises InterpreterError where there is no such program, or the file can't be written.
    """
    known, path = remembered(), None
    if python is None:
        known.pop(engine, None)
    else:
        found = shutil.which(python)
        if found is None:
            raise InterpreterError(f"there is no program {python!r}; give the path of a Python interpreter")
        path = known[engine] = os.path.abspath(found)  # noqa: PTH100 - a virtual environment's interpreter is a link and must stay one
    target = remembered_file()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{FILE}.", dir=target.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                stream.write(json.dumps(known, indent=1, sort_keys=True) + "\n")
            Path(name).replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise InterpreterError(f"{target} can't be written: {error.strerror or error}") from None
    return path


def settled(given: Mapping[str, str], engines: Iterable[str]) -> dict[str, str]:
    """Engine -> interpreter, for --python's pairs and the names of all engines. Raises InterpreterError for an unreadable file.

    What was remembered or set in the environment, and isn't there any more, still counts: an engine that is asked for then fails with the path,
    and is not run under another interpreter in silence.
    """
    names = set(engines)
    found = {name: path for name, path in remembered().items() if name in names}
    for name in names:
        if os.environ.get(variable(name)):
            found[name] = os.environ[variable(name)]
    return {**found, **given}
