"""The one list of what a row shows: every format of the table is driven by it.

A field says its JSON name (unit included), its heading, where its value comes from, and how a person reads it. `FIELDS` are a row's,
`RUN_FIELDS` the run's identity, which flat formats repeat on each line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from llmbench.protocol import Run, Status
from llmbench.results.summary import RowSummary, good_samples
from llmbench.views.text import DASH, date, decimals_for, number, plain, plural, with_deviation

Rows = Sequence[RowSummary]


class Shown(Enum):
    """Where people meet a field. Machines (json, jsonl, csv) always get it."""

    TABLE = "table"
    DETAILS = "details"  # only with -v
    NEVER = "never"  # part of another field's text


@dataclass(frozen=True)
class Field:
    """One column. `rank` orders what a narrow terminal loses first: the highest; 0 never goes."""

    key: str
    heading: str  # "\n" where a narrow column breaks it
    get: Callable[[RowSummary], Any]
    show: Callable[[RowSummary], str]
    shown: Shown = Shown.DETAILS
    rank: int = 0
    is_text: bool = False
    only_for: Callable[[Run], bool] = lambda run: True
    why_null: Callable[[Run, Rows], str | None] = lambda run, rows: None

    @property
    def title(self) -> str:
        """The heading on one line."""
        return self.heading.replace("\n", " ")


@dataclass(frozen=True)
class RunField:
    """One part of a run's identity."""

    key: str
    get: Callable[[Run], Any]


def _figure(
    key: str,
    heading: str,
    shown: Shown = Shown.DETAILS,
    *,
    scale: float = 1.0,
    digits: int = 3,
    most_decimals: int | None = None,
    rank: int = 0,
    only_for: Callable[[Run], bool] = lambda run: True,
    why_null: Callable[[Run, Rows], str | None] = lambda run, rows: None,
) -> Field:
    """A number of RowSummary under its own name, shown times `scale`."""

    def get(row: RowSummary) -> Any:
        return getattr(row, key)

    def show(row: RowSummary) -> str:
        value = get(row)
        return number(None if value is None else value * scale, digits, most_decimals=most_decimals)

    return Field(key, heading, get, show, shown, rank, only_for=only_for, why_null=why_null)


def _text(key: str, heading: str, shown: Shown = Shown.DETAILS) -> Field:
    """A text of RowSummary under its own name."""

    def get(row: RowSummary) -> Any:
        return getattr(row, key)

    return Field(key, heading, get, lambda row: plain(str(get(row) or "")) or DASH, shown, is_text=True)


def ratio_words(row: RowSummary) -> str:
    """`1.43x [1.39, 1.47]`, the interval left out where there is none.

    Enough decimals that an interval that excludes 1 is seen to exclude it, and that a narrow one has a width; at most four.
    """
    if row.speedup is None or row.speedup_low is None or row.speedup_high is None:
        return DASH if row.speedup is None else f"{number(row.speedup)}x"
    ends = (row.speedup_low, row.speedup_high)
    decimals = decimals_for(row.speedup, 3)
    if ends[1] - ends[0] < 2 * 10**-decimals:
        decimals = min(3, decimals + 1)
    while decimals < 4 and any(round(end, decimals) == 1 != end for end in ends):
        decimals += 1
    low, high = (f"{end:.{decimals}f}" if end < 1e4 else "over 10000" for end in ends)
    return f"{row.speedup:.{decimals}f}x [{low}, {high}]"


def _ratio(row: RowSummary) -> str:
    return "baseline" if row.is_baseline else ratio_words(row)


def _interval_end(key: str, heading: str) -> Field:
    return Field(key, heading, lambda row: getattr(row, key), lambda row: number(getattr(row, key), 4), Shown.NEVER)


def _why_no_verdict(run: Run, rows: Rows) -> str | None:
    others = [row for row in rows if not row.is_baseline]
    if all(row.is_baseline is False for row in rows) or not _measured(others):
        return None  # without a baseline there is no ratio either, and that is said
    if run.plan.quick:
        return "--quick measures one round, which gives no interval"
    return next((row.verdict_reason for row in others if row.verdict_reason), None)


def _measured(rows: Rows) -> list[RowSummary]:
    return [row for row in rows if row.tokens_per_s is not None]


def _why_no_ratio(run: Run, rows: Rows) -> str | None:
    if run.baseline is None:
        return "no baseline in this run (--baseline names one)"
    row = run.row(run.baseline)
    if row is None:
        return f"the baseline {plain(run.baseline)} is not in this run"
    if row.status is not Status.OK:
        return f"the baseline {plain(run.baseline)} is no good row ({row.status.words})"
    return f"the baseline {plain(run.baseline)} has no good sample"


def _why_no_decode(run: Run, rows: Rows) -> str | None:
    if run.request.max_new_tokens == 1:
        return "one new token has no decode step"
    if _measured(rows) and all(row.ttft_s is None for row in rows):
        return "time to first token was not measured"
    return None


