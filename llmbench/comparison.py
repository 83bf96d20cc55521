"""`llmbench compare` without the command line: from options to a prepared run, and from there to a measured one.

`prepare` settles everything that can be wrong before anything is measured; `execute` measures and keeps the run file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmbench import __version__, interpreters, machine, noise_floor, temporary
from llmbench.artifacts import Store
from llmbench.block import utc_now
from llmbench.engines.registry import EngineSpec, Problem, UnknownEngine, engines, problem
from llmbench.machine_state import memory_available
from llmbench.protocol import (
    DTYPE_BYTES,
    Bandwidth,
    CheckpointRef,
    Job,
    Machine,
    Model,
    Plan,
    Request,
    Row,
    Run,
    Sampling,
    Status,
    Variant,
    decode,
    encode,
)
from llmbench.results import files
from llmbench.schedule import Contestant, Progress, Schedule, worker_environment
from llmbench.supervise import Worker, WorkerFailed
from llmbench.variants import VariantError, all_starts, default_variant, dtype_name, parse_variants

if TYPE_CHECKING:
    from llmbench.checkpoints.config import ModelConfig, Outline
    from llmbench.checkpoints.fetch import Resolved
    from llmbench.checkpoints.tokenizer import Tokenizer

DEFAULT_PROMPT = "Hello, my name is"
#: What a run says of a model that llmbench's own code can't build.
FOREIGN = "the torch engines run transformers' model, and no limit is known, as llmbench's own model isn't one of this kind"
#: A probe that takes longer than this has hung.
_PROBE_TIMEOUT_S = 300.0


class UsageError(Exception):
    """What the user asked for can't be done as written; one line says why and what to write instead."""


class SetupError(Exception):
    """Nothing could be measured, though the request is sound: no checkpoint, no place for results, no working interpreter."""


@dataclass(frozen=True)
class Options:
    """What `llmbench compare` takes, with its defaults."""

    model: str
    engines: str | None = None  # null: every engine of the default list that is usable here
    baseline: str | None = None
    prompt: str | None = None
    prompt_file: Path | None = None
    input_len: int | None = None
    max_new_tokens: int = 200
    batch_size: int = 1
    temperature: float = 0.0
    top_k: int | None = None
    dtype: str = "auto"
    device: str = "auto"
    threads: int | None = None
    plan: Plan = field(default_factory=Plan)
    load_format: str = "auto"
    revision: str | None = None
    shape: dict[str, Any] | None = None  # config.json of random weights that go by the name in `model`; null: `model` is looked for
    offline: bool = False
    seed: int = 0
    python: dict[str, str] = field(default_factory=dict)  # engine -> its interpreter
    home: Path = field(default_factory=lambda: home())
    command: list[str] = field(default_factory=list)


@dataclass
class Prepared:
    """A run that is settled and not yet measured."""

    run: Run
    contestants: list[Contestant]
    config: ModelConfig | Outline
    tokenizer: Tokenizer | None
    left_out: dict[str, Problem]  # engines of the default list that can't be used here
    results: Path
    bandwidth: Bandwidth | None  # null in a dry run
    probe: dict[str, Any] = field(default_factory=dict)  # what a worker found on this machine
    home: Path | None = None  # of checkpoints/ and engines/; null: the folder that holds `results`
    unsaved: str | None = None  # after execute: why the run file doesn't hold all that was measured


def home() -> Path:
    """The folder that holds checkpoints/, engines/ and results/: $LLMBENCH_HOME, else the current one."""
    return Path(os.environ.get("LLMBENCH_HOME") or ".").resolve()


