"""`llmbench diff OLD NEW`: what changed from one run or suite to another, and a gate for CI."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from llmbench.console import fail, load_runs, terminal_width, wants_color


def share(text: str) -> float:
    """A relative threshold from "3%", "3 %" or "0.03". Raises BadParameter for what isn't one."""
    form = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*(%?)", text.strip())
    value = float(form.group(1)) / (100 if form.group(2) else 1) if form else math.nan
    if form is None or (not form.group(2) and value >= 1):
        raise typer.BadParameter(f"{text!r} is no threshold; write 3% or 0.03")
    return value


def _metrics(text: str) -> list[str]:
    from llmbench.results.diff_metrics import METRICS

    names = list(METRICS) if text == "all" else [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in METRICS]
    if unknown:
        fail(f"--metric {unknown[0]!r}; there are {', '.join(METRICS)}, and all", 2)
    return list(dict.fromkeys(names))


def diff(
    old: Annotated[Path, typer.Argument(help="A run file, or a folder of them: a suite, or several runs of the same.")],
    new: Annotated[Path, typer.Argument(help="The same, measured later.")],
    fail_if_slower: Annotated[
        str | None,
        typer.Option(
            "--fail-if-slower",
            "--fail-if-worse",
            metavar="SHARE",
            help="As 3%: exit code 1 where a figure is worse by more, its whole interval beyond, or a good row broke; 3 where one can't be judged.",
        ),
    ] = None,
    metric: Annotated[
        str,
        typer.Option(help="tokens, decode, ttft, speedup, startup, startup-warm, memory, accuracy, quality; several as a,b, or all."),
    ] = "tokens",
    across_machines: Annotated[bool, typer.Option("--across-machines", help="Compare runs of different machines or threads.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Compare whatever can be divided: other checkpoints, models, requests.")] = False,
    format: Annotated[str, typer.Option("--format", "-f", help="table, markdown or json.")] = "table",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the result to this file and not to stdout.")] = None,
) -> None:
    """Compare run files or suites, old with new: what changed, how figures moved, with intervals; a gate for CI.

    Exit codes: 0 compared, and no regression; 1 a regression; 2 not comparable, or usage; 3 something could not be judged or read.
    """
    from llmbench.results.diff import Incomparable
    from llmbench.results.diff import diff as compare_runs
    from llmbench.results.files import write_atomically
    from llmbench.views.diff_table import FORMATS, render_diff
    from llmbench.views.text import plain

    name = {"md": "markdown"}.get(format, format)
    if name not in FORMATS:
        fail(f"--format {format!r}; there are {', '.join(FORMATS)}", 2)
    threshold = share(fail_if_slower) if fail_if_slower is not None else None
    metrics = _metrics(metric)
    try:
        sides = [load_runs([path]) for path in (old, new)]
    except typer.Exit:
        raise typer.Exit(2) from None  # 1 would be read as a regression
    try:
        found = compare_runs(sides[0][0], sides[1][0], metrics=metrics, threshold=threshold, across_machines=across_machines, force=force)
    except Incomparable as error:
        fail("not comparable: " + "; ".join(plain(reason) for reason in error.reasons), 2)
    text = render_diff(found, name, width=terminal_width(), color=output is None and wants_color(sys.stdout))
    if output is None:
        typer.echo(text.rstrip("\n"))
    else:
        try:
            write_atomically(output, text.encode())
        except OSError as error:
            fail(f"{output} can't be written: {error.strerror or error}", 1)
    unreadable = sides[0][1] or sides[1][1]
    raise typer.Exit(found.exit_code or (3 if unreadable else 0))
