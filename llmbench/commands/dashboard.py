"""`llmbench dashboard RUNS...`: one page that shows what run files of any number of machines and days say."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmbench.console import check_outputs, fail

if TYPE_CHECKING:
    from llmbench.dashboard.collect import Cache, Collected
    from llmbench.dashboard.parts import Choices

#: Seconds between two looks at the files with --watch.
PAUSE_S = 2.0


def dashboard(
    runs: Annotated[list[Path], typer.Argument(help="Run files, or folders of runs and suites.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page: .html, or .md for a pull request.")] = Path("report.html"),
    worst: Annotated[int, typer.Option(min=0, help="How many models are named as the worst by each metric.")] = 10,
    watch: Annotated[bool, typer.Option("--watch", help="Write the page again whenever the files change, until Ctrl-C.")] = False,
    flag_speedup: Annotated[float | None, typer.Option(help="Flag a model whose speedup is under this. [default: 0.95]")] = None,
    flag_compile: Annotated[float | None, typer.Option(help="Flag a model that compiles longer, in seconds. [default: 120]")] = None,
    flag_compression: Annotated[
        float | None, typer.Option(help="Flag a model whose memory compression is under this. [default: 0.9]")
    ] = None,
) -> None:
    """One page of all runs: which engine wins and by how much, sums, histories, start-up, precision, growth, energy, features.

    Exit codes: 0 written; 1 nothing could be read or written; 2 usage; 3 some files could not be read.
    """
    from llmbench.dashboard.parts import Choices

    if output.suffix.lower() not in (".html", ".htm", ".md", ".markdown"):
        fail(f"--output {output}: .html and .md can be written", 2)
    check_outputs(output, None)
    choices = Choices(worst=worst)
    given = {"speedup": flag_speedup, "compile_s": flag_compile, "memory_compression": flag_compression}
    for figure, value in given.items():
        if value is not None and not (math.isfinite(value) and value >= 0):
            fail(f"a limit of {value} flags nothing: give a number of at least 0", 2)
        if value is not None:
            choices.limits[figure] = value
    missing = [path for path in runs if not path.exists()]
    if missing:
        fail(f"{missing[0]}: no such file or folder", 1)
    try:
        collected = write(runs, output, choices, {}, allow_nothing=watch)
        typer.echo(f"dashboard: {output}", err=True)
        if watch:
            keep_writing(runs, output, choices, _pause)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(3 if collected.unreadable else 0)


def write(runs: list[Path], output: Path, choices: Choices, cache: Cache, *, allow_nothing: bool = False, quiet: bool = False) -> Collected:
    """Reads the runs and replaces the page by a whole new one. Ends the program with one line where that can't be done."""
    from llmbench.dashboard.collect import collect
    from llmbench.dashboard.markdown import markdown
    from llmbench.dashboard.page import html
    from llmbench.results.files import write_atomically

    collected = collect(runs, cache)
    for line in [] if quiet else collected.unreadable:
        typer.echo(f"llmbench: {line}", err=True)
    if not collected.runs and not allow_nothing:
        found = f"only {collected.noise_runs} A/A runs" if collected.noise_runs else "no run files (*.json) that can be read"
        fail(f"{found} in {', '.join(map(str, runs))}", 1)
    text = markdown(collected, choices) if output.suffix.lower().startswith(".m") else html(collected, choices)
    try:
        write_atomically(output, text.encode("utf-8", "replace"))
    except OSError as error:
        fail(f"{output} can't be written: {error.strerror or error}", 1)
    return collected


def keep_writing(runs: list[Path], output: Path, choices: Choices, pause: Callable[[], bool]) -> int:
    """Writes the page again whenever a run file came, changed or went, until `pause` says false. Returns how often it was written."""
    from llmbench.dashboard.collect import fingerprint

    cache: Cache = {}
    seen, times = None, 0
    while True:
        now = fingerprint(runs)
        if now != seen:
            write(runs, output, choices, cache, allow_nothing=True, quiet=True)
            seen, times = now, times + 1
        if not pause():
            return times


def _pause() -> bool:
    import time

    time.sleep(PAUSE_S)
    return True
