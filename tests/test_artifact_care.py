"""Listing, verifying, pruning and removing, with artifacts that are used, built, broken and left over meanwhile."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from artifact_fixtures import FILES, INGREDIENTS, changed, obtain, write_files

from llmbench.artifact_care import CareError, Installed, Kind, Rules, ask_installed, find, prune, remove, stale, survey, verify
from llmbench.artifact_manifest import MANIFEST
from llmbench.artifacts import ASIDE, Store
from llmbench.engines import registry
from llmbench.schedule import worker_environment

NOW = 2e9
DAY = 86400.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "engines")


def used_days_ago(store: Store, days: float, **changes: object) -> str:
    """An artifact last used that long before NOW; its name."""
    lease = obtain(store, changed(**changes))
    os.utime(lease.path / MANIFEST, (NOW - days * DAY, NOW - days * DAY))
    return lease.name


def names(store: Store) -> set[str]:
    return {f"{engine}/{key}" for engine, key in store.names()}


def leave_over(store: Store) -> Path:
    """What a killed builder leaves."""
    left = store.root / "some-engine" / f".{'a' * 32}.xyz.partial"
    left.mkdir(parents=True)
    (left / "half").write_bytes(bytes(500))
    return left


def break_it(store: Store) -> Path:
    """Sets one aside, as a run does that finds a flipped byte."""
    path = obtain(store, changed(dtype="float64")).path
    (path / "plan.bin").write_bytes(FILES["plan.bin"][::-1])
    obtain(Store(store.root), changed(dtype="float64"))
    (aside,) = (path.parent / ASIDE).iterdir()
    return aside


# --------------------------------------------------------------------------------------------------------------------------------- survey


def test_an_empty_cache_holds_nothing(store: Store) -> None:
    assert survey(store) == []
    assert prune(store, Rules(0.0, 0, aside=True)) == []
    assert not store.root.exists()


def test_all_kinds_are_found(store: Store) -> None:
    used_days_ago(store, 3)
    left, aside = leave_over(store), break_it(store)
    broken = obtain(store, changed(adapter=7)).path
    (broken / MANIFEST).write_text("{")
    with store.obtain(changed(adapter=8), write_files, model="m", executes=False):
        found = survey(store)
    kinds = {entry.path: entry.kind for entry in found}
    assert [entry.kind for entry in found] == [Kind.ARTIFACT] * 3 + [Kind.BROKEN, Kind.ASIDE, Kind.LEFTOVER]
    assert (kinds[left], kinds[aside], kinds[broken]) == (Kind.LEFTOVER, Kind.ASIDE, Kind.BROKEN)
    first = next(entry for entry in found if entry.key == INGREDIENTS.key)
    assert first.last_used == NOW - 3 * DAY
    assert first.manifest is not None
    assert first.bytes == first.manifest.bytes + (first.path / MANIFEST).stat().st_size
    assert [entry.key for entry in found if entry.busy] == [changed(adapter=8).key]
    assert "has changed" in next(entry.reason or "" for entry in found if entry.kind is Kind.ASIDE)
    assert "not one of llmbench's" in next(entry.reason or "" for entry in found if entry.kind is Kind.BROKEN)
    assert next(entry.bytes for entry in found if entry.kind is Kind.LEFTOVER) == 500


def test_links_are_neither_followed_nor_counted(store: Store, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/large").write_bytes(bytes(100_000))
    path = obtain(store).path
    (path / "out").symlink_to(tmp_path / "mine")
    (path.parent / ("b" * 32)).symlink_to(tmp_path / "mine")
    (store.root / "linked-engine").symlink_to(tmp_path)
    found = survey(store)
    assert len(found) == 2
    assert all(entry.bytes < 50_000 for entry in found)
    prune(store, Rules(older_than_s=0.0), now=2 * NOW)
    assert (tmp_path / "mine/large").stat().st_size == 100_000
    assert names(store) == set()


# ----------------------------------------------------------------------------------------------------------------------------------- find


def test_a_key_is_named_by_its_beginning(store: Store) -> None:
    one, other = obtain(store), obtain(store, changed(engine="other-engine"))
    kept = survey(store)
    for text in (one.manifest.key, one.manifest.key[:4], f"some-engine/{one.manifest.key[:4]}"):
        assert find(kept, text).name == one.name
    assert find(kept, f"other-engine/{other.manifest.key}").name == other.name


@pytest.mark.parametrize("text", ["abc", "", "../../x", "some-engine", "ABCD", "some-engine/", "a/b/cdef", "g" * 32, "0" * 33])
def test_what_is_no_key(store: Store, text: str) -> None:
    obtain(store)
    with pytest.raises(CareError, match="is no key; write at least 4"):
        find(survey(store), text)


def test_no_key_and_several(store: Store) -> None:
    lease = obtain(store)
    twin = lease.path.with_name(lease.manifest.key[:6] + "0" * 26)
    twin.mkdir()
    with pytest.raises(CareError, match=f"is the beginning of 2 keys: .*{twin.name}"):
        find(survey(store), lease.manifest.key[:6])
    assert find(survey(store), lease.manifest.key).name == lease.name
    with pytest.raises(CareError, match="no artifact's key begins with"):
        find(survey(store), "other-engine/" + lease.manifest.key)


# --------------------------------------------------------------------------------------------------------------------------------- verify


def test_verify_reports_each_and_repairs_when_asked(store: Store) -> None:
    good, bad, loose = obtain(store), obtain(store, changed(adapter=2)), obtain(store, changed(adapter=3))
    content = bytearray((bad.path / "plan.bin").read_bytes())
    content[7] ^= 4
    (bad.path / "plan.bin").write_bytes(content)
    (loose.path / "plan.bin").chmod(0o666)
    fresh = Store(store.root)
    verdicts = {f"{verdict.engine}/{verdict.key}": verdict for verdict in verify(fresh, survey(fresh))}
    assert verdicts[good.name].sound is True
    assert verdicts[bad.name].sound is False
    assert "'plan.bin' has changed" in (verdicts[bad.name].reason or "")
    assert "can be written by every user" in (verdicts[loose.name].reason or "")
    assert bad.path.is_dir(), "nothing is moved unless asked"
    repaired = {verdict.key: verdict.set_aside for verdict in verify(fresh, survey(fresh), repair=True)}
    assert repaired == {good.manifest.key: False, bad.manifest.key: True, loose.manifest.key: False}
    assert names(store) == {good.name, loose.name}


def test_verify_does_not_wait_for_a_builder(store: Store) -> None:
    lease = obtain(store)
    kept = survey(store)
    lock = store.lock("some-engine", lease.manifest.key)
    assert lock.take(exclusive=True)
    (verdict,) = verify(Store(store.root), kept)
    assert verdict.sound is None
    lock.release()


# ---------------------------------------------------------------------------------------------------------------------------------- prune


def test_by_age(store: Store) -> None:
    old, young = used_days_ago(store, 31), used_days_ago(store, 29, adapter=2)
    (removal,) = prune(store, Rules(older_than_s=30 * DAY), now=NOW)
    assert removal.kept.name == old
    assert removal.removed
    assert "31.0 days" in (removal.why or "")
    assert names(store) == {young}


def test_by_size_the_longest_unused_go_first(store: Store) -> None:
    ages = {used_days_ago(store, days, adapter=number): days for number, days in enumerate((5, 50, 1, 20))}
    one = survey(store)[0].bytes
    prune(store, Rules(max_bytes=2 * one + 100), now=NOW)
    assert {ages[name] for name in names(store)} == {5, 1}
    prune(store, Rules(max_bytes=10 * one), now=NOW)
    assert len(names(store)) == 2
    prune(store, Rules(max_bytes=0), now=NOW)
    assert names(store) == set()


def test_by_size_what_was_set_aside_goes_before_all(store: Store) -> None:
    aside = break_it(store)
    kept = survey(store)
    prune(store, Rules(max_bytes=sum(entry.bytes for entry in kept) - 1), now=NOW)
    assert not aside.exists()
    assert len(names(store)) == 1


def test_what_was_set_aside_stays_unless_asked_for(store: Store) -> None:
    aside = break_it(store)
    assert prune(store, Rules(older_than_s=1.0), now=NOW + 1e9)[0].kept.kind is Kind.ARTIFACT
    assert aside.is_dir()
    assert [removal.removed for removal in prune(store, Rules(aside=True))] == [True]
    assert not aside.exists()


def test_leftovers_go_always_unless_their_key_is_locked(store: Store) -> None:
    left = leave_over(store)
    lock = store.lock("some-engine", "a" * 32)
    assert lock.take(exclusive=True)
    assert prune(store, Rules()) == []
    assert left.is_dir()
    lock.release()
    assert [removal.kept.path for removal in prune(store, Rules())] == [left]
    assert list((store.root / "some-engine").iterdir()) == []


def test_what_is_used_stays(store: Store) -> None:
    """Also where the use began after the look."""
    name = used_days_ago(store, 100)
    with store.obtain(INGREDIENTS, write_files, model="m", executes=False) as lease:
        os.utime(lease.path / MANIFEST, (1, 1))
        (removal,) = prune(store, Rules(older_than_s=DAY), now=NOW)
        assert (removal.removed, removal.left_because) == (False, "it is being built or used")
        assert prune(store, Rules(max_bytes=0), now=NOW) == []
        left = remove(store, survey(store)[0])
        assert not left.removed
        assert (lease.path / "plan.bin").read_bytes() == FILES["plan.bin"]
    assert names(store) == {name}
    assert remove(store, survey(store)[0]).removed
    assert names(store) == set()


def test_a_dry_run_removes_nothing(store: Store) -> None:
    used_days_ago(store, 100)
    leave_over(store)
    before = sorted(store.root.rglob("*"))
    removals = prune(store, Rules(older_than_s=DAY, max_bytes=0), dry_run=True, now=NOW)
    assert len(removals) == 2
    assert not any(removal.removed for removal in removals)
    assert sorted(store.root.rglob("*")) == before


# ---------------------------------------------------------------------------------------------------------------------------------- stale


def test_stale_is_another_version_or_an_older_adapter(store: Store) -> None:
    same = obtain(store)
    older = obtain(store, changed(versions={"library": "1.2.2", "other": "4"}))
    adapter = obtain(store, changed(adapter=0))
    unknown = obtain(store, changed(versions={"library": "1.2.3", "never heard of": "9"}))
    foreign = obtain(store, changed(engine="other-engine", versions={"library": "0"}))
    found = stale(survey(store), {"some-engine": Installed({"library": "1.2.3", "other": "4"}, adapter=1)})
    assert found == {
        older.name: "built with library 1.2.2, 1.2.3 is installed",
        adapter.name: "built by revision 0 of llmbench's adapter, the present one is 1",
    }
    assert prune(store, Rules(stale=found))[0].removed
    assert names(store) == {same.name, unknown.name, foreign.name}
    assert stale(survey(store), {"some-engine": Installed({"library": "1.2.3", "other": "4"}, adapter=None)}) == {}


def test_versions_are_asked_of_the_engines_own_interpreter(tmp_path: Path) -> None:
    """A real worker; an engine that can't be asked is left out with a line, so that none of its artifacts goes for that."""
    import dataclasses

    fake = registry.find("fake")
    gone = dataclasses.replace(fake, name="gone", target="no_such_module:Engine")
    said: list[str] = []
    found = ask_installed({"fake": fake, "gone": gone}, {}, lambda caches: worker_environment(1, caches), said.append)
    assert found == {"fake": Installed({"python": sys.version.split()[0]}, adapter=1)}
    (line,) = said
    assert line.startswith("gone can't be asked for its versions, so its artifacts stay: ")
    assert "no_such_module" in line
