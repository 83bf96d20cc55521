"""`llmbench build`: artifacts ahead of the runs that load them. Parse, call, print.

Exit codes as compare's: 0 all are there; 1 none is; 2 usage; 3 some are; 130 interrupted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from llmbench.console import fail, interpreters, interrupt_on_sigterm, terminal_width, wants_color


def build(
    model: Annotated[str, typer.Option("--model", "-m", help="A folder with a checkpoint, an alias (smollm2-135m), or a hub id.")],
    engine: Annotated[
        str, typer.Option("--engine", "--engines", "-e", help="What to build, written as compare's --engines: tensorrt-rtx,openvino[x=1].")
    ],
    target: Annotated[
        str | None, typer.Option(help="Hardware to build for, by name, which needn't be here: rtx-4090,rtx-3090. Default: this machine's.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "--output-len", "-n", help="As the run that will load it.")] = 200,
    batch_size: Annotated[int, typer.Option("--batch-size", "-b", help="Likewise.")] = 1,
    prompt: Annotated[str | None, typer.Option(help='Likewise. Default: "Hello, my name is".')] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="A text file with the prompt.")] = None,
    input_len: Annotated[int | None, typer.Option(help="The prompt's length in ids instead.")] = None,
    dtype: Annotated[str, typer.Option(help="auto (the checkpoint's), float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:i.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads, as the run that will load it.")] = None,
    timeout: Annotated[str, typer.Option(help="For each step of a building process.")] = "2h",
    seed: Annotated[int, typer.Option(help="Of dummy weights and synthetic ids.")] = 0,
    load_format: Annotated[str, typer.Option(help="auto, safetensors, or dummy (random weights at the model's shape).")] = "auto",
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Use no network.")] = False,
    python: Annotated[list[str] | None, typer.Option(help="ENGINE=PATH: run an engine under another interpreter. May be repeated.")] = None,
    format: Annotated[str, typer.Option("--format", "-f", help="table or json.")] = "table",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Build an engine's artifact, or find it, and keep it in engines/ for later runs; also for hardware that isn't here."""
    from llmbench.cli import duration_s
    from llmbench.comparison import Options, SetupError, UsageError
    from llmbench.prebuild import build as build_all
    from llmbench.prebuild import exit_code
    from llmbench.protocol import Plan
    from llmbench.views.artifact_listing import outcomes_json, outcomes_table
    from llmbench.views.progress import progress as make_progress

    if format not in ("table", "json"):
        fail(f"--format {format!r}; there are table and json", 2)
    interrupt_on_sigterm()
    targets = [name.strip() for name in (target or "").split(",") if name.strip()]
    if target is not None and not targets:
        fail("--target names nothing; write --target rtx-4090, or leave it out for this machine", 2)
    progress = make_progress(quiet, sys.stderr)
    try:
        options = Options(
            model=model,
            engines=engine,
            prompt=prompt,
            prompt_file=prompt_file,
            input_len=input_len,
            max_new_tokens=max_new_tokens,
            batch_size=batch_size,
            dtype=dtype,
            device=device,
            threads=threads,
            plan=Plan(timeout_s=duration_s(timeout)),
            load_format=load_format,
            revision=revision,
            offline=offline,
            seed=seed,
            python=interpreters(python or []),
        )
        outcomes = build_all(options, targets, progress.message)
    except UsageError as error:
        fail(str(error), 2)
    except SetupError as error:
        fail(str(error), 1)
    except KeyboardInterrupt:
        fail("interrupted; what was complete is kept, the rest is gone", 130)
    finally:
        progress.close()
    typer.echo(outcomes_json(outcomes) if format == "json" else outcomes_table(outcomes, terminal_width(), wants_color(sys.stdout)))
    for outcome in outcomes:
        if outcome.log is not None:
            typer.echo(f"log: {outcome.log}", err=True)
    raise typer.Exit(exit_code(outcomes))
