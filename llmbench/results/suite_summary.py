"""A suite in a few numbers for each variant: pass rate, geometric mean speedup, mean compile time, memory compression, and the worst models.

The numbers are those of PyTorch's compiler dashboard (pytorch/test-infra, torchci), with what it measures unevenly made even: here a speedup below
1 is not raised to 1, the steady generation is subtracted from as many warm-ups as there were, so that every variant's compile time is over the
same work, and both peaks of a compression are of the same phase with one copy of the weights. Models of one machine and one request are
pooled, others never. Pure functions over runs; every view of a suite reads these.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmbench.protocol import Run, Status
from llmbench.results.startup import Start, start_ups
from llmbench.results.summary import RowSummary, summarise
from llmbench.statistics import geometric_mean

#: The dashboard's limits: a model beyond one is named.
LEAST_SPEEDUP, MOST_COMPILE_S, LEAST_COMPRESSION = 0.95, 120.0, 0.9


@dataclass(frozen=True)
class Entry:
    """One variant on one model. Figures are null where they weren't measured, and where the row did not pass."""

    model: str
    status: Status
    reason: str | None
    passed: bool  # every sample counted right, plausible, and accurate or not checked
    is_baseline: bool
    speedup: float | None = None
    compile_s: float | None = None  # building and compiling, nothing kept from earlier
    memory_compression: float | None = None
    speedup_low: float | None = None  # its interval; null together, where there was one round
    speedup_high: float | None = None


@dataclass(frozen=True)
class VariantSummary:
    """One variant over the models that were run with it."""

    label: str
    entries: tuple[Entry, ...]

    @property
    def passed(self) -> int:
        return sum(entry.passed for entry in self.entries)

    @property
    def pass_rate(self) -> float | None:
        """Models that passed / models run; null for none."""
        return self.passed / len(self.entries) if self.entries else None

    @property
    def is_baseline(self) -> bool:
        """On every model where there is a baseline."""
        judged = [entry for entry in self.entries if entry.speedup is not None]
        return bool(judged) and all(entry.is_baseline for entry in judged)

    def figures(self, figure: str) -> list[float]:
        """A figure of Entry, of each model that passed and has it."""
        found = [getattr(entry, figure) for entry in self.entries if entry.passed]
        return [value for value in found if value is not None]

    @property
    def speedup(self) -> float | None:
        """Geometric mean of the speedups of the models that passed, none of them clipped."""
        return geometric_mean(self.figures("speedup"))

    @property
    def speedup_interval(self) -> tuple[float, float] | None:
        """Geometric means of the ends of the models' intervals, which holds wherever all of those do; null where a model has none.

        It covers what varied within the runs of exactly these models. What other models would give is not in it.
        """
        if not self.figures("speedup") or any(
            len(self.figures(end)) < len(self.figures("speedup")) for end in ("speedup_low", "speedup_high")
        ):
            return None
        low, high = geometric_mean(self.figures("speedup_low")), geometric_mean(self.figures("speedup_high"))
        return None if low is None or high is None else (low, high)

    @property
    def compile_s(self) -> float | None:
        """Arithmetic mean of the seconds of building and compiling."""
        return _mean(self.figures("compile_s"))

    @property
    def memory_compression(self) -> float | None:
        """Arithmetic mean of (the baseline's steady peak / this variant's)."""
        return _mean(self.figures("memory_compression"))


