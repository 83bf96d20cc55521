"""Two sets of runs, old and new: rows matched by model, request and variant, and for each how its figures moved.

What isn't comparable is refused with the reasons. Within a pair each variant's processes give one value each; where both sides hold several runs of
the same work, each run gives one value, its median, since processes of one run share whatever that run's hour was like.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from llmbench.protocol import Row, Run, Status
from llmbench.results.changes import (
    WorkKey,
    checkpoint_differences,
    machine_differences,
    other_changes,
    row_changes,
    work_differences,
    work_key,
)
from llmbench.results.diff_metrics import METRICS, Metric
from llmbench.results.unpaired import Change, Shift, compare_unpaired, is_beyond

_SOUND = (Status.OK, Status.INTERRUPTED)


class Incomparable(ValueError):
    """Runs that are not compared; `reasons` says why, a line each, and the text joins them."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("\n".join(reasons))
        self.reasons = tuple(reasons)


@dataclass(frozen=True)
class RowDiff:
    """One variant by one metric. `old` and `new`: medians, in the metric's unit before scaling; null where it wasn't measured."""

    label: str
    metric: str
    old: float | None
    new: float | None
    old_values: int  # processes, or runs, behind them
    new_values: int
    ratio: float | None = None  # new / old, geometric means
    low: float | None = None
    high: float | None = None
    change: Change | None = None
    reason: str = ""
    broke: bool = False  # it was good and isn't any more, or its accuracy passed and fails
    beyond: bool = False  # worse than the threshold, the whole interval on its far side
    judged: bool = True  # false: nothing can be said, so no gate can pass it

    @property
    def is_regression(self) -> bool:
        return self.broke or self.beyond


@dataclass(frozen=True)
class PairDiff:
    """Old and new runs of one model and request. `changes`: what else differs, a line each, to be read before the numbers."""

    old: tuple[Run, ...]
    new: tuple[Run, ...]
    changes: tuple[str, ...]
    rows: tuple[RowDiff, ...]
    only_old: tuple[str, ...]  # variants' labels
    only_new: tuple[str, ...]


@dataclass
class Diff:
    """All pairs. `comparisons`: intervals that together hold with `confidence`."""

    pairs: list[PairDiff] = field(default_factory=list)
    only_old: list[Run] = field(default_factory=list)
    only_new: list[Run] = field(default_factory=list)
    confidence: float = 0.95
    comparisons: int = 0
    threshold: float | None = None

    @property
    def regressions(self) -> list[tuple[PairDiff, RowDiff]]:
        return [(pair, row) for pair in self.pairs for row in pair.rows if row.is_regression]

    @property
    def exit_code(self) -> int:
        """As a gate: 0 nothing is worse than the threshold, 1 something is, 3 something could not be judged. Without a threshold 0."""
        if self.threshold is None:
            return 0
        if self.regressions:
            return 1
        missing = self.only_old or any(pair.only_old for pair in self.pairs)
        return 3 if missing or any(not row.judged for pair in self.pairs for row in pair.rows) else 0


def diff(
    old: Sequence[Run],
    new: Sequence[Run],
    *,
    metrics: Sequence[str] = ("tokens",),
    threshold: float | None = None,
    across_machines: bool = False,
    force: bool = False,
) -> Diff:
    """Compares two sets of runs. Raises Incomparable where nothing matches, and where machines or checkpoints differ.

    metrics: names of diff_metrics.METRICS. threshold: relative; what is worse by more than it, the whole interval beyond, is a regression.
    across_machines: another machine is no hindrance. force: nor is another checkpoint and, of single runs, another model or request.
    """
    pairs, result = _match(old, new, force)
    reasons = [] if force else _hindrances(pairs, across_machines)
    if reasons:
        raise Incomparable(reasons)
    result.threshold = threshold
    result.confidence = max(run.plan.confidence for pair in pairs for side in pair for run in side)
    wanted = [METRICS[name] for name in metrics]
    result.comparisons = sum(_has_interval(pair, label, metric) for pair in pairs for label in _common(pair) for metric in wanted)
    for olds, news in pairs:
        labels = _common((olds, news))
        result.pairs.append(
            PairDiff(
                tuple(olds),
                tuple(news),
                tuple(_changes(olds, news, labels)),
                tuple(
                    _row(olds, news, label, metric, result)
                    for metric in wanted
                    for label in labels
                    if all(metric.applies(run, row) for run, row in _rows([*olds, *news], label))
                ),
                tuple(label for label in _labels(olds) if label not in labels),
                tuple(label for label in _labels(news) if label not in labels),
            )
        )
    return result


