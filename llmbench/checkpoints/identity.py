"""Whether a checkpoint is still the one that it was: within a run by its files' times, between runs by a sample of their bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

_SAMPLE_BYTES = 2**20


def _files(folder: Path) -> list[Path]:
    """What decides a model's results: config.json and the weights, in order of name."""
    return [path for path in sorted(folder.iterdir()) if path.name == "config.json" or path.suffix in (".safetensors", ".json")]


def stamp(folder: Path) -> str:
    """Changes whenever a file is written, replaced, added or removed. Reads no file. "missing" where the folder is gone."""
    try:
        states = [(path.name, state.st_size, state.st_mtime_ns, state.st_ino) for path in _files(folder) for state in (path.stat(),)]
    except OSError:
        return "missing"
    return hashlib.sha256(repr(states).encode()).hexdigest()


def quick_identity(folder: Path) -> str:
    """Equal for copies of one checkpoint, whatever their place and time: names, sizes, small files whole, and of each weights file its first,
    middle and last MiB, header included. Two checkpoints of one shape differ in it, since training leaves no MiB untouched. Raises OSError."""
    digest = hashlib.sha256()
    for path in _files(folder):
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            for offset in sorted({0, max(0, size // 2 - _SAMPLE_BYTES // 2), max(0, size - _SAMPLE_BYTES)}):
                file.seek(offset)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
