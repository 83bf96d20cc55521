"""Looking after the build cache: what lies in it, whether it is still sound, and what may go.

Nothing here removes an artifact that another process builds or uses: its lock is tried, never waited for. Sizes are bytes on disk, times
seconds since 1970.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from llmbench import temporary
from llmbench.artifact_files import inode, leftovers, refuse_untrusted
from llmbench.artifact_manifest import ENGINE, KEY, MANIFEST, ArtifactError, Broken, Manifest
from llmbench.artifacts import ASIDE, WHY, Say, Store
from llmbench.engines.registry import EngineSpec
from llmbench.supervise import Worker, WorkerFailed

#: Fewer digits of a key name none: what is meant to be removed shall be meant.
LEAST_DIGITS = 4
_ASK_TIMEOUT_S = 300.0


class CareError(Exception):
    """What was asked for can't be done: one line that says why and what to do."""


class Kind(str, Enum):
    ARTIFACT = "artifact"
    BROKEN = "broken"  # no manifest that can be read; its files are looked at by verify alone
    ASIDE = "set aside"  # found broken by a run, kept to be looked at
    LEFTOVER = "leftover"  # of a process that was killed, or being built just now


@dataclass(frozen=True)
class Kept:
    """One thing in the cache."""

    kind: Kind
    engine: str
    key: str
    path: Path
    bytes: int
    last_used: float
    busy: bool  # another process builds or uses it
    manifest: Manifest | None = None
    reason: str | None = None  # why it is broken or set aside

    @property
    def name(self) -> str:
        return f"{self.engine}/{self.key}"


def survey(store: Store) -> list[Kept]:
    """All that the cache holds: artifacts in order of engine and key, then what was set aside and what was left over. Reads no weights."""
    found = []
    for engine, key in store.names():
        with contextlib.suppress(FileNotFoundError):  # another process has removed it just now
            found.append(_artifact(store, engine, key))
    for folder in _engine_folders(store.root):
        aside = folder / ASIDE
        for path in [*(sorted(aside.iterdir()) if aside.is_dir() else []), *sorted(folder.glob(".*.*"))]:
            kind = Kind.ASIDE if path.parent == aside else Kind.LEFTOVER
            key = path.name.lstrip(".").partition(".")[0]
            if not KEY.fullmatch(key) or (kind is Kind.LEFTOVER and path not in leftovers(folder, key)):
                continue
            with contextlib.suppress(FileNotFoundError):
                busy = kind is Kind.LEFTOVER and _busy(store, folder.name, key)
                found.append(_other(store, kind, folder.name, key, path, busy))
    return sorted(found, key=lambda kept: list(Kind).index(kept.kind))


def find(kept: Sequence[Kept], text: str) -> Kept:
    """The artifact that "key", "engine/key" or the beginning of a key means. Raises CareError where it means none or several."""
    engine, slash, prefix = text.rpartition("/")
    if not re.fullmatch(rf"[0-9a-f]{{{LEAST_DIGITS},32}}", prefix) or (slash and not ENGINE.fullmatch(engine)):
        raise CareError(f"{text!r} is no key; write at least {LEAST_DIGITS} of its hexadecimal digits, or ENGINE/KEY (`llmbench cache ls`)")
    matches = [
        entry
        for entry in kept
        if entry.kind in (Kind.ARTIFACT, Kind.BROKEN) and entry.key.startswith(prefix) and (not slash or entry.engine == engine)
    ]
    if not matches:
        raise CareError(f"no artifact's key begins with {text!r} (`llmbench cache ls` lists them)")
    if len(matches) > 1:
        raise CareError(f"{text!r} is the beginning of {len(matches)} keys: {', '.join(entry.name for entry in matches)}")
    return matches[0]


@dataclass(frozen=True)
class Verdict:
    """What reading every byte of an artifact showed."""

    engine: str
    key: str
    sound: bool | None  # null: it is being built and wasn't read
    reason: str | None = None
    set_aside: bool = False


