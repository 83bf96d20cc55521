"""SHA-256 of a file, read once from front to back in a buffer of fixed size. Standard library only."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_PIECE_BYTES = 2**22


def file_sha256(path: Path, follow: bool = True) -> str:
    """In hexadecimal. Raises OSError; without `follow` also for a link, and a pipe is not waited for."""
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW | os.O_NONBLOCK))
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        buffer = memoryview(bytearray(_PIECE_BYTES))
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()
