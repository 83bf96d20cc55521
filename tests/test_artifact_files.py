"""Locks where their file is removed or waiting is interrupted, and walking without following."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path
from types import FrameType

import pytest

from llmbench import artifact_files
from llmbench.artifact_files import Lock, inode, leftovers, stamps, walk
from llmbench.artifact_manifest import Broken


def test_shared_and_exclusive(tmp_path: Path) -> None:
    """As in several processes: each Lock has a descriptor of its own."""
    one, other, third = (Lock(tmp_path / "lock") for _ in range(3))
    assert not one.exists
    assert one.take(exclusive=False)
    assert other.take(exclusive=False)
    assert not third.take(exclusive=True, wait=False)
    assert not third.held
    one.release()
    other.release()
    assert third.take(exclusive=True, wait=False)
    assert not one.take(exclusive=False, wait=False)
    third.release()


def test_a_lock_on_a_file_that_is_gone_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its holder removed the file just before giving it up: who waited has a lock that nobody else would meet."""
    path, real, calls = tmp_path / "lock", fcntl.flock, []

    def flock(descriptor: int, kind: int) -> None:
        real(descriptor, kind)
        calls.append(kind)
        if len(calls) == 1:
            path.unlink()

    monkeypatch.setattr(artifact_files.fcntl, "flock", flock)
    lock = Lock(path)
    assert lock.take(exclusive=True)
    assert len(calls) == 2
    assert not Lock(path).take(exclusive=True, wait=False), "two hold it at once"
    lock.release()


def test_interrupted_while_it_waits_it_is_not_held(tmp_path: Path) -> None:
    """Who takes it for held would remove the file of a lock that is another's."""
    holder, waiter = Lock(tmp_path / "lock"), Lock(tmp_path / "lock")
    assert holder.take(exclusive=True)

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            waiter.take(exclusive=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not waiter.held
    assert not Lock(tmp_path / "lock").take(exclusive=False, wait=False)
    holder.release()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        Lock(tmp_path / "lock").take(exclusive=True)
    assert not (tmp_path / "elsewhere").exists()


def test_walking(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/c").write_bytes(b"123")
    (tmp_path / "d").write_bytes(b"")
    assert {name: state.st_size for name, state in walk(tmp_path)} == {"a/b/c": 3, "d": 0}
    (tmp_path / "a/out").symlink_to("/")
    with pytest.raises(Broken, match="a/out is a link, to /"):
        list(walk(tmp_path))


def test_stamps_change_with_all_that_can_happen_to_a_file(tmp_path: Path) -> None:
    """Also where size and time are as before."""
    path = tmp_path / "a"
    path.write_bytes(b"123")
    seen = [stamps(tmp_path, without="manifest")]

    def keep_time(state: os.stat_result) -> None:
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))

    state = path.stat()
    path.write_bytes(b"124")
    keep_time(state)
    seen.append(stamps(tmp_path, without="manifest"))
    path.rename(tmp_path / "b")
    (tmp_path / "b").rename(path)
    (tmp_path / "c").write_bytes(b"123")
    (tmp_path / "c").replace(path)
    keep_time(state)
    seen.append(stamps(tmp_path, without="manifest"))
    (tmp_path / "more").write_bytes(b"")
    seen.append(stamps(tmp_path, without="manifest"))
    assert all(one != other for index, one in enumerate(seen) for other in seen[:index])
    (tmp_path / "manifest").write_bytes(b"x")
    assert stamps(tmp_path, without="manifest") == seen[-1]


def test_leftovers_are_a_keys_own(tmp_path: Path) -> None:
    for name in (".k.lock", ".k.1.partial", ".k.2.removed", ".kk.3.partial", "k", ".k.4.other"):
        (tmp_path / name).mkdir()
    assert [path.name for path in leftovers(tmp_path, "k")] == [".k.1.partial", ".k.2.removed"]
    assert inode(tmp_path / "k") == (tmp_path / "k").stat().st_ino
    assert inode(tmp_path / "gone") is None