def verify(store: Store, entries: Iterable[Kept], *, repair: bool = False, say: Say = lambda text: None) -> Iterator[Verdict]:
    """Reads every byte of each artifact and compares it with the manifest; with `repair` sets aside what doesn't hold."""
    for entry in entries:
        lock = store.lock(entry.engine, entry.key)
        if not lock.take(exclusive=False, wait=False):
            yield Verdict(entry.engine, entry.key, None, "another process builds it")
            continue
        seen = inode(entry.path)
        fault: Exception | None = None
        try:
            manifest = store.read_manifest(entry.engine, entry.key)
            refuse_untrusted(entry.path)
            store.check(entry.engine, entry.key, manifest)
        except (Broken, ArtifactError) as error:
            fault = error
        except OSError as error:
            fault = CareError(f"it can't be read: {error.strerror or error}")
        finally:
            lock.release()
        if isinstance(fault, Broken) and repair:
            store.set_aside(entry.engine, entry.key, str(fault), seen, say)
            yield Verdict(entry.engine, entry.key, False, str(fault), set_aside=True)
        else:
            yield Verdict(entry.engine, entry.key, fault is None, None if fault is None else str(fault))


@dataclass(frozen=True)
class Rules:
    """What prune takes away. What killed processes left goes always."""

    older_than_s: float | None = None  # not used for this long
    max_bytes: int | None = None  # the longest unused go until this much is left
    stale: Mapping[str, str] = field(default_factory=dict)  # "engine/key" -> why it is, see `stale`
    aside: bool = False  # what was set aside, too


@dataclass(frozen=True)
class Removal:
    """One thing that prune or rm chose."""

    kept: Kept
    why: str | None  # null: it was named
    removed: bool
    left_because: str | None = None


def prune(store: Store, rules: Rules, *, dry_run: bool = False, now: float | None = None) -> list[Removal]:
    """Removes what the rules say, never what is built or used; in a dry run it only tells."""
    now = time.time() if now is None else now
    kept = survey(store)
    chosen: dict[Path, tuple[Kept, str]] = {}
    for entry in kept:
        why = _why(entry, rules, now)
        if why is not None:
            chosen[entry.path] = (entry, why)
    if rules.max_bytes is not None:
        left = sum(entry.bytes for entry in kept if entry.path not in chosen)
        # What was set aside serves nobody, so it goes first; then what was used longest ago.
        for entry in sorted(kept, key=lambda entry: (entry.kind is not Kind.ASIDE, entry.last_used)):
            if left <= rules.max_bytes:
                break
            if entry.path not in chosen and not entry.busy:
                chosen[entry.path] = (entry, "the cache is larger than asked for")
                left -= entry.bytes
    return [_remove(store, entry, why, dry_run) for entry, why in chosen.values()]


def remove(store: Store, entry: Kept, *, dry_run: bool = False) -> Removal:
    """Removes one artifact, unless it is built or used."""
    return _remove(store, entry, None, dry_run)


def _why(entry: Kept, rules: Rules, now: float) -> str | None:
    if entry.kind is Kind.LEFTOVER:
        return None if entry.busy else "left by a process that was killed"
    if entry.kind is Kind.ASIDE:
        return "set aside" if rules.aside else None
    if entry.name in rules.stale:
        return rules.stale[entry.name]
    if rules.older_than_s is not None and now - entry.last_used > rules.older_than_s:
        return f"not used for {(now - entry.last_used) / 86400:.1f} days"
    return None


def _remove(store: Store, entry: Kept, why: str | None, dry_run: bool) -> Removal:
    if dry_run:
        busy = "it is being built or used" if entry.busy else None
        return Removal(entry, why, False, busy or "a dry run")
    try:
        whole = entry.kind in (Kind.ARTIFACT, Kind.BROKEN)
        done = store.remove(entry.engine, entry.key) if whole else _sweep(store, entry)
    except OSError as error:
        return Removal(entry, why, False, f"it can't be removed: {error.strerror or error}")
    return Removal(entry, why, done, None if done else "it is being built or used")


