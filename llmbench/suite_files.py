"""Suites as files: which models `llmbench compare --suite NAME_OR_FILE` runs, and with which options. TOML, in llmbench/suites/ or anywhere.

    description = "what it is for, in a line"

    [compare]                      # options of `llmbench compare` by their long names; what stands on the command line goes first
    engines = "eager,torch-compile"
    max-new-tokens = 32

    [[models]]
    name = "smollm2-135m"          # as --model takes it

    [[models]]
    name = "gpt2"                  # a shape with random weights, under a name of its own
    shape = { architectures = ["GPT2LMHeadModel"], model_type = "gpt2", n_layer = 2 }

A file is checked whole before anything runs; a fault is one line with the file, the key and the value.
"""

from __future__ import annotations

import difflib
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmbench.comparison import UsageError

FOLDER = Path(__file__).resolve().parent / "suites"
MAX_BYTES = 2**20

_TEXT, _WHOLE, _NUMBER, _YES, _LIST = (str,), (int,), (int, float), (bool,), (str, int)
#: The options that a suite may set, and what they take. Where results go and what is printed is for the command line alone.
OPTIONS: dict[str, tuple[type, ...]] = {
    "engines": _TEXT,
    "baseline": _TEXT,
    "prompt": _TEXT,
    "input-len": _LIST,
    "max-new-tokens": _LIST,
    "batch-size": _LIST,
    "dtype": _TEXT,
    "temperature": _NUMBER,
    "top-k": _WHOLE,
    "rounds": _WHOLE,
    "num-iters": _WHOLE,
    "num-iters-warmup": _WHOLE,
    "quick": _YES,
    "interleave": _YES,
    "no-accuracy": _YES,
    "min-effect": _NUMBER,
    "time-budget": _TEXT,
    "timeout": _TEXT,
    "seed": _WHOLE,
    "load-format": _TEXT,
    "threads": _WHOLE,
}


@dataclass(frozen=True)
class SuiteModel:
    """One model of a suite: what --model takes, or with `shape` the config.json of random weights that go by `name`."""

    name: str
    load_format: str | None = None  # null: the suite's
    shape: dict[str, Any] | None = None


@dataclass(frozen=True)
class SuiteFile:
    """A suite as its file has it. `options`: by long name, values as the file gives them."""

    name: str
    description: str
    models: tuple[SuiteModel, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def defaults(self) -> dict[str, Any]:
        """The options by the parameter names of `compare`, the models as --model's list among them."""
        return {
            "model": ",".join(model.name for model in self.models),
            **{name.replace("-", "_"): value for name, value in self.options.items()},
        }

    def model(self, name: str) -> SuiteModel | None:
        return next((model for model in self.models if model.name == name), None)


def names() -> list[str]:
    """The suites that come with llmbench."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name_or_path: str) -> SuiteFile:
    """The suite of that name, or in that file. Raises UsageError: one line with the key and the value."""
    path = FOLDER / f"{name_or_path}.toml" if name_or_path in names() else Path(name_or_path)
    if not path.is_file():
        near = difflib.get_close_matches(name_or_path, names(), n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names())}, or a .toml file"
        raise UsageError(f"there is no suite {name_or_path!r}; {hint}")
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{path}: {path.stat().st_size} bytes are no suite; at most {MAX_BYTES} are read")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can't be read: {error}") from None
    return parse(text, path)


def parse(text: str, path: Path) -> SuiteFile:
    """A suite from its text; `path` names it in errors and gives its name. Raises UsageError."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is no TOML: {str(error)[:200]}") from None
    _known(path, "", data, ("description", "compare", "models"))
    options, models = data.get("compare", {}), data.get("models", [])
    if not isinstance(options, dict):
        raise UsageError(f"{path}: compare is a table of options, not {options!r}"[:300])
    _known(path, "compare.", options, tuple(OPTIONS))
    for name, value in options.items():
        _typed(path, f"compare.{name}", value, OPTIONS[name])
    if not isinstance(models, list) or not models or not all(isinstance(model, dict) for model in models):
        raise UsageError(f"{path}: there are no models; write [[models]] and name = ...")
    found = tuple(_model(path, number, model) for number, model in enumerate(models, 1))
    for model in found:
        if sum(model.name == other.name for other in found) > 1:
            raise UsageError(f"{path}: two models are called {model.name}")
    description = data.get("description", "")
    _typed(path, "description", description, _TEXT)
    return SuiteFile(path.stem, description, found, dict(options))


def _model(path: Path, number: int, data: dict[str, Any]) -> SuiteModel:
    place = f"models[{number}]."
    _known(path, place, data, ("name", "load-format", "shape"))
    for key, kinds in (("name", _TEXT), ("load-format", _TEXT), ("shape", (dict,))):
        if key in data:
            _typed(path, place + key, data[key], kinds)
    name, shape = data.get("name", ""), data.get("shape")
    if not name.strip() or "," in name:
        raise UsageError(f"{path}: {place}name is {name!r}; it takes a name without a comma")
    if shape is not None and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}", name) is None:
        raise UsageError(f"{path}: {place}name is {name!r}; a shape's name has letters, digits, '.', '_' and '-'")
    if shape is not None and data.get("load-format", "dummy") != "dummy":
        raise UsageError(f"{path}: {place}load-format is {data['load-format']!r}; a shape has random weights (dummy)")
    return SuiteModel(name, data.get("load-format"), shape)


def _known(path: Path, place: str, data: dict[str, Any], known: tuple[str, ...]) -> None:
    for key in data:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise UsageError(f"{path}: unknown key {place}{key}; {hint}")


def _typed(path: Path, place: str, value: object, kinds: tuple[type, ...]) -> None:
    # True is an int to Python, and no number to whoever wrote the file.
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        words = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", dict: "a table"}
        raise UsageError(f"{path}: {place} is {value!r}; it takes {' or '.join(words[kind] for kind in kinds)}"[:400])
