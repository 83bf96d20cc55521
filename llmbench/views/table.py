"""Runs as text: a table for people, GitHub's markdown, and json, jsonl and csv for machines, all from views.fields.

Whatever a run file holds is shown as text and never obeyed: no rich markup, no control characters, no markdown out of a label or a reason.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from llmbench import noise_floor
from llmbench.protocol import Run, Status, encode
from llmbench.results.summary import RowSummary, summarise
from llmbench.statistics import Verdict
from llmbench.views import fields
from llmbench.views.fields import FIELDS, RUN_FIELDS, Field, Shown
from llmbench.views.text import DASH, ViewError, csv_cell, date, duration, number, plain, size

FORMATS = ("table", "markdown", "json", "jsonl", "csv")

WHAT_IS_TIMED = (
    "tokens/s: new tokens / wall time of a whole generation, per sequence, prefill included; "
    "loading, tokenising, building and compiling excluded. Median of the rounds' medians ± deviation of all samples."
)


def what_is_decided(confidence: float, min_effect: float) -> str:
    """How a ratio, its interval and its verdict are to be read."""
    return (
        f"ratio: geometric mean over the rounds [{100 * confidence:g} % interval, all of a run together]. faster, slower: the interval excludes "
        f"1 and the ratio is beyond {100 * min_effect:g} %; same: the interval lies within {100 * min_effect:g} %; else undecided."
    )


_LEAST_LABEL = 16  # cells that a label may be folded to


def render(runs: Sequence[Run], format: str = "table", *, width: int = 80, verbose: bool = False, color: bool = False) -> str:
    """The runs as text that ends with a newline.

    table: for a terminal of `width` cells; columns that don't fit are left out and named. markdown: GitHub's tables, every column.
    json: the run file's object (an array of them for several runs) with `summary`, each row's computed figures, added. jsonl, csv:
    a line for each row, with the run's identity. `verbose` adds each row's details to table and markdown. Only `table` is ever coloured.

    Raises ViewError for another format.
    """
    if format == "table":
        return _for_people(runs, _Terminal(width, color), verbose)
    if format == "markdown":
        return _for_people(runs, _Markdown(), verbose)
    if format == "json":
        objects = [_finite({**encode(run), "summary": [fields.record(row) for row in summarise(run)]}) for run in runs]
        return json.dumps(objects[0] if len(objects) == 1 else objects, indent=2) + "\n"
    if format == "jsonl":
        return "".join(json.dumps(line) + "\n" for line in _lines(runs))
    if format == "csv":
        return _csv(runs)
    raise ViewError(f"unknown format {plain(format)!r}: use one of {', '.join(FORMATS)}")


def _lines(runs: Sequence[Run]) -> list[dict[str, Any]]:
    return [_finite({**fields.identity(run), **fields.record(row)}) for run in runs for row in summarise(run)]


def _csv(runs: Sequence[Run]) -> str:
    out = io.StringIO()
    names = [field.key for field in RUN_FIELDS] + [field.key for field in FIELDS]
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for line in _lines(runs):
        writer.writerow({key: csv_cell(value) for key, value in line.items()})
    return out.getvalue()


def _finite(value: Any) -> Any:
    """Without NaN and infinities, which JSON doesn't have: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return value


# ------------------------------------------------------------------------------------------------------------------------- for people


class Page:
    """What a table needs of its medium. Everything that comes in is plain text."""

    def heading(self, text: str) -> None:
        raise NotImplementedError

    def line(self, text: str) -> None:
        raise NotImplementedError

    def notes(self, lines: Sequence[str]) -> None:
        raise NotImplementedError

    def table(self, columns: Sequence[Field], rows: Sequence[RowSummary]) -> list[str]:
        """Draws it and returns the headings of columns that had no room."""
        raise NotImplementedError

    def details(self, columns: Sequence[Field], rows: Sequence[RowSummary]) -> None:
        """One line for each field, one column for each row."""
        raise NotImplementedError

    def grid(self, headings: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]]) -> None:
        """A table of plain texts. A heading goes with whether its column stands at the left."""
        raise NotImplementedError

    def text(self) -> str:
        raise NotImplementedError