def _why_no_limit(run: Run, rows: Rows) -> str | None:
    return next((plain(row.limit_reason) for row in rows if row.limit_reason), None) or _why_no_decode(run, rows)


def _why_no_memory(run: Run, rows: Rows) -> str | None:
    return "this platform does not tell peaks" if _measured(rows) else None


def _why_no_compile(run: Run, rows: Rows) -> str | None:
    return "no warm-ups in a cold block" if _measured(rows) else None


def _has_artifacts(run: Run) -> bool:
    return any(block.artifact is not None for row in run.rows for block in row.blocks)


def _batched(run: Run) -> bool:
    return run.request.batch_size > 1


FIELDS: tuple[Field, ...] = (
    _text("label", "engine", Shown.TABLE),
    _text("engine", "engine name", Shown.NEVER),
    _text("dtype", "dtype"),
    Field(
        "tokens_per_s",
        "tokens/s",
        lambda row: row.tokens_per_s,
        lambda row: with_deviation(row.tokens_per_s, row.tokens_per_s_deviation),
        Shown.TABLE,
    ),
    _figure("tokens_per_s_deviation", "deviation", Shown.NEVER),
    _figure("total_tokens_per_s", "all tokens/s", Shown.TABLE, digits=4, rank=4, only_for=_batched),
    Field("speedup", "ratio", lambda row: row.speedup, _ratio, Shown.TABLE, why_null=_why_no_ratio),
    _interval_end("speedup_low", "ratio from"),
    _interval_end("speedup_high", "ratio to"),
    Field(
        "verdict",
        "verdict",
        lambda row: None if row.verdict is None else row.verdict.value,
        lambda row: DASH if row.verdict is None else row.verdict.value,
        Shown.TABLE,
        is_text=True,
        why_null=_why_no_verdict,
    ),
    _text("verdict_reason", "verdict because", Shown.NEVER),
    Field(
        "rounds_needed",
        "rounds needed",
        lambda row: row.rounds_needed,
        lambda row: DASH if row.rounds_needed is None else str(row.rounds_needed),
    ),
    Field("is_baseline", "baseline", lambda row: row.is_baseline, lambda row: "yes" if row.is_baseline else "no", Shown.NEVER),
    _figure("ttft_s", "TTFT\nms", Shown.TABLE, scale=1e3, rank=3),
    _figure("tpot_s", "TPOT\nms", scale=1e3),
    _figure("decode_tokens_per_s", "decode\ntokens/s", Shown.TABLE, digits=4, rank=7, why_null=_why_no_decode),
    _figure("prefill_tokens_per_s", "prefill\ntokens/s", digits=4),
    _figure("bandwidth_use", "bandwidth\n%", Shown.TABLE, scale=100.0, rank=5, most_decimals=1, why_null=_why_no_limit),
    _figure("limit_tokens_per_s", "limit\ntokens/s", digits=4),
    _text("limit_reason", "no limit because"),
    _text("limit_source", "limit by"),
    _figure("read_gb_per_s", "read\nGB/s"),
    _figure("bytes_per_token", "read for a token\nMiB", scale=1 / 2**20, digits=4),
    _figure("compile_s", "compile\ns", Shown.TABLE, most_decimals=2, rank=2, why_null=_why_no_compile),
    _figure("compile_cached_s", "compile cached\ns", most_decimals=2),
    _figure("first_generation_s", "first generation\ns", most_decimals=2),
    _figure("build_s", "build\ns", Shown.TABLE, most_decimals=2, rank=2, only_for=_has_artifacts),
    _figure("load_s", "load\ns", Shown.TABLE, most_decimals=2, rank=8),
    _figure("peak_memory_gib", "peak\nGiB", Shown.TABLE, most_decimals=3, rank=6, why_null=_why_no_memory),
    _figure("load_peak_gib", "load peak\nGiB", most_decimals=3),
    _figure("memory_compression", "memory compression"),
    _figure("weights_gib", "weights\nGiB", most_decimals=3),
    _figure("kv_cache_gib", "KV cache\nGiB", most_decimals=3),
    _text("storage_dtype", "stored in"),
    _text("arithmetic_dtype", "computed in"),
    Field("accuracy", "accuracy", lambda row: row.accuracy, lambda row: row.accuracy or DASH, Shown.TABLE, rank=9, is_text=True),
    _text("accuracy_method", "accuracy by"),
    _text("accuracy_reason", "accuracy because"),
    _figure("accuracy_error", "logit error\n%", scale=100.0),
    _figure("accuracy_tolerance", "logit error allowed\n%", scale=100.0),
    _figure("quality_kl", "KL from unquantised\nnats"),
    _figure("quality_top1", "top-1 as unquantised\n%", scale=100.0, digits=4),
    _figure("joules_per_token", "J/token"),
    Field("rounds", "rounds", lambda row: row.rounds, lambda row: str(row.rounds)),
    Field("samples", "samples", lambda row: row.samples, lambda row: str(row.samples)),
    Field("status", "status", lambda row: row.status.value, lambda row: row.status.words, Shown.TABLE, rank=1, is_text=True),
    _text("reason", "reason", Shown.NEVER),
    Field("flags", "flags", lambda row: list(row.flags), lambda row: str(len(row.flags)), Shown.NEVER),
)