@dataclass(frozen=True)
class SuiteSummary:
    """Runs of one machine, request and way of measuring, a model each. `run` is the first, for words; `notes` say what was left out."""

    run: Run
    models: tuple[str, ...]
    dtypes: tuple[str, ...]
    variants: tuple[VariantSummary, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Worst:
    """A variant's worst model by one metric. `beyond`: past the dashboard's limit for it."""

    label: str
    metric: str  # a figure of Entry
    model: str
    value: float
    beyond: bool


#: Figure of Entry -> whether a high value is a bad one, and whether a value is past its limit.
METRICS: dict[str, tuple[bool, Callable[[float], bool]]] = {
    "speedup": (False, lambda value: value < LEAST_SPEEDUP),
    "compile_s": (True, lambda value: value > MOST_COMPILE_S),
    "memory_compression": (False, lambda value: value < LEAST_COMPRESSION),
}


def summarise_suite(runs: Sequence[Run]) -> list[SuiteSummary]:
    """The summaries of a suite's runs, one for each machine and request, in the order of the runs. No runs: none.

    Where a model was run twice in one of them, the later run counts and a note says so.
    """
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        if not _is_unmeasured(run):
            groups.setdefault(_conditions(run), []).append(run)
    parts = [part for members in groups.values() for part in _by_dtype(members)]
    for run in filter(_is_unmeasured, runs):
        # It names neither the machine nor the prompt's ids: it failed wherever its request was asked for.
        asked = [part for part in parts if _request(part[0]) == _request(run)]
        for part in asked:
            part.append(run)
        if not asked:
            parts.append([run])
    return [_summarise(part) for part in parts]


def worst_models(summary: SuiteSummary, count: int = 3) -> list[Worst]:
    """For each variant but the baseline and each metric, the `count` worst models that passed, the worst first; ties in the models' order."""
    found = []
    for variant in summary.variants:
        if variant.is_baseline:
            continue
        for metric, (high_is_bad, is_beyond) in METRICS.items():
            measured = [(getattr(entry, metric), entry.model) for entry in variant.entries if entry.passed]
            ranked = sorted(
                ((value, model) for value, model in measured if value is not None), key=lambda pair: pair[0], reverse=high_is_bad
            )
            found += [Worst(variant.label, metric, model, value, is_beyond(value)) for value, model in ranked[:count]]
    return found


def _conditions(run: Run) -> tuple[object, ...]:
    """What must be equal for models to be pooled. Prompts are equal by their text: tokenizers make different numbers of ids of it."""
    machine, plan = run.machine, run.plan
    prompt = run.prompt if run.prompt is not None else len(run.request.prompt_ids)
    where = (machine.device, machine.device_name, machine.device_memory_bytes, machine.cpu, machine.cpu_count, run.threads)
    return (*where, prompt, *_request(run), plan.num_iters_warmup, plan.interleave, plan.startup)


def _request(run: Run) -> tuple[object, ...]:
    request = run.request
    return (request.max_new_tokens, request.batch_size, request.sampling.temperature, request.sampling.top_k)


def _is_unmeasured(run: Run) -> bool:
    """A model that couldn't be had: its rows say why, and nothing else of the run is known."""
    return not run.model.path and not any(row.blocks for row in run.rows)


def _by_dtype(runs: list[Run]) -> list[list[Run]]:
    """Several dtypes of one model are several summaries; models that each came with a dtype of their own are one."""
    dtypes = dict.fromkeys(run.dtype for run in runs)
    if all(len({run.dtype for run in runs if model_name(run) == model}) == 1 for model in map(model_name, runs)):
        return [runs]
    return [[run for run in runs if run.dtype == dtype] for dtype in dtypes]


def model_name(run: Run) -> str:
    """The model as views tell it from others: random weights at its shape are another one."""
    return f"{run.model.name} (random weights)" if run.model.load_format == "dummy" else run.model.name


def _summarise(runs: list[Run]) -> SuiteSummary:
    known = {model_name(run) for run in runs}
    both = {run.model.name for run in runs if run.model.load_format == "dummy" and run.model.name in known}
    # Where all of a name's weights are random, the name alone tells it.
    names = {model_name(run): model_name(run) if run.model.name in both else run.model.name for run in runs}
    latest: dict[str, Run] = {}
    notes = []
    for run in sorted(runs, key=lambda run: run.started_at):
        before = latest.get(model_name(run))
        if before is not None:
            notes.append(f"{names[model_name(run)]} was run again: {run.run_id} counts, {before.run_id} doesn't")
        latest[model_name(run)] = run
    counted = [run for run in runs if latest[model_name(run)] is run]
    entries: dict[str, list[Entry]] = {}
    for run in counted:
        for summary, start in zip(summarise(run), start_ups(run), strict=True):
            entries.setdefault(summary.label, []).append(_entry(names[model_name(run)], summary, start.cold))
    models = tuple(names[model_name(run)] for run in counted)
    for label, found in entries.items():
        missing = [model for model in models if model not in {entry.model for entry in found}]
        if missing:
            notes.append(f"{label} was not asked for on {', '.join(missing)}")
    variants = tuple(VariantSummary(label, tuple(found)) for label, found in entries.items())
    dtypes = dict.fromkeys(run.dtype for run in counted if not _is_unmeasured(run))
    return SuiteSummary(counted[0], models, tuple(dtypes), variants, tuple(notes))


def _entry(model: str, row: RowSummary, cold: Start | None) -> Entry:
    passed = row.status is Status.OK and row.tokens_per_s is not None
    if not passed:
        return Entry(model, row.status, row.reason, False, row.is_baseline)
    compile_s = None if cold is None or cold.compile_s is None else (cold.build_s or 0.0) + cold.compile_s
    return Entry(
        model,
        row.status,
        row.reason,
        True,
        row.is_baseline,
        row.speedup,
        compile_s,
        row.memory_compression,
        row.speedup_low,
        row.speedup_high,
    )


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
