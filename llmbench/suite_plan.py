"""What a suite was asked for, kept in its folder as suite.plan so that `compare --resume FOLDER` can go on: each run's options and its file.

A plan may come from anywhere, as a run file may: it is read with distrust and names no file outside its folder. What belongs to a call and not
to a suite isn't kept: the home folder, interpreters, whether there is a network.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmbench.comparison import Options, UsageError
from llmbench.protocol import encode
from llmbench.results.files import write_atomically

NAME = "suite.plan"
VERSION = 1
MAX_BYTES = 16 * 2**20
#: Options that come from the call that goes on, never from a file.
_OF_THE_CALL = ("home", "python", "offline", "command")


@dataclass
class Cell:
    """One combination: its options, and what sets it apart from the others, in words and for a file's name."""

    options: Options
    words: str
    suffix: str
    file: str | None = None  # its run file, once it has begun: a name in the suite's folder


def path_of(folder: Path) -> Path:
    return folder / NAME


def save(folder: Path, cells: list[Cell]) -> None:
    """Writes the plan, whole or not at all. Raises OSError."""
    kept = []
    for cell in cells:
        options = {name: value for name, value in encode(cell.options).items() if name not in _OF_THE_CALL}
        if cell.options.prompt_file is not None:
            # Its text: a plan that somebody sends must not name files to read, and an edited file must not change the runs still to come.
            options["prompt"], options["prompt_file"] = cell.options.prompt_file.read_text(encoding="utf-8"), None
        kept.append({"options": options, "words": cell.words, "suffix": cell.suffix, "file": cell.file})
    write_atomically(path_of(folder), json.dumps({"version": VERSION, "cells": kept}, indent=1).encode())


def load(folder: Path, given: Options) -> list[Cell]:
    """The cells of a suite's folder, `given` supplying what belongs to a call. Raises UsageError where there is no plan that can be read."""
    from pydantic import TypeAdapter, ValidationError

    path = path_of(folder)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES} bytes")
        data = json.loads(path.read_bytes())
        if not isinstance(data, dict) or data.get("version") != VERSION:
            raise ValueError(f"its version is not {VERSION}")
        cells: list[Cell] = TypeAdapter(list[Cell]).validate_python([_with_call(cell, given) for cell in data["cells"]])
    except FileNotFoundError:
        raise UsageError(f"{folder} is no suite that can be resumed: it has no {NAME}; give one of its run files") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{path} is no plan of a suite: {where[:200]}: {first['msg']}") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{path} is no plan of a suite: {str(error)[:200]}") from None
    for cell in cells:
        if cell.file is not None and (Path(cell.file).name != cell.file or not cell.file.endswith(".json")):
            raise UsageError(f"{path} is no plan of a suite: {cell.file[:100]!r} is no run file's name")
        if cell.options.prompt_file is not None:
            raise UsageError(f"{path} is no plan of a suite: it names a file to read the prompt from")
    if not cells:
        raise UsageError(f"{path} is no plan of a suite: there is nothing in it")
    return cells


def _with_call(cell: dict[str, Any], given: Options) -> dict[str, Any]:
    """A kept cell with the call's part of its options. A time budget is the call's too: what the first call had is spent."""
    options = {name: value for name, value in cell["options"].items() if name not in _OF_THE_CALL}
    options.update({name: getattr(given, name) for name in _OF_THE_CALL})
    options["plan"] = {**options["plan"], "time_budget_s": given.plan.time_budget_s}
    return {**cell, "options": options}
