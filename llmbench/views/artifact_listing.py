"""What `llmbench cache` and `llmbench build` print: artifacts with their sizes, last use and what they were built for. Data in, text out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from llmbench.artifact_archive import Imported
from llmbench.artifact_care import Kept, Kind, Removal, Verdict
from llmbench.artifact_manifest import Manifest
from llmbench.prebuild import Outcome
from llmbench.protocol import Status, encode
from llmbench.views.listing import folded
from llmbench.views.text import date, duration, plain, plural, size


def listing_data(kept: Sequence[Kept], root: str) -> dict[str, Any]:
    """{"root", "bytes", "entries": one for each artifact, set-aside one and leftover}. Times UTC, ISO 8601; what isn't known is null."""
    return {"root": root, "bytes": sum(entry.bytes for entry in kept), "entries": [_entry(entry) for entry in kept]}


def _entry(entry: Kept) -> dict[str, Any]:
    manifest = entry.manifest
    made = encode(manifest.ingredients) if manifest else {}
    names = ("checkpoint", "dtype", "quantization", "adapter", "versions", "targets", "maxima", "options")
    rest = ("model", "executes", "built_at", "build_s", "build_peak_bytes", "source", "llmbench_version")
    return {
        "kind": entry.kind.value,
        "engine": entry.engine,
        "key": entry.key,
        "path": str(entry.path),
        "bytes": entry.bytes,
        "last_used": _moment(entry.last_used),
        "busy": entry.busy,
        "reason": entry.reason,
        **{name: made.get(name) for name in names},
        **{name: getattr(manifest, name, None) for name in rest},
        "files": len(manifest.files) if manifest else None,
    }


def listing_table(kept: Sequence[Kept], root: str, width: int, color: bool) -> str:
    """The cache for a person: a heading for each artifact, then what it was built for."""
    from rich.text import Text

    if not kept:
        return f"{root} holds no artifacts"
    shown = []
    for entry in kept:
        heading = Text.assemble((plain(entry.name), "bold"), f"  {size(entry.bytes)}, last used {date(_moment(entry.last_used))}")
        if entry.kind is not Kind.ARTIFACT:
            heading.append(f"  {_state(entry)}", "red")
        elif entry.busy:
            heading.append("  in use")
        lines = _made_for(entry.manifest) if entry.manifest else []
        if entry.reason:
            lines.append(f"why: {plain(entry.reason)}")
        if entry.kind in (Kind.ASIDE, Kind.LEFTOVER):
            lines.append(f"in {plain(str(entry.path))}")
        shown.append((heading, lines))
    total = (
        f"{plural(sum(entry.kind is Kind.ARTIFACT for entry in kept), 'artifact')}, {size(sum(entry.bytes for entry in kept))} in {root}"
    )
    return f"{folded(shown, width, color)}\n\n{total}"


def _state(entry: Kept) -> str:
    if entry.kind is Kind.LEFTOVER:
        return "being built or removed" if entry.busy else "left by a process that was killed (`llmbench cache prune`)"
    return f"{entry.kind.value} (`llmbench cache prune --aside`)" if entry.kind is Kind.ASIDE else entry.kind.value


def _made_for(manifest: Manifest) -> list[str]:
    made = manifest.ingredients
    maxima = ", ".join(f"{plain(name)} {most}" for name, most in made.maxima.items())
    options = ", ".join(f"{plain(name)}={plain(str(value))}" for name, value in made.options.items())
    return [
        f"{plain(manifest.model)}, {plain(made.dtype)}"
        + (f", {plain(made.quantization)}" if made.quantization else "")
        + (f"; {options}" if options else ""),
        f"for {'; '.join(map(plain, made.targets)) or 'any device'}" + (f"; at most {maxima}" if maxima else ""),
        f"{', '.join(f'{plain(name)} {plain(version)}' for name, version in made.versions.items())}; adapter {made.adapter}"
        + ("; loading it runs machine code" if manifest.executes else ""),
        f"built {date(manifest.built_at)} in {duration(manifest.build_s)}"
        + (f", peak {size(manifest.build_peak_bytes)}" if manifest.build_peak_bytes else "")
        + (f", from {plain(manifest.source)}" if manifest.source else ""),
    ]


def verdict_line(verdict: Verdict) -> str:
    """`fake/0123…: sound`."""
    state = {True: "sound", False: "broken", None: "not read"}[verdict.sound]
    after = "; set aside, a run that needs it builds it anew" if verdict.set_aside else ""
    return f"{plain(verdict.engine)}/{verdict.key}: {state}{f': {plain(verdict.reason)}' if verdict.reason else ''}{after}"


def removal_line(removal: Removal, dry_run: bool) -> str:
    """`removed fake/0123… (335 MiB): not used for 31.0 days`."""
    kept = removal.kept
    what = plain(kept.name) if kept.kind in (Kind.ARTIFACT, Kind.BROKEN) else plain(str(kept.path))
    verb = "removed" if removal.removed else "would remove" if dry_run and not kept.busy else "left"
    because = removal.left_because if verb == "left" and removal.left_because else removal.why
    return f"{verb} {what} ({size(kept.bytes)})" + (f": {plain(because)}" if because else "")


def removal_data(removal: Removal) -> dict[str, Any]:
    """A removal for machines."""
    return {**_entry(removal.kept), "why": removal.why, "removed": removal.removed, "left_because": removal.left_because}


def imported_line(one: Imported) -> str:
    """`imported fake/0123… (335 MiB)`."""
    name = f"{plain(one.engine)}/{one.key}"
    return f"imported {name} ({size(one.bytes)})" if one.new else f"{name} is here already"


def outcomes_json(outcomes: Sequence[Outcome]) -> str:
    """What `llmbench build` did, one entry for each variant."""
    return json.dumps([encode(outcome) for outcome in outcomes], indent=1)


def outcomes_table(outcomes: Sequence[Outcome], width: int, color: bool) -> str:
    """The same for a person."""
    from rich.text import Text

    shown = []
    for outcome in outcomes:
        good = outcome.status is Status.OK
        heading = Text.assemble((plain(outcome.label), "bold"), "  ")
        if not good or outcome.key is None:
            heading.append(outcome.status.words, "red")
            shown.append((heading, [plain(outcome.reason or "")]))
            continue
        heading.append("found, built before" if outcome.hit else "built", "green")
        peak = f", peak {size(outcome.build_peak_bytes)}" if outcome.build_peak_bytes is not None else ""
        took = duration(outcome.build_s or 0.0)
        lines = [
            plain(outcome.path or ""),
            f"{size(outcome.bytes or 0)}, for {'; '.join(map(plain, outcome.targets)) or 'any device'}",
            f"built {date(outcome.built_at or '')} in {took}{peak}" if outcome.hit else f"built in {took}{peak}",
        ]
        shown.append((heading, lines))
    return folded(shown, width, color)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