def prepare(
    options: Options,
    *,
    dry_run: bool = False,
    say: Callable[[str], None] = lambda text: None,
    like: Prepared | None = None,
    building_for: tuple[str, ...] | None = None,
) -> Prepared:
    """Checks the options, brings the checkpoint, asks a worker what the machine has. Raises UsageError or SetupError.

    With dry_run it starts no worker, downloads nothing, writes nothing. `say` is told of long steps. `like`: another run prepared for the same
    device and threads, whose look at the machine serves again. building_for: nothing will be measured, only artifacts built, for hardware of
    these names that needn't be here, or for this machine's device where there are none: no bandwidth is probed and no memory asked for.
    """
    from llmbench.checkpoints.config import Outline

    check(options)
    results = options.home / "results"
    _check_writable(results)
    resolved = _resolve(options, dry_run, say)
    config = resolved.config
    tokenizer = _tokenizer(resolved)
    request, prompt = _request(options, config, tokenizer)
    dtype = config.dtype if options.dtype == "auto" else dtype_name(options.dtype)

    if like is not None:
        probe, bandwidth = like.probe, like.bandwidth
    else:
        probe, bandwidth = ({"devices": [], "torch": None, "cuda": None}, None) if dry_run else _probe(options, say, building_for is None)
    try:
        device = options.device if dry_run else machine.choose_device(options.device, probe)
    except machine.DeviceError as error:
        raise UsageError(str(error)) from None
    threads = options.threads or machine.default_threads()
    variants, left_out = _variants(options, dtype, "auto" if building_for else device)

    run = Run(
        run_id="",
        model=_model(resolved, options.home),
        request=request,
        plan=options.plan,
        machine=Machine(device=device) if dry_run else machine.describe(device, probe),
        threads=threads,
        dtype=dtype,
        prompt=prompt,
        baseline=_baseline(options, variants),
        started_at=utc_now(),
        command=options.command,
        llmbench_version=__version__,
        notes=[f"{name} is left out: {why}" for name, why in left_out.items()],
    )
    if isinstance(config, Outline):
        run.notes.append(f"{FOREIGN}: {config.why}")
    run.aa = noise_floor.is_aa([variant for _, variant, _ in variants])
    if not (dry_run or run.aa):
        found = noise_floor.find(results, run.machine, threads, fake=all(spec.name == "fake" for spec, _, _ in variants))
        run.noise_floor, run.noise_floor_source = (found.relative, found.source) if found else (None, None)
    ref = resolved.ref
    if not dry_run and any(spec.artifact and why is None for spec, _, why in variants):
        ref = dataclasses.replace(ref, identity=_full_identity(resolved, options.home, say))
    contestants = []
    for spec, variant, why in variants:
        row = Row(variant)
        if why is not None:
            row.status, row.reason = Status.UNAVAILABLE, str(why)
        elif spec.reads_weights and not dry_run and building_for is None:
            row.status, row.reason = _memory_problem(config, variant, request, run.machine)
        run.rows.append(row)
        job = Job(ref, variant, request, device, threads, building_for or ())
        contestants.append(Contestant(row, spec, job, _interpreter(options, spec)))
    return Prepared(run, contestants, config, tokenizer, left_out, results, bandwidth, probe, options.home)


def not_here(options: Options, reason: str) -> Run:
    """The run of a model that can't be had: a row for each engine that was named, unavailable for that reason. Nothing of it is measured."""
    from llmbench.checkpoints import catalog

    entry = catalog.find(options.model)
    dtype = entry.shape.dtype if entry is not None and options.dtype == "auto" else options.dtype
    dtype = "unknown" if dtype == "auto" else dtype_name(dtype)
    named = parse_variants(options.engines, dtype) if options.engines is not None else []
    variants = [variant for _, variant in named] or [default_variant(spec, dtype) for spec in engines().values() if spec.default]
    return Run(
        run_id="",
        model=Model(
            options.model, "not here", "", entry.shape.architecture if entry is not None else "", dtype, load_format=options.load_format
        ),
        request=Request((), options.max_new_tokens, options.batch_size, Sampling(options.temperature, options.top_k, options.seed)),
        plan=options.plan,
        machine=Machine(device=options.device),
        threads=options.threads or machine.default_threads(),
        dtype=dtype,
        rows=[Row(variant, Status.UNAVAILABLE, reason) for variant in variants],
        prompt=options.prompt,
        command=options.command,
        llmbench_version=__version__,
    )


def execute(prepared: Prepared, progress: Progress, path: Path | None = None) -> Path:
    """Measures a prepared run; returns its run file: `path` to go on with one, else a new one. On Ctrl-C the file is whole and
    KeyboardInterrupt is raised again.

    prepared.run.run_id names the file from the moment it is reserved.
    """
    run, new = prepared.run, path is None
    try:
        path = path or files.reserve(prepared.results, run.started_at, run.model.name)
        run.run_id = path.stem
        files.save(run, path)
    except (files.RunFileError, KeyboardInterrupt) as error:
        if new and path is not None:
            files.forget(path)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise SetupError(str(error)) from None
    schedule = Schedule(
        run,
        prepared.contestants,
        vocab=prepared.config.vocab,
        logs=files.logs_of(path),
        save=lambda current: files.save(current, path),
        progress=progress,
        references=(prepared.home or prepared.results.parent) / "checkpoints" / ".references",
        artifacts=Store((prepared.home or prepared.results.parent) / "engines"),
    )
    try:
        schedule.measure()
    except OSError as error:  # no room for temporary files; what was measured is kept all the same
        run.notes.append(f"measuring ended early: {error.strerror or error}")
    finally:
        prepared.unsaved = schedule.unsaved
    return path


