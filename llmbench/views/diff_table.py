"""Two sets of runs side by side as text: what else changed first, then each variant's figures with interval and verdict, then the gate's word."""

from __future__ import annotations

import json
import math
from typing import Any

from llmbench.protocol import encode
from llmbench.results.diff import Diff, PairDiff, RowDiff
from llmbench.results.diff_metrics import METRICS, Metric
from llmbench.results.unpaired import Change
from llmbench.views import fields
from llmbench.views.table import Page, page
from llmbench.views.text import DASH, date, decimals_for, number, plain

FORMATS = ("table", "markdown", "json")


def render_diff(diff: Diff, format: str = "table", *, width: int = 80, color: bool = False) -> str:
    """The comparison as text that ends with a newline: table and markdown for people, json for machines.

    Raises ViewError for another format.
    """
    if format == "json":
        return json.dumps(_record(diff), indent=2) + "\n"
    out = page(format, width, color)
    for pair in diff.pairs:
        _pair(pair, diff, out)
    _notes(out, _left_out(diff))
    if any(row.low is not None for pair in diff.pairs for row in pair.rows):
        out.line(
            f"new / old: ratio of geometric means over processes [{100 * diff.confidence:g} % interval by Welch, all of this page together]. "
            "The interval covers what varies within each run, not what changed on the machine between them."
        )
    if diff.threshold is not None:
        out.line(gate_words(diff))
    return out.text()


def _pair(pair: PairDiff, diff: Diff, out: Page) -> None:
    new = pair.new[-1]
    out.heading(fields.model_words(new))
    out.line(" · ".join((plain(new.dtype), fields.device_words(new), fields.request_words(new))))
    out.line(" · ".join((f"old: {_sources(pair.old)}", f"new: {_sources(pair.new)}")))
    out.notes([f"changed: {plain(line)}" for line in pair.changes] or ["changed: nothing that the run files tell of"])
    for name in dict.fromkeys(row.metric for row in pair.rows):
        metric, rows = METRICS[name], [row for row in pair.rows if row.metric == name]
        out.grid(
            [("engine", True), (f"old {metric.title}", False), (f"new {metric.title}", False), ("new / old", False), ("verdict", True)],
            [
                [plain(row.label), _value(row.old, metric), _value(row.new, metric), ratio_words(row), _verdict(row, metric, diff)]
                for row in rows
            ],
        )
        out.notes([f"{plain(row.label)}: {plain(row.reason)}" for row in rows if row.change in (None, Change.UNDECIDED)])
    _notes(
        out,
        [f"{plain(label)}: only in the old run" for label in pair.only_old]
        + [f"{plain(label)}: only in the new run" for label in pair.only_new],
    )


def _notes(out: Page, lines: list[str]) -> None:
    if lines:
        out.notes(lines)


def _sources(runs: tuple[Any, ...]) -> str:
    last = runs[-1]
    words = f"{plain(last.run_id)}, {date(last.started_at)}"
    return words if len(runs) == 1 else f"{len(runs)} runs, the last {words}"


def _value(value: float | None, metric: Metric) -> str:
    return number(None if value is None else value * metric.scale, 4)


def ratio_words(row: RowDiff) -> str:
    """`1.02x [0.99, 1.05]`, without the interval where there is none."""
    if row.ratio is None:
        return DASH
    if row.low is None or row.high is None:
        return f"{number(row.ratio)}x"
    decimals = min(4, max(decimals_for(row.ratio, 3), decimals_for(row.high - row.low, 1) if row.high > row.low else 0))
    low, high = (f"{end:.{decimals}f}" if end < 1e4 else "over 10000" for end in (row.low, row.high))
    return f"{row.ratio:.{decimals}f}x [{low}, {high}]"


def _verdict(row: RowDiff, metric: Metric, diff: Diff) -> str:
    if row.broke:
        return "broken"
    words = change_words(row.change, metric)
    return f"{words}, beyond {_percent(diff.threshold)}" if row.beyond and diff.threshold is not None else words


def change_words(change: Change | None, metric: Metric) -> str:
    """A change in the metric's own words: slower, more, worse."""
    named = {Change.BETTER: metric.better, Change.WORSE: metric.worse}
    return DASH if change is None else named.get(change, change.value)


def gate_words(diff: Diff) -> str:
    """The gate's decision in one line that names every row that decided it."""
    assert diff.threshold is not None
    several = len(diff.pairs) > 1
    named = [
        f"{plain(row.label)}{f' on {_run_words(pair)}' if several else ''} "
        f"({'broken' if row.broke else f'{METRICS[row.metric].title} {ratio_words(row)}'})"
        for pair, row in diff.regressions
    ]
    if named:
        return f"worse by more than {_percent(diff.threshold)}: {'; '.join(named)}"
    if diff.exit_code:
        return f"nothing is shown to be worse by more than {_percent(diff.threshold)}, but not everything could be judged"
    return f"nothing is shown to be worse by more than {_percent(diff.threshold)}"


def _run_words(pair: PairDiff) -> str:
    return f"{plain(pair.new[-1].model.name)}, {fields.request_words(pair.new[-1])}"


def _left_out(diff: Diff) -> list[str]:
    return [
        f"only among the {side} runs: {plain(run.model.name)}, {plain(run.dtype)}, {fields.request_words(run)} ({plain(run.run_id)})"
        for side, runs in (("old", diff.only_old), ("new", diff.only_new))
        for run in runs
    ]


def _percent(relative: float | None) -> str:
    return DASH if relative is None else f"{100 * relative:.3g} %"


def _record(diff: Diff) -> dict[str, Any]:
    """For machines: runs by their ids, figures unrounded: rates in tokens/s, times in seconds, memory in GiB, errors as fractions."""
    return {
        "threshold": diff.threshold,
        "confidence": diff.confidence,
        "comparisons": diff.comparisons,
        "exit_code": diff.exit_code,
        "pairs": [
            {
                "model": pair.new[-1].model.name,
                "dtype": pair.new[-1].dtype,
                "prompt_tokens": len(pair.new[-1].request.prompt_ids),
                "max_new_tokens": pair.new[-1].request.max_new_tokens,
                "batch_size": pair.new[-1].request.batch_size,
                "old_run_ids": [run.run_id for run in pair.old],
                "new_run_ids": [run.run_id for run in pair.new],
                "changes": list(pair.changes),
                "only_old": list(pair.only_old),
                "only_new": list(pair.only_new),
                "rows": [{**_finite(encode(row)), "is_regression": row.is_regression} for row in pair.rows],
            }
            for pair in diff.pairs
        ],
        "only_old": [run.run_id for run in diff.only_old],
        "only_new": [run.run_id for run in diff.only_new],
    }


def _finite(record: dict[str, Any]) -> dict[str, Any]:
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in record.items()}
