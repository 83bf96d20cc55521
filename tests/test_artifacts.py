"""The store: hits and misses, two builders at once, killed builders, and everything that can have happened to what lies there."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from artifact_fixtures import FILES, INGREDIENTS, Builder, all_files, changed, obtain, write_files
from hypothesis import given, settings
from hypothesis import strategies as st

from llmbench.artifact_manifest import KEY, MANIFEST, ArtifactError
from llmbench.artifacts import ASIDE, WHY, Built, Store
from llmbench.protocol import Status

TESTS = Path(__file__).parent


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "engines")


# ------------------------------------------------------------------------------------------------------------------------ hits and misses


def test_built_once_and_found_again(tmp_path: Path) -> None:
    """By the same store and by another process's; what was built is what is found."""
    builder = Builder()
    first = obtain(Store(tmp_path / "engines"), build=builder)
    again = obtain(Store(tmp_path / "engines"), build=builder)
    assert (first.hit, again.hit, builder.built) == (False, True, 1)
    assert first.path == again.path == tmp_path / "engines" / "some-engine" / INGREDIENTS.key
    assert KEY.fullmatch(again.manifest.key)
    for name, content in FILES.items():
        assert (again.path / name).read_bytes() == content
    assert again.manifest.bytes == sum(map(len, FILES.values()))
    assert again.manifest.build_peak_bytes == 12345
    assert again.manifest.ingredients == INGREDIENTS


@pytest.mark.parametrize("change", [{"dtype": "float32"}, {"checkpoint": "d" * 64}, {"adapter": 2}, {"options": {}}, {"versions": {}}])
def test_what_is_different_is_built_beside(store: Store, change: dict[str, object]) -> None:
    builder = Builder()
    first = obtain(store, build=builder)
    other = obtain(store, changed(**change), builder)
    assert builder.built == 2
    assert first.path.is_dir()
    assert other.path.is_dir()
    assert first.path != other.path


def test_one_built_for_more_targets_is_a_hit(store: Store) -> None:
    builder = Builder()
    more = obtain(store, changed(targets=("sm_86", "sm_89", "sm_90")), builder)
    assert obtain(store, changed(targets=("sm_89",)), builder).path == more.path
    assert obtain(store, changed(targets=("sm_86", "sm_90")), builder).path == more.path
    assert builder.built == 1
    assert not obtain(store, changed(targets=("sm_89", "sm_120")), builder).hit
    assert not obtain(store, changed(targets=("sm_89",), dtype="float32"), builder).hit


def test_use_is_remembered(store: Store) -> None:
    path = obtain(store).path / MANIFEST
    os.utime(path, (1, 1))
    obtain(store)
    assert path.stat().st_mtime > 1e9