def estimate_s(prepared: Prepared) -> float | None:
    """A rough guess of the wall seconds, for the card: half the bandwidth limit reached, a minute for a cold compilation and for building an
    artifact where none of this checkpoint is kept by that engine.

    Null where no limit is known. A time budget caps it.
    """
    from llmbench.checkpoints import layout
    from llmbench.checkpoints.config import ModelConfig

    run, plan = prepared.run, prepared.run.plan
    config = prepared.config
    if prepared.bandwidth is None or prepared.bandwidth.gb_per_s is None or not isinstance(config, ModelConfig):
        return plan.time_budget_s
    total_s = 0.0
    for contestant in prepared.contestants:
        if contestant.row.status is not Status.OK:
            continue
        size = layout.bytes_per_token(config, DTYPE_BYTES[contestant.job.variant.dtype], run.request)
        generation_s = run.request.max_new_tokens * size / (0.5e9 * prepared.bandwidth.gb_per_s) if contestant.spec.reads_weights else 0.0
        total_s += plan.rounds * (5.0 + (plan.num_iters + plan.num_iters_warmup) * generation_s)
        total_s += (60.0 + 10.0 * (plan.rounds - 1)) if contestant.spec.compiles else 0.0
        total_s += 60.0 if _must_build(prepared, contestant) else 0.0
    return min(total_s, plan.time_budget_s) if plan.time_budget_s is not None else total_s


def _must_build(prepared: Prepared, contestant: Contestant) -> bool:
    """Whether a contestant's engine builds and keeps nothing of this checkpoint yet, whatever else the key asks for."""
    from llmbench.artifact_manifest import Broken

    spec, job = contestant.spec, contestant.job
    if not spec.artifact or (spec.compiles and job.variant.options.get("start", "disk") in ("disk", "cold")):
        return False
    store = Store((prepared.home or prepared.results.parent) / "engines")
    for engine, key in store.names():
        with contextlib.suppress(Broken):
            if engine in (spec.name, spec.source) and store.read_manifest(engine, key).ingredients.checkpoint == job.checkpoint.identity:
                return False
    return True


def exit_code(run: Run) -> int:
    """0 all rows good; 1 nothing measured; 3 some rows failed; 130 interrupted."""
    if run.interrupted:
        return 130
    good = sum(row.status is Status.OK and any(block.samples for block in row.blocks) for row in run.rows)
    if good == len(run.rows) and good:
        return 0
    return 3 if good else 1


# ------------------------------------------------------------------------------------------------------------------------------- settling


