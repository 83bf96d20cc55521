"""Reading small files of a checkpoint folder that may come from anywhere: nothing outside the folder, nothing huge, nothing executed.

Standard library only: the worker reads checkpoints too.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmbench.checkpoints.errors import CheckpointError, shown

#: Far above any supported model's config, index or tokenizer settings. Python objects take some 20 times the bytes of hostile JSON.
MAX_JSON_BYTES = 4 * 2**20


def inside(folder: Path, name: str) -> Path:
    """The regular file `name` of `folder`, links followed. Raises CheckpointError where it leads out of the folder.

    A snapshot of the Hugging Face cache links its files into `../../blobs` of the same repository's folder: those targets are allowed.
    """
    if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise CheckpointError(f"{folder} names the file {shown(name)}, which is not a plain file name inside the folder")
    path = folder / name
    try:
        root = folder.resolve(strict=True)
        target = path.resolve(strict=True)
        mode = target.stat().st_mode
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a loop of links, up to Python 3.12
        raise CheckpointError(f"{path} can't be read: {error}") from None
    allowed = [root]
    if root.parent.name == "snapshots":
        allowed.append(root.parent.parent / "blobs")
    if not any(target.is_relative_to(place) for place in allowed):
        raise CheckpointError(f"{path} is a link to {target}, outside the checkpoint's folder")
    if not stat.S_ISREG(mode):
        raise CheckpointError(f"{path} is not a regular file")
    return target


def read_bytes(folder: Path, name: str, limit: int = MAX_JSON_BYTES) -> bytes:
    """The whole of a small file of `folder`. Raises CheckpointError past `limit` bytes."""
    path = inside(folder, name)
    try:
        with path.open("rb") as stream:
            data = stream.read(limit + 1)
    except OSError as error:
        raise CheckpointError(f"{folder / name} can't be read: {error}") from None
    if len(data) > limit:
        raise CheckpointError(f"{folder / name} is larger than {limit} bytes, too much for such a file")
    return data


def parse_json(data: bytes, what: str, pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> dict[str, Any]:
    """A JSON object from untrusted bytes. `what` names the file in the CheckpointError."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        value = json.loads(data.decode("utf-8"), parse_constant=refuse, object_pairs_hook=pairs_hook)
    except RecursionError:
        raise CheckpointError(f"{what} is nested too deeply") from None
    except ValueError as error:  # JSON, UTF-8, and numbers of too many digits
        raise CheckpointError(f"{what} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{what} holds {shown(value)}, not a JSON object")
    return value


def read_json(folder: Path, name: str, limit: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """The JSON object in a file of `folder`. Raises CheckpointError."""
    return parse_json(read_bytes(folder, name, limit), str(folder / name))