def test_every_byte_is_read_once_by_a_process_and_again_after_a_change(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of each round loads it: gigabytes are not hashed each time. A written file is, though its size and time are kept."""
    from llmbench import artifacts

    read: list[str] = []
    real = artifacts.file_sha256

    def counting(path: Path, follow: bool = True) -> str:
        read.append(path.name)
        return real(path, follow=follow)

    monkeypatch.setattr(artifacts, "file_sha256", counting)
    obtain(store)
    assert sorted(read) == ["empty", "plan.bin", "rank0.bin"]
    obtain(store)
    assert len(read) == 3
    obtain(Store(store.root))
    assert len(read) == 6
    path = store.root / "some-engine" / INGREDIENTS.key / "plan.bin"
    times = path.stat()
    path.write_bytes(bytes(reversed(path.read_bytes())))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    said: list[str] = []
    assert not obtain(store, said=said).hit
    assert "'plan.bin' has changed" in said[0]


# ------------------------------------------------------------------------------------------------------------------- building that fails


def test_a_failed_build_leaves_nothing(store: Store) -> None:
    def fail(into: Path) -> Built:
        write_files(into)
        raise RuntimeError("the library said no")

    with pytest.raises(RuntimeError, match="said no"):
        obtain(store, build=fail)
    assert [*(store.root / "some-engine").iterdir()] == []
    assert not obtain(store).hit


def _link(into: Path) -> Built:
    (into / "plan.bin").symlink_to("/etc/passwd")
    return Built()


def _pipe(into: Path) -> Built:
    os.mkfifo(into / "plan.bin")
    return Built()


def _own_manifest(into: Path) -> Built:
    (into / MANIFEST).write_text("{}")
    return Built()


@pytest.mark.parametrize(
    ("write", "why"),
    [(lambda into: Built(), "built nothing"), (_link, "is a link"), (_pipe, "no regular file"), (_own_manifest, "the cache's own")],
)
def test_what_may_not_be_built(store: Store, write: Callable[[Path], Built], why: str) -> None:
    with pytest.raises(ArtifactError, match=why) as caught:
        obtain(store, build=write)
    assert caught.value.status is Status.BUILD_FAILED
    assert [*(store.root / "some-engine").iterdir()] == []


def test_others_get_no_right_to_write(tmp_path: Path) -> None:
    """Whatever the umask and the builder were."""

    def loose(into: Path) -> Built:
        write_files(into)
        (into / "plan.bin").chmod(0o777)
        (into / "parts").chmod(0o777)
        return Built()

    before = os.umask(0)
    try:
        path = obtain(Store(tmp_path / "engines"), build=loose).path
    finally:
        os.umask(before)
    for place in (tmp_path / "engines", path.parent, path, *path.rglob("*")):
        assert not stat.S_IMODE(place.stat().st_mode) & stat.S_IWOTH, place
    assert obtain(Store(tmp_path / "engines")).hit


# ------------------------------------------------------------------------------------------------------------------------- broken on disk


def _flip(path: Path) -> None:
    content = bytearray((path / "plan.bin").read_bytes())
    content[1234] ^= 1
    (path / "plan.bin").write_bytes(content)


def _replace_by_link(path: Path) -> None:
    shutil.copy(path / "plan.bin", path.parents[2] / "same.bin")
    (path / "plan.bin").unlink()
    (path / "plan.bin").symlink_to(path.parents[2] / "same.bin")


def _replace_by_pipe(path: Path) -> None:
    (path / "plan.bin").unlink()
    os.mkfifo(path / "plan.bin")


def _folder_is_link(path: Path) -> None:
    path.rename(path.parents[2] / "moved")
    path.symlink_to(path.parents[2] / "moved")


def _folder_is_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("no folder")


def _rename_in_manifest(path: Path) -> None:
    text = (path / MANIFEST).read_text()
    (path / MANIFEST).write_text(text.replace('"plan.bin"', '"../plan.bin"'))


def _other_key(path: Path) -> None:
    other = obtain(Store(path.parents[1]), changed(dtype="float32")).path
    shutil.copy(other / MANIFEST, path / MANIFEST)


def _other_engine(path: Path) -> None:
    other = obtain(Store(path.parents[1]), changed(engine="other-engine")).path
    shutil.copy(other / MANIFEST, path / MANIFEST)


def _large_manifest(path: Path) -> None:
    with (path / MANIFEST).open("wb") as file:
        file.truncate(2**34)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit": (_flip, "'plan.bin' has changed"),
    "a truncated file": (lambda path: os.truncate(path / "plan.bin", 10), "has 10 bytes, 5000 were written"),
    "a missing file": (lambda path: (path / "parts/rank0.bin").unlink(), "'parts/rank0.bin' is missing"),
    "a foreign file": (lambda path: (path / "parts/hook.py").write_text("import os"), "'parts/hook.py' does not belong to it"),
    "a link to the same bytes": (_replace_by_link, "plan.bin is a link"),
    "a foreign link": (lambda path: (path / "more").symlink_to("/"), "more is a link"),
    "a pipe": (_replace_by_pipe, "plan.bin is no regular file"),
    "the folder a link": (_folder_is_link, "is a link"),
    "the folder a file": (_folder_is_file, "its manifest can't be read"),
    "no manifest": (lambda path: (path / MANIFEST).unlink(), "it has no manifest"),
    "an empty manifest": (lambda path: (path / MANIFEST).write_text(""), "not one of llmbench's"),
    "a manifest that leads out": (_rename_in_manifest, "names the file '../plan.bin'"),
    "a manifest of another key": (_other_key, "another key"),
    "a manifest of another engine": (_other_engine, "another key"),
    "a huge manifest": (_large_manifest, "far too large"),
}


@pytest.mark.parametrize(("damage", "why"), DAMAGES.values(), ids=DAMAGES.keys())
def test_what_is_broken_is_set_aside_and_built_anew(tmp_path: Path, damage: Callable[[Path], object], why: str) -> None:
    """And a line says why; once."""
    damage(obtain(Store(tmp_path / "engines")).path)
    store, builder = Store(tmp_path / "engines"), Builder()
    said: list[str] = []
    lease = obtain(store, build=builder, said=said)
    assert (builder.built, lease.hit) == (1, False)
    (line,) = said
    assert why in line
    assert "set aside" in line
    (aside,) = (store.root / "some-engine" / ASIDE).iterdir()
    assert str(aside) in line
    assert sorted(entry.name for entry in aside.iterdir()) == sorted([INGREDIENTS.key, WHY])
    assert why in (aside / WHY).read_text()
    assert (lease.path / "plan.bin").read_bytes() == FILES["plan.bin"]
    assert obtain(Store(tmp_path / "engines"), said=said).hit
    assert len(said) == 1


@settings(max_examples=20, deadline=None)  # each writes and syncs an artifact twice
@given(st.sampled_from(sorted(name for name, content in FILES.items() if content)), st.data())
def test_any_changed_byte_is_found(name: str, data: st.DataObject) -> None:
    content = FILES[name]
    place = data.draw(st.integers(0, len(content) - 1))
    bit = data.draw(st.integers(0, 7))
    with _fresh_folder() as folder:
        path = obtain(Store(folder)).path / name
        path.write_bytes(content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :])
        said: list[str] = []
        assert not obtain(Store(folder), said=said).hit
        assert f"{name!r} has changed" in said[0]


@contextlib.contextmanager
def _fresh_folder() -> Iterator[Path]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "engines"


def test_a_change_while_it_is_used_is_an_error(store: Store) -> None:
    """Two blocks of one run may not load different things under one key."""
    lease = store.obtain(INGREDIENTS, write_files, model="m", executes=False)
    _flip(lease.path)
    with pytest.raises(ArtifactError, match="changed while this run uses it") as caught:
        obtain(store)
    assert caught.value.status is Status.LOAD_FAILED
    assert lease.path.is_dir()
    lease.close()
    assert not obtain(store).hit


def test_a_fault_found_late_sets_nothing_sound_aside(store: Store) -> None:
    """Between finding it and taking the lock another process may have built anew."""
    from llmbench.artifact_files import inode

    path = obtain(store).path
    seen = inode(path)
    path.rename(store.root / "old")
    obtain(store)
    said: list[str] = []
    store.set_aside("some-engine", INGREDIENTS.key, "was broken", seen, said.append)
    assert path.is_dir()
    assert said == []


def test_an_artifact_that_denies_its_code_is_not_loaded(store: Store) -> None:
    """Else an imported one that says so would run without --trust."""
    obtain(store, executes=False)
    said: list[str] = []
    lease = obtain(store, said=said, executes=True)
    assert not lease.hit
    assert lease.manifest.executes
    assert "denies that machine code runs" in said[0]
    assert obtain(store, executes=True).hit
    assert obtain(store, executes=False).hit


# ----------------------------------------------------------------------------------------------------------------------------- whose it is


@pytest.mark.parametrize("which", ["root", "engine", "artifact", "file", "manifest"])
def test_what_every_user_can_write_is_refused(store: Store, which: str) -> None:
    """Code is loaded from there: one line with the command that mends it, and nothing is built or set aside."""
    path = obtain(store).path
    place = {"root": store.root, "engine": path.parent, "artifact": path, "file": path / "plan.bin", "manifest": path / MANIFEST}[which]
    before = all_files(store.root)
    mode = stat.S_IMODE(place.stat().st_mode)
    place.chmod(mode | stat.S_IWOTH)
    builder = Builder()
    with pytest.raises(ArtifactError, match="can be written by every user") as caught:
        obtain(Store(store.root), build=builder)
    assert "chmod" in caught.value.reason
    assert "\n" not in caught.value.reason
    assert builder.built == 0
    assert all_files(store.root) == before
    place.chmod(mode)
    assert obtain(Store(store.root)).hit


@pytest.mark.parametrize("which", ["engine", "artifact", "file"])
def test_another_users_is_refused(store: Store, which: str) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a file away")
    path = obtain(store).path
    place = {"engine": path.parent, "artifact": path, "file": path / "plan.bin"}[which]
    os.chown(place, 12345, -1)
    with pytest.raises(ArtifactError, match=r"belongs to another user \(uid 12345\)"):
        obtain(Store(store.root))


def test_an_engines_folder_is_no_link(store: Store, tmp_path: Path) -> None:
    path = obtain(store).path
    path.parent.rename(tmp_path / "elsewhere")
    path.parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match="is a link; code is loaded only from a real folder"):
        obtain(Store(store.root))


def test_a_covering_one_that_cannot_be_trusted_is_passed_over(store: Store) -> None:
    more = obtain(store, changed(targets=("sm_89", "sm_90"))).path
    (more / "plan.bin").chmod(0o666)
    said: list[str] = []
    lease = obtain(store, said=said)
    assert not lease.hit
    assert lease.path != more
    assert "passed over" in said[0]


# ---------------------------------------------------------------------------------------------------------------------- several processes

#: Obtains INGREDIENTS; says "building" once it builds, then waits for a line.
SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from artifact_fixtures import INGREDIENTS, write_files
from llmbench.artifacts import Store

def build(into):
    print("building", flush=True)
    (into / "half").write_bytes(b"half")
    sys.stdin.readline()
    (into / "half").unlink()
    return write_files(into)

def say(text):
    print("said", text, flush=True)

lease = Store(Path(sys.argv[1])).obtain(INGREDIENTS, build, model="m", executes=False, say=say)
print("hit" if lease.hit else "built", lease.waited_s > 0, flush=True)
sys.stdin.readline()
lease.close()
"""


def _start(root: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT).format(tests=str(TESTS)), str(root)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=TESTS.parent)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_of_two_processes_one_builds_and_the_other_waits_and_says_so(tmp_path: Path) -> None:
    root = tmp_path / "engines"
    with _start(root) as first, _start(root) as second:
        # Whichever came first builds; the other has told that it waits.
        lines = {process: _line(process) for process in (first, second)}
        builder = next(process for process, line in lines.items() if line == "building")
        waiter = second if builder is first else first
        assert lines[waiter].startswith("said waiting for another process that")
        assert INGREDIENTS.key in lines[waiter]
        _go_on(builder)
        assert _line(builder) == "built False"
        assert _line(waiter) == "hit True"
        # Both use it now: it can't be removed, but a third can load it.
        store = Store(root)
        assert not store.remove("some-engine", INGREDIENTS.key)
        assert obtain(store).hit
        for process in (first, second):
            _go_on(process)
    assert store.remove("some-engine", INGREDIENTS.key)
    assert [*(root / "some-engine").iterdir()] == []