def check(options: Options) -> None:
    """Raises UsageError for what can be seen to be wrong without looking at the model or the machine."""
    plan = options.plan
    for name, value, least in (
        ("--max-new-tokens", options.max_new_tokens, 1),
        ("--batch-size", options.batch_size, 1),
        ("--rounds", plan.rounds, 1),
        ("--num-iters", plan.num_iters, 1),
        ("--num-iters-warmup", plan.num_iters_warmup, 0),
        ("--threads", options.threads, 1),
        ("--input-len", options.input_len, 1),
        ("--top-k", options.top_k, 1),
    ):
        if value is not None and value < least:
            raise UsageError(f"{name} must be at least {least}, not {value}")
    if options.threads is not None and options.threads > (os.cpu_count() or 1):
        raise UsageError(f"--threads {options.threads}: this machine has {os.cpu_count()} CPUs")
    if not 0 <= options.seed < 2**63:
        raise UsageError(f"--seed must be from 0 to 2**63 - 1, not {options.seed}")
    if not 0 <= options.temperature < float("inf"):
        raise UsageError(f"--temperature must be 0 (greedy) or more, not {options.temperature}")
    if options.top_k is not None and options.temperature == 0:
        raise UsageError("--top-k needs --temperature above 0: at 0 the most likely id is taken")
    if not 0 <= plan.min_effect < 1:
        raise UsageError(f"--min-effect must be at least 0 and under 1 (0.02 is 2 %), not {plan.min_effect}")
    if plan.timeout_s <= 0:
        raise UsageError("--timeout must be above 0")
    if plan.time_budget_s is not None and plan.time_budget_s <= 0:
        raise UsageError("--time-budget must be above 0")
    if sum(value is not None for value in (options.prompt, options.prompt_file, options.input_len)) > 1:
        raise UsageError("give one of --prompt, --prompt-file and --input-len")
    if options.load_format not in ("auto", "safetensors", "dummy"):
        raise UsageError(f"unknown --load-format {options.load_format!r}; there are auto, safetensors, dummy")
    try:
        machine.check_device_name(options.device)
        # "auto" is settled by the checkpoint, so here it is equal to no dtype that a variant names.
        dtype = "auto" if options.dtype == "auto" else dtype_name(options.dtype)
        if options.engines is not None:
            parse_variants(options.engines, dtype)
        known = engines()
        for name in options.python:
            if name not in known:
                raise UsageError(f"--python names an unknown engine {name!r}; there are {', '.join(known)}")
            if shutil.which(options.python[name]) is None and _is_asked_for(name, options):
                raise UsageError(
                    f"--python {name}={options.python[name]}: there is no such program (an interpreter may also come from "
                    f"{interpreters.variable(name)} or `llmbench engines set`)"
                )
    except (machine.DeviceError, VariantError, UnknownEngine) as error:
        raise UsageError(str(error)) from None


def _is_asked_for(engine: str, options: Options) -> bool:
    """Whether an engine is among those named; with none named, any may be run."""
    return options.engines is None or any(spec.name == engine for spec, _ in parse_variants(options.engines, "auto"))


def _check_writable(results: Path) -> None:
    """Tells before measuring that results could not be kept. Creates nothing."""
    folder = results
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise SetupError(f"results can't be written in {results}: {folder} is not a writable folder; set LLMBENCH_HOME to one that is")
    if results.is_dir():
        try:
            with tempfile.TemporaryFile(dir=results):
                pass
        except OSError as error:
            raise SetupError(f"results can't be written in {results}: {error.strerror or error}; set LLMBENCH_HOME") from None


def _resolve(options: Options, dry_run: bool, say: Callable[[str], None]) -> Resolved:
    """The checkpoint; in a dry run only what is here already, else the catalog's shape."""
    from llmbench.checkpoints.errors import CheckpointError
    from llmbench.checkpoints.fetch import from_shape, resolve

    if options.shape is not None:
        try:
            return from_shape(options.model, options.shape, home=options.home, dummy_seed=options.seed, write=not dry_run)
        except CheckpointError as error:
            raise SetupError(str(error)) from None
    shape = _shape_only(options.model, "dummy" if options.load_format == "dummy" else "safetensors") if dry_run else None
    if shape is not None and options.load_format == "dummy":
        return shape  # the folder for random weights would be written
    try:
        return resolve(
            options.model,
            revision=options.revision,
            load_format=options.load_format,
            dummy_seed=options.seed,
            offline=options.offline or dry_run,
            home=options.home,
            progress=say,
        )
    except CheckpointError as error:
        if shape is not None:
            return shape
        raise SetupError(str(error)) from None


def _shape_only(model: str, load_format: str) -> Resolved | None:
    """A catalog entry's shape, without any file; null for what isn't in the catalog."""
    from llmbench.checkpoints import catalog
    from llmbench.checkpoints.config import parse_config
    from llmbench.checkpoints.fetch import Resolved

    entry = catalog.find(model)
    if entry is None or Path(model).is_dir():
        return None
    ref = CheckpointRef(entry.alias, "", load_format, source=f"not here yet; the shape of {entry.hub_id}")
    return Resolved(ref, parse_config(entry.config, "the catalog"), dict(entry.config))


def _tokenizer(resolved: Resolved) -> Tokenizer | None:
    from llmbench.checkpoints.errors import CheckpointError
    from llmbench.checkpoints.tokenizer import Tokenizer

    try:
        return Tokenizer.open(Path(resolved.ref.path), resolved.config) if resolved.ref.path else None
    except CheckpointError as error:
        raise SetupError(str(error)) from None


