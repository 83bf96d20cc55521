"""The identity that artifacts go by: every byte decides, copies are equal, and a second look reads nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from llmbench.checkpoints.identity import full_identity
from llmbench.protocol import CheckpointRef


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text('{"hidden_size": 16}')
    (path / "tokenizer.json").write_text("{}")
    for number in (1, 2):
        (path / f"model-0000{number}-of-00002.safetensors").write_bytes(bytes(range(256)) * 64 * number)
    (path / "model.safetensors.index.json").write_text("{}")
    return path


def identity(folder: Path, tmp_path: Path, seed: int | None = None, verify: bool = False) -> str:
    ref = CheckpointRef("m", str(folder), *(("safetensors",) if seed is None else ("dummy", seed)))
    return full_identity(ref, tmp_path / "identities", verify=verify)


def _flip(path: Path, place: int) -> None:
    """One bit, with time and inode kept."""
    state = path.stat()
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def test_a_second_look_hashes_nothing(folder: Path, tmp_path: Path) -> None:
    """Seen by a change that leaves size, time and inode alone: the kept hash stands until verify reads all again."""
    first = identity(folder, tmp_path)
    _flip(folder / "model-00001-of-00002.safetensors", 5000)
    assert identity(folder, tmp_path) == first
    verified = identity(folder, tmp_path, verify=True)
    assert verified != first
    assert identity(folder, tmp_path) == verified


@pytest.mark.parametrize("name", ["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"])
def test_every_byte_of_weights_and_shape_decides(folder: Path, tmp_path: Path, name: str) -> None:
    """Also one far from a file's ends and middle, which the quick identity of run files would not see."""
    first = identity(folder, tmp_path)
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 3] ^= 1
    (folder / name).write_bytes(content)
    assert identity(folder, tmp_path) != first


def test_a_written_file_is_hashed_again(folder: Path, tmp_path: Path) -> None:
    """Its time tells."""
    first = identity(folder, tmp_path)
    path = folder / "model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(1, 1))
    assert identity(folder, tmp_path) != first


def test_a_shard_more_or_less_decides(folder: Path, tmp_path: Path) -> None:
    first = identity(folder, tmp_path)
    (folder / "model-00002-of-00002.safetensors").rename(folder / "model-00003-of-00003.safetensors")
    renamed = identity(folder, tmp_path)
    (folder / "model-00003-of-00003.safetensors").unlink()
    assert len({first, renamed, identity(folder, tmp_path)}) == 3


def test_copies_are_equal_and_what_weights_do_not_depend_on_does_not_count(folder: Path, tmp_path: Path) -> None:
    first = identity(folder, tmp_path)
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy/README.md").write_text("read me")
    (tmp_path / "copy/tokenizer.json").write_text("[]")
    assert identity(tmp_path / "copy", tmp_path) == first


def test_random_weights_go_by_seed_and_shape(folder: Path, tmp_path: Path) -> None:
    real, zero = identity(folder, tmp_path), identity(folder, tmp_path, seed=0)
    assert len({real, zero, identity(folder, tmp_path, seed=1)}) == 3
    _flip(folder / "model-00001-of-00002.safetensors", 5000)
    assert identity(folder, tmp_path, seed=0, verify=True) == zero
    (folder / "config.json").write_text('{"hidden_size": 32}')
    assert identity(folder, tmp_path, seed=0) != zero


@pytest.mark.parametrize("content", ["", "not json", "[]", '{"files": 1}', '{"files": [], "identity": 5}', "\udcff"])
def test_a_broken_note_is_written_anew(folder: Path, tmp_path: Path, content: str) -> None:
    first = identity(folder, tmp_path)
    (note,) = (tmp_path / "identities").iterdir()
    note.write_bytes(content.encode(errors="surrogateescape"))
    assert identity(folder, tmp_path) == first
    assert first in note.read_text()


def test_a_place_that_cannot_be_written_costs_time_alone(folder: Path, tmp_path: Path) -> None:
    first = identity(folder, tmp_path)
    (tmp_path / "file").write_text("")
    ref = CheckpointRef("m", str(folder))
    assert full_identity(ref, tmp_path / "file" / "identities") == first


def test_a_long_read_is_told(folder: Path, tmp_path: Path) -> None:
    with (folder / "model-00003-of-00003.safetensors").open("wb") as file:
        file.truncate(2**30 + 1)  # a hole: nothing on disk
    said: list[str] = []
    full_identity(CheckpointRef("m", str(folder)), tmp_path / "identities", said.append)
    assert said == ["hashing the checkpoint (1.0 GiB), once"]
    full_identity(CheckpointRef("m", str(folder)), tmp_path / "identities", said.append)
    assert len(said) == 1
