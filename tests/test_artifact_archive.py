"""Artifacts as files: what goes out comes in the same, and nothing that an archive can hold gets out of its folder or half in."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from artifact_fixtures import FILES, INGREDIENTS, Builder, changed, obtain, write_files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmbench import artifact_archive, artifact_manifest
from llmbench.artifact_archive import export, take_in
from llmbench.artifact_care import CareError, find, survey
from llmbench.artifact_manifest import MANIFEST, Manifest
from llmbench.artifacts import Store

BASE = f"some-engine/{INGREDIENTS.key}"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "engines")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Store:
    """Another machine."""
    return Store(tmp_path / "elsewhere" / "engines")


def exported(store: Store, tmp_path: Path, *keys: str) -> Path:
    path = tmp_path / "archive.tar"
    kept = survey(store)
    assert export(store, [find(kept, key) for key in keys] or kept, path) == path.stat().st_size
    return path


def nothing_in(store: Store) -> bool:
    """No file of an artifact, whole or half."""
    return not any(path.is_file() and path.suffix != ".lock" for path in store.root.rglob("*"))


# ---------------------------------------------------------------------------------------------------------------------------- there and back


def test_what_goes_out_comes_in_the_same(store: Store, elsewhere: Store, tmp_path: Path) -> None:
    made = obtain(store)
    obtain(store, changed(dtype="float32"))
    path = exported(store, tmp_path)
    imported = take_in(elsewhere, path, trust=False)
    assert {(one.engine, one.key, one.new) for one in imported} == {
        ("some-engine", INGREDIENTS.key, True),
        ("some-engine", changed(dtype="float32").key, True),
    }
    builder = Builder()
    found = obtain(elsewhere, build=builder)
    assert (found.hit, builder.built) == (True, 0)
    assert found.manifest == made.manifest
    for name, content in FILES.items():
        assert (found.path / name).read_bytes() == content
    assert [one.new for one in take_in(elsewhere, path, trust=False)] == [False, False]


def test_an_archive_begins_with_the_manifest_and_is_the_same_each_time(store: Store, tmp_path: Path) -> None:
    obtain(store)
    path = exported(store, tmp_path)
    first = path.read_bytes()
    with tarfile.open(path, "r:") as archive:
        members = archive.getmembers()
    assert [member.name for member in members] == [f"{BASE}/{name}" for name in (MANIFEST, "empty", "parts/rank0.bin", "plan.bin")]
    assert all(member.isreg() and (member.uid, member.mtime) == (0, 0) for member in members)
    assert exported(store, tmp_path).read_bytes() == first


def test_names_and_sizes_beyond_the_old_format(store: Store, elsewhere: Store, tmp_path: Path) -> None:
    long = "/".join(["d" * 90] * 3) + "/f"

    def build(into: Path) -> Any:
        (into / long).parent.mkdir(parents=True)
        (into / long).write_bytes(b"deep")
        return write_files(into)

    obtain(store, build=build)
    take_in(elsewhere, exported(store, tmp_path), trust=False)
    assert (obtain(elsewhere).path / long).read_bytes() == b"deep"


# ------------------------------------------------------------------------------------------------------------------------------- exporting


def test_a_changed_artifact_is_not_exported(store: Store, tmp_path: Path) -> None:
    path = obtain(store).path
    (path / "plan.bin").write_bytes(FILES["plan.bin"][::-1])
    with pytest.raises(CareError, match=r"'plan\.bin' has changed"):
        exported(store, tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["engines"]


def test_one_that_is_being_built_is_not_exported(store: Store, tmp_path: Path) -> None:
    obtain(store)
    kept = survey(store)
    lock = store.lock("some-engine", INGREDIENTS.key)
    assert lock.take(exclusive=True)
    with pytest.raises(CareError, match="is being built; export it afterwards"):
        export(store, kept, tmp_path / "archive.tar")
    lock.release()
    assert not (tmp_path / "archive.tar").exists()


def test_an_older_file_stays_where_exporting_fails(store: Store, tmp_path: Path) -> None:
    path = obtain(store).path
    archive = tmp_path / "archive.tar"
    archive.write_text("older")
    (path / "plan.bin").unlink()
    with pytest.raises(CareError):
        exported(store, tmp_path)
    assert archive.read_text() == "older"


Usage = namedtuple("Usage", "total used free")


def test_no_room_is_told_before(store: Store, elsewhere: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    obtain(store)
    path = exported(store, tmp_path)
    monkeypatch.setattr(artifact_archive.shutil, "disk_usage", lambda place: Usage(2**30, 2**30, 4096))
    with pytest.raises(CareError, match=r"MiB and 0 MiB are free there"):
        export(store, survey(store), tmp_path / "other.tar")
    with pytest.raises(CareError, match=r"needs 0 MiB and 0 MiB are free in"):
        take_in(elsewhere, path, trust=False)
    assert not (tmp_path / "other.tar").exists()
    assert not elsewhere.root.exists()


# ------------------------------------------------------------------------------------------------------------------------------- importing


def test_machine_code_needs_trust(store: Store, elsewhere: Store, tmp_path: Path) -> None:
    obtain(store, executes=True)
    path = exported(store, tmp_path)
    with pytest.raises(CareError, match=r"machine code of some-engine/.* would run .*--trust"):
        take_in(elsewhere, path, trust=False)
    assert nothing_in(elsewhere)
    take_in(elsewhere, path, trust=True)
    assert obtain(elsewhere, executes=True).hit


def test_denying_machine_code_does_not_help(store: Store, elsewhere: Store, tmp_path: Path) -> None:
    """An archive that says executes=false comes in without --trust, and is never loaded by an engine whose artifacts execute."""
    obtain(store, executes=False)
    take_in(elsewhere, exported(store, tmp_path), trust=False)
    builder = Builder()
    assert not obtain(elsewhere, build=builder, executes=True).hit
    assert builder.built == 1


def manifest_of(files: dict[str, bytes], **changes: Any) -> bytes:
    import hashlib

    stored = {name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()} for name, content in files.items()}
    made = Manifest(INGREDIENTS.key, INGREDIENTS, "m", False, {}, "2026-12-01T00:00:00+00:00", 1.0)
    return json.dumps({**json.loads(artifact_manifest.text(made)), "files": stored, **changes}).encode()


def member(name: str, content: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def archive_of(tmp_path: Path, *members: tuple[tarfile.TarInfo, bytes], **options: Any) -> Path:
    path = tmp_path / "made.tar"
    with tarfile.open(path, "w", **options) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return path


GOOD = {"a": b"one", "b": b"two"}
HEAD = member(f"{BASE}/{MANIFEST}", manifest_of(GOOD))
A, B = member(f"{BASE}/a", b"one"), member(f"{BASE}/b", b"two")


def test_the_archive_that_the_next_tests_break_is_sound(elsewhere: Store, tmp_path: Path) -> None:
    take_in(elsewhere, archive_of(tmp_path, HEAD, A, B), trust=False)
    assert (elsewhere.root / BASE / "b").read_bytes() == b"two"


ATTACKS: dict[str, tuple[list[tuple[tarfile.TarInfo, bytes]], str]] = {
    "no manifest": ([A, B], "stands where a manifest should"),
    "the manifest last": ([A, B, HEAD], "stands where a manifest should"),
    "nothing": ([], "holds no artifact"),
    "a path out": ([member("../../evil", b"x")], "belongs to no artifact"),
    "an absolute path": ([member("/etc/evil", b"x")], "belongs to no artifact"),
    "a path out below a key": ([HEAD, member(f"{BASE}/../../../evil", b"one"), B], "stands where"),
    "an engine that leads out": ([member(f"../{INGREDIENTS.key}/{MANIFEST}", manifest_of(GOOD))], "belongs to no artifact"),
    "a hidden engine": ([member(f".aside/{INGREDIENTS.key}/{MANIFEST}", manifest_of(GOOD))], "belongs to no artifact"),
    "a manifest with a path out": ([member(f"{BASE}/{MANIFEST}", manifest_of({"../a": b"one"}))], "names the file '../a'"),
    "a manifest of another key": ([member(f"{BASE}/{MANIFEST}", manifest_of(GOOD, key="0" * 32)), A, B], "another key"),
    "under another key": ([member(f"some-engine/{'0' * 32}/{MANIFEST}", manifest_of(GOOD))], "belongs to another artifact"),
    "under another engine": ([member(f"other/{INGREDIENTS.key}/{MANIFEST}", manifest_of(GOOD))], "belongs to another artifact"),
    "a link": ([HEAD, member(f"{BASE}/a", type=tarfile.SYMTYPE, linkname="/etc/passwd"), B], "is no regular file"),
    "a hard link": ([HEAD, member(f"{BASE}/a", type=tarfile.LNKTYPE, linkname=f"{BASE}/{MANIFEST}"), B], "is no regular file"),
    "a pipe": ([HEAD, member(f"{BASE}/a", type=tarfile.FIFOTYPE), B], "is no regular file"),
    "a device": ([HEAD, member(f"{BASE}/a", type=tarfile.CHRTYPE), B], "is no regular file"),
    "a folder": ([member("some-engine", type=tarfile.DIRTYPE), HEAD, A, B], "is no regular file"),
    "a sparse file": ([HEAD, member(f"{BASE}/a", b"one", type=tarfile.GNUTYPE_SPARSE), B], ""),
    "a missing file": ([HEAD, A], "is cut off"),
    "a foreign file": ([HEAD, A, B, member(f"{BASE}/c", b"x")], "stands where a manifest should"),
    "another order": ([HEAD, B, A], "stands where"),
    "a file twice": ([HEAD, A, A], "stands where"),
    "an artifact twice": ([HEAD, A, B, HEAD, A, B], "stands where a manifest should"),
    "another size": ([HEAD, member(f"{BASE}/a", b"ones"), B], "has 4 bytes, its manifest says 3"),
    "another content": ([HEAD, member(f"{BASE}/a", b"onE"), B], "has another hash"),
    "a second artifact that is broken": (
        [HEAD, A, B, member(f"some-engine/{changed(dtype='x').key}/{MANIFEST}", b"{}")],
        "not one of llmbench's",
    ),
}


@pytest.mark.parametrize(("members", "why"), ATTACKS.values(), ids=ATTACKS.keys())
def test_what_an_archive_may_not_hold(elsewhere: Store, tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]], why: str) -> None:
    """One line, and not a file is written, sound parts of the archive included."""
    path = archive_of(tmp_path, *members)
    before = sorted(entry for entry in tmp_path.rglob("*"))
    with pytest.raises(CareError, match=why or None) as caught:
        take_in(elsewhere, path, trust=True)
    assert "\n" not in str(caught.value)
    assert sorted(entry for entry in tmp_path.rglob("*")) == before


def _cut(content: bytes) -> bytes:
    return content[:1500]


def _empty(content: bytes) -> bytes:
    return b""


def _noise(content: bytes) -> bytes:
    return bytes(range(256)) * 40


@pytest.mark.parametrize("spoil", [_cut, _empty, _noise, gzip.compress], ids=["cut off", "empty", "noise", "compressed"])
def test_what_is_no_archive(store: Store, elsewhere: Store, tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    obtain(store)
    path = exported(store, tmp_path)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(CareError):
        take_in(elsewhere, path, trust=True)
    assert nothing_in(elsewhere)


def test_what_is_no_file(elsewhere: Store, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("pipe", "it is no file"), (".", "it is no file"), ("gone", "there is no such file")):
        with pytest.raises(CareError, match=why):
            take_in(elsewhere, tmp_path / name, trust=True)


def test_a_header_that_claims_gigabytes_takes_no_memory(elsewhere: Store, tmp_path: Path) -> None:
    """An extended header's length is the archive's word, and a sparse file makes it cheap to keep."""
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, 2**33
    path = tmp_path / "made.tar"
    with path.open("wb") as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        file.truncate(2**33 + 2048)
    with pytest.raises(CareError, match="far too long"):
        take_in(elsewhere, path, trust=True)


def test_a_chain_of_headers_is_no_archive(elsewhere: Store, tmp_path: Path) -> None:
    """tarfile reads each by calling itself."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1
    path = tmp_path / "made.tar"
    path.write_bytes((info.tobuf(tarfile.GNU_FORMAT) + b"x" + bytes(511)) * 3000)
    with pytest.raises(CareError):
        take_in(elsewhere, path, trust=True)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_flipped_byte_is_found_or_changes_nothing(tmp_path: Path, data: st.DataObject) -> None:
    """Whatever byte of an archive changes, what comes in is what was sent, or nothing at all comes in."""
    import tempfile

    content = archive_of(tmp_path, HEAD, A, B).read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    changed_byte = content[place] ^ data.draw(st.integers(1, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "archive.tar"
        path.write_bytes(content[:place] + bytes([changed_byte]) + content[place + 1 :])
        store = Store(Path(folder) / "engines")
        try:
            take_in(store, path, trust=True)
        except CareError:
            assert not store.root.exists()
        else:
            found = {str(entry.relative_to(store.root / BASE)): entry.read_bytes() for entry in (store.root / BASE).rglob("*")}
            assert {name: found[name] for name in found if name != MANIFEST} == GOOD