def _request(options: Options, config: ModelConfig | Outline, tokenizer: Tokenizer | None) -> tuple[Request, str | None]:
    """The request and its prompt's text, null where the ids are synthetic."""
    from llmbench.checkpoints.errors import CheckpointError
    from llmbench.checkpoints.tokenizer import synthetic_ids

    prompt = options.prompt
    if options.prompt_file is not None:
        try:
            prompt = options.prompt_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--prompt-file {options.prompt_file} can't be read as UTF-8 text: {error}") from None
    if options.input_len is not None and config.context is not None and options.input_len + options.max_new_tokens > config.context:
        raise UsageError(_too_long(options, options.input_len, config.context))
    if options.input_len is not None:
        prompt, ids = None, synthetic_ids(config.vocab, options.input_len, options.seed)
    elif tokenizer is None:
        # The default prompt, which suites name too, stands for any short one: random weights get as many ids as it has.
        prompt = None if prompt == DEFAULT_PROMPT else prompt
        if prompt is not None:
            raise UsageError(f"{options.model} has no tokenizer to read a prompt with; give --input-len N for synthetic ids")
        ids = synthetic_ids(config.vocab, 6, options.seed)
    else:
        prompt = DEFAULT_PROMPT if prompt is None else prompt
        try:
            ids = tuple(tokenizer.encode(prompt))
        except CheckpointError as error:
            raise UsageError(str(error)) from None
        if not ids:
            raise UsageError("the prompt is empty: this tokenizer gives no ids for it; give some text or --input-len N")
    if config.context is not None and len(ids) + options.max_new_tokens > config.context:
        raise UsageError(_too_long(options, len(ids), config.context))
    sampling = Sampling(options.temperature, options.top_k, options.seed)
    return Request(ids, options.max_new_tokens, options.batch_size, sampling), prompt


def _too_long(options: Options, prompt_ids: int, context: int) -> str:
    total = f"{prompt_ids} prompt ids and {options.max_new_tokens} new tokens are {prompt_ids + options.max_new_tokens}"
    room = context - prompt_ids
    advice = f"--max-new-tokens {room} at most, or a shorter prompt" if room > 0 else "the prompt must be shorter"
    return f"{total}; {options.model} has a context of {context}: {advice}"


def _probe(options: Options, say: Callable[[str], None], bandwidth: bool) -> tuple[dict[str, Any], Bandwidth | None]:
    """What a worker under this interpreter finds: devices, and where `bandwidth` is wanted that of reading the one that will be used."""
    say("looking at the machine")
    threads = options.threads or machine.default_threads()
    try:
        scratch = temporary.folder("probe")
    except OSError as error:
        raise SetupError(f"no temporary folder can be made in {tempfile.gettempdir()}: {error.strerror}; set TMPDIR") from None
    with scratch as folder:
        log = Path(folder) / "log"
        try:
            with Worker(log, environment=worker_environment(threads, Path(folder))) as worker:
                probe = worker.ask("probe", timeout_s=_PROBE_TIMEOUT_S)
                if not bandwidth:
                    return probe, None
                with contextlib.suppress(machine.DeviceError):
                    device = machine.choose_device(options.device, probe)
                    answer = worker.ask("bandwidth", device=device, threads=threads, timeout_s=_PROBE_TIMEOUT_S)
                    return probe, decode(Bandwidth, answer["bandwidth"])
                return probe, Bandwidth(None, "no such device")
        except WorkerFailed as failure:
            tail = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
            raise SetupError(f"a worker that looks at the machine failed: {failure.reason} {' '.join(tail)}".strip()) from None


def _variants(options: Options, dtype: str, device: str) -> tuple[list[tuple[EngineSpec, Variant, Problem | None]], dict[str, Problem]]:
    """The variants to run, each with what stands in its way, and the engines of the default list that are left out."""
    known_device = None if device == "auto" else device

    def obstacle(spec: EngineSpec) -> Problem | None:
        # What another interpreter lacks, its own worker says.
        return None if spec.name in options.python else problem(spec, known_device)

    if options.engines is not None:
        try:
            named = parse_variants(options.engines, dtype)
        except VariantError as error:  # only now is it known that auto is the dtype that a variant names
            raise UsageError(str(error)) from None
        if options.plan.startup:
            named = all_starts(named, dtype)
        return [(spec, variant, obstacle(spec)) for spec, variant in named], {}
    chosen: list[tuple[EngineSpec, Variant, Problem | None]] = []
    left_out: dict[str, Problem] = {}
    for spec in engines().values():
        if not (spec.default and spec.measured):
            continue
        why = obstacle(spec)
        if why is None:
            chosen.append((spec, default_variant(spec, dtype), None))
        else:
            left_out[spec.name] = why
    if options.plan.startup:
        chosen = [(spec, variant, None) for spec, variant in all_starts([(spec, variant) for spec, variant, _ in chosen], dtype)]
    if not chosen:
        raise SetupError("no engine is usable here: " + "; ".join(f"{name}: {why}" for name, why in left_out.items()))
    return chosen, left_out


