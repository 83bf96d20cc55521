"""The same Report as GitHub's markdown, for a pull request: the answer, every table, no raw samples and no curves."""

from __future__ import annotations

from llmbench.dashboard.collect import Collected
from llmbench.dashboard.model import Report, Table
from llmbench.dashboard.parts import Choices
from llmbench.dashboard.report import report
from llmbench.views.table import page
from llmbench.views.text import DASH

#: More lines of a table than this are left to the page; GitHub cuts comments at 65,536 characters.
MOST_LINES = 40
_STATUS_COLUMNS = [("engine", True), ("tokens/s", False), ("ratio", False), ("what else", True)]


def markdown(collected: Collected, choices: Choices | None = None) -> str:
    """The report of all that was collected, as markdown that ends with a newline."""
    return render(report(collected, choices))


def render(shown: Report) -> str:
    out = page("markdown")
    out.heading(shown.title)
    out.line(f"{shown.headline} {' '.join(shown.headline_parts)}".strip())
    out.line(f"{shown.about} · {shown.made}")
    for case in shown.cases[:MOST_LINES]:
        out.heading(f"{case.model}, {case.machine}, {case.dtype}")
        out.line(f"{case.sentence} {case.request} · {case.when}")
        out.grid(_STATUS_COLUMNS, [[bar.label, bar.value or DASH, bar.ratio or DASH, bar.words or DASH] for bar in case.bars])
        if case.limit_words or case.problems:
            out.notes([line for line in (case.limit_words, *case.problems) if line])
    for section in shown.sections:
        filled = [table for table in section.tables if table.lines]
        out.heading(section.title)
        out.line(section.lead if filled else section.empty)
        for table in filled:
            out.line(f"{table.caption}:")
            out.grid([(title, not numeric) for title, numeric in table.columns], _rows(table))
            out.notes(_notes(table))
    if shown.notes:
        out.notes(list(shown.notes))
    return out.text()


def _rows(table: Table) -> list[list[str]]:
    kinds = [numeric for _, numeric in table.columns]
    return [
        [
            (cell.text[:60] if numeric else cell.text) + (" (!)" if cell.flag else "")
            for cell, numeric in zip(line.cells, kinds, strict=True)
        ]
        for line in table.lines[:MOST_LINES]
    ]


def _notes(table: Table) -> list[str]:
    left = len(table.lines) - MOST_LINES
    hints = [f"{line.cells[0].text}: {'; '.join(dict.fromkeys(cell.hint for cell in line.cells if cell.hint))}" for line in table.lines]
    return [
        *(note for note in table.notes if note),
        *(hints if table.evidence else []),
        *([f"{left} more lines are on the HTML page"] if left > 0 else []),
    ]
