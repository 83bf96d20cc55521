"""`llmbench engines`: the list, and `llmbench engines set`: the interpreter that an engine runs under from now on. Parse, call, print."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from llmbench.console import fail, terminal_width, wants_color

app = typer.Typer(name="engines", invoke_without_command=True, rich_markup_mode=None)


@app.callback()
def list_engines(
    context: typer.Context,
    format: Annotated[str, typer.Option("--format", "-f", help="table or json.")] = "table",
) -> None:
    """List every engine: usable here or not, why not, and the command that would make it usable."""
    if context.invoked_subcommand is not None:
        return
    from llmbench.views.listing import engines_json, engines_table

    if format not in ("table", "json"):
        fail(f"--format {format!r}; there are table and json", 2)
    typer.echo(engines_json() if format == "json" else engines_table(terminal_width(), wants_color(sys.stdout)))


@app.command(name="set")
def set_interpreter(
    engine: Annotated[str, typer.Argument(help="An engine, as tensorrt-llm.")],
    python: Annotated[str | None, typer.Argument(help="Its Python interpreter.")] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Forget the interpreter that is remembered.")] = False,
) -> None:
    """Remember the interpreter that an engine runs under, as one with libraries of its own needs. --python and LLMBENCH_PYTHON_ENGINE go first."""
    from llmbench.engines.registry import UnknownEngine, find
    from llmbench.interpreters import InterpreterError, remember, remembered_file

    if (python is None) == (not forget):
        fail("give ENGINE and the path of its interpreter, or ENGINE --forget", 2)
    try:
        find(engine)
        path = remember(engine, python)
    except (UnknownEngine, InterpreterError) as error:
        fail(str(error), 2)
    typer.echo(f"{engine} runs under {path}" if path else f"{engine} runs under llmbench's own interpreter")
    typer.echo(f"remembered in {remembered_file()}", err=True)
