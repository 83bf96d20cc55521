"""Artifacts for tests of the cache: ingredients that differ in one thing, and builders that write a few bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmbench.artifact_manifest import Ingredients
from llmbench.artifacts import Built, Lease, Store

INGREDIENTS = Ingredients(
    engine="some-engine",
    adapter=1,
    versions={"library": "1.2.3", "other": "4"},
    targets=("sm_89",),
    checkpoint="c" * 64,
    dtype="float16",
    quantization=None,
    maxima={"batch": 1, "tokens": 205},
    options={"level": 3, "refit": False},
)
FILES = {"plan.bin": b"\x00plan" * 1000, "parts/rank0.bin": b"rank" * 500, "empty": b""}


def changed(**changes: Any) -> Ingredients:
    return dataclasses.replace(INGREDIENTS, **changes)


def write_files(into: Path) -> Built:
    """Builds FILES."""
    for name, content in FILES.items():
        (into / name).parent.mkdir(exist_ok=True)
        (into / name).write_bytes(content)
    return Built(peak_bytes=12345)


class Builder:
    """Counts how often it built."""

    def __init__(self, write: Callable[[Path], Built] = write_files) -> None:
        self.built, self._write = 0, write

    def __call__(self, into: Path) -> Built:
        self.built += 1
        return self._write(into)


def obtain(
    store: Store,
    wanted: Ingredients = INGREDIENTS,
    build: Callable[[Path], Built] = write_files,
    said: list[str] | None = None,
    executes: bool = False,
) -> Lease:
    """Found or built, and not held."""
    say: Callable[[str], None] = (lambda text: None) if said is None else said.append
    lease = store.obtain(wanted, build, model="a model", executes=executes, say=say)
    lease.close()
    return lease


def all_files(folder: Path) -> list[str]:
    """Everything below a folder but the locks' files."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.name.endswith(".lock"))
