"""What the command line prints and reads: cards, tables, where everything lies, one line for an error. Data to stdout, the rest to stderr."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from llmbench.comparison import Prepared
    from llmbench.grid import Suite
    from llmbench.protocol import Run


def interrupt_on_sigterm() -> None:
    """Has SIGTERM end a command as Ctrl-C does: what was measured is kept, workers are ended, nothing half-built stays."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def fail(message: str, code: int) -> NoReturn:
    """One line on stderr, then the end."""
    typer.echo(f"llmbench: {message}", err=True)
    raise typer.Exit(code)


def interpreters(pairs: list[str]) -> dict[str, str]:
    """Engine -> interpreter, from --python's pairs and from what is remembered or set in the environment."""
    from llmbench.engines.registry import engines
    from llmbench.interpreters import InterpreterError, settled

    found = {}
    for pair in pairs:
        engine, equals, path = pair.partition("=")
        if not equals or not engine or not path:
            fail(f"--python {pair!r}: write ENGINE=PATH", 2)
        found[engine] = path
    try:
        return settled(found, engines())
    except InterpreterError as error:
        fail(str(error), 2)


def load_runs(paths: list[Path]) -> tuple[list[Run], bool]:
    """The runs of the given files and suite folders, and whether any file isn't one: each such is named, and hides none of the others."""
    from llmbench.grid import run_files
    from llmbench.results.files import RunFileError, load

    runs, unreadable = [], False
    try:
        files = run_files(paths)
    except RunFileError as error:
        fail(str(error), 1)
    for path in files:
        try:
            runs.append(load(path))
        except RunFileError as error:
            unreadable = True
            typer.echo(f"llmbench: {error}", err=True)
    if not runs:
        fail(f"no run files (*.json) that can be read in {', '.join(map(str, paths))}", 1)
    return runs, unreadable


def check_outputs(output: Path | None, chart: Path | None) -> None:
    """Names that can't be written are told before measuring, not after."""
    for option, path in (("--output", output), ("--chart", chart)):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            fail(f"{option} {path} can't be written: {'it is a folder' if path.is_dir() else 'there is no such folder'}", 2)
    if chart is not None and chart.suffix.lower() not in (".png", ".svg"):
        fail(f"--chart {chart}: .png and .svg can be drawn", 2)


def print_card(prepared: Prepared, estimate: float | None, to_stdout: bool) -> None:
    from llmbench.views.card import card

    stream = sys.stdout if to_stdout else sys.stderr
    text = card(
        prepared.run,
        left_out={name: str(why) for name, why in prepared.left_out.items()},
        estimate_s=estimate,
        bandwidth=prepared.bandwidth,
        width=terminal_width(),
        color=wants_color(stream),
    )
    typer.echo(text.rstrip(), file=stream)


def report(prepared: Prepared, path: Path, format: str, output: Path | None, chart: Path | None, show_text: bool, verbose: bool) -> None:
    """The table, the texts, the chart and where everything lies."""
    from llmbench.protocol import Status
    from llmbench.results.files import logs_of
    from llmbench.views.chart import draw
    from llmbench.views.startup_chart import draw_startup

    run = prepared.run
    emit([run], format, output, verbose, startup=run.plan.startup)
    if show_text:
        print_texts(prepared, format)
    if prepared.unsaved is None:
        typer.echo(f"run file: {path}", err=True)
    else:
        typer.echo(f"run file: {path} does not hold all of this", err=True)
    if any(block.of_kind("sample") for row in run.rows for block in row.blocks):
        picture = chart or path.with_suffix(".png")
        if run.plan.startup:
            draw_startup(run, picture)
        else:
            draw([run], picture)
        typer.echo(f"chart:    {picture}", err=True)
    if any(row.status is not Status.OK for row in run.rows):
        typer.echo(f"logs:     {logs_of(path)}", err=True)


def report_suite(suite: Suite, format: str, output: Path | None, chart: Path | None, show_text: bool, verbose: bool) -> None:
    """The table of all runs, their texts, one chart and where everything lies."""
    from llmbench.views.chart import draw

    assert suite.folder is not None
    emit(suite.runs, format, output, verbose, as_list=True)
    if show_text:
        words = {id(prepared): cell.words for cell, prepared in suite.settled}
        for _, prepared in suite.measured:
            typer.echo(f"\n{words[id(prepared)]}", err=format not in ("table", "markdown"))
            print_texts(prepared, format)
    typer.echo(f"suite:    {suite.folder}", err=True)
    if any(block.of_kind("sample") for run in suite.runs for row in run.rows for block in row.blocks):
        picture = chart or suite.folder / "bars.png"
        draw(suite.runs, picture)
        typer.echo(f"chart:    {picture}", err=True)


def print_texts(prepared: Prepared, format: str) -> None:
    """What each variant generated last."""
    for row in prepared.run.rows:
        ids = next((block.ids for block in reversed(row.blocks) if block.ids), None)
        if ids is not None:
            text = prepared.tokenizer.decode(ids[0]) if prepared.tokenizer else f"ids {ids[0]}"
            typer.echo(f"\n{row.variant.label}: {text}", err=format not in ("table", "markdown"))


def emit(runs: list[Run], format: str, output: Path | None, verbose: bool, as_list: bool = False, startup: bool = False) -> None:
    """The runs in a format, to a file or stdout. as_list: json is an array of a single run too. startup: people get the start-up tables."""
    from llmbench.results.files import write_atomically
    from llmbench.views.startup_table import render_startup
    from llmbench.views.suite_table import render_suite
    from llmbench.views.table import render

    color = output is None and wants_color(sys.stdout)
    if startup and format in ("table", "markdown"):
        text = render_startup(runs, format, width=terminal_width(), color=color)
    else:
        text = render(runs, format, width=terminal_width(), verbose=verbose, color=color)
        if format in ("table", "markdown") and len(runs) > 1:
            together = render_suite(runs, format, width=terminal_width(), color=color)
            text += f"\n{together}" if together else ""
    if as_list and format == "json" and len(runs) == 1:
        text = f"[{text.strip()}]\n"
    if output is None:
        typer.echo(text.rstrip("\n"))
        return
    try:
        write_atomically(output, (text.rstrip("\n") + "\n").encode())
    except OSError as error:
        fail(f"{output} can't be written: {error.strerror or error}", 1)


def terminal_width() -> int:
    return max(60, shutil.get_terminal_size((100, 24)).columns)


def wants_color(stream: object) -> bool:
    """Colour only on a terminal that wants it: https://no-color.org and TERM=dumb are honoured."""
    isatty = getattr(stream, "isatty", None)
    return bool(isatty and isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
