"""`llmbench cache` as users call it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import typer
from artifact_fixtures import INGREDIENTS, changed, obtain, write_files
from hypothesis import given
from hypothesis import strategies as st
from tiny import llmbench

from llmbench.artifact_manifest import MANIFEST
from llmbench.artifacts import Lease, Store
from llmbench.commands.cache import age_s, byte_count

KEY = INGREDIENTS.key


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "engines")


def spoil(lease: Lease) -> None:
    path = lease.path / "plan.bin"
    path.write_bytes(path.read_bytes()[::-1])


def test_an_empty_cache(tmp_path: Path) -> None:
    done = llmbench(tmp_path, "cache", "ls")
    assert (done.returncode, done.stdout.strip()) == (0, f"{tmp_path}/engines holds no artifacts")
    assert json.loads(llmbench(tmp_path, "cache", "ls", "-f", "json").stdout)["entries"] == []
    assert llmbench(tmp_path, "cache", "verify").returncode == 0
    assert "removed 0 entries" in llmbench(tmp_path, "cache", "prune", "--max-size", "0b").stdout
    assert not (tmp_path / "engines").exists()


def test_what_is_listed(store: Store, tmp_path: Path) -> None:
    obtain(store, executes=True)
    os.utime(store.root / "some-engine" / KEY / MANIFEST, (1_764_547_200, 1_764_547_200))
    done = llmbench(tmp_path, "cache", "ls", COLUMNS="120")
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    for words in (
        f"some-engine/{KEY}",
        "last used 2025-12-01 00:00 UTC",
        "a model, float16; level=3, refit=False",
        "for sm_89; at most batch 1, tokens 205",
        "library 1.2.3, other 4; adapter 1; loading it runs machine code",
        "peak 12.1 KiB",
        "1 artifact, ",
    ):
        assert words in text, words
    (entry,) = json.loads(llmbench(tmp_path, "cache", "ls", "-f", "json").stdout)["entries"]
    assert (entry["key"], entry["kind"], entry["busy"], entry["files"]) == (KEY, "artifact", False, 3)
    assert (entry["model"], entry["targets"], entry["maxima"]) == ("a model", ["sm_89"], {"batch": 1, "tokens": 205})
    assert entry["last_used"] == "2025-12-01T00:00:00+00:00"


def test_a_name_from_a_manifest_is_shown_and_not_obeyed(store: Store, tmp_path: Path) -> None:
    store.obtain(changed(options={"\x1b[31mred": "\x1b]0;title\x07"}), write_files, model="m\x1b[2J\nx", executes=False).close()
    done = llmbench(tmp_path, "cache", "ls")
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout


def test_verify(store: Store, tmp_path: Path) -> None:
    good, bad = obtain(store), obtain(store, changed(adapter=2))
    assert llmbench(tmp_path, "cache", "verify").returncode == 0
    spoil(bad)
    done = llmbench(tmp_path, "cache", "verify")
    assert done.returncode == 1
    assert f"{good.name}: sound\n" in done.stdout
    assert f"{bad.name}: broken: 'plan.bin' has changed" in done.stdout
    assert bad.path.is_dir()
    assert llmbench(tmp_path, "cache", "verify", good.manifest.key[:8]).returncode == 0
    done = llmbench(tmp_path, "cache", "verify", "--repair", "-f", "json")
    assert done.returncode == 1
    assert {one["key"]: one["set_aside"] for one in json.loads(done.stdout)} == {good.manifest.key: False, bad.manifest.key: True}
    assert not bad.path.exists()
    assert llmbench(tmp_path, "cache", "verify").returncode == 0
    assert "set aside" in llmbench(tmp_path, "cache", "ls").stdout


def test_prune(store: Store, tmp_path: Path) -> None:
    old, used = obtain(store), obtain(store, changed(adapter=2))
    for lease in (old, used):
        os.utime(lease.path / MANIFEST, (time.time() - 90 * 86400,) * 2)
    with store.obtain(changed(adapter=2), write_files, model="m", executes=False) as lease:
        os.utime(lease.path / MANIFEST, (1, 1))
        done = llmbench(tmp_path, "cache", "prune", "--older-than", "30d", "--dry-run")
        assert f"would remove {old.name}" in done.stdout
        assert "not used for 90.0 days" in done.stdout
        assert f"left {used.name}" in done.stdout
        assert old.path.is_dir()
        done = llmbench(tmp_path, "cache", "prune", "--older-than", "30d")
        assert done.returncode == 0
        assert f"removed {old.name}" in done.stdout
        assert f"left {used.name}" in done.stdout
        assert "it is being built or used" in done.stdout
        assert "removed 1 entry" in done.stdout
    assert not old.path.exists()
    assert used.path.is_dir()


def test_prune_stale_asks_the_engine(store: Store, tmp_path: Path) -> None:
    """The fake engine runs on this Python; what claims another goes, what an unknown engine built stays."""
    import sys

    version = sys.version.split()[0]
    fresh = obtain(store, changed(engine="fake", versions={"python": version}))
    stale = obtain(store, changed(engine="fake", versions={"python": "2.7.18"}))
    foreign = obtain(store)
    done = llmbench(tmp_path, "cache", "prune", "--stale", "-f", "json")
    assert done.returncode == 0, done.stderr
    assert "some-engine is no engine of this llmbench, so its artifacts stay" in done.stderr
    ((key, removed, why),) = ((one["key"], one["removed"], one["why"]) for one in json.loads(done.stdout))
    assert (key, removed) == (stale.manifest.key, True)
    assert why == f"built with python 2.7.18, {version} is installed"
    assert fresh.path.is_dir()
    assert foreign.path.is_dir()


def test_rm(store: Store, tmp_path: Path) -> None:
    one = obtain(store)
    assert f"would remove {one.name}" in llmbench(tmp_path, "cache", "rm", "--dry-run", KEY).stdout
    with store.obtain(INGREDIENTS, write_files, model="m", executes=False):
        done = llmbench(tmp_path, "cache", "rm", KEY)
        assert (done.returncode, "it is being built or used" in done.stdout) == (1, True)
    done = llmbench(tmp_path, "cache", "rm", KEY[:4], f"some-engine/{KEY}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("removed") == 1
    assert list((tmp_path / "engines/some-engine").iterdir()) == []
    for text, why in ((KEY, "no artifact's key begins"), ("abc", "is no key"), ("../..", "is no key")):
        done = llmbench(tmp_path, "cache", "rm", text)
        assert (done.returncode, done.stdout) == (2, "")
        assert why in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_export_and_import(store: Store, tmp_path: Path) -> None:
    one = obtain(store, executes=True)
    done = llmbench(tmp_path, "cache", "export", KEY[:5], "-o", "out.tar")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("out.tar: 1 artifact, ")
    other = tmp_path / "other"
    other.mkdir()
    done = llmbench(other, "cache", "import", tmp_path / "out.tar")
    assert done.returncode == 1
    assert "--trust" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (other / "engines").exists()
    done = llmbench(other, "cache", "import", "--trust", tmp_path / "out.tar")
    assert done.returncode == 0, done.stderr
    assert f"imported {one.name}" in done.stdout
    assert "is here already" in llmbench(other, "cache", "import", "--trust", tmp_path / "out.tar").stdout
    assert llmbench(other, "cache", "verify").returncode == 0
    for arguments, code in ((("export", KEY, "-o", "no/such/out.tar"), 2), (("export", KEY, "-o", "."), 2), (("import", "gone.tar"), 1)):
        done = llmbench(tmp_path, "cache", *arguments)
        assert done.returncode == code
        assert len(done.stderr.splitlines()) == 1


def test_a_link_is_nothing_of_the_caches(tmp_path: Path) -> None:
    (tmp_path / "engines/fake").mkdir(parents=True)
    (tmp_path / "engines/fake/.aside").symlink_to(".aside")
    done = llmbench(tmp_path, "cache", "ls")
    assert (done.returncode, done.stderr) == (0, "")
    assert "holds no artifacts" in done.stdout


@pytest.mark.parametrize("arguments", [["ls"], ["verify"], ["prune"], ["rm", "abcd"], ["export", "abcd", "-o", "x.tar"]])
def test_a_disk_that_fails_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    """An error of the device, which can't be had on a sound one."""
    from llmbench import artifact_care
    from llmbench.cli import app

    def fail(store: Store) -> None:
        raise OSError(5, "Input/output error", "/disk/engines")

    monkeypatch.setattr(artifact_care, "survey", fail)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        app(["cache", *arguments])
    assert ended.value.code == 1
    assert capsys.readouterr().err == "llmbench: /disk/engines can't be read: Input/output error\n"


@given(st.integers(1, 10**6), st.sampled_from([("s", 1), ("m", 60), ("h", 3600), ("d", 86400), ("w", 604800)]))
def test_ages(amount: int, unit: tuple[str, int]) -> None:
    assert age_s(f"{amount}{unit[0]}") == age_s(f" {amount} {unit[0].upper()} ") == amount * unit[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("20GB", 20 * 10**9), ("20GiB", 20 * 2**30), ("1.5kb", 1500), ("0B", 0), ("7 TiB", 7 * 2**40), ("512mb", 512 * 10**6)],
)
def test_sizes(text: str, expected: int) -> None:
    assert byte_count(text) == expected


@pytest.mark.parametrize("text", ["", "20", "GB", "-1GB", "1e3MB", "20PB", "20 G", "1ib", "30d5h", "nan d", "٣GB٣"])
def test_what_is_neither(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        byte_count(text)
    with pytest.raises(typer.BadParameter):
        age_s(text)
