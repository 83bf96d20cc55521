"""`llmbench export RUNS`: kept runs as CSV, JSON lines, Parquet, or records of PyTorch's benchmark database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmbench.console import fail, load_runs


def export(
    runs: Annotated[list[Path], typer.Argument(help="Run files, or folders of suites.")],
    format: Annotated[
        str, typer.Option("--format", "-f", help="csv, jsonl, parquet, or pytorch: records of PyTorch's benchmark database.")
    ],
    what: Annotated[str, typer.Option(help="rows (a line for each variant) or samples (one for each timed generation).")] = "rows",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file. Parquet needs one; else stdout where left out.")] = None,
) -> None:
    """Write kept runs for other programs."""
    from llmbench.results.export import FORMATS, WHAT, ExportError, export_bytes
    from llmbench.results.files import write_atomically

    if format not in FORMATS:
        fail(f"--format {format!r}; there are {', '.join(FORMATS)}", 2)
    if what not in WHAT:
        fail(f"--what {what!r}; there are {', '.join(WHAT)}", 2)
    if format == "parquet" and output is None:
        fail("parquet is no text: name a file with --output", 2)
    found, unreadable = load_runs(runs)
    try:
        content = export_bytes(found, format, what)
    except ExportError as error:
        fail(str(error), error.exit_code)
    if output is None:
        typer.echo(content.decode(), nl=False)
    else:
        try:
            write_atomically(output, content)
        except OSError as error:
            fail(f"{output} can't be written: {error.strerror or error}", 1)
    raise typer.Exit(3 if unreadable else 0)
