"""`llmbench cache`: what lies in engines/, whether it is sound, what may go, and artifacts as files. Parse, call, print.

Exit codes: 0 done; 1 something is broken or could not be done; 2 usage.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmbench.console import fail, interpreters, terminal_width, wants_color

if TYPE_CHECKING:
    from llmbench.artifact_care import Kept
    from llmbench.artifacts import Store

app = typer.Typer(
    help="Look after the artifacts that engines built: list, verify, prune, remove, export, import.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)

_DURATION_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_BYTES: dict[str, int] = {
    "b": 1,
    **{f"{unit}b": 1000**power for power, unit in enumerate("kmgt", 1)},
    **{f"{unit}ib": 1024**power for power, unit in enumerate("kmgt", 1)},
}

Format = Annotated[str, typer.Option("--format", "-f", help="table or json.")]
Keys = Annotated[list[str], typer.Argument(metavar="KEY...", help="A key, its first digits (4 at least), or ENGINE/KEY.")]


def age_s(text: str) -> float:
    """Seconds from "30d", "12h", "2w"."""
    form = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip().lower())
    if form is None:
        raise typer.BadParameter(f"{text!r} is no age; write 30d, 12h or 2w")
    return float(form[1]) * _DURATION_S[form[2]]


def byte_count(text: str) -> int:
    """Bytes from "20GB" (10**9), "20GiB" (2**30), "500MB"."""
    form = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?b)", text.strip().lower())
    if form is None or form[2] not in _BYTES:
        raise typer.BadParameter(f"{text!r} is no size; write 20GB, 20GiB or 500MB")
    return round(float(form[1]) * _BYTES[form[2]])


@app.command(name="ls")
def list_artifacts(format: Format = "table") -> None:
    """List artifacts: size, last use, what each was built for; and what was set aside or left over."""
    from llmbench.views.artifact_listing import listing_data, listing_table

    _check(format)
    store = _store()
    kept = _survey(store)
    if format == "json":
        typer.echo(json.dumps(listing_data(kept, str(store.root)), indent=1))
    else:
        typer.echo(listing_table(kept, str(store.root), terminal_width(), wants_color(sys.stdout)))


@app.command()
def verify(
    keys: Annotated[list[str] | None, typer.Argument(metavar="[KEY...]", help="Which; all where none is named.")] = None,
    repair: Annotated[bool, typer.Option("--repair", help="Set aside what is broken, so that the next run builds it anew.")] = False,
    format: Format = "table",
) -> None:
    """Read every byte and compare it with the manifests. Exit code 1 where an artifact is broken."""
    from llmbench.artifact_care import Kind
    from llmbench.artifact_care import verify as verify_all
    from llmbench.artifact_manifest import ArtifactError
    from llmbench.protocol import encode
    from llmbench.views.artifact_listing import verdict_line

    _check(format)
    store = _store()
    kept = [entry for entry in _survey(store) if entry.kind in (Kind.ARTIFACT, Kind.BROKEN)]
    verdicts = []
    try:
        for verdict in verify_all(store, _named(kept, keys) if keys else kept, repair=repair, say=_say):
            verdicts.append(verdict)
            if format == "table":
                typer.echo(verdict_line(verdict))
    except ArtifactError as error:
        fail(str(error), 1)
    except OSError as error:
        fail(f"{error.filename or store.root}: {error.strerror or error}", 1)
    if format == "json":
        typer.echo(json.dumps([encode(verdict) for verdict in verdicts], indent=1))
    raise typer.Exit(1 if any(verdict.sound is False for verdict in verdicts) else 0)


@app.command()
def prune(
    older_than: Annotated[str | None, typer.Option(help="Artifacts not used for this long: 30d, 12h.")] = None,
    max_size: Annotated[str | None, typer.Option(help="The longest unused, until the cache is at most this large: 20GB.")] = None,
    stale: Annotated[
        bool, typer.Option("--stale", help="Those built with library versions that are no longer installed, or by an older adapter.")
    ] = False,
    aside: Annotated[bool, typer.Option("--aside", help="Those that were set aside as broken.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would go, remove nothing.")] = False,
    python: Annotated[
        list[str] | None, typer.Option(help="ENGINE=PATH: the interpreter of an engine, for --stale. May be repeated.")
    ] = None,
    format: Format = "table",
) -> None:
    """Remove artifacts by age, size or staleness, and what killed processes left; never one that is being built or used."""
    from llmbench.artifact_care import Rules
    from llmbench.artifact_care import prune as prune_all
    from llmbench.views.artifact_listing import removal_data, removal_line
    from llmbench.views.text import plural, size

    _check(format)
    store = _store()
    limits = age_s(older_than) if older_than is not None else None, byte_count(max_size) if max_size is not None else None
    rules = Rules(*limits, stale=_stale(store, python or []) if stale else {}, aside=aside)
    try:
        removals = prune_all(store, rules, dry_run=dry_run)
    except OSError as error:
        fail(f"{error.filename or store.root} can't be read: {error.strerror or error}", 1)
    if format == "json":
        typer.echo(json.dumps([removal_data(removal) for removal in removals], indent=1))
    else:
        for removal in removals:
            typer.echo(removal_line(removal, dry_run))
        gone = [removal.kept.bytes for removal in removals if removal.removed or (dry_run and not removal.kept.busy)]
        typer.echo(
            f"{'would remove' if dry_run else 'removed'} {plural(len(gone), 'entry').replace('entrys', 'entries')}, {size(sum(gone))}"
        )
    failed = not dry_run and any(not removal.removed and not removal.kept.busy for removal in removals)
    raise typer.Exit(1 if failed else 0)


@app.command(name="rm")
def remove(
    keys: Keys,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would go, remove nothing.")] = False,
) -> None:
    """Remove artifacts by key. One that is being built or used is left, with exit code 1."""
    from llmbench.artifact_care import remove as remove_one
    from llmbench.views.artifact_listing import removal_line

    store = _store()
    removals = [remove_one(store, entry, dry_run=dry_run) for entry in _named(_survey(store), keys)]
    for removal in removals:
        typer.echo(removal_line(removal, dry_run))
    raise typer.Exit(0 if dry_run or all(removal.removed for removal in removals) else 1)


@app.command(name="export")
def export_artifacts(
    keys: Keys,
    output: Annotated[Path, typer.Option("--output", "-o", help="The archive to write, an uncompressed tar.")],
) -> None:
    """Write artifacts to one file, for `llmbench cache import` on another machine."""
    from llmbench.artifact_archive import export
    from llmbench.artifact_care import CareError
    from llmbench.views.text import plural, size

    if output.is_dir() or not output.absolute().parent.is_dir():
        fail(f"--output {output} can't be written: {'it is a folder' if output.is_dir() else 'there is no such folder'}", 2)
    store = _store()
    entries = _named(_survey(store), keys)
    try:
        written = export(store, entries, output)
    except CareError as error:
        fail(str(error), 1)
    typer.echo(f"{output}: {plural(len(entries), 'artifact')}, {size(written)}")


@app.command(name="import")
def import_artifacts(
    archive: Annotated[Path, typer.Argument(help="A file that `llmbench cache export` wrote.")],
    trust: Annotated[
        bool, typer.Option("--trust", help="Also artifacts whose loading runs machine code: you trust whoever made the file.")
    ] = False,
) -> None:
    """Take in the artifacts of an archive: all of it is checked before anything is written."""
    from llmbench.artifact_archive import take_in
    from llmbench.artifact_care import CareError
    from llmbench.artifact_manifest import ArtifactError
    from llmbench.views.artifact_listing import imported_line

    try:
        imported = take_in(_store(), archive, trust=trust, say=_say)
    except (CareError, ArtifactError) as error:
        fail(str(error), 1)
    for one in imported:
        typer.echo(imported_line(one))


def _check(format: str) -> None:
    if format not in ("table", "json"):
        fail(f"--format {format!r}; there are table and json", 2)


def _store() -> Store:
    from llmbench.artifacts import Store
    from llmbench.comparison import home

    return Store(home() / "engines")


def _survey(store: Store) -> list[Kept]:
    """What the cache holds, where it can be read."""
    from llmbench.artifact_care import survey

    try:
        return survey(store)
    except OSError as error:
        fail(f"{error.filename or store.root} can't be read: {error.strerror or error}", 1)


def _named(kept: list[Kept], keys: list[str]) -> list[Kept]:
    """The artifacts that the user named, each once."""
    from llmbench.artifact_care import CareError, find

    try:
        return list({entry.path: entry for entry in (find(kept, text) for text in keys)}.values())
    except CareError as error:
        fail(str(error), 2)


def _stale(store: Store, python: list[str]) -> dict[str, str]:
    from llmbench.artifact_care import ask_installed
    from llmbench.artifact_care import stale as find_stale
    from llmbench.engines.registry import engines
    from llmbench.machine import default_threads
    from llmbench.schedule import worker_environment

    kept, known = _survey(store), engines()
    present = {entry.engine for entry in kept}
    for name in sorted(present - set(known)):
        _say(f"{name} is no engine of this llmbench, so its artifacts stay (cache rm removes them)")
    paths = {name: (path,) for name, path in interpreters(python).items()}
    threads = default_threads()
    installed = ask_installed(
        {name: known[name] for name in sorted(present & set(known))}, paths, lambda caches: worker_environment(threads, caches), _say
    )
    return find_stale(kept, installed)


def _say(text: str) -> None:
    from llmbench.views.text import plain

    typer.echo(plain(text), err=True)