# ------------------------------------------------------------------------------------------------------------------------------- matching

_Pair = tuple[list[Run], list[Run]]


def _match(old: Sequence[Run], new: Sequence[Run], force: bool) -> tuple[list[_Pair], Diff]:
    """Runs of one model, request and dtype, by the model's name, then by the digest of its weights. Raises Incomparable where none match."""
    left, right = _groups(old), _groups(new)
    pairs: list[_Pair] = [(left.pop(key), right.pop(key)) for key in [key for key in left if key in right]]
    for key in list(left):  # a copy under another name
        identity = left[key][0].model.identity
        twin = next((other for other in right if identity and right[other][0].model.identity == identity and other[1] == key[1]), None)
        if twin is not None:
            pairs.append((left.pop(key), right.pop(twin)))
    if not pairs and force and len(left) == len(right) == 1:
        pairs.append((left.popitem()[1], right.popitem()[1]))
    if not pairs:
        raise Incomparable(_why_none(old, new))
    result = Diff(only_old=[run for runs in left.values() for run in runs], only_new=[run for runs in right.values() for run in runs])
    return pairs, result


def _groups(runs: Sequence[Run]) -> dict[tuple[str, WorkKey], list[Run]]:
    found: dict[tuple[str, WorkKey], list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.started_at):
        found.setdefault((run.model.name, work_key(run)), []).append(run)
    return found


def _why_none(old: Sequence[Run], new: Sequence[Run]) -> list[str]:
    if len(_groups(old)) == len(_groups(new)) == 1:
        return [*work_differences(old[0], new[0]), "not the same work, so there is no verdict; --force shows the ratios all the same"]
    models = [", ".join(dict.fromkeys(run.model.name for run in runs)) for runs in (old, new)]
    return [f"no old run has the model, dtype and request of a new one; models: {models[0]} → {models[1]}"]


def _hindrances(pairs: Sequence[_Pair], across_machines: bool) -> list[str]:
    """Why the matched runs are not comparable, each line once."""
    machines: list[str] = []
    checkpoints: list[str] = []
    for olds, news in pairs:
        for before, now in _against_first(olds, news):
            machines += [] if across_machines else machine_differences(before, now)
            checkpoints += [f"{now.model.name}: {line}" for line in checkpoint_differences(before, now)]
    lines = list(dict.fromkeys([*machines, *checkpoints]))
    if machines:
        lines.append("not the same machine; --across-machines compares them all the same")
    if checkpoints:
        lines.append("not the same checkpoint; --force compares them all the same")
    return lines


def _against_first(olds: Sequence[Run], news: Sequence[Run]) -> list[tuple[Run, Run]]:
    """The first old run with each other: all runs of a pair must be alike, those of one side too."""
    return [(olds[0], run) for run in itertools.chain(olds[1:], news)]


def _changes(olds: Sequence[Run], news: Sequence[Run], labels: Sequence[str]) -> list[str]:
    before, now = olds[-1], news[-1]
    found = [
        *work_differences(before, now),
        *machine_differences(before, now),
        *checkpoint_differences(before, now),
        *other_changes(before, now),
    ]
    by_line: dict[str, list[str]] = {}
    for label in labels:
        rows = _rows([before], label), _rows([now], label)
        if rows[0] and rows[1]:
            for line in row_changes(rows[0][0][1], rows[1][0][1]):
                by_line.setdefault(line, []).append(label)
    found += [line if len(named) == len(labels) else f"{', '.join(named)}: {line}" for line, named in by_line.items()]
    return list(dict.fromkeys(found))


# -------------------------------------------------------------------------------------------------------------------------------- judging


def _labels(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(row.variant.label for run in runs for row in run.rows))


