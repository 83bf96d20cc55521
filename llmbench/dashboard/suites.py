"""The section of sums: each variant over the models it was run on, models past a limit, and the worst of each metric.

The numbers are those of results.suite_summary, in the words of views.suite_table.
"""

from __future__ import annotations

from llmbench.dashboard.collect import name, sentence
from llmbench.dashboard.model import Cell, Line, Section, Table
from llmbench.dashboard.parts import Parts, Shown, headings, why
from llmbench.results.suite_summary import METRICS, SuiteSummary, VariantSummary, summarise_suite, worst_models
from llmbench.views.suite_table import WHAT_IS_SUMMED, summary_cells
from llmbench.views.text import DASH, number, plural

WORDS = {"speedup": "lowest speedup", "compile_s": "longest compile", "memory_compression": "least compression"}
FIGURES = {"speedup": "speedup", "compile_s": "compile time", "memory_compression": "memory compression"}


def suites(parts: Parts) -> Section:
    by_run = {id(one.run): one for one in parts.measured}
    found = [(by_run[id(summary.run)], summary) for summary in summarise_suite([one.run for one in parts.measured])]
    limits = parts.choices.limits
    several = [(one, summary) for one, summary in found if len(summary.models) > 1] or found
    alone = len(found) - len(several)
    lead = (
        "Each engine over all models that were run on one machine with one request, by each model's newest run. Rows that failed, were inaccurate "
        "or implausible count in the pass rate and in nothing else."
    )
    return Section(
        "summary",
        "Summary",
        "Summary",
        lead,
        (
            Table(
                "sums",
                "Pass rate, speedup, compile time and memory by engine",
                headings("machine", "over", "engine", "#pass rate", "#speedup", "#interval", "#compile s", "#memory compression"),
                tuple(line for one, summary in several for line in _sums(one, summary)),
                (
                    f"Left out here: {plural(alone, 'request')} that only one model was run with." if alone else "",
                    WHAT_IS_SUMMED,
                    "interval: geometric means of the ends of the models' intervals. It covers what varied within runs, not which models.",
                    *(sentence(note) for _, summary in found for note in summary.notes),
                ),
            ),
            Table(
                "flags",
                f"Flagged: a speedup under {limits['speedup']:g}, over {limits['compile_s']:g} s of compiling, "
                f"or a compression under {limits['memory_compression']:g}",
                headings("machine", "engine", "model", "metric", "#value"),
                tuple(line for one, summary in found for line in _ranked(one, summary, parts, None)),
            ),
            Table(
                "failed",
                "Rows that did not pass",
                headings("machine", "engine", "model", "what happened"),
                tuple(line for one, summary in found for line in _failed(one, summary, by_run)),
            ),
            Table(
                "worst",
                f"The worst {plural(parts.choices.worst, 'model')} by each metric",
                headings("machine", "engine", "worst by", "model", "#value"),
                tuple(
                    line for one, summary in found if len(summary.models) > 1 for line in _ranked(one, summary, parts, parts.choices.worst)
                ),
                ("Where several models were run. A value past its limit is marked with !",),
            ),
        ),
        empty="No run has a row that could be summed up.",
    )


def _over(one: Shown, summary: SuiteSummary) -> str:
    return f"{plural(len(summary.models), 'model')}, {' and '.join(map(name, summary.dtypes)) or one.case.dtype}, {one.case.request}"


def _sums(one: Shown, summary: SuiteSummary) -> list[Line]:
    lines = []
    for variant in summary.variants:
        label, passed, speedup, compile_s, compression = summary_cells(variant)
        lines.append(
            Line(
                (
                    Cell(one.case.machine),
                    Cell(_over(one, summary)),
                    Cell(name(label)),
                    Cell(passed, variant.pass_rate, flag=bool(variant.entries) and variant.passed < len(variant.entries)),
                    Cell(speedup, variant.speedup),
                    _interval(variant),
                    Cell(compile_s, variant.compile_s),
                    Cell(compression, variant.memory_compression),
                ),
                one.case.machine,
            )
        )
    return lines


def _interval(variant: VariantSummary) -> Cell:
    ends = variant.speedup_interval
    if ends is None or variant.is_baseline:
        return Cell(DASH)
    return Cell(" to ".join(f"{number(end)}x" if end < 1e4 else "over 10000x" for end in ends), ends[1] - ends[0])


def _ranked(one: Shown, summary: SuiteSummary, parts: Parts, count: int | None) -> list[Line]:
    """The worst models, `count` by each metric; or, where that is null, all past their limit."""
    lines = []
    for worst in worst_models(summary, len(summary.models) if count is None else count):
        beyond = parts.choices.is_beyond(worst.metric, worst.value)
        if count is None and not beyond:
            continue
        unit = " s" if worst.metric == "compile_s" else "x"
        value = f"{number(worst.value, most_decimals=1 if unit == ' s' else None)}{unit}{' !' if beyond and count is not None else ''}"
        order = -worst.value if METRICS[worst.metric][0] else worst.value
        words = FIGURES if count is None else WORDS
        cells = (Cell(one.case.machine), Cell(name(worst.label)), Cell(words[worst.metric]), Cell(name(worst.model)))
        if count is None:
            cells = (cells[0], cells[1], cells[3], cells[2])
        lines.append(Line((*cells, Cell(value, order, flag=beyond)), one.case.machine, name(worst.model)))
    return lines


def _failed(one: Shown, summary: SuiteSummary, by_run: dict[int, Shown]) -> list[Line]:
    of_model = {shown.case.model: shown for shown in by_run.values() if shown.case.place == one.case.place}
    lines = []
    for variant in summary.variants:
        for entry in variant.entries:
            if entry.passed:
                continue
            shown = of_model.get(name(entry.model))
            has_row = shown is not None and shown.run.row(variant.label) is not None
            row = shown.row_name(variant.label) if shown is not None and has_row else None
            cells = (
                Cell(one.case.machine), Cell(name(variant.label), row=row), Cell(name(entry.model)), Cell(why(entry.status, entry.reason)),
            )  # fmt: skip
            lines.append(Line(cells, one.case.machine, name(entry.model)))
    return lines