def _baseline(options: Options, variants: list[tuple[EngineSpec, Variant, Problem | None]]) -> str | None:
    """--baseline's label, else eager's in the run's dtype, else none: then ratios are null. Of an A/A run the first."""
    labels = [variant.label for _, variant, _ in variants]
    if options.baseline is not None:
        if options.baseline not in labels:
            raise UsageError(f"--baseline {options.baseline} is not among what is run: {', '.join(labels)}")
        return options.baseline
    if noise_floor.is_aa([variant for _, variant, _ in variants]):
        return labels[0]
    return "eager" if "eager" in labels else None


def _memory_problem(config: ModelConfig | Outline, variant: Variant, request: Request, found: Machine) -> tuple[Status, str | None]:
    """Says before loading that weights and KV cache can't fit, with the sizes. Quantized variants need less than is known here."""
    from llmbench.checkpoints import layout
    from llmbench.checkpoints.config import ModelConfig

    if variant.quantization is not None or not isinstance(config, ModelConfig):
        return Status.OK, None
    size = DTYPE_BYTES[variant.dtype]
    weights = layout.weights_bytes(config, size)
    cache = round(layout.kv_bytes_per_position(config, size) * request.total_tokens * request.batch_size)
    free = found.device_memory_bytes if found.device_memory_bytes is not None else memory_available()
    if free is None:
        return Status.OK, None
    if weights + cache <= free:
        return Status.OK, None
    has = f"that {found.device_name} has" if found.device_memory_bytes is not None else "that are free"
    status = Status.OUT_OF_DEVICE_MEMORY if found.device_memory_bytes is not None else Status.OUT_OF_HOST_MEMORY
    sizes = f"{weights / 2**30:.1f} GiB of weights in {variant.dtype} and {cache / 2**30:.1f} GiB of KV cache"
    return status, f"{sizes} don't fit in the {free / 2**30:.1f} GiB {has}"


def _interpreter(options: Options, spec: EngineSpec) -> tuple[str, ...]:
    path = shutil.which(options.python.get(spec.name) or "")
    # Absolute, since a worker starts in a folder of its own; links are kept, as a virtual environment's interpreter is one.
    return (os.path.abspath(path),) if path else ()  # noqa: PTH100


def _model(resolved: Resolved, home_folder: Path) -> Model:
    from llmbench.checkpoints import layout
    from llmbench.checkpoints.config import ModelConfig

    config = resolved.config
    return Model(
        name=resolved.ref.name,
        source=resolved.ref.source,
        path=_shareable(Path(resolved.ref.path), home_folder),
        architecture=config.architecture,
        dtype=config.dtype,
        config=encode(config) if isinstance(config, ModelConfig) else {},
        load_format=resolved.ref.load_format,
        parameters=layout.parameter_count(config) if isinstance(config, ModelConfig) else resolved.stored_parameters or 0,
        identity=_identity(resolved),
        warnings=list(resolved.warnings),
    )


def _identity(resolved: Resolved) -> str | None:
    from llmbench.checkpoints.identity import quick_identity

    try:
        return quick_identity(Path(resolved.ref.path)) if resolved.ref.path else None
    except OSError:
        return None


def _full_identity(resolved: Resolved, home_folder: Path, say: Callable[[str], None]) -> str:
    """Digest of every byte of the checkpoint, for the keys of artifacts."""
    from llmbench.checkpoints.identity import full_identity

    try:
        return full_identity(resolved.ref, home_folder / "checkpoints" / ".identities", say)
    except OSError as error:
        raise SetupError(f"the checkpoint {resolved.ref.name} can't be read: {error}") from None


def _shareable(path: Path, home_folder: Path) -> str:
    """A path as the run file keeps it: run files are sent around, and a user's name is nobody's business."""
    for folder, shown in ((home_folder, "."), (Path.home(), "~")):
        if path.is_relative_to(folder):
            return str(Path(shown) / path.relative_to(folder))
    return str(path)
