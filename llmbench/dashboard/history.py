"""The section of models: the newest run of each against the one before, what broke and what came back, and figures over dates.

Old against new is results.diff, one pair at a time. A run of a history is marked where the runs from it on differ from those before it by an
interval that decides it (results.unpaired); dashed lines are changes of releases.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from llmbench import statistics
from llmbench.dashboard.collect import HISTORIES, Mark, again, moment, name, sentence
from llmbench.dashboard.compiling import profile
from llmbench.dashboard.model import Cell, Chart, Line, Point, Section, Series, Table
from llmbench.dashboard.parts import WHERE, Parts, Shown, headings, why
from llmbench.protocol import Status
from llmbench.results.diff import Diff, Incomparable, RowDiff, diff
from llmbench.results.diff_metrics import METRICS, Metric
from llmbench.results.unpaired import Change, Shift, compare_unpaired
from llmbench.views.diff_table import change_words, ratio_words
from llmbench.views.text import DASH, number

#: More points than this on a line are thinned out evenly, changes and the last one kept.
MOST_POINTS = 120
#: Runs on either side of a place where a line may have moved.
WINDOW = 5
#: Cases whose history is drawn, those with the most recent runs first.
MOST_CHARTS = 40


def models(parts: Parts) -> Section:
    pairs, broken, changes = list[Line](), list[Line](), list[tuple[float, Line]]()
    charts: list[tuple[Chart, ...]] = []
    for one in parts.measured:
        marks = parts.collected.histories[one.case]
        if len(marks) < 2:
            continue
        lines, ends = _old_new(one, marks[-2])
        pairs += lines
        broken += ends
        group = _charts(one, marks, changes, len(charts) < MOST_CHARTS)
        if len(charts) < MOST_CHARTS and group:
            charts.append(group)
    changes.sort(key=lambda entry: -entry[0])
    notes = []
    drawn = sum(len(parts.collected.histories[one.case]) > 1 for one in parts.measured)
    if drawn > len(charts) == MOST_CHARTS:
        notes.append(f"The histories of {MOST_CHARTS} of {drawn} are drawn: those with the newest runs.")
    return Section(
        "models",
        "Models over time",
        "Models",
        "The newest run of each machine, model, dtype and request beside the one before it. Two runs have no rounds in common, so their ratio has "
        "a wider interval than one within a run, and what changed on the machine in between is part of it.",
        (
            Table(
                "old-new",
                "Tokens/s, old → new",
                (*WHERE, *headings("request", "engine", "#old", "#new", "#new / old", "verdict", "what else changed")),
                tuple(pairs),
                tuple(notes),
            ),
            Table("turned", "New failures and new passes", (*WHERE, *headings("engine", "before", "now")), tuple(broken)),
            Table(
                "moved",
                "When tokens/s moved",
                headings("from", "machine", "model", "engine", "#after / before", "verdict", "what else changed"),
                tuple(line for _, line in changes[:200]),
                (
                    f"{WINDOW} runs before against {WINDOW} from then on, each run one value.",
                    "The newest 200." if len(changes) > 200 else "",
                ),
            ),
            profile(parts),
        ),
        tuple(charts),
        empty="Every model was run once, so nothing can have changed.",
    )


def _old_new(one: Shown, before: Mark) -> tuple[list[Line], list[Line]]:
    old = again(before)
    if old is None:
        return [], []
    turned = []
    for row in one.run.rows:
        was = old.row(row.variant.label)
        if was is not None and (was.status is Status.OK) != (row.status is Status.OK):
            cells = (*one.where(), one.engine(row.variant.label), Cell(why(was.status, was.reason), flag=was.status is not Status.OK),
                     Cell(why(row.status, row.reason), flag=row.status is not Status.OK))  # fmt: skip
            turned.append(one.line(cells))
    try:
        found: Diff = diff([old], [one.run], metrics=("tokens",))
    except Incomparable as error:
        cells = (*one.where(), Cell(one.case.request), Cell(DASH), Cell(DASH), Cell(DASH), Cell(DASH), Cell("not comparable"),
                 Cell(sentence("; ".join(error.reasons))))  # fmt: skip
        return [one.line(cells)], turned
    lines = []
    for pair in found.pairs:
        changed = sentence("; ".join(pair.changes)) or "nothing that the run files tell of"
        lines += [one.line([*one.where(), Cell(one.case.request), one.engine(row.label), *_moved(row), Cell(changed)]) for row in pair.rows]
    return lines, turned


def _moved(row: RowDiff) -> list[Cell]:
    worse = row.broke or row.change is Change.WORSE
    words = "broken" if row.broke else change_words(row.change, METRICS["tokens"])
    ratio = Cell(ratio_words(row), row.ratio, flag=worse)
    return [Cell(number(row.old, 4), row.old), Cell(number(row.new, 4), row.new), ratio, Cell(words, flag=worse)]


def _charts(one: Shown, marks: Sequence[Mark], changes: list[tuple[float, Line]], draw: bool) -> tuple[Chart, ...]:
    """One chart for each of HISTORIES that has two points, and into `changes` each step of tokens/s that is decided."""
    releases = _releases(marks)
    labels = dict.fromkeys((row.label, row.engine) for mark in marks for row in mark.rows)
    charts = []
    for place, metric in enumerate(HISTORIES):
        series = []
        if place and not draw:
            break
        for label, engine in labels:
            points = _points(one, marks, label, place, releases, changes if place == 0 else None)
            if points:
                series.append(Series(label, engine, tuple(_thinned(points))))
        if any(len(line.points) > 1 for line in series):
            charts.append(
                Chart(
                    f"h{one.place}-{metric}",
                    f"{one.case.words}, {one.case.request}",
                    METRICS[metric].title,
                    tuple(series),
                    marks=tuple(releases),
                    machine=one.case.machine,
                    model=one.case.model,
                    dtype=one.case.dtype,
                )
            )
    return tuple(charts)


def _points(
    one: Shown,
    marks: Sequence[Mark],
    label: str,
    place: int,
    releases: Sequence[tuple[float, str]],
    changes: list[tuple[float, Line]] | None,
) -> list[Point]:
    metric = METRICS[HISTORIES[place]]
    kept = [(mark, row) for mark in marks for row in mark.rows if row.label == label and row.values[place] and row.status is Status.OK]
    values = [statistics.median(list(row.values[place])) or 0.0 for _, row in kept]
    steps = _steps([mark for mark, _ in kept], values, metric)
    points = []
    for number_, (mark, _) in enumerate(kept):
        shift, value = steps.get(number_), values[number_]
        word = change_words(shift.change, metric) if shift is not None else ""
        points.append(Point(mark.time, value * metric.scale, f"{moment(mark.started_at)}: {number(value * metric.scale, 4)}", word))
        if changes is not None and shift is not None:
            what = "; ".join(words for time, words in releases if time == mark.time) or DASH
            cells = (Cell(moment(mark.started_at), mark.time), Cell(one.case.machine), Cell(one.case.model), one.engine(label),
                     Cell(_shift_words(shift), shift.ratio, flag=shift.change is Change.WORSE), Cell(word), Cell(what))  # fmt: skip
            changes.append((mark.time, one.line(cells)))
    return points


def _steps(marks: Sequence[Mark], values: Sequence[float], metric: Metric) -> dict[int, Shift]:
    """The runs from which on a line stands at another level: WINDOW runs before against WINDOW from it on, each run one value, its median.

    All places of a line share the confidence. Of neighbouring places that are decided the same way, the clearest counts. The newest run
    alone can't be told from an outlier: a step shows once a second run stands with it.
    """
    found: dict[int, tuple[float, Shift]] = {}
    logs = [math.log(value) for value in values]
    for place in range(2, len(values) - 1):
        mark = marks[place]
        sides = logs[place : place + WINDOW], logs[max(0, place - WINDOW) : place]
        if abs(sum(sides[0]) / len(sides[0]) - sum(sides[1]) / len(sides[1])) <= math.log1p(mark.min_effect):
            continue  # compare_unpaired would not call that a difference, and takes a hundred times as long to say so
        shift = compare_unpaired(
            values[place : place + WINDOW],
            values[max(0, place - WINDOW) : place],
            higher_is_better=metric.higher_is_better,
            confidence=mark.confidence,
            comparisons=len(values) - 3,
            min_effect=mark.min_effect,
            noise_floor=mark.noise_floor if metric.is_timed else None,
        )
        if shift.change not in (Change.BETTER, Change.WORSE) or not shift.low or not shift.high:
            continue
        half = math.log(shift.high / shift.low) / 2
        clear = abs(math.log(shift.ratio)) / half if half else math.inf
        near = next((other for other in found if place - other < WINDOW and found[other][1].change is shift.change), None)
        if near is not None and found[near][0] >= clear:
            continue
        if near is not None:
            del found[near]
        found[place] = (clear, shift)
    return {place: shift for place, (_, shift) in found.items()}


def _shift_words(shift: Shift) -> str:
    """`0.917x [0.90, 0.93]`."""
    return ratio_words(RowDiff("", "tokens", None, None, 0, 0, shift.ratio, shift.low, shift.high))


def _thinned(points: list[Point]) -> list[Point]:
    if len(points) <= MOST_POINTS:
        return points
    step = len(points) / MOST_POINTS
    kept = {int(place * step) for place in range(MOST_POINTS)} | {len(points) - 1}
    return [point for place, point in enumerate(points) if place in kept or point.change]


def _releases(marks: Sequence[Mark]) -> list[tuple[float, str]]:
    """The times at which a library's release changed, with what changed in words."""
    found = []
    for before, now in itertools.pairwise(marks):
        if now.versions == before.versions:
            continue
        old, new = dict(before.versions), dict(now.versions)
        words = [f"{library} {old[library]} → {new[library]}" for library in sorted(old) if library in new and old[library] != new[library]]
        if words:
            found.append((now.time, name(", ".join(words))))
    return found
