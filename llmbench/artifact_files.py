"""The files under an artifact: locks that a crash gives up, walking without following links, hashing, syncing, and whom they belong to.

POSIX only, as all of llmbench.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from llmbench.artifact_manifest import ArtifactError, Broken
from llmbench.protocol import Status


class Lock:
    """An flock on a file that remove() may delete: taken anew where the name has come to mean another file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def exists(self) -> bool:
        return os.path.lexists(self._path)

    @property
    def held(self) -> bool:
        """Whether it was taken."""
        return self._descriptor is not None

    def take(self, exclusive: bool, wait: bool = True) -> bool:
        """Takes or converts it. False where it is held against this and wait is false. Converting may let others in between."""
        kind = (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | (0 if wait else fcntl.LOCK_NB)
        while True:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                fcntl.flock(self._descriptor, kind)
            except BlockingIOError:
                self.release()
                return False
            except BaseException:  # Ctrl-C while it waits: not taken
                self.release()
                raise
            if self._is_current():
                return True
            self.release()

    def _is_current(self) -> bool:
        assert self._descriptor is not None
        try:
            named = self._path.stat()
        except FileNotFoundError:
            return False
        mine = os.fstat(self._descriptor)
        return (named.st_dev, named.st_ino) == (mine.st_dev, mine.st_ino)

    def unlink(self) -> None:
        """Removes the file of a lock that is held exclusively; who waits for it then takes a new one."""
        self._path.unlink(missing_ok=True)

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def inode(path: Path) -> int | None:
    """Which folder a name means; null where it means nothing. Links are not followed."""
    try:
        return path.lstat().st_ino
    except FileNotFoundError:
        return None


def leftovers(folder: Path, key: str) -> list[Path]:
    """What killed processes left of building or removing a key; in the making still where the key's lock is held."""
    return [left for left in sorted(folder.glob(f".{key}.*")) if left.suffix in (".partial", ".removed")]


def walk(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """(path within the folder, state) of every file. Raises Broken where something is neither a regular file nor a folder."""
    pending = [(folder, "")]
    while pending:
        place, prefix = pending.pop()
        for entry in os.scandir(place):
            name = f"{prefix}{entry.name}"
            if entry.is_symlink():
                raise Broken(f"{name} is a link, to {str(Path(entry.path).readlink())[:200]}")
            state = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(state.st_mode):
                pending.append((Path(entry.path), f"{name}/"))
            elif stat.S_ISREG(state.st_mode):
                yield name, state
            else:
                raise Broken(f"{name} is no regular file")


def stamps(folder: Path, without: str) -> object:
    """Changes whenever a file of the folder is written, replaced, added or removed, the file `without` excepted. Reads no file."""
    return sorted(
        (name, state.st_size, state.st_mtime_ns, state.st_ino, state.st_ctime_ns) for name, state in walk(folder) if name != without
    )


def refuse_untrusted(folder: Path, below: bool = True) -> None:
    """Raises ArtifactError where another user owns the folder, or a file in it, or could write there: libraries load code from it."""
    places = [folder, *(folder.rglob("*") if below else ())]
    for place in places:
        try:
            state = place.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(state.st_mode):
            if place == folder and not below:
                raise ArtifactError(f"{place} is a link; code is loaded only from a real folder: set LLMBENCH_HOME to where it leads")
            continue  # told by walk
        if state.st_uid not in (os.getuid(), 0):
            raise ArtifactError(
                f"{place} belongs to another user (uid {state.st_uid}), and code would be loaded from it; remove it or set LLMBENCH_HOME",
                Status.LOAD_FAILED,
            )
        if state.st_mode & stat.S_IWOTH:
            raise ArtifactError(
                f"{place} can be written by every user, and code would be loaded from it; chmod -R o-w {folder}", Status.LOAD_FAILED
            )


def tighten(folder: Path) -> None:
    """Takes from others the right to write, whatever the umask was."""
    folder.chmod(0o755)
    for place in folder.rglob("*"):
        if not place.is_symlink():
            place.chmod(stat.S_IMODE(place.stat().st_mode) & ~0o022)


def sync_all(folder: Path) -> None:
    for place in [*folder.rglob("*"), folder]:
        sync(place)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
