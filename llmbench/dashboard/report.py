"""Collected runs -> the Report that pages are written from: cases with their answers, all sections, and the raw samples of what is shown."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from llmbench import __version__
from llmbench.dashboard.answer import Answer, answer
from llmbench.dashboard.collect import Collected, again, moment, name, sentence
from llmbench.dashboard.costs import energy, growth, precision, startup
from llmbench.dashboard.features import features
from llmbench.dashboard.history import models
from llmbench.dashboard.model import Bar, CaseView, Cell, Detail, Report, Section, Table
from llmbench.dashboard.parts import WHERE, Choices, Parts, Shown, headings, why
from llmbench.dashboard.suites import suites
from llmbench.protocol import Row, Status
from llmbench.results.startup import start_ups
from llmbench.results.summary import RowSummary
from llmbench.views import fields
from llmbench.views.fields import FIELDS
from llmbench.views.fields import Shown as Where
from llmbench.views.text import DASH, number, plural, shorten

#: Files that could not be read, and notes, that are named; more are counted.
MOST_NOTES = 20


def report(collected: Collected, choices: Choices | None = None) -> Report:
    """The report of all that was collected. Newest runs are read again, whole; those that went away meanwhile are left out."""
    choices = choices or Choices()
    cases = list(collected.histories)
    shown = []
    order = dict.fromkeys(case.machine for case in cases)
    ranks = {machine: place for place, machine in enumerate(order)}
    kept = sorted(
        cases[: choices.most_cases], key=lambda case: (ranks[case.machine], case.model, case.dtype, case.prompt_ids, case.batch_size)
    )
    for place, case in enumerate(kept):
        run = again(collected.newest(case))
        if run is not None:
            shown.append(Shown(place, case, run, answer(run), tuple(start_ups(run))))
    parts = Parts(collected, shown, choices)
    views = tuple(_case(one) for one in parts.measured)
    notes = _notes(collected, len(cases), choices)
    details, left_out = _details(shown, choices.most_samples)
    if left_out:
        notes.append(f"Raw samples of {plural(left_out, 'row')} are left out for size: those of the oldest runs. The run files hold them.")
    headline, lines = _headline(parts.measured)
    sections: Sequence[Section] = (suites(parts), models(parts), startup(parts), precision(parts), growth(parts), energy(parts),
                                   features(parts), _runs(parts))  # fmt: skip
    return Report(
        title=_title(parts),
        made=f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC by llmbench {__version__}",
        about=_about(collected),
        headline=headline,
        headline_parts=tuple(lines),
        cases=views,
        sections=tuple(sections),
        details=details,
        notes=tuple(notes),
        machines=_unique(view.machine for view in views),
        models=_unique(view.model for view in views),
        dtypes=_unique(view.dtype for view in views),
    )


def _unique(words: object) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))  # type: ignore[call-overload]


def _title(parts: Parts) -> str:
    found = _unique(one.case.model for one in parts.shown)
    return f"Which engine is fastest: {found[0] if len(found) == 1 else plural(len(found), 'model')}"


def _about(collected: Collected) -> str:
    times = sorted((mark.time, mark.started_at) for marks in collected.histories.values() for mark in marks)
    days = _unique(moment(times[place][1])[:10] for place in (0, -1)) if times else ()
    return f"{plural(collected.runs, 'run')}, {' to '.join(days)}" if days else "no runs"


def _headline(shown: list[Shown]) -> tuple[str, list[str]]:
    """The answer to all of it in one line, then a line for each machine."""
    asked = [one for one in shown if one.answer.best is not None]
    if not asked:
        return "Nothing was measured that can be believed.", []
    if len(asked) == 1:
        only = asked[0]
        return f"On {only.case.words}: {f'{only.answer.head} {only.answer.by}'.strip()}", [only.answer.rest, _at(only)]
    compared = [one for one in asked if one.answer.next is not None] or asked
    wins = _wins(compared)
    undecided = len(compared) - sum(map(len, wins.values()))
    of = f"of {plural(len(compared), 'comparison')}"
    first = next(iter(wins), None)
    if first is None:
        headline = f"No engine is the fastest beyond doubt in any {of}."
    elif 2 * len(wins[first]) > len(compared):
        headline = f"{first} is fastest in {len(wins[first])} {of}, by {_by(wins[first])} over the next."
    else:
        words = [f"{engine} in {len(won)}" for engine, won in list(wins.items())[:3]] + [f"{undecided} undecided"] * bool(undecided)
        headline = f"No engine wins everywhere: {', '.join(words)} {of}."
    lines = []
    for machine in _unique(one.case.machine for one in compared):
        here = [one for one in compared if one.case.machine == machine]
        found = _wins(here)
        words = [f"{engine} fastest in {len(won)}, by {_by(won)} over the next" for engine, won in found.items()]
        open_ones = len(here) - sum(map(len, found.values()))
        words += [f"{open_ones} undecided"] if open_ones else []
        lines.append(f"On {machine}: {'; '.join(words)}.")
    return headline, lines


def _wins(shown: list[Shown]) -> dict[str, list[Answer]]:
    found: dict[str, list[Answer]] = {}
    for one in shown:
        if one.answer.decided and one.answer.best is not None:
            found.setdefault(name(one.answer.best.label), []).append(one.answer)
    return dict(sorted(found.items(), key=lambda entry: -len(entry[1])))


def _by(won: list[Answer]) -> str:
    """`1.09x to 1.21x`: the least and the greatest ratio to the next best."""
    ratios = sorted(one.ratio.ratio for one in won if one.ratio is not None)
    low, high = (f"{number(ratio)}x" if ratio < 1e4 else "over 10000x" for ratio in (ratios[0], ratios[-1]))
    return low if low == high else f"{low} to {high}"


def _at(one: Shown) -> str:
    return " · ".join(
        part for part in (one.case.machine, one.case.model, one.case.dtype, one.case.request, moment(one.run.started_at)) if part
    )


def _case(one: Shown) -> CaseView:
    found = one.answer
    batch = one.run.request.batch_size
    bars = tuple(_bar(one, row, batch) for row in sorted(found.rows, key=lambda row: -(row.tokens_per_s or 0.0)))
    limits = [bar.limit for bar in bars if bar.limit is not None]
    reason = next((sentence(row.limit_reason) for row in found.rows if row.limit_reason), "")
    words = f"no limit: {reason}" if reason else ""
    if limits:
        sources = dict.fromkeys(row.limit_source for row in found.rows if row.limit_source)
        words = (
            f"reading the weights allows at most {shorten(number(max(limits), 4), 24)} tokens/s{' for each sequence' if batch > 1 else ''}"
        )
        words += f" by the {sentence(' and '.join(sources))}" if sources else ""
    return CaseView(
        name=f"c{one.place}",
        machine=one.case.machine,
        model=one.case.model,
        dtype=one.case.dtype,
        request=one.case.request,
        when=moment(one.run.started_at)[:16],
        head=found.head,
        by=found.by,
        sentence=found.sentence,
        rest=found.rest,
        bars=bars,
        limit_words=words,
        problems=_problems(one),
    )


def _bar(one: Shown, row: RowSummary, batch: int) -> Bar:
    measured = row.tokens_per_s is not None
    ratio = "baseline" if row.is_baseline else fields.ratio_words(row)
    words = why(row.status, row.reason) if row.status is not Status.OK else row.verdict.value if row.verdict else ""
    return Bar(
        row=one.row_name(row.label),
        label=name(row.label),
        engine=row.engine,
        rate=row.tokens_per_s,
        deviation=row.tokens_per_s_deviation,
        value=next(field for field in FIELDS if field.key == "tokens_per_s").show(row)[:40] if measured else "",
        ratio=ratio if measured and ratio != DASH else "",
        words=words,
        is_best=row is one.answer.best,
        limit=row.limit_tokens_per_s / batch if row.limit_tokens_per_s is not None else None,
    )


def _problems(one: Shown) -> tuple[str, ...]:
    """What disturbed, failed or was cut short."""
    run = one.run
    found = [f"{name(row.label)}: {why(row.status, row.reason)}" for row in one.answer.rows if row.status is not Status.OK and row.samples]
    if run.interrupted:
        found.append("interrupted: the rows show what was measured until then")
    elif run.finished_at is None:
        found.append("not finished: the run was cut off, or still goes on")
    found += [f"{name(row.label)}: {sentence(flag)}" for row in one.answer.rows for flag in row.flags]
    found += [sentence(note) for note in (*run.model.warnings, *run.notes)]
    return tuple(found[:MOST_NOTES])


def _notes(collected: Collected, cases: int, choices: Choices) -> list[str]:
    notes = []
    if cases > choices.most_cases:
        notes.append(
            f"{choices.most_cases} of {cases} combinations of machine, model, dtype and request are shown: those with the newest runs."
        )
    if collected.noise_runs:
        notes.append(
            f"{plural(collected.noise_runs, 'A/A run')} left out: it compares a variant with itself, for the machine's noise floor."
        )
    notes += [f"Not read: {line}" for line in collected.unreadable[:MOST_NOTES]]
    if len(collected.unreadable) > MOST_NOTES:
        notes.append(f"Not read: {len(collected.unreadable) - MOST_NOTES} more files")
    return notes


def _runs(parts: Parts) -> Section:
    lines = []
    for one in parts.shown:
        versions = ", ".join(f"{library} {version}" for library, version in parts.collected.newest(one.case).versions)
        mark = parts.collected.newest(one.case)
        cells = (*one.where(), Cell(one.case.request), Cell(moment(one.run.started_at), mark.time), Cell(name(one.run.run_id)),
                 Cell(sentence(versions)), Cell(sentence(" ".join(one.run.command)) or DASH))  # fmt: skip
        lines.append(one.line(cells))
    columns = (*WHERE, *headings("request", "date", "run", "versions", "command"))
    return Section(
        "runs",
        "The runs behind this page",
        "Runs",
        "The newest run of each combination: its figures are the ones above.",
        (Table("newest", "Newest runs", columns, tuple(lines)),),
        empty="No run file could be read.",
    )


def _details(shown: list[Shown], most: int) -> tuple[dict[str, Detail], int]:
    """Each row's raw material by its name, until so many samples; and how many rows' samples are left out."""
    details, left_out, taken = {}, 0, 0
    columns = [field for field in FIELDS if field.shown is not Where.NEVER and field.key != "label"]
    for one in shown:
        about = _at(one)
        for row, summary in zip(one.run.rows, one.answer.rows, strict=True):
            samples = sum(len(block.samples) for block in row.blocks)
            if taken + samples > most:
                left_out += 1
                continue
            taken += samples
            pairs = ((field.title, field.show(summary)) for field in columns if field.only_for(one.run))
            figures = tuple((title, sentence(text)) for title, text in pairs if text != DASH)
            details[one.row_name(summary.label)] = Detail(
                name(summary.label), about, figures, _blocks(row), tuple(sentence(flag) for flag in summary.flags[:MOST_NOTES])
            )
    return details, left_out


def _blocks(row: Row) -> tuple[tuple[str, tuple[tuple[str, tuple[float, ...]], ...]], ...]:
    found = []
    for block in row.blocks:
        words = f"round {block.round + 1}{', cold' if block.cold else ''}"
        if block.status is not Status.OK:
            words += f", {why(block.status, block.reason)}"
        kinds = dict.fromkeys(sample.kind for sample in block.samples)
        walls = tuple((name(kind), tuple(float(f"{one.wall_s:.6g}") for one in block.of_kind(kind))) for kind in kinds)
        found.append((words, walls))
    return tuple(found)
