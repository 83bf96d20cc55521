"""Artifacts as one file, to be carried to another machine: an uncompressed tar of "engine/key/manifest.json" and then the files it lists.

An archive may come from anyone. It is read twice: first all of it is held against its manifests, name by name, size by size and hash by hash,
and only when everything is sound are the files written, each artifact taking its name at once. Nothing in it is executed; loading what it
brought may be, which is why such artifacts are refused unless the user trusts whoever made them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from llmbench import artifact_manifest
from llmbench.artifact_care import CareError, Kept
from llmbench.artifact_files import refuse_untrusted
from llmbench.artifact_manifest import ENGINE, KEY, MANIFEST, MAX_BYTES, ArtifactError, Broken, Manifest, StoredFile
from llmbench.artifacts import Say, Store
from llmbench.results.files import replacing

_PIECE_BYTES = 2**22
#: What a tar takes for each file beside its bytes, long names included, and at its end.
_TAR_FILE_BYTES, _TAR_END_BYTES = 4096, 2**15


def export(store: Store, entries: Sequence[Kept], into: Path) -> int:
    """Writes artifacts to `into`, whole or not at all; returns its bytes. Every byte is held against its hash. Raises CareError."""
    with contextlib.ExitStack() as stack:
        manifests = [stack.enter_context(_used(store, entry)) for entry in entries]
        needed = _TAR_END_BYTES + sum(manifest.bytes + _TAR_FILE_BYTES * (len(manifest.files) + 1) for manifest in manifests)
        try:
            free = shutil.disk_usage(into.absolute().parent).free
            if needed > free:
                raise CareError(f"{into} needs {needed / 2**20:.0f} MiB and {free / 2**20:.0f} MiB are free there")
            with replacing(into) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
                for manifest in manifests:
                    _write(archive, store.root, manifest)
        except Broken as broken:
            raise CareError(f"{broken}; `llmbench cache verify --repair` sets it aside") from None
        except OSError as error:
            raise CareError(f"{into} can't be written: {error.strerror or error}") from None
    return into.stat().st_size


@contextlib.contextmanager
def _used(store: Store, entry: Kept) -> Iterator[Manifest]:
    """The manifest of an artifact that nobody removes meanwhile."""
    lock = store.lock(entry.engine, entry.key)
    if not lock.take(exclusive=False, wait=False):
        raise CareError(f"the artifact {entry.name} is being built; export it afterwards")
    try:
        refuse_untrusted(entry.path)
        yield store.read_manifest(entry.engine, entry.key)
    except (Broken, ArtifactError) as error:
        raise CareError(f"the artifact {entry.name} can't be exported: {error}") from None
    finally:
        lock.release()


def _write(archive: tarfile.TarFile, root: Path, manifest: Manifest) -> None:
    base = f"{manifest.ingredients.engine}/{manifest.key}"
    text = artifact_manifest.text(manifest)
    archive.addfile(_header(f"{base}/{MANIFEST}", len(text)), io.BytesIO(text))
    for name, stored in sorted(manifest.files.items()):
        descriptor = os.open(root / base / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if os.fstat(descriptor).st_size != stored.size:
                raise Broken(f"{base}: {name!r} is not {stored.size} bytes long any more")
            source = _Hashing(file)
            archive.addfile(_header(f"{base}/{name}", stored.size), source)
            if source.digest.hexdigest() != stored.sha256:
                raise Broken(f"{base}: {name!r} has changed: its hash is another one")


def _header(name: str, size: int) -> tarfile.TarInfo:
    """Without owner and time: equal artifacts give equal archives."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info


class _Hashing:
    """A file that hashes what is read of it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def read(self, count: int = -1) -> bytes:
        piece = self._file.read(count)
        self.digest.update(piece)
        return piece


# ------------------------------------------------------------------------------------------------------------------------------ importing


@dataclass(frozen=True)
class Imported:
    """One artifact of an archive."""

    engine: str
    key: str
    bytes: int
    new: bool  # else it was here already


@dataclass(frozen=True)
class _Member:
    """One artifact as it lies in an archive."""

    manifest: Manifest
    files: dict[str, tarfile.TarInfo]


def take_in(store: Store, path: Path, *, trust: bool, say: Say = lambda text: None) -> list[Imported]:
    """Takes in all artifacts of an archive, or none where anything in it is wrong. Raises CareError, ArtifactError.

    trust: whether machine code in it may run later, when an engine loads it.
    """
    with _open(path) as archive:
        members = _read(archive, path)
        code = [f"{member.manifest.ingredients.engine}/{member.manifest.key}" for member in members if member.manifest.executes]
        if code and not trust:
            raise CareError(
                f"{path}: machine code of {code[0]}{f' and {len(code) - 1} more' if len(code) > 1 else ''} would run when it is loaded; "
                "import it with --trust if you trust whoever made it"
            )
        _check_room(store, path, members)
        imported = []
        for member in members:
            manifest = member.manifest

            def fill(folder: Path, member: _Member = member) -> None:
                for name, info in member.files.items():
                    _extract(archive, info, folder / name)

            try:
                new = store.adopt(manifest, fill, say)
            except Broken as broken:  # the archive has changed since it was read
                raise CareError(f"{path}: {manifest.ingredients.engine}/{manifest.key}: {broken}") from None
            imported.append(Imported(manifest.ingredients.engine, manifest.key, manifest.bytes, new))
    return imported


@contextlib.contextmanager
def _open(path: Path) -> Iterator[tarfile.TarFile]:
    """The archive; every way in which a file can fail to be one is one line."""
    try:
        if not path.is_file():
            raise CareError(f"{path}: {'it is no file' if path.exists() else 'there is no such file'}")
        with path.open("rb") as file, tarfile.open(fileobj=_Careful(file), mode="r:") as archive:  # type: ignore[call-overload]
            yield archive
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as error:
        raise CareError(f"{path} is no archive of llmbench's artifacts: {' '.join(str(error).split())[:200]}") from None
    except OSError as error:
        raise CareError(f"{path} can't be read: {error.strerror or error}") from None


class _Careful:
    """A file of which nobody reads more at once than a manifest: a header may claim any length."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek, self.tell, self.name, self.mode = file.seek, file.tell, file.name, "rb"

    def read(self, count: int = -1) -> bytes:
        if not 0 <= count <= 2 * MAX_BYTES:
            raise ValueError("a header in it is far too long")
        return self._file.read(count)


