"""How a checkpoint folder is put in place: made once even by two processes, whole or not at all, and only where the disk has room.

Standard library, and filelock (which huggingface_hub brings).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmbench.checkpoints.errors import CheckpointError, one_line, shown
from llmbench.checkpoints.files import read_json

#: Says in a folder that llmbench made what it is and where it came from.
SOURCE_FILE = "LLMBENCH_SOURCE.json"
LOCK_TIMEOUT_S = 3600


def size_words(nbytes: float) -> str:
    """Bytes as users read them: "98.4 MB", "13.5 GB" (powers of ten, as disks and downloads are given)."""
    for unit in ("bytes", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} GB"


def need_disk(folder: Path, nbytes: int, what: str) -> None:
    """Raises CheckpointError, with both sizes, where the disk under `folder` has not `nbytes` bytes free."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < nbytes:
        raise CheckpointError(
            f"not enough disk space for {what}: it takes {size_words(nbytes)} under {folder}, {size_words(free)} are free; "
            "free some, or point LLMBENCH_HOME (checkpoints) or HF_HOME (downloads) to a larger disk"
        )


def checked_source(folder: Path) -> dict[str, Any] | None:
    """What SOURCE_FILE of a folder says; null where it has none. Raises CheckpointError where it can't be read."""
    if not (folder / SOURCE_FILE).exists():
        return None
    source = read_json(folder, SOURCE_FILE)
    if not isinstance(source.get("source"), str):
        raise CheckpointError(f"{folder / SOURCE_FILE}: source is {shown(source.get('source'))}, not a text")
    return {**source, "source": one_line(source["source"], 200)}


def publish(folder: Path, make: Callable[[Path], None]) -> None:
    """Makes `folder` through `make(temporary folder)` unless it is there already.

    One process does it while others wait; the folder gets its name when all of it is on disk. Raises CheckpointError where the place can't
    be written.
    """
    if folder.exists():
        return
    from filelock import FileLock, Timeout

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f".{folder.name}.lock", timeout=LOCK_TIMEOUT_S):
            if folder.exists():
                return
            for left in folder.parent.glob(f".{folder.name}.*.partial"):
                shutil.rmtree(left, ignore_errors=True)  # of a process that was killed: we hold the lock, so nobody writes there
            temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
            try:
                temporary.chmod(0o755)
                make(temporary)
                for path in temporary.iterdir():
                    _sync(path)
                _sync(temporary)
                temporary.rename(folder)
                _sync(folder.parent)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    except Timeout:
        raise CheckpointError(f"another process has been making {folder} for more than {LOCK_TIMEOUT_S} s") from None
    except OSError as error:
        raise CheckpointError(f"{folder} can't be written: {error}") from None


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
