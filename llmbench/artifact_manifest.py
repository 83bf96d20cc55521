"""What an artifact is: the ingredients that its key covers, and the manifest that lies beside its files.

A manifest may come from another machine: it is read as data, checked for its form, its own key and paths that lead out of the folder.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import stat
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from llmbench.protocol import Recipe, Scalar, Status, Variant, encode

MANIFEST = "manifest.json"
#: Raised whenever a reader of an older version could misread a newer manifest; part of every key.
SCHEMA_VERSION = 1
MAX_BYTES = 16 * 2**20
_MOST_BYTES = 2**53  # no figure beyond is a size
KEY = re.compile(r"[0-9a-f]{32}")
#: What can be an engine's folder: one part of a path, neither hidden nor "..".
ENGINE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


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
        if not set(wanted.targets) <= set(self.targets):
            return False
        return replace(self, targets=wanted.targets).key == wanted.key and bool(wanted.targets or not self.targets)


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
        if folder.is_symlink():
            raise Broken(f"{folder} is a link")
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)  # not to wait for a pipe's writer
        with os.fdopen(descriptor, "rb") as file:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode):
                raise Broken("its manifest is no regular file")
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise Broken("it has no manifest") from None
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise Broken(f"its manifest can't be read: {why}") from None
    manifest = parse(content)
    if manifest.key != key:
        raise Broken("its manifest belongs to another key")
    if manifest.ingredients.engine != engine:
        raise Broken(f"its manifest belongs to the engine {manifest.ingredients.engine[:80]!r}")
    return manifest


def parse(content: bytes) -> Manifest:
    """A manifest from its text, checked for its form, its key against its ingredients, and names that lead out. Raises Broken."""
    if len(content) > MAX_BYTES:
        raise Broken("its manifest is far too large")
    try:
        manifest: Manifest = _adapter().validate_json(content)
        key = manifest.ingredients.key
    except (ValueError, RecursionError):  # pydantic's and json's
        raise Broken("its manifest is not one of llmbench's") from None
    if manifest.schema_version != SCHEMA_VERSION or manifest.key != key:
        raise Broken("its manifest belongs to another key")
    if not ENGINE.fullmatch(manifest.ingredients.engine):
        raise Broken(f"its manifest belongs to the engine {manifest.ingredients.engine[:80]!r}")
    if not (math.isfinite(manifest.build_s) and 0 <= (manifest.build_peak_bytes or 0) < _MOST_BYTES and manifest.files):
        raise Broken("its manifest is not one of llmbench's")
    for name, stored in manifest.files.items():
        parts = PurePosixPath(name).parts
        plain = parts and not name.startswith("/") and ".." not in parts and "\0" not in name and "\\" not in name
        if not plain or name != "/".join(parts) or name == MANIFEST:
            raise Broken(f"its manifest names the file {name[:80]!r}")
        if not 0 <= stored.size < _MOST_BYTES or not _SHA256.fullmatch(stored.sha256):
            raise Broken(f"its manifest says nothing sound of the file {name[:80]!r}")
    return manifest


def text(manifest: Manifest) -> bytes:
    """A manifest as it lies on disk."""
    return json.dumps(encode(manifest), indent=1, sort_keys=True).encode()


@lru_cache(maxsize=1)
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Manifest)