def _read(archive: tarfile.TarFile, path: Path) -> list[_Member]:
    """Reads the whole archive and holds it against its manifests. Raises CareError."""
    found: dict[tuple[str, str], _Member] = {}
    while (info := archive.next()) is not None:
        engine, key, name = _parts(info, path)
        if name != MANIFEST or (engine, key) in found:
            raise CareError(f"{path}: {info.name[:200]!r} stands where a manifest should")
        if info.size > MAX_BYTES:
            raise CareError(f"{path}: {info.name[:200]!r} is far too large for a manifest")
        try:
            manifest = artifact_manifest.parse(b"".join(_pieces(archive, info)))
            if (manifest.ingredients.engine, manifest.key) != (engine, key):
                raise Broken("its manifest belongs to another artifact")
        except Broken as broken:
            raise CareError(f"{path}: {engine}/{key}: {broken}") from None
        files = {name: _checked(archive, path, f"{engine}/{key}", name, stored) for name, stored in sorted(manifest.files.items())}
        found[engine, key] = _Member(manifest, files)
    if not found:
        raise CareError(f"{path} holds no artifact")
    return list(found.values())


def _parts(info: tarfile.TarInfo, path: Path) -> tuple[str, str, str]:
    """Engine, key and the name within the artifact. Raises CareError for what isn't a regular file of an artifact."""
    if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.sparse is not None:
        raise CareError(f"{path}: {info.name[:200]!r} is no regular file")
    engine, _, rest = info.name.partition("/")
    key, _, name = rest.partition("/")
    if not ENGINE.fullmatch(engine) or not KEY.fullmatch(key) or not name:
        raise CareError(f"{path}: {info.name[:200]!r} belongs to no artifact")
    return engine, key, name


def _checked(archive: tarfile.TarFile, path: Path, base: str, name: str, stored: StoredFile) -> tarfile.TarInfo:
    """The next member, which must be the file that the manifest lists next. Raises CareError."""
    info = archive.next()
    if info is None:
        raise CareError(f"{path} is cut off: {base}/{name} is missing")
    _parts(info, path)
    if info.name != f"{base}/{name}":
        raise CareError(f"{path}: {info.name[:200]!r} stands where {f'{base}/{name}'[:200]!r} should")
    if info.size != stored.size:
        raise CareError(f"{path}: {info.name[:200]!r} has {info.size} bytes, its manifest says {stored.size}")
    digest = hashlib.sha256()
    for piece in _pieces(archive, info):
        digest.update(piece)
    if digest.hexdigest() != stored.sha256:
        raise CareError(f"{path}: {info.name[:200]!r} has another hash than its manifest says")
    return info


def _pieces(archive: tarfile.TarFile, info: tarfile.TarInfo) -> Iterator[bytes]:
    """A member's bytes. Raises tarfile.ReadError where the file ends before."""
    file: Any = archive.extractfile(info)
    left = info.size
    while left:
        piece = file.read(min(left, _PIECE_BYTES))
        if not piece:
            raise tarfile.ReadError(f"it is cut off within {info.name[:200]!r}")
        left -= len(piece)
        yield piece


def _extract(archive: tarfile.TarFile, info: tarfile.TarInfo, into: Path) -> None:
    """Writes a member to a new file in folders of our own; mode and owner in the archive count for nothing."""
    into.parent.mkdir(parents=True, exist_ok=True)
    with into.open("xb") as file:
        for piece in _pieces(archive, info):
            file.write(piece)


def _check_room(store: Store, path: Path, members: Sequence[_Member]) -> None:
    new = [
        member.manifest for member in members if not os.path.lexists(store.root / member.manifest.ingredients.engine / member.manifest.key)
    ]
    needed = sum(manifest.bytes for manifest in new)
    place = next(folder for folder in (store.root, *store.root.parents) if folder.is_dir())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise CareError(
            f"{path} needs {needed / 2**20:.0f} MiB and {free / 2**20:.0f} MiB are free in {place}; free some, or set LLMBENCH_HOME"
        )
