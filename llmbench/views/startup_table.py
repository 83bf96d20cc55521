"""What starting costs, as text: each variant's start by parts, cold and warm, and after how many tokens one has overtaken another."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llmbench.protocol import Run, Status
from llmbench.results.startup import BreakEven, Start, StartUp, break_even, start_ups
from llmbench.views import fields
from llmbench.views.table import page
from llmbench.views.text import DASH, date, number, plain

WHAT_STARTING_IS = (
    "cold: nothing kept from earlier, so artifacts are built and compiler caches are empty. warm: a later process, which finds what the cold "
    "one kept, or the artifact. ready: process start + build + load + compile, the seconds from the process's start to its steady rate; "
    "compile: what the first generations took beyond that rate. first token after: from the process's start. Files may lie in the "
    "operating system's cache in both."
)


def render_startup(runs: Sequence[Run], format: str = "table", *, width: int = 80, color: bool = False) -> str:
    """The start-up tables of runs, in the format table or markdown. Raises ViewError for another format."""
    out = page(format, width, color)
    for run in runs:
        rows = start_ups(run)
        out.heading(fields.model_words(run))
        out.line(fields.run_words(run))
        out.grid(
            [("engine", True), ("start", True), ("process\ns", False), ("build\ns", False), ("load\ns", False), ("compile\ns", False),
             ("ready\ns", False), ("first token\nafter s", False), ("tokens/s", False), ("on disk\nMB", False)],
            [cells for row in rows for cells in _cells(row)],
        )  # fmt: skip
        sound = (Status.OK, Status.INTERRUPTED)
        measured = [row for row in rows if row.tokens_per_s is not None and row.cold is not None and row.status in sound]
        notes = [f"{plain(row.label)}: {row.status.words}: {plain(row.reason or '')}" for row in rows if row.status is not Status.OK]
        notes += [
            f"{plain(row.label)}: its artifact was built before this run, {date(row.built_at)}; build is what that took"
            for row in rows
            if row.built_at
        ]
        notes += [words for row in measured for words in break_even_words(run, row, measured)]
        out.notes(notes)
        if len(measured) > 1:
            for warm in (False, True):
                out.line(f"tokens after which the row is ahead of the column, or until which, both {'warm' if warm else 'cold'}:")
                names = [f"[{place + 1}]" for place in range(len(measured))]
                out.grid(
                    [("engine", True), *((name, False) for name in names)],
                    [
                        [f"{name} {plain(row.label)}", *(_matrix_cell(run, row, other, warm) for other in measured)]
                        for name, row in zip(names, measured, strict=True)
                    ],
                )
    out.line(WHAT_STARTING_IS)
    return out.text()


def _cells(row: StartUp) -> list[list[str]]:
    label = plain(row.label)
    if row.cold is None and row.warm is None:
        return [[label, row.status.words, *([DASH] * 8)]]
    found: list[list[str]] = []
    for name, start in (("cold", row.cold), ("warm", row.warm)):
        if start is None:
            continue
        first = not found
        ends = [number(row.tokens_per_s), number(row.disk_bytes / 1e6) if row.disk_bytes is not None else DASH] if first else ["", ""]
        found.append([label if first else "", name, *_parts(start), *ends])
    return found


def _parts(start: Start) -> list[str]:
    seconds = (start.process_s, start.build_s, start.load_s, start.compile_s, start.ready_s, start.to_first_token_s)
    return [number(value, most_decimals=2) for value in seconds]


def _matrix_cell(run: Run, row: StartUp, other: StartUp, warm: bool) -> str:
    if row is other:
        return DASH
    found, reverse = break_even(run, row, other, warm), break_even(run, other, row, warm)
    if found is None or reverse is None:
        return DASH
    return f"until {tokens_words(reverse.tokens)}" if found.tokens == 0 and reverse.tokens else tokens_words(found.tokens)


def tokens_words(tokens: float | None) -> str:
    """A number of tokens as people read it; null is never, under one token at once."""
    if tokens is None or tokens == math.inf:
        return "never"
    return "at once" if tokens < 1 else f"{tokens:,.0f}" if tokens < 1e4 else f"{float(f'{tokens:.3g}'):,.0f}"


def break_even_words(run: Run, row: StartUp, others: Sequence[StartUp]) -> list[str]:
    """Whether a variant is worth its start, against the run's baseline: one line, or none for the baseline itself and without one."""
    base = next((other for other in others if other.label == run.baseline), None)
    if base is None or base is row:
        return []
    parts = []
    for warm, when in ((False, "cold"), (True, "in later processes")):
        found, reverse = break_even(run, row, base, warm), break_even(run, base, row, warm)
        if found is not None and reverse is not None:
            parts.append(f"{when} {_sentence(run, row, base, found, reverse, warm)}")
    return [f"{plain(row.label)} against {plain(base.label)}: {'; '.join(parts)}"] if parts else []


def _sentence(run: Run, row: StartUp, base: StartUp, found: BreakEven, reverse: BreakEven, warm: bool) -> str:
    if found.tokens is None:
        return "never worth it: it starts later and is no faster"
    if found.tokens == 0:
        if reverse.tokens:
            return f"ahead for {tokens_words(reverse.tokens)} tokens, then overtaken"
        return "ahead from the start"
    words = f"worth it after {tokens_words(found.tokens)} tokens"
    if found.low is not None and found.high is not None:
        if found.high == math.inf:
            return f"{words}, if at all: the rates are too close to tell ({tokens_words(found.low)} to never)"
        words += f" [{tokens_words(found.low)} to {tokens_words(found.high)}]"
    return words