def page(format: str, width: int = 80, color: bool = False) -> Page:
    """A page in the format table or markdown, for other views that people read. Raises ViewError for another format."""
    if format == "table":
        return _Terminal(width, color)
    if format == "markdown":
        return _Markdown()
    raise ViewError(f"format {plain(format)!r} is not for people: use table or markdown")


def _for_people(runs: Sequence[Run], page: Page, verbose: bool) -> str:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(fields.model_words(run), []).append(run)
    for model, members in groups.items():
        page.heading(model)
        for run in members:
            _one_run(run, page, verbose)
    if any(run.rows for run in runs):
        page.line(WHAT_IS_TIMED)
    plans = {(run.plan.confidence, run.plan.min_effect) for run in runs if any(row.verdict for row in summarise(run))}
    for confidence, min_effect in sorted(plans):
        page.line(what_is_decided(confidence, min_effect))
    return page.text()


def _one_run(run: Run, page: Page, verbose: bool) -> None:
    rows = summarise(run)
    page.line(fields.run_words(run))
    if not rows:
        page.notes(["no rows: nothing was measured"])
        return
    columns, missing = _columns(run, rows)
    no_room = page.table(columns, rows)
    if verbose:
        measured = [row for row in rows if row.samples]
        if measured:
            page.details([field for field in FIELDS if field.shown is not Shown.NEVER and field.only_for(run)], measured)
    notes = [f"{plain(row.label)}: {row.status.words}{_reason(row)}" for row in rows if row.status is not Status.OK]
    if run.interrupted:
        notes.append("interrupted: the rows show what was measured until then")
    elif run.finished_at is None:
        notes.append(
            "not finished: the run was cut off, or still goes on; `llmbench compare --resume RUN` goes on with one that was cut off"
        )
    notes += [f"{plain(row.label)}: undecided: {row.verdict_reason}" for row in rows if row.verdict is Verdict.UNDECIDED]
    notes += [f"{plain(row.label)}: {plain(flag)}" for row in rows for flag in row.flags]
    notes += _artifacts(run)
    notes += _noise_floor(run)
    notes += missing
    if no_room and not verbose:
        notes.append(f"no room here for: {', '.join(no_room)} (a wider terminal or -v shows them)")
    page.notes(notes + [plain(note) for note in (*run.model.warnings, *run.notes)])


def _artifacts(run: Run) -> list[str]:
    """Which artifact each row loaded: one that was there, or one that this run had built."""
    found = []
    for row in run.rows:
        use = next((block.artifact for block in row.blocks if block.artifact is not None), None)
        if use is None:
            continue
        place, took = plain(f"engines/{use.engine}/{use.key}"), duration(use.build_s)
        label = plain(row.variant.label)
        if use.hit:
            found.append(f"{label}: reuses {place} ({size(use.bytes)}, built {date(use.built_at)[:10]} in {took})")
        else:
            found.append(f"{label}: built {place} ({size(use.bytes)}) in {took}; later runs reuse it")
    return found


def _noise_floor(run: Run) -> list[str]:
    """What an A/A run found, or what a later run goes by."""
    if run.aa:
        floor = noise_floor.of_run(run)
        if floor is None:
            return ["the same variant under two names; no noise floor: that takes two rounds and rows that are ok"]
        return [f"the same variant under two names: this machine's noise floor is {number(100 * floor, 2)} %"]
    if run.noise_floor is None:
        return []
    source = f" (A/A run: {plain(run.noise_floor_source)})" if run.noise_floor_source else ""
    return [
        f"noise floor of this machine: {number(100 * run.noise_floor, 2)} %{source}; a smaller difference is never called faster or slower"
    ]


def _reason(row: RowSummary) -> str:
    return f": {plain(row.reason)}" if row.reason else ""