def test_a_killed_builder_leaves_no_artifact_and_blocks_nobody(tmp_path: Path) -> None:
    root = tmp_path / "engines"
    with _start(root) as builder:
        assert _line(builder) == "building"
        builder.send_signal(signal.SIGKILL)
    left = [path for path in (root / "some-engine").iterdir() if path.suffix == ".partial"]
    assert len(left) == 1, "the test killed it too late"
    lease = obtain(Store(root))
    assert not lease.hit
    assert all_files(root / "some-engine") == sorted(
        [INGREDIENTS.key, *(f"{INGREDIENTS.key}/{name}" for name in (*FILES, "parts", MANIFEST))]
    )


def test_who_waits_for_a_builder_that_is_killed_builds_itself(tmp_path: Path) -> None:
    root = tmp_path / "engines"
    with _start(root) as builder:
        assert _line(builder) == "building"
        with _start(root) as waiter:
            assert _line(waiter).startswith("said waiting")
            builder.send_signal(signal.SIGKILL)
            lines = [_line(waiter)]
            while lines[-1].startswith("said"):
                lines.append(_line(waiter))
            assert lines[-1] == "building"
            _go_on(waiter)
            assert _line(waiter) == "built True"
            _go_on(waiter)
    assert not any(path.suffix == ".partial" for path in (root / "some-engine").iterdir())