RUN_FIELDS: tuple[RunField, ...] = (
    RunField("run_id", lambda run: run.run_id),
    RunField("suite_id", lambda run: run.suite_id),
    RunField("model", lambda run: run.model.name),
    RunField("model_source", lambda run: run.model.source),
    RunField("architecture", lambda run: run.model.architecture),
    RunField("parameters", lambda run: run.model.parameters),
    RunField("load_format", lambda run: run.model.load_format),
    RunField("run_dtype", lambda run: run.dtype),
    RunField("device", lambda run: run.machine.device),
    RunField("device_name", lambda run: run.machine.device_name),
    RunField("threads", lambda run: run.threads),
    RunField("prompt_tokens", lambda run: len(run.request.prompt_ids)),
    RunField("max_new_tokens", lambda run: run.request.max_new_tokens),
    RunField("batch_size", lambda run: run.request.batch_size),
    RunField("temperature", lambda run: run.request.sampling.temperature),
    RunField("planned_rounds", lambda run: run.plan.rounds),
    RunField("num_iters", lambda run: run.plan.num_iters),
    RunField("num_iters_warmup", lambda run: run.plan.num_iters_warmup),
    RunField("confidence", lambda run: run.plan.confidence),
    RunField("min_effect", lambda run: run.plan.min_effect),
    RunField("aa", lambda run: run.aa),
    RunField("noise_floor", lambda run: run.noise_floor),
    RunField("started_at", lambda run: run.started_at),
    RunField("interrupted", lambda run: run.interrupted),
    RunField("llmbench_version", lambda run: run.llmbench_version),
    RunField("schema_version", lambda run: run.schema_version),
)


def record(row: RowSummary) -> dict[str, Any]:
    """A row's figures for machines: every field under its key, null where it has no value."""
    return {field.key: field.get(row) for field in FIELDS}


def identity(run: Run) -> dict[str, Any]:
    """What tells this run from another, for formats with one line per row."""
    return {field.key: field.get(run) for field in RUN_FIELDS}


def device_words(run: Run) -> str:
    """`cpu, AMD EPYC 7B13, 2 threads` or `cuda:0, NVIDIA H200`."""
    parts = [plain(run.machine.device), plain(run.machine.device_name or run.machine.cpu)]
    if not run.machine.device.startswith("cuda"):
        parts.append(plural(run.threads, "thread"))
    return ", ".join(part for part in parts if part)


def request_words(run: Run) -> str:
    """`5 prompt ids, 200 new tokens, batch 1`, and how ids are drawn where that isn't greedily."""
    request = run.request
    words = f"{plural(len(request.prompt_ids), 'prompt id')}, {plural(request.max_new_tokens, 'new token')}, batch {request.batch_size}"
    return f"{words}, {sampling_words(run)}" if request.sampling.temperature > 0 else words


def sampling_words(run: Run) -> str:
    """`greedy`, or `temperature 0.8, top-k 200`."""
    sampling = run.request.sampling
    if sampling.temperature == 0:
        return "greedy"
    return f"temperature {sampling.temperature:g}" + (f", top-k {sampling.top_k}" if sampling.top_k else "")


def plan_words(run: Run) -> str:
    """`5 rounds x 3 samples`, as measured: `2 of 5 rounds x 1 to 3 samples` where a budget, a failure or Ctrl-C cut it short."""
    counts = [[count for block in row.blocks if (count := len(good_samples(run, block)))] for row in run.rows]
    samples = {count for row in counts for count in row}
    if not samples:
        return ""
    rounds, least, most = max(map(len, counts)), min(samples), max(samples)
    of_rounds = plural(rounds, "round") if rounds >= run.plan.rounds else f"{rounds} of {plural(run.plan.rounds, 'round')}"
    return f"{of_rounds} x {plural(most, 'sample') if least == most else f'{least} to {most} samples'}"


def source_words(run: Run) -> str:
    """Where the weights come from; nothing where that is just the model's name."""
    source = plain(run.model.source)
    random = "random weights" if run.model.load_format == "dummy" and "random weights" not in source else ""
    parts = [source if source != plain(run.model.name) else "", random]
    return ", ".join(part for part in parts if part)


def model_words(run: Run) -> str:
    """The model's name, and its source where that says more."""
    source = source_words(run)
    return f"{plain(run.model.name)} ({source})" if source else plain(run.model.name)


def run_words(run: Run) -> str:
    """All that a reader needs to place a run's numbers, the model aside."""
    parts = (plain(run.dtype), device_words(run), request_words(run), plan_words(run), date(run.started_at))
    return " · ".join(part for part in parts if part)