def _sweep(store: Store, entry: Kept) -> bool:
    """Removes what was left over or set aside under a key, not the artifact. False where the key is being built or used."""
    lock = store.lock(entry.engine, entry.key)
    if not lock.take(exclusive=True, wait=False):
        return False
    try:
        if entry.path.is_dir() and not entry.path.is_symlink():
            shutil.rmtree(entry.path)
        else:
            entry.path.unlink(missing_ok=True)
        if not os.path.lexists(store.root / entry.engine / entry.key):
            lock.unlink()
    finally:
        lock.release()
    return True


# --------------------------------------------------------------------------------------------------------------------------------- stale


@dataclass(frozen=True)
class Installed:
    """What an engine runs on now."""

    versions: dict[str, str]
    adapter: int | None  # null where the engine's class doesn't say (ADAPTER)


def ask_installed(
    specs: Mapping[str, EngineSpec], interpreters: Mapping[str, tuple[str, ...]], environment: Callable[[Path], dict[str, str]], say: Say
) -> dict[str, Installed]:
    """Each engine's libraries as a worker of its own finds them. What can't be asked is left out, with a line that says why."""
    found = {}
    for name, spec in specs.items():
        try:
            with (
                temporary.folder("installed") as folder,
                Worker(Path(folder) / "log", python=interpreters.get(name, ()), environment=environment(Path(folder))) as worker,
            ):
                answer = worker.ask("versions", timeout_s=_ASK_TIMEOUT_S, target=spec.target)
                found[name] = Installed(answer["versions"], answer.get("adapter"))
        except (WorkerFailed, OSError) as failure:
            say(f"{name} can't be asked for its versions, so its artifacts stay: {failure} (--python {name}=PATH, or cache rm)")
    return found


def stale(kept: Iterable[Kept], installed: Mapping[str, Installed]) -> dict[str, str]:
    """ "engine/key" -> why no run here will load it any more: other library versions, or an older adapter. The others are not in it."""
    found = {}
    for entry in kept:
        now = installed.get(entry.engine)
        if entry.kind is not Kind.ARTIFACT or entry.manifest is None or now is None:
            continue
        made = entry.manifest.ingredients
        other = [
            f"built with {name} {version}, {now.versions[name]} is installed"
            for name, version in made.versions.items()
            if now.versions.get(name, version) != version
        ]
        if other:
            found[entry.name] = other[0]
        elif now.adapter is not None and made.adapter < now.adapter:
            found[entry.name] = f"built by revision {made.adapter} of llmbench's adapter, the present one is {now.adapter}"
    return found


# ------------------------------------------------------------------------------------------------------------------------------- looking


def _engine_folders(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return [folder for folder in sorted(root.iterdir()) if folder.is_dir() and not folder.is_symlink() and not folder.name.startswith(".")]


def _artifact(store: Store, engine: str, key: str) -> Kept:
    path = store.root / engine / key
    try:
        manifest, reason = store.read_manifest(engine, key), None
    except Broken as broken:
        manifest, reason = None, str(broken)
    kind = Kind.ARTIFACT if manifest is not None else Kind.BROKEN
    return Kept(kind, engine, key, path, _size(path), _used(path), _busy(store, engine, key), manifest, reason)


def _other(store: Store, kind: Kind, engine: str, key: str, path: Path, busy: bool) -> Kept:
    reason = None
    with contextlib.suppress(OSError):
        reason = (path / WHY).read_text(encoding="utf-8", errors="replace")[:400].strip() if (path / WHY).is_file() else None
    return Kept(kind, engine, key, path, _size(path), path.lstat().st_mtime, busy, reason=reason)


def _size(path: Path) -> int:
    """Bytes of all regular files below; links are not followed."""
    if path.is_symlink() or not path.is_dir():
        return 0 if path.is_symlink() else path.stat().st_size
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(folder) / name).lstat().st_size
    return total


def _used(path: Path) -> float:
    try:
        return (path / MANIFEST).lstat().st_mtime
    except OSError:
        return path.lstat().st_mtime


def _busy(store: Store, engine: str, key: str) -> bool:
    lock = store.lock(engine, key)
    try:
        if not lock.exists or lock.take(exclusive=True, wait=False):
            return False
    except OSError:  # another user's: who can't lock it can't remove it either
        return False
    finally:
        lock.release()
    return True