def test_removing_leaves_alone_what_is_being_built(tmp_path: Path) -> None:
    root = tmp_path / "engines"
    with _start(root) as builder:
        assert _line(builder) == "building"
        assert not Store(root).remove("some-engine", INGREDIENTS.key)
        _go_on(builder)
        assert _line(builder) == "built False"
        _go_on(builder)
    assert obtain(Store(root)).hit


def test_many_processes_that_obtain_and_remove_never_see_half_an_artifact(tmp_path: Path) -> None:
    """Four processes at once, each with its own order of obtaining and removing; what is obtained is checked whole while it is held."""
    script = """
    import random, sys
    from pathlib import Path
    sys.path.insert(0, {tests!r})
    from artifact_fixtures import FILES, INGREDIENTS, write_files
    from llmbench.artifacts import Store
    store, source = Store(Path(sys.argv[1])), random.Random(int(sys.argv[2]))
    for _ in range(40):
        if source.random() < 0.4 and (store.root / "some-engine").is_dir():
            store.remove("some-engine", INGREDIENTS.key)
        else:
            with store.obtain(INGREDIENTS, write_files, model="m", executes=False) as lease:
                for name, content in FILES.items():
                    assert (lease.path / name).read_bytes() == content
    """
    command = [sys.executable, "-c", textwrap.dedent(script).format(tests=str(TESTS)), str(tmp_path / "engines")]
    seeds = random.Random(7).sample(range(1000), 4)
    processes = [subprocess.Popen([*command, str(seed)], cwd=TESTS.parent, stderr=subprocess.PIPE, text=True) for seed in seeds]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    left = [path.name for path in (tmp_path / "engines/some-engine").iterdir() if path.suffix in (".partial", ".removed")]
    assert left == []


