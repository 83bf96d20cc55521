"""The command line: parse, call, print. Data goes to stdout; progress, notes and errors to stderr. No logic lives here.

Exit codes: 0 all rows good; 1 nothing measured or not all kept; 2 usage; 3 some rows failed or some files unreadable; 130 interrupted.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmbench.commands import build, cache
from llmbench.commands import engines as engine_commands
from llmbench.commands.dashboard import dashboard
from llmbench.commands.diff import diff
from llmbench.commands.export import export
from llmbench.console import (
    check_outputs,
    emit,
    fail,
    interpreters,
    interrupt_on_sigterm,
    load_runs,
    print_card,
    report,
    report_suite,
    terminal_width,
    wants_color,
)

if TYPE_CHECKING:
    from llmbench.comparison import Prepared
    from llmbench.grid import Suite
    from llmbench.views.progress import Progress as FullProgress

FORMATS = ("table", "markdown", "json", "jsonl", "csv")

app = typer.Typer(
    name="llmbench",
    help="Which way of running an LLM is fastest on this machine, by how much, at what cost, and whether that answer can be trusted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def duration_s(text: str) -> float:
    """Seconds from "90", "90s", "4m", "1h30m"."""
    form = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", text.strip().lower())
    if not text.strip() or form is None:
        raise typer.BadParameter(f"{text!r} is no duration; write 90s, 4m or 1h30m")
    hours, minutes, seconds = (float(part or 0) for part in form.groups())
    return 3600 * hours + 60 * minutes + seconds


def _format(value: str) -> str:
    name = {"md": "markdown"}.get(value, value)
    if name not in FORMATS:
        raise typer.BadParameter(f"{value!r}; there are {', '.join(FORMATS)}")
    return name


def _version(wanted: bool) -> None:
    if wanted:
        from llmbench import __version__

        typer.echo(f"llmbench {__version__}")
        raise typer.Exit()


#: Where the suite that is run stands in click's context.
_SUITE = "llmbench.suite"


def _suite(context: typer.Context, name: str | None) -> str | None:
    """Reads --suite before all other options: what it says takes the place of their defaults, so that the command line goes first."""
    if name is not None:
        from llmbench.comparison import UsageError
        from llmbench.suite_files import load

        try:
            suite = context.meta[_SUITE] = load(name)
        except UsageError as error:
            fail(str(error), 2)
        context.default_map = {**(context.default_map or {}), **suite.defaults()}
    return name


FormatOption = Annotated[str, typer.Option("--format", "-f", callback=_format, help="table, markdown, json (the run file), jsonl or csv.")]
OutputOption = Annotated[Path | None, typer.Option("--output", "-o", help="Write the result to this file and not to stdout.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="More columns.")]


@app.callback()
def _llmbench(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="The version, then the end.")] = False,
) -> None:
    pass


@app.command()
def compare(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="A folder with a checkpoint, an alias (smollm2-135m), or a hub id. Several: a,b.")
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            help="The models and options of a suite: published, small, huggingface, or a .toml file. Other options here go first.",
            callback=_suite,
            is_eager=True,
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with this run file or a suite's folder: what it lacks is measured, all else comes from it.")
    ] = None,
    engines: Annotated[
        str | None,
        typer.Option(
            "--engines", "-e", help="Variants, as eager,torch-compile[mode=max-autotune]. Default: every usable engine of the default list."
        ),
    ] = None,
    baseline: Annotated[str | None, typer.Option(help="The variant that the others are compared with. Default: eager.")] = None,
    max_new_tokens: Annotated[
        str, typer.Option("--max-new-tokens", "--output-len", "-n", help="Tokens to generate for each sequence. Several: 32,200.")
    ] = "200",
    batch_size: Annotated[str, typer.Option("--batch-size", "-b", help="Sequences at once, all with the same prompt. Several: 1,4.")] = "1",
    prompt: Annotated[str | None, typer.Option(help='The prompt. Default: "Hello, my name is".')] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="A text file with the prompt.")] = None,
    input_len: Annotated[
        str | None, typer.Option(help="Synthetic prompt ids instead, this many, drawn from --seed. Several: 128,1024.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely id (greedy); above 0 samples.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Sample from this many most likely ids.")] = None,
    sampling: Annotated[str | None, typer.Option(help="Both by name: greedy, or gpt-fast (temperature 0.8, top-k 200).")] = None,
    dtype: Annotated[str, typer.Option(help="auto (the checkpoint's), float32, bfloat16 or float16. Several: float32,bfloat16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:i.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads of every engine. Default: the usable physical cores.")] = None,
    rounds: Annotated[int, typer.Option(help="Processes of each variant.")] = 5,
    num_iters: Annotated[int, typer.Option(help="Timed generations in each process.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="One round, so no interval and no verdict.")] = False,
    interleave: Annotated[bool, typer.Option("--interleave", help="A round's processes side by side, single samples in turn.")] = False,
    no_accuracy: Annotated[bool, typer.Option("--no-accuracy", help="Don't compare logits and ids with a float32 reference.")] = False,
    min_effect: Annotated[float, typer.Option(help="A relative difference that matters: smaller ones are never faster or slower.")] = 0.02,
    num_iters_warmup: Annotated[int, typer.Option(help="Generations before them, the same for every engine.")] = 2,
    time_budget: Annotated[
        str | None, typer.Option(help="As 4m: cuts samples first, rounds last. The first round is always whole.")
    ] = None,
    timeout: Annotated[str, typer.Option(help="For each step of a worker: loading, one generation.")] = "30m",
    seed: Annotated[int, typer.Option(help="Of the order in a round, sampling, synthetic ids and dummy weights.")] = 0,
    load_format: Annotated[str, typer.Option(help="auto, safetensors, or dummy (random weights at the model's shape).")] = "auto",
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Use no network.")] = False,
    python: Annotated[list[str] | None, typer.Option(help="ENGINE=PATH: run an engine under another interpreter. May be repeated.")] = None,
    startup: Annotated[bool, typer.Option("--startup", help="Measure how each way starts, as `llmbench startup` does.")] = False,
    format: FormatOption = "table",
    output: OutputOption = None,
    chart: Annotated[Path | None, typer.Option(help="Where the bar chart goes, .png or .svg. Default: beside the run file.")] = None,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Write a trace of one more generation of each variant, for chrome://tracing, beside the run file."),
    ] = False,
    show_text: Annotated[bool, typer.Option("--show-text", help="Print what each variant generated.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run and measure nothing.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No card and no progress.")] = False,
    verbose: VerboseOption = False,
) -> None:
    """Measure a model under several engines, print the table, keep a run file and draw the bars.

    Several models, dtypes, lengths or batch sizes, as --batch-size 1,4, give one run each, in one folder of results/.
    """
    from llmbench.comparison import Options, SetupError, UsageError, estimate_s, execute, exit_code, prepare
    from llmbench.grid import expand, reopen, settle
    from llmbench.protocol import Plan
    from llmbench.results.files import RunFileError, load
    from llmbench.resume import continue_from, options_of
    from llmbench.sampling import settle as settle_sampling
    from llmbench.views.progress import progress as make_progress
    from llmbench.views.text import ViewError

    interrupt_on_sigterm()
    if _source(context, "rounds") == "COMMANDLINE" and _source(context, "quick") == "DEFAULT_MAP":
        quick = False  # the suite's one round gives way to the rounds that are asked for here
    try:
        temperature, top_k = settle_sampling(sampling, temperature, top_k)
        plan = Plan(
            rounds=1 if quick else rounds,
            num_iters=num_iters,
            num_iters_warmup=num_iters_warmup,
            seed=seed,
            time_budget_s=duration_s(time_budget) if time_budget is not None else None,
            timeout_s=duration_s(timeout),
            quick=quick,
            min_effect=min_effect,
            interleave=interleave,
            accuracy=not no_accuracy,
            startup=startup,
            profile=profile,
        )
        options = Options(
            model=model or "",
            engines=engines,
            baseline=baseline,
            prompt=prompt,
            prompt_file=prompt_file,
            temperature=temperature,
            top_k=top_k,
            device=device,
            threads=threads,
            plan=plan,
            load_format=load_format,
            revision=revision,
            offline=offline,
            seed=seed,
            python=interpreters(python or []),
            command=["llmbench", *sys.argv[1:]],
        )
        lists = {"model": model, "dtype": dtype, "input_len": input_len, "max_new_tokens": max_new_tokens, "batch_size": batch_size}
        cells = expand(options, lists, context.meta.get(_SUITE))
        options = cells[0].options
        if (model is None) == (resume is None):
            fail("give --model or --suite, or --resume RUN to go on with one", 2)
        if resume is not None:
            _check_resume(context)
        if resume is not None and resume.is_dir():
            check_outputs(output, chart)
            progress = make_progress(quiet, sys.stderr)
            if dry_run:
                fail("--dry-run shows what a run file lacks, not what a suite's folder does; give one of its run files", 2)
            cut_off = reopen(resume, options, say=progress.message)
            progress.message(f"{len(cut_off.kept)} of {len(cut_off.cells)} runs are kept whole")
            raise typer.Exit(_measure_suite(cut_off, progress, format, output, chart, show_text, quiet, verbose))
        old = load(resume) if resume is not None else None
        if old is not None:
            options = options_of(old, options)
        if quick and _source(context, "rounds") == "COMMANDLINE" and rounds != 1:
            fail(f"--quick is one round, --rounds {rounds} are more; leave one of them out", 2)
        check_outputs(output, chart)
        progress = make_progress(quiet, sys.stderr)
        if len(cells) > 1 or suite is not None:
            settled = settle(cells, dry_run=dry_run, say=progress.message, record_missing=suite is not None)
            if dry_run:
                raise typer.Exit(_show_cards(settled))
            raise typer.Exit(_measure_suite(settled, progress, format, output, chart, show_text, quiet, verbose))
        prepared = prepare(options, dry_run=dry_run, say=progress.message)
        if old is not None and not dry_run:
            progress.message(f"{continue_from(prepared, old)} blocks are kept")
        if not quiet or dry_run:
            print_card(prepared, estimate_s(prepared), to_stdout=dry_run)
        if dry_run:
            return
        progress.start(prepared.run)
        interrupted = False
        try:
            execute(prepared, progress, resume)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            progress.close()
        report(prepared, resume or prepared.results / f"{prepared.run.run_id}.json", format, output, chart, show_text, verbose)
        if prepared.unsaved is not None:
            fail(prepared.unsaved, 1)
        raise typer.Exit(130 if interrupted else exit_code(prepared.run))
    except UsageError as error:
        fail(str(error), 2)
    except (SetupError, RunFileError, ViewError) as error:
        fail(str(error), 1)
    except KeyboardInterrupt:
        fail("interrupted; what was measured until then is in its run file, where there was anything", 130)


#: What may be said beside --resume; everything else is settled by the run file.
_BESIDE_RESUME = {
    "resume",
    "revision",
    "time_budget",
    "offline",
    "python",
    "format",
    "output",
    "chart",
    "show_text",
    "dry_run",
    "quiet",
    "verbose",
}


def _source(context: typer.Context, name: str) -> str:
    """Where an option's value came from: COMMANDLINE, DEFAULT_MAP (a suite), DEFAULT, ..."""
    return str(context.get_parameter_source(name)).rpartition(".")[2]


