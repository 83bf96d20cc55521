"""What an artifact is: the ingredients that its key covers, and the manifest that lies beside its files.

A manifest may come from another machine: it is read as data, checked for its form, its own key and paths that lead out of the folder.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from llmbench.protocol import Recipe, Scalar, Status, Variant, encode

MANIFEST = "manifest.json"
#: Raised whenever a reader of an older version could misread a newer manifest; part of every key.
SCHEMA_VERSION = 1
_MAX_BYTES = 16 * 2**20
KEY = re.compile(r"[0-9a-f]{32}")


class ArtifactError(Exception):
    """An artifact can't be had: one line that says why and what to do, and the status its row gets."""

    def __init__(self, reason: str, status: Status = Status.BUILD_FAILED) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status


class Broken(Exception):
    """What lies under a key is not what was built there; the text says what is wrong. It is to be set aside."""


@dataclass(frozen=True)
class Ingredients:
    """Everything that decides what is built."""

    engine: str
    adapter: int
    versions: dict[str, str]
    targets: tuple[str, ...]  # sorted
    checkpoint: str  # checkpoints.identity.full_identity
    dtype: str
    quantization: str | None
    maxima: dict[str, int]
    options: dict[str, Scalar]

    @staticmethod
    def of(engine: str, recipe: Recipe, checkpoint: str, variant: Variant) -> Ingredients:
        """Those of a job: its engine's recipe, its checkpoint's identity, its variant's dtype and quantization."""
        return Ingredients(
            engine=engine,
            adapter=recipe.adapter,
            versions=dict(recipe.versions),
            targets=tuple(sorted(set(recipe.targets))),
            checkpoint=checkpoint,
            dtype=variant.dtype,
            quantization=variant.quantization,
            maxima=dict(recipe.maxima),
            options=dict(recipe.options),
        )

    @property
    def key(self) -> str:
        """32 hexadecimal digits, equal for equal ingredients alone."""
        text = json.dumps({"schema": SCHEMA_VERSION, **encode(self)}, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def serves(self, wanted: Ingredients) -> bool:
        """Whether an artifact of these ingredients does for `wanted`: all equal, and built for all of its targets at least."""
        mine, theirs = encode(self), encode(wanted)
        targets = set(mine.pop("targets")), set(theirs.pop("targets"))
        return mine == theirs and targets[1] <= targets[0]


@dataclass(frozen=True)
class StoredFile:
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What an artifact is, beside its files."""

    key: str
    ingredients: Ingredients
    model: str  # as the user named it when it was built; for reading only
    executes: bool  # loading it runs machine code
    files: dict[str, StoredFile]  # by path within the artifact, "/" between parts
    built_at: str  # UTC, ISO 8601
    build_s: float  # wall from the builder's start to here, and that of its source
    build_peak_bytes: int | None = None
    source: str | None = None  # "engine/key" of the artifact that it was built from
    llmbench_version: str = ""
    schema_version: int = SCHEMA_VERSION

    @property
    def bytes(self) -> int:
        return sum(stored.size for stored in self.files.values())


def read(folder: Path, engine: str, key: str) -> Manifest:
    """The manifest of the artifact in `folder`, checked for its form and against the engine and the key. Raises Broken."""
    path = folder / MANIFEST
    try:
        if path.is_symlink() or folder.is_symlink():
            raise Broken(f"{path} is a link")
        if path.stat().st_size > _MAX_BYTES:
            raise Broken("its manifest is far too large")
        text = path.read_bytes()
    except FileNotFoundError:
        raise Broken("it has no manifest") from None
    except OSError as error:
        raise Broken(f"its manifest can't be read: {error.strerror}") from None
    try:
        manifest: Manifest = _adapter().validate_json(text)
    except ValueError:  # pydantic's and json's
        raise Broken("its manifest is not one of llmbench's") from None
    if manifest.schema_version != SCHEMA_VERSION or manifest.key != key or manifest.ingredients.key != key:
        raise Broken("its manifest belongs to another key")
    if manifest.ingredients.engine != engine:
        raise Broken(f"its manifest belongs to the engine {manifest.ingredients.engine[:80]!r}")
    for name in manifest.files:
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts or "\0" in name or "\\" in name or name == MANIFEST:
            raise Broken(f"its manifest names the file {name[:80]!r}")
    return manifest


@lru_cache(maxsize=1)
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Manifest)
