"""A suite's summary as text: one line for each variant, what failed, and the worst models. Nothing where there is only one model."""

from __future__ import annotations

from collections.abc import Sequence

from llmbench.protocol import Run
from llmbench.results.suite_summary import (
    LEAST_COMPRESSION,
    LEAST_SPEEDUP,
    MOST_COMPILE_S,
    SuiteSummary,
    VariantSummary,
    Worst,
    summarise_suite,
    worst_models,
)
from llmbench.views import fields
from llmbench.views.table import Page, page
from llmbench.views.text import DASH, number, plain, plural, shorten

WHAT_IS_SUMMED = (
    "pass rate: models whose row is ok / models run. speedup: geometric mean of the ratios to the baseline, over models that passed, none clipped. "
    "compile s: arithmetic mean of building and compiling from nothing. memory compression: arithmetic mean of the baseline's steady peak / this "
    "variant's."
)

_REASON = 120  # characters


def render_suite(runs: Sequence[Run], format: str = "table", *, width: int = 80, color: bool = False) -> str:
    """The summaries of a suite, in the format table or markdown, ending with a newline; empty where no summary has several models.

    Raises ViewError for another format.
    """
    out = page(format, width, color)
    told = [summary for summary in summarise_suite(runs) if len(summary.models) > 1]
    for summary in told:
        _summary(summary, out)
    if not told:
        return ""
    out.line(WHAT_IS_SUMMED)
    return out.text()


def _summary(summary: SuiteSummary, out: Page) -> None:
    run = summary.run
    out.heading(f"{plural(len(summary.models), 'model')} together")
    request = run.request
    prompt = "one prompt" if run.prompt is not None else plural(len(request.prompt_ids), "prompt id")
    words = f"{prompt}, {plural(request.max_new_tokens, 'new token')}, batch {request.batch_size}"
    out.line(" · ".join((plain(" and ".join(summary.dtypes)), fields.device_words(run), words)))
    out.grid(
        [("engine", True), ("pass rate", False), ("speedup", False), ("compile\ns", False), ("memory\ncompression", False)],
        [summary_cells(variant) for variant in summary.variants],
    )
    notes = _failures(summary)
    for variant in summary.variants:
        without = variant.passed - len(variant.figures("speedup"))
        if without and variant.figures("speedup"):
            notes.append(f"{plain(variant.label)}: {plural(without, 'model')} without a good baseline, so without a speedup")
    if notes or summary.notes:
        out.notes([*notes, *map(plain, summary.notes)])
    _worst(worst_models(summary), out)


def _failures(summary: SuiteSummary) -> list[str]:
    """One line for each way that a model failed; the runs' own tables say all of a long reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for variant in summary.variants:
        for entry in variant.entries:
            if not entry.passed:
                why = f"{entry.status.words}{f': {shorten(plain(entry.reason), _REASON)}' if entry.reason else ''}"
                found.setdefault((plain(entry.model), why), []).append(plain(variant.label))
    return [f"{model}: {why} ({', '.join(labels)})" for (model, why), labels in found.items()]


def summary_cells(variant: VariantSummary) -> list[str]:
    """A variant's line as people read it: label, pass rate, speedup, compile seconds, memory compression."""
    rate = variant.pass_rate
    passed = DASH if rate is None else f"{100 * rate:.0f} %, {variant.passed}/{len(variant.entries)}"
    speedup = "baseline" if variant.is_baseline else DASH if variant.speedup is None else f"{number(variant.speedup)}x"
    compression = (
        "baseline" if variant.is_baseline else DASH if variant.memory_compression is None else f"{number(variant.memory_compression)}x"
    )
    return [plain(variant.label), passed, speedup, number(variant.compile_s, most_decimals=2), compression]


def _worst(found: Sequence[Worst], out: Page) -> None:
    if not found:
        return
    by_cell: dict[tuple[str, str], list[str]] = {}
    for one in found:
        value = f"{number(one.value, most_decimals=1)} s" if one.metric == "compile_s" else f"{number(one.value)}x"
        by_cell.setdefault((one.label, one.metric), []).append(f"{plain(one.model)} {value}{' !' if one.beyond else ''}")
    metrics = {"speedup": "lowest speedup", "compile_s": "longest compile", "memory_compression": "least compression"}
    out.grid(
        [("engine", True), ("worst by", True), ("models", True)],
        [[plain(label), metrics[metric], ", ".join(models)] for (label, metric), models in by_cell.items()],
    )
    limits = (
        f"!: a speedup under {number(LEAST_SPEEDUP, 2)}, over {MOST_COMPILE_S:.0f} s of compiling, "
        f"or a compression under {number(LEAST_COMPRESSION, 1)}"
    )
    out.notes([limits] if any(one.beyond for one in found) else [])