# ---------------------------------------------------------------------------------------------------------------------------------- disk


def _on_full_disk(tmp_path: Path, script: str, size: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in a mount namespace where tmp_path/engines is a small tmpfs."""
    (tmp_path / "engines").mkdir()
    command = f'mount -t tmpfs -o size={size},mode=755 none "$1" && exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", command, "sh", str(tmp_path / "engines"), sys.executable, textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=TESTS.parent,
    )
    if done.returncode and "unshare:" in done.stderr:
        pytest.skip(f"no user namespaces here: {done.stderr.strip()}")
    return done


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    script = f"""
    import sys
    from pathlib import Path
    sys.path.insert(0, {str(TESTS)!r})
    from artifact_fixtures import INGREDIENTS
    from llmbench.artifact_manifest import ArtifactError
    from llmbench.artifacts import Built, Store
    root = Path(sys.argv[1])

    def directly(into):
        (into / "plan.bin").write_bytes(bytes(2**22))
        return Built()

    def in_another_process(into):
        try:
            directly(into)
        except OSError:
            raise RuntimeError("the builder failed: write error") from None

    for build in (directly, in_another_process):
        try:
            Store(root).obtain(INGREDIENTS, build, model="m", executes=False)
        except ArtifactError as error:
            print(error)
            print(sorted(str(path) for path in root.rglob("*") if path.is_file()), len(list((root / "some-engine").iterdir())))
    """
    done = _on_full_disk(tmp_path, script, "1m")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4, lines
    for line in lines[::2]:
        assert line.startswith("no room for the artifact of some-engine: ")
        assert "free some, `llmbench cache prune`, or set LLMBENCH_HOME" in line
    assert lines[1::2] == ["[] 0", "[] 0"]


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "engines").write_text("a file")
    with pytest.raises(ArtifactError, match="can't be kept in"):
        obtain(Store(tmp_path / "engines"))


def test_ctrl_c_while_waiting_gives_the_lock_up(tmp_path: Path) -> None:
    """A lock that was waited for and not got must not be taken for held: its file would be removed under its holder."""
    root = tmp_path / "engines"
    with _start(root) as builder:
        assert _line(builder) == "building"
        with _start(root) as waiter:
            assert _line(waiter).startswith("said waiting")
            waiter.send_signal(signal.SIGINT)
            waiter.wait(timeout=30)
        assert (root / "some-engine" / f".{INGREDIENTS.key}.lock").exists()
        assert not Store(root).remove("some-engine", INGREDIENTS.key)
        _go_on(builder)
        assert _line(builder) == "built False"
        _go_on(builder)
