"""Temporary folders that a killed parent leaves behind are found again: their names hold the number of the process that made them."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

_NAME = re.compile(r"llmbench-[a-z]+-(\d+)-.+")


def prefix(kind: str) -> str:
    """What a folder of this kind, made by this process, is called up to its random part."""
    return f"llmbench-{kind}-{os.getpid()}-"


def sweep() -> None:
    """Removes the folders of processes of this user that are no more. Never raises: a leftover is no reason to stop."""
    try:
        entries = list(os.scandir(tempfile.gettempdir()))
    except OSError:
        return
    for entry in entries:
        made_by = _NAME.fullmatch(entry.name)
        if made_by is None or Path(f"/proc/{made_by[1]}").exists() or not Path("/proc/self").exists():
            continue
        try:
            ours = entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid()
        except OSError:
            continue
        if ours:
            shutil.rmtree(entry.path, ignore_errors=True)


def folder(kind: str) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder of this kind, removed on exit as far as that is possible: a killed process may still write into it."""
    return tempfile.TemporaryDirectory(prefix=prefix(kind), ignore_cleanup_errors=True)
