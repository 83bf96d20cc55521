"""Whether a checkpoint is still the one that it was: within a run by its files' times, between runs by a sample of their bytes, and for
artifacts, which are loaded in its place, by every byte.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from llmbench.hashing import file_sha256
from llmbench.protocol import CheckpointRef

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


def full_identity(ref: CheckpointRef, kept: Path, say: Callable[[str], None] = lambda text: None, verify: bool = False) -> str:
    """Equal for checkpoints that give equal artifacts: config.json, the index and every byte of the weights, or the seed of random ones.

    Hashes are kept under the folder `kept` by the files' sizes, times and inodes, so that the second look is cheap; `verify` reads all again.
    `say` gets a line before a long read. Raises OSError.
    """
    folder = Path(ref.path)
    dummy = ref.load_format == "dummy"
    names = (
        ["config.json"] if dummy else ["config.json", "model.safetensors.index.json", *sorted(p.name for p in folder.glob("*.safetensors"))]
    )
    files = [path for path in (folder / name for name in names) if path.is_file()]
    states = [(path.name, state.st_size, state.st_mtime_ns, state.st_ino) for path in files for state in (path.stat(),)]
    seed = ref.dummy_seed if dummy else None
    note = kept / f"{hashlib.sha256(repr((str(folder.resolve()), seed)).encode()).hexdigest()[:32]}.json"
    known = [list(state) for state in states]
    if not verify:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            found = json.loads(note.read_text())
            if found["files"] == known and len(found["identity"]) == 64:
                return str(found["identity"])
    total = sum(size for _, size, _, _ in states)
    if total > 2**30:
        say(f"hashing the checkpoint ({total / 2**30:.1f} GiB), once")
    digest = hashlib.sha256(repr(("seed", seed)).encode())
    for path in files:
        digest.update(f"{path.name}\0{path.stat().st_size}\0{file_sha256(path)}".encode())
    identity = digest.hexdigest()
    with contextlib.suppress(OSError):  # a cache that can't be written costs time alone
        from llmbench.results.files import write_atomically

        write_atomically(note, json.dumps({"files": known, "identity": identity}).encode())
    return identity