def _check_resume(context: typer.Context) -> None:
    """Refuses options that --resume would pass over in silence."""
    given = [name for name in context.params if _source(context, name) == "COMMANDLINE"]
    settled = ["--" + name.replace("_", "-") for name in given if name not in _BESIDE_RESUME]
    if settled:
        fail(f"{' and '.join(settled)} come{'s' if len(settled) == 1 else ''} from the run file with --resume; leave it out", 2)


def _show_cards(suite: Suite) -> int:
    """A dry run of a suite. Returns the exit code."""
    from llmbench.comparison import estimate_s

    for failure in suite.failures:
        typer.echo(f"llmbench: {failure}", err=True)
    for index, (cell, prepared) in enumerate(suite.settled):
        typer.echo(f"{chr(10) if index else ''}run {index + 1} of {len(suite.settled)}: {cell.words or prepared.run.model.name}")
        print_card(prepared, estimate_s(prepared), to_stdout=True)
    return (3 if suite.failures else 0) if suite.settled else 1


def _measure_suite(
    suite: Suite,
    progress: FullProgress,
    format: str,
    output: Path | None,
    chart: Path | None,
    show_text: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """One run for each cell, the table of all, one chart. Returns the exit code."""
    from llmbench.comparison import estimate_s
    from llmbench.grid import measure

    def announce(words: str, prepared: Prepared) -> None:
        progress.message(words)
        if not quiet:
            print_card(prepared, estimate_s(prepared), to_stdout=False)

    for failure in suite.failures:
        typer.echo(f"llmbench: {failure}", err=True)
    if not (suite.settled or suite.missing or suite.kept):
        return 1
    try:
        measure(suite, progress, announce)
    finally:
        progress.close()
    if suite.interrupted and not suite.runs:
        fail("interrupted before anything was measured", 130)
    if suite.runs:
        report_suite(suite, format, output, chart, show_text, verbose)
    unsaved = [prepared.unsaved for _, prepared in suite.measured if prepared.unsaved is not None]
    for failure in [*suite.failures, *unsaved]:  # again: what was told at the start has scrolled away
        typer.echo(f"llmbench: {failure}", err=True)
    return 1 if unsaved else suite.exit_code


def _options_of(command: Callable[..., None], without: tuple[str, ...]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a function that takes **options the options of another command, so that there is one list of them."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        options = [option for name, option in signature.parameters.items() if name not in without]
        own = list(inspect.signature(function, eval_str=True).parameters.values())[:-1]
        taken = [entry.replace(kind=inspect.Parameter.KEYWORD_ONLY) for entry in (*own, *options)]
        function.__signature__ = signature.replace(parameters=taken)  # type: ignore[attr-defined]
        return function

    return decorate


@app.command()
@_options_of(compare, without=("engines", "baseline", "resume", "suite"))
def aa(
    engine: Annotated[str, typer.Argument(help="One variant, as eager or torch-compile[mode=max-autotune].")],
    **options: Any,
) -> None:
    """Measure one variant against itself: this machine's noise floor, which later comparisons here go by."""
    from llmbench.variants import VariantError, twice

    try:
        engines = twice(engine)
    except VariantError as error:
        fail(str(error), 2)
    compare(engines=engines, baseline=None, resume=None, suite=None, **options)


@app.command(name="startup")
@_options_of(compare, without=("startup", "resume", "suite", "quick", "interleave", "rounds", "num_iters"))
def start_up(
    rounds: Annotated[int, typer.Option(help="Processes of each variant: the first starts cold, the others warm.")] = 3,
    num_iters: Annotated[int, typer.Option(help="Timed generations in each process, for its steady rate.")] = 2,
    **options: Any,
) -> None:
    """Measure what starting costs: build, load, first token, steady rate, cold and warm, and when one way has overtaken another.

    torch-compile, named without options, is started in all its ways: from empty caches, from its caches on disk, from a portable bundle of
    them, and from functions compiled ahead of time.
    """
    compare(startup=True, resume=None, suite=None, quick=False, interleave=False, rounds=rounds, num_iters=num_iters, **options)


@app.command()
def show(
    runs: Annotated[list[Path], typer.Argument(help="Run files, or folders of suites.")],
    startup: Annotated[bool, typer.Option("--startup", help="What starting cost: cold and warm, by parts, with the break-even.")] = False,
    format: FormatOption = "table",
    output: OutputOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Print kept run files as a table."""
    from llmbench.views.text import ViewError

    try:
        found, unreadable = load_runs(runs)
        emit(found, format, output, verbose, startup=startup)
    except ViewError as error:
        fail(str(error), 1)
    raise typer.Exit(3 if unreadable else 0)


@app.command()
def plot(
    runs: Annotated[list[Path], typer.Argument(help="Run files, or folders of suites.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture, .png or .svg.")] = Path("bars.png"),
) -> None:
    """Draw the tokens-per-second bars of kept run files."""
    from llmbench.views.chart import draw
    from llmbench.views.text import ViewError

    try:
        found, unreadable = load_runs(runs)
        draw(found, output)
    except ViewError as error:
        fail(str(error), 1)
    typer.echo(f"chart: {output}", err=True)
    raise typer.Exit(3 if unreadable else 0)


app.command()(dashboard)
app.command()(diff)
app.command()(export)


app.add_typer(engine_commands.app, name="engines")


@app.command()
def models(
    format: Annotated[str, typer.Option("--format", "-f", help="table or json.")] = "table",
) -> None:
    """List the models that have a short name: shape, bytes in each dtype, context, and what lies in checkpoints/."""
    from llmbench.comparison import home
    from llmbench.views.listing import models_json, models_table

    if format not in ("table", "json"):
        fail(f"--format {format!r}; there are table and json", 2)
    typer.echo(models_json(home()) if format == "json" else models_table(home(), terminal_width(), wants_color(sys.stdout)))


@app.command()
def doctor(
    engine: Annotated[str | None, typer.Option("--engine", "-e", help="Look at this engine only.")] = None,
    python: Annotated[list[str] | None, typer.Option(help="ENGINE=PATH: the interpreter of an engine. May be repeated.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Don't ask the model hub.")] = False,
    format: Annotated[str, typer.Option("--format", "-f", help="table, or json for bug reports.")] = "table",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Look at the machine: devices, versions, bandwidth, room, the hub, and what is missing for which engine."""
    import json

    from llmbench.comparison import home
    from llmbench.doctor import examine, exit_code
    from llmbench.engines.registry import UnknownEngine
    from llmbench.views.doctor_page import page
    from llmbench.views.progress import progress as make_progress

    if format not in ("table", "json"):
        fail(f"--format {format!r}; there are table and json", 2)
    say = make_progress(quiet, sys.stderr).message
    try:
        found = examine(home=home(), engine=engine, python=interpreters(python or []), offline=offline, say=say)
    except UnknownEngine as error:
        fail(str(error), 2)
    except KeyboardInterrupt:
        fail("interrupted", 130)
    typer.echo(json.dumps(found, indent=1) if format == "json" else page(found, terminal_width(), wants_color(sys.stdout)))
    raise typer.Exit(exit_code(found))


app.command()(build.build)
app.add_typer(cache.app, name="cache")


def main() -> None:
    """The `llmbench` command."""
    try:
        app()
    except BrokenPipeError:  # `llmbench show run.json | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except KeyboardInterrupt:
        print("llmbench: interrupted", file=sys.stderr)
        sys.exit(130)
    except OSError as error:  # stdout on a full disk; every other file's error is told where it is opened
        print(f"llmbench: the output can't be written: {error.strerror or error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