def _columns(run: Run, rows: Sequence[RowSummary]) -> tuple[list[Field], list[str]]:
    """The table's columns, and a line for each that is null in all rows where the reason is known."""
    columns, missing = [], []
    for field in FIELDS:
        if field.shown is not Shown.TABLE or not field.only_for(run):
            continue
        if field.rank == 0 and field.key not in ("speedup", "verdict"):
            columns.append(field)
        elif all(field.get(row) is None for row in rows):
            reason = field.why_null(run, rows)
            if reason:
                missing.append(f"no {field.title}: {reason}")
        else:
            columns.append(field)
    return columns, missing


class _Terminal(Page):
    """Aligned columns by rich, which knows how wide each character is."""

    def __init__(self, width: int, color: bool) -> None:
        from rich.console import Console

        self.out = io.StringIO()
        self.width = max(40, width)
        self.console = Console(
            file=self.out,
            width=self.width,
            force_terminal=color,
            no_color=not color,
            color_system="standard" if color else None,
            markup=False,
            highlight=False,
            emoji=False,
            legacy_windows=False,
        )

    def _print(self, text: str, style: str = "") -> None:
        from rich.text import Text

        self.console.print(Text(text, style=style))

    def heading(self, text: str) -> None:
        if self.out.tell():
            self._print("")
        self._print(text, "bold")

    def line(self, text: str) -> None:
        for line in _wrap_at_dots(text, self.width):
            self._print(line, "dim")

    def notes(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._print(textwrap.fill(line, self.width, initial_indent="  ", subsequent_indent="    "))
        self._print("")

    def table(self, columns: Sequence[Field], rows: Sequence[RowSummary]) -> list[str]:
        kept, gap, cap = self._fit(columns, rows)
        cells = [[(_cell(field, row, cap), _style(field, row)) for field in kept] for row in rows]
        self._grid([(field.heading, field.is_text) for field in kept], cells, gap, [cap])
        return [field.title for field in columns if field not in kept]

    def details(self, columns: Sequence[Field], rows: Sequence[RowSummary]) -> None:
        lines = [field for field in columns if field.key != "label" and any(field.show(row) != DASH for row in rows)]
        names = max(_cells(field.title) for field in lines)
        cap = max(_LEAST_LABEL, self.width - names - 2)
        start = 0
        while start < len(rows):  # as many rows side by side as there is room for, the rest below
            end, used = start, names
            while end < len(rows):
                used += 2 + max(_cells(text) for text in (_cell(FIELDS[0], rows[end], 24), *(field.show(rows[end]) for field in lines)))
                if end > start and used > self.width:
                    break
                end += 1
            part = rows[start:end]
            self._print("")
            cells = [[(field.title, "dim"), *((field.show(row), "") for row in part)] for field in lines]
            self._grid([("", True), *((_cell(FIELDS[0], row, 24), False) for row in part)], cells, 2, [cap] * (len(part) + 1))
            start = end

    def _fit(self, columns: Sequence[Field], rows: Sequence[RowSummary]) -> tuple[list[Field], int, int]:
        """The columns that there is room for, the gap between them and the cells a label may take: whatever costs a reader least goes first."""
        kept = list(columns)
        folded = max(_LEAST_LABEL, self.width // 4)
        while True:
            for cap, gap in ((self.width // 2, 2), (folded, 2), (folded, 1)):
                if sum(_width(field, rows, cap) + gap for field in kept) - gap <= self.width:
                    return kept, gap, cap
            last = max(kept, key=lambda field: field.rank)
            if last.rank == 0:
                return kept, 1, folded
            kept.remove(last)

    def _grid(self, headings: Sequence[tuple[str, bool]], rows: Sequence[Sequence[tuple[str, str]]], gap: int, caps: Sequence[int]) -> None:
        """caps: the most cells that the first columns take; longer text goes on below."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="bold")
        for (heading, left), cap in itertools.zip_longest(headings, caps):
            table.add_column(Text(heading), justify="left" if left else "right", overflow="fold", max_width=cap)
        for row in rows:
            table.add_row(*(Text(text, style=style) for text, style in row))
        self.console.print(table)

    def grid(self, headings: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]]) -> None:
        gap = 2 if sum(max(map(_cells, column)) + 2 for column in zip(*([h for h, _ in headings], *rows), strict=True)) <= self.width else 1
        self._grid(headings, [[(text, "") for text in row] for row in rows], gap, [])

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.out.getvalue().splitlines()).rstrip("\n") + "\n"


def _cells(text: str) -> int:
    """How many cells of a terminal the longest line takes."""
    from rich.cells import cell_len

    return max(map(cell_len, text.split("\n")))


def _cell(field: Field, row: RowSummary, cap: int) -> str:
    """What stands in a cell. A label that is too long is broken before its options."""
    text = field.show(row)
    return text.replace("[", "\n [", 1) if field.key == "label" and _cells(text) > cap else text


def _width(field: Field, rows: Sequence[RowSummary], cap: int) -> int:
    widest = max(_cells(text) for text in (field.heading, *(_cell(field, row, cap) for row in rows)))
    return min(widest, cap) if field.key == "label" else widest


def _wrap_at_dots(text: str, width: int) -> list[str]:
    """Lines of at most that width where the parts between middle dots allow it."""
    lines: list[str] = []
    for part in text.split(" · "):
        if lines and _cells(f"{lines[-1]} · {part}") <= width:
            lines[-1] += f" · {part}"
        else:
            lines.append(part)
    return lines


_VERDICT_STYLES = {Verdict.FASTER: "bold green", Verdict.SLOWER: "red", Verdict.SAME: "", Verdict.UNDECIDED: "yellow"}


def _style(field: Field, row: RowSummary) -> str:
    """Nothing marks the highest rate: which row is faster is for the interval to say."""
    if field.key == "status":
        return "green" if row.status is Status.OK else "red"
    if field.key in ("speedup", "verdict") and row.verdict is not None:
        return _VERDICT_STYLES[row.verdict]
    return ""


class _Markdown(Page):
    """GitHub's tables: every column, whatever its width."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def heading(self, text: str) -> None:
        self.parts.append(f"### {_escape(text)}")

    def line(self, text: str) -> None:
        self.parts.append(_escape(text))

    def notes(self, lines: Sequence[str]) -> None:
        if lines:
            self.parts.append("\n".join(f"- {_escape(line)}" for line in lines))

    def table(self, columns: Sequence[Field], rows: Sequence[RowSummary]) -> list[str]:
        self._grid(
            [(field.title, field.is_text) for field in columns],
            [[field.show(row) for field in columns] for row in rows],
        )
        return []

    def details(self, columns: Sequence[Field], rows: Sequence[RowSummary]) -> None:
        lines = [field for field in columns if field.key != "label" and any(field.show(row) != DASH for row in rows)]
        self._grid(
            [("", True), *((plain(row.label), False) for row in rows)],
            [[field.title, *(field.show(row) for row in rows)] for field in lines],
        )

    def _grid(self, headings: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]]) -> None:
        lines = [
            "| " + " | ".join(_escape(heading) for heading, _ in headings) + " |",
            "|" + "|".join(" --- " if left else " ---: " for _, left in headings) + "|",
            *("| " + " | ".join(_escape(cell) for cell in row) + " |" for row in rows),
        ]
        self.parts.append("\n".join(lines))

    def grid(self, headings: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]]) -> None:
        self._grid([(heading.replace("\n", " "), left) for heading, left in headings], rows)

    def text(self) -> str:
        return "\n\n".join(self.parts) + "\n"


def _escape(text: str) -> str:
    """Text that markdown shows as it is. Brackets and underscores are left alone where they mean nothing."""
    text = re.sub(r"([\\`*|~])", r"\\\1", text)
    text = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)
    if re.search(r"\]\s*[(\[:]", text):
        text = text.replace("[", r"\[")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
