"""The build cache: what an engine builds once and loads again, kept under engines/<engine>/<key>/ with a manifest.

The key is a digest of everything that decides the result, so a changed library, checkpoint, device or option is another artifact and never a
silent overwrite. An artifact gets its name only when all of it is on disk. Before a process loads one, every byte is checked against the
manifest's hashes, since a library may execute what lies there; what doesn't hold is set aside and built anew, with a line that says why.

Locks are flock's, one file a key: exclusive to build and to remove, shared to use. The kernel gives them up when their holder dies, so a dead
builder blocks nobody, and what is in use can't be pruned. (The filelock library, used elsewhere, has no shared lock that a crash gives up.)
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from llmbench import artifact_manifest
from llmbench.artifact_files import Lock, inode, leftovers, refuse_untrusted, stamps, sync, sync_all, tighten, walk
from llmbench.artifact_manifest import KEY, MANIFEST, ArtifactError, Broken, Ingredients, Manifest, StoredFile
from llmbench.hashing import file_sha256
from llmbench.protocol import Status

#: The folder of artifacts that were found broken, beside the sound ones; nothing loads from it.
ASIDE = ".aside"
#: The file beside such an artifact that says what was wrong with it.
WHY = "why.txt"
#: With less than this left after a failed build, the disk was the reason.
_FULL_DISK_BYTES = 16 * 2**20

Say = Callable[[str], None]


@dataclass(frozen=True)
class Built:
    """What a building callable tells of what it did."""

    peak_bytes: int | None = None
    source: str | None = None  # "engine/key"
    source_build_s: float = 0.0  # what the source's building took, where it was not built just now


class Lease:
    """An artifact in use: it can't be removed until `close`."""

    def __init__(self, path: Path, manifest: Manifest, hit: bool, waited_s: float, on_close: Callable[[], None]) -> None:
        self.path, self.manifest, self.hit, self.waited_s = path, manifest, hit, waited_s
        self._on_close: Callable[[], None] | None = on_close

    @property
    def name(self) -> str:
        return f"{self.manifest.ingredients.engine}/{self.manifest.key}"

    def close(self) -> None:
        if self._on_close is not None:
            self._on_close()
            self._on_close = None

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Store:
    """The artifacts under one folder, `engines/` of LLMBENCH_HOME."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._checked: dict[str, object] = {}  # engine/key -> the files' stamps when this process last read every byte
        self._held: dict[str, int] = {}  # engine/key -> leases of this process

    # ------------------------------------------------------------------------------------------------------------- getting and building

    def obtain(
        self, wanted: Ingredients, build: Callable[[Path], Built], *, model: str, executes: bool, say: Say = lambda text: None
    ) -> Lease:
        """The artifact for `wanted`, found or built by `build(an empty folder)`; of two processes that ask at once, one builds.

        `say` gets a line when this waits for another process and when something is set aside. Raises ArtifactError, and whatever `build`
        raises; then nothing is left behind.
        """
        waited_s, built = 0.0, False
        with self.told(wanted.engine):
            while True:
                found, seconds = self._look(wanted, not built, executes, say)
                waited_s += seconds
                if found is not None:
                    found.waited_s = waited_s
                    return found
                folder = self._engine_folder(wanted.engine, create=True)
                lock = self.lock(wanted.engine, wanted.key)
                try:
                    waited_s += _wait(lock, True, f"{wanted.engine}/{wanted.key}", say)
                    if not os.path.lexists(folder / wanted.key):  # else another process has built it meanwhile
                        self._build(wanted, folder, build, model, executes)
                        built = True
                finally:
                    if lock.held and not os.path.lexists(folder / wanted.key):
                        lock.unlink()  # building failed
                    lock.release()

    def _look(self, wanted: Ingredients, hit: bool, executes: bool, say: Say) -> tuple[Lease | None, float]:
        """The artifact under the key, else one that was built for more targets; and the seconds waited. What is broken is set aside."""
        waited_s = 0.0
        if not (self.root / wanted.engine).is_dir():
            return None, waited_s
        covering = (
            key for engine, key in self.names() if engine == wanted.engine and key != wanted.key and self._serves(engine, key, wanted)
        )
        for key in (wanted.key, *covering):
            lock = self.lock(wanted.engine, key)
            seen = None
            try:
                waited_s += _wait(lock, False, f"{wanted.engine}/{key}", say)
                seen = inode(self.root / wanted.engine / key)
                lease = self._open(wanted.engine, key, lock, hit, executes)
            except Broken as broken:
                lock.release()
                self.set_aside(wanted.engine, key, str(broken), seen, say)
                continue
            except ArtifactError as error:
                lock.release()
                if key == wanted.key:
                    raise
                say(f"the artifact {wanted.engine}/{key} would do and is passed over: {error}")
                continue
            except BaseException:
                lock.release()
                raise
            if lease is not None:
                return lease, waited_s
            lock.release()
        return None, waited_s

    def _serves(self, engine: str, key: str, wanted: Ingredients) -> bool:
        try:
            return self.read_manifest(engine, key).ingredients.serves(wanted)
        except Broken:
            return False

    def _open(self, engine: str, key: str, lock: Lock, hit: bool, executes: bool) -> Lease | None:
        """The checked artifact under a key whose lock is held; null where there is none."""
        path, name = self.root / engine / key, f"{engine}/{key}"
        if not os.path.lexists(path):
            return None
        self._engine_folder(engine, create=False)
        manifest = self.read_manifest(engine, key)
        if executes and not manifest.executes:  # else an import could have evaded the question whether its code is trusted
            raise Broken("its manifest denies that machine code runs when it is loaded")
        refuse_untrusted(path)
        if self._checked.get(name) != stamps(path, without=MANIFEST):
            self.check(engine, key, manifest)
        with contextlib.suppress(OSError):
            os.utime(path / MANIFEST)  # its last use
        self._held[name] = self._held.get(name, 0) + 1

        def on_close() -> None:
            self._held[name] -= 1
            lock.release()

        return Lease(path, manifest, hit, 0.0, on_close)

    def _build(self, wanted: Ingredients, folder: Path, build: Callable[[Path], Built], model: str, executes: bool) -> None:
        """Builds in a folder beside, then publishes. The key's lock is held."""
        from llmbench import __version__

        with self._partial(wanted.key, folder) as partial:
            start_s = time.monotonic()
            try:
                built = build(partial)
            except Exception as error:
                if shutil.disk_usage(folder).free < _FULL_DISK_BYTES:
                    raise OSError(errno.ENOSPC, "No space left on device") from error
                raise
            try:
                files = {
                    name: StoredFile(state.st_size, file_sha256(partial / name, follow=False)) for name, state in sorted(walk(partial))
                }
            except Broken as broken:  # a link or a device in what was built
                raise ArtifactError(f"{wanted.engine} built something that can't be kept: {broken}") from None
            if not files:
                raise ArtifactError(f"{wanted.engine} built nothing")
            if MANIFEST in files:
                raise ArtifactError(f"{wanted.engine} wrote a file {MANIFEST}, which is the cache's own")
            manifest = Manifest(
                key=wanted.key,
                ingredients=wanted,
                model=model,
                executes=executes,
                files=files,
                built_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                build_s=time.monotonic() - start_s + built.source_build_s,
                build_peak_bytes=built.peak_bytes,
                source=built.source,
                llmbench_version=__version__,
            )
            self._publish(partial, manifest, folder)

    @contextlib.contextmanager
    def _partial(self, key: str, folder: Path) -> Iterator[Path]:
        """An empty folder to fill, gone afterwards unless it was published. The key's lock is held."""
        for left in leftovers(folder, key):
            shutil.rmtree(left, ignore_errors=True)  # of a process that was killed: we hold its lock
        partial = Path(tempfile.mkdtemp(prefix=f".{key}.", suffix=".partial", dir=folder))
        try:
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _publish(self, partial: Path, manifest: Manifest, folder: Path) -> None:
        """Gives a whole folder its name. The key's lock is held."""
        (partial / MANIFEST).write_bytes(artifact_manifest.text(manifest))
        tighten(partial)
        sync_all(partial)
        partial.rename(folder / manifest.key)
        sync(folder)
        self._checked[f"{folder.name}/{manifest.key}"] = stamps(folder / manifest.key, without=MANIFEST)

    def set_aside(self, engine: str, key: str, why: str, seen: int | None, say: Say) -> None:
        """Takes what lies under a key out of the way, unless it is no longer the folder with inode `seen`, in which the fault was found."""
        if self._held.get(f"{engine}/{key}"):
            raise ArtifactError(f"the artifact {engine}/{key} changed while this run uses it: {why}", Status.LOAD_FAILED)
        folder, lock = self.root / engine, self.lock(engine, key)
        try:
            _wait(lock, True, f"{engine}/{key}", say)
            if seen is None or inode(folder / key) != seen:
                return  # another process did it
            (folder / ASIDE).mkdir(exist_ok=True)
            place = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=folder / ASIDE))
            (folder / key).rename(place / key)
            with contextlib.suppress(OSError):
                (place / WHY).write_text(f"{why}\n", encoding="utf-8", errors="replace")
        finally:
            lock.release()
        say(f"the artifact {engine}/{key} is set aside in {place}: {why}")

    # ---------------------------------------------------------------------------------------------------------- for the cache's commands

    def names(self) -> Iterator[tuple[str, str]]:
        """(engine, key) of all that has a key's name, sound or not, in order."""
        for folder in sorted(self.root.iterdir()) if self.root.is_dir() else []:
            if folder.is_dir() and not folder.is_symlink() and not folder.name.startswith("."):
                yield from ((folder.name, entry.name) for entry in sorted(folder.iterdir()) if KEY.fullmatch(entry.name))

    def read_manifest(self, engine: str, key: str) -> Manifest:
        """The manifest, checked for its form and against its own key. Raises Broken."""
        return artifact_manifest.read(self.root / engine / key, engine, key)

    def check(self, engine: str, key: str, manifest: Manifest) -> None:
        """Reads every byte of an artifact and compares it with the manifest. Raises Broken."""
        folder = self.root / engine / key
        before = stamps(folder, without=MANIFEST)
        check_files(folder, manifest)
        self._checked[f"{engine}/{key}"] = before

    def lock(self, engine: str, key: str) -> Lock:
        """The lock of a key: shared while it is used, exclusive while it is built or removed."""
        return Lock(self.root / engine / f".{key}.lock")

    def remove(self, engine: str, key: str) -> bool:
        """Removes an artifact. False where it is being built or used; then it is left alone. Raises OSError."""
        folder, lock = self.root / engine, self.lock(engine, key)
        if not lock.take(exclusive=True, wait=False):
            return False
        try:
            gone = Path(tempfile.mkdtemp(prefix=f".{key}.", suffix=".removed", dir=folder))
            with contextlib.suppress(FileNotFoundError):
                (folder / key).rename(gone / key)  # at once out of reach, however long deleting takes
            for left in leftovers(folder, key):
                shutil.rmtree(left)
            lock.unlink()
        finally:
            lock.release()
        return True

    def adopt(self, manifest: Manifest, fill: Callable[[Path], None], say: Say = lambda text: None) -> bool:
        """Takes in an artifact that was built elsewhere: `fill` writes its files into an empty folder. False where its key is here already.

        Raises Broken where what was written isn't what the manifest says, ArtifactError where it can't be kept; then nothing is left behind.
        """
        engine, key = manifest.ingredients.engine, manifest.key
        with self.told(engine):
            folder = self._engine_folder(engine, create=True)
            lock = self.lock(engine, key)
            try:
                _wait(lock, True, f"{engine}/{key}", say)
                if os.path.lexists(folder / key):
                    return False
                with self._partial(key, folder) as partial:
                    fill(partial)
                    check_files(partial, manifest)
                    self._publish(partial, manifest, folder)
            finally:
                lock.release()
        return True

    def _engine_folder(self, engine: str, create: bool) -> Path:
        """engines/<engine>, refused where others could have put compiled code into it."""
        folder = self.root / engine
        for place in (self.root, folder):
            if create and not os.path.lexists(place):
                place.mkdir(parents=True, exist_ok=True)
                place.chmod(0o755)  # whatever the umask
        mode = self.root.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise ArtifactError(f"{self.root} can be written by every user, and code is loaded from it; chmod o-w {self.root}")
        refuse_untrusted(folder, below=False)
        return folder

    @contextlib.contextmanager
    def told(self, engine: str) -> Iterator[None]:
        """The operating system's refusals as one line."""
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                place = next(folder for folder in (self.root, *self.root.parents) if folder.is_dir())
                free = shutil.disk_usage(place).free
                raise ArtifactError(
                    f"no room for the artifact of {engine}: {free / 2**20:.0f} MiB are free in {self.root}; free some, "
                    "`llmbench cache prune`, or set LLMBENCH_HOME to a larger disk"
                ) from error
            raise ArtifactError(f"the artifact of {engine} can't be kept in {self.root}: {error.strerror or error}") from error


def check_files(folder: Path, manifest: Manifest) -> None:
    """Raises Broken where the folder's files, links and devices included, are not exactly those that the manifest lists."""
    found = dict(walk(folder))
    found.pop(MANIFEST, None)
    missing, foreign = sorted(set(manifest.files) - set(found)), sorted(set(found) - set(manifest.files))
    if missing:
        raise Broken(f"the file {missing[0]!r} is missing")
    if foreign:
        raise Broken(f"the file {foreign[0]!r} does not belong to it")
    for name, stored in manifest.files.items():
        if found[name].st_size != stored.size:
            raise Broken(f"{name!r} has {found[name].st_size} bytes, {stored.size} were written")
    for name, stored in manifest.files.items():
        if file_sha256(folder / name, follow=False) != stored.sha256:
            raise Broken(f"{name!r} has changed: its hash is another one")


def _wait(lock: Lock, exclusive: bool, what: str, say: Say) -> float:
    """Takes a lock; returns the seconds that another process made this one wait."""
    if lock.take(exclusive, wait=False):
        return 0.0
    say(f"waiting for another process that {'uses or builds' if exclusive else 'builds'} the artifact {what}")
    start_s = time.monotonic()
    lock.take(exclusive)
    return time.monotonic() - start_s