def _common(pair: _Pair) -> list[str]:
    news = _labels(pair[1])
    return [label for label in _labels(pair[0]) if label in news]


def _rows(runs: Sequence[Run], label: str) -> list[tuple[Run, Row]]:
    return [(run, row) for run in runs if (row := run.row(label)) is not None]


def _units(pair: _Pair, label: str, metric: Metric) -> tuple[list[float], list[float]]:
    """Independent values of each side: of runs where both sides hold several, else of processes. Rows that failed give none."""
    sides = [[metric.values(run, row) for run, row in _rows(runs, label) if row.status in _SOUND] for runs in pair]
    sides = [[values for values in side if values] for side in sides]
    if all(len(side) > 1 for side in sides):
        return [statistics.median(values) for values in sides[0]], [statistics.median(values) for values in sides[1]]
    return [value for values in sides[0] for value in values], [value for values in sides[1] for value in values]


def _has_interval(pair: _Pair, label: str, metric: Metric) -> bool:
    olds, news = _units(pair, label, metric)
    return not metric.exact and min(len(olds), len(news)) > 1


def _row(olds: list[Run], news: list[Run], label: str, metric: Metric, result: Diff) -> RowDiff:
    values = _units((olds, news), label, metric)
    middle = [statistics.median(side) if side else None for side in values]
    shown = (label, metric.name, middle[0], middle[1], len(values[0]), len(values[1]))
    before, now = (_worst([row for _, row in _rows(runs, label)]) for runs in (olds, news))
    if now.status not in _SOUND:
        # Broken is what was good; that it was bad before already is for the old run's readers.
        broke, words = before.status in _SOUND, f"{now.status.words}{f': {now.reason}' if now.reason else ''}"
        return RowDiff(*shown, reason=f"was {before.status.words}, is {words}" if broke else f"still {words}", broke=broke, judged=False)
    if before.status not in _SOUND:
        return RowDiff(*shown, reason=f"was {before.status.words}, is ok")
    if not values[0] or not values[1]:
        sides = " and ".join(words for words, side in zip(("old", "new"), values, strict=True) if not side)
        return RowDiff(*shown, reason=f"{metric.title} was not measured in the {sides} run", judged=False)
    plans, floors = [run.plan for run in (*olds, *news)], [run.noise_floor or 0.0 for run in (*olds, *news)]
    min_effect, floor = max(plan.min_effect for plan in plans), max(floors) if metric.is_timed else 0.0
    if metric.exact:
        return _exact(shown, values[0][-1], values[1][-1], min_effect, metric, result.threshold)
    shift = compare_unpaired(
        values[1],
        values[0],
        higher_is_better=metric.higher_is_better,
        confidence=result.confidence,
        comparisons=result.comparisons,
        min_effect=min_effect,
        noise_floor=floor,
    )
    beyond = (
        result.threshold is not None
        and shift.change is Change.WORSE
        and is_beyond(shift, result.threshold, higher_is_better=metric.higher_is_better)
    )
    return RowDiff(*shown, *_parts(shift), beyond=beyond, judged=shift.change is not None)


def _parts(shift: Shift) -> tuple[float, float | None, float | None, Change | None, str]:
    return shift.ratio, shift.low, shift.high, shift.change, shift.reason


def _exact(
    shown: tuple[str, str, float | None, float | None, int, int],
    old: float,
    new: float,
    min_effect: float,
    metric: Metric,
    threshold: float | None,
) -> RowDiff:
    """A figure that is computed, not timed: it is what it is, so a difference beyond min_effect is one."""
    before, now = (1 / old, 1 / new) if metric.higher_is_better else (old, new)

    def is_worse(by: float) -> bool:
        return now > before * (1 + by)

    change = Change.WORSE if is_worse(min_effect) else Change.BETTER if before > now * (1 + min_effect) else Change.SAME
    return RowDiff(
        *shown,
        new / old,
        change=change,
        reason="computed once from the same ids: no interval",
        beyond=threshold is not None and is_worse(max(threshold, min_effect)),
    )


def _worst(rows: Sequence[Row]) -> Row:
    return max(rows, key=lambda row: row.status.severity)
