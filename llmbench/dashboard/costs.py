"""The sections beside speed: what starting costs and when it pays, precision with its quality, growth with batch and context, energy."""

from __future__ import annotations

from collections.abc import Callable

from llmbench.dashboard.collect import moment, sentence
from llmbench.dashboard.model import Cell, Chart, Line, Point, Section, Series, Table
from llmbench.dashboard.parts import WHERE, Parts, Shown, amount, figure, headings
from llmbench.protocol import Status
from llmbench.results.startup import Start, StartUp, break_even
from llmbench.results.summary import RowSummary
from llmbench.views.startup_table import WHAT_STARTING_IS, break_even_words, tokens_words
from llmbench.views.text import DASH

Rows = list[tuple[Shown, RowSummary]]


def startup(parts: Parts) -> Section:
    started = {one.case.key[:-1] for one in parts.shown if one.case.startup}
    shown = [one for one in parts.shown if one.case.startup or one.case.key[:-1] not in started]
    parts_of = (
        *WHERE,
        *headings("engine", "start", "#process", "#build", "#load", "#compile", "#ready", "#first token after", "#on disk MB"),
    )
    pays = (*WHERE, *headings("engine", "#cold, ahead after", "#warm, ahead after", "in words"))
    return Section(
        "startup",
        "Start-up and break-even",
        "Start-up",
        WHAT_STARTING_IS,
        (
            Table(
                "starts", "Seconds until it generates at its steady rate", parts_of, tuple(line for one in shown for line in _starts(one))
            ),
            Table(
                "pays",
                "After how many new tokens an engine has made up for its start, against the baseline",
                pays,
                tuple(line for one in shown for line in _pays(one)),
            ),
        ),
        empty="No run tells what starting took.",
    )


def _starts(one: Shown) -> list[Line]:
    lines = []
    for start in one.starts:
        for words, found in (("cold", start.cold), ("warm", start.warm)):
            if found is None:
                continue
            hint = f"built before this run, {moment(start.built_at)}" if words == "cold" and start.built_at else ""
            disk = start.disk_bytes / 1e6 if start.disk_bytes is not None else None
            lines.append(
                one.line([*one.where(), one.engine(start.label), Cell(words, hint=hint), *_parts(found), amount(disk, most_decimals=1)])
            )
    return lines


def _parts(start: Start) -> list[Cell]:
    seconds = (start.process_s, start.build_s, start.load_s, start.compile_s, start.ready_s, start.to_first_token_s)
    return [amount(value, most_decimals=2) for value in seconds]


def _pays(one: Shown) -> list[Line]:
    measured = [start for start in one.starts if start.tokens_per_s is not None and start.cold is not None]
    base = next((start for start in measured if start.label == one.run.baseline), None)
    lines = []
    for start in measured:
        if base is None or start is base:
            continue
        words = break_even_words(one.run, start, measured)
        cells = (_ahead(one, start, base, False), _ahead(one, start, base, True), Cell(sentence(words[0]) if words else DASH))
        lines.append(one.line([*one.where(), one.engine(start.label), *cells]))
    return lines


def _ahead(one: Shown, start: StartUp, base: StartUp, warm: bool) -> Cell:
    found = break_even(one.run, start, base, warm)
    return Cell(DASH) if found is None else Cell(tokens_words(found.tokens), found.tokens)


def precision(parts: Parts) -> Section:
    columns = (*WHERE, *headings("engine", "stored in", "computed in", "#tokens/s", "#ratio", "accuracy", "#logit error %", "#allowed %",
                                 "#KL nats", "#top-1 %", "#weights GiB"))  # fmt: skip
    keys = ("storage_dtype", "arithmetic_dtype", "tokens_per_s", "speedup", "accuracy", "accuracy_error", "accuracy_tolerance", "quality_kl",
            "quality_top1", "weights_gib")  # fmt: skip
    lines = [
        one.line(
            [
                *one.where(),
                one.engine(row.label),
                *(Cell(cell.text, cell.order, flag=cell.text == "failed") for cell in (figure(row, key) for key in keys)),
            ]
        )
        for one in parts.measured
        for row in one.answer.rows
        if row.tokens_per_s is not None or row.accuracy is not None
    ]
    note = (
        "logit error: root mean square difference from float32 arithmetic on the same weights, over the reference's own; it decides pass or "
        "fail. KL and top-1 compare with the unquantised model: that is quality, and fails no row."
    )
    return Section(
        "precision",
        "Precision, quantization and quality",
        "Precision",
        "What a number format gains in speed and loses in accuracy.",
        (Table("precisions", "Formats, speed and accuracy", columns, tuple(lines), (note,)),),
        empty="No row was measured.",
    )


def growth(parts: Parts) -> Section:
    """Cases that differ in batch size or prompt length alone stand together."""
    groups: dict[tuple[object, ...], list[Shown]] = {}
    for one in parts.measured:
        key = (one.case.place, one.case.model, one.case.dtype, one.case.max_new_tokens)
        groups.setdefault(key, []).append(one)
    lines: list[Line] = []
    charts: list[tuple[Chart, ...]] = []
    for members in groups.values():
        batches, lengths = ({getattr(one.case, key) for one in members} for key in ("batch_size", "prompt_ids"))
        if len(batches) < 2 and len(lengths) < 2:
            continue
        members.sort(key=lambda one: (one.case.prompt_ids, one.case.batch_size))
        for one in members:
            for row in one.good_rows:
                cells = (amount(float(one.case.prompt_ids), digits=12), amount(float(one.case.batch_size), digits=12))
                figures = (figure(row, key) for key in ("tokens_per_s", "total_tokens_per_s", "ttft_s", "tpot_s", "peak_memory_gib"))
                lines.append(one.line([*one.where(), one.engine(row.label), *cells, *figures]))
        group = (
            *_grown(members, "batch_size", "prompt_ids", "batch size", "tokens/s, all sequences", lambda row: row.total_tokens_per_s),
            *_grown(members, "prompt_ids", "batch_size", "prompt ids", "tokens/s of one sequence", lambda row: row.tokens_per_s),
        )
        if group and len(charts) < 24:
            charts.append(group)
    columns = (*WHERE, *headings("engine", "#prompt ids", "#batch", "#tokens/s", "#all tokens/s", "#TTFT ms", "#TPOT ms", "#peak GiB"))
    return Section(
        "growth",
        "Growth with batch and context",
        "Growth",
        "The same model and machine with other batch sizes and prompt lengths.",
        (Table("grown", "By batch size and prompt length", columns, tuple(lines)),),
        tuple(charts),
        empty="No model was run with several batch sizes or prompt lengths (llmbench compare --batch-size 1,4 --input-len 128,1024).",
    )


def _grown(
    members: list[Shown], along: str, fixed: str, across: str, unit: str, value: Callable[[RowSummary], float | None]
) -> list[Chart]:
    charts = []
    for at in dict.fromkeys(getattr(one.case, fixed) for one in members):
        chosen = [one for one in members if getattr(one.case, fixed) == at]
        if len({getattr(one.case, along) for one in chosen}) < 2:
            continue
        lines: dict[tuple[str, str], list[Point]] = {}
        for one in chosen:
            x = float(getattr(one.case, along))
            for row in one.good_rows:
                rate = value(row)
                if rate is not None and row.status is Status.OK:
                    lines.setdefault((row.label, row.engine), []).append(Point(x, rate, f"{across} {x:g}: {rate:.4g} {unit}"))
        first = chosen[0]
        series = tuple(Series(sentence(label), engine, tuple(points)) for (label, engine), points in lines.items() if len(points) > 1)
        if series:
            title = f"{first.case.words}, {'batch' if fixed == 'batch_size' else 'prompt ids'} {at}"
            charts.append(
                Chart(
                    f"g{first.place}-{along}-{at}",
                    title,
                    unit,
                    series,
                    dates=False,
                    across=across,
                    machine=first.case.machine,
                    model=first.case.model,
                    dtype=first.case.dtype,
                )
            )
    return charts


def energy(parts: Parts) -> Section:
    lines = [
        one.line([*one.where(), one.engine(row.label), figure(row, "joules_per_token"), figure(row, "tokens_per_s")])
        for one in parts.measured
        for row in one.good_rows
        if row.joules_per_token is not None
    ]
    return Section(
        "energy",
        "Energy",
        "Energy",
        "Joules for a new token, from the device's or the processor package's own counter, over the same generations that are timed.",
        (Table("joules", "Energy for a token", (*WHERE, *headings("engine", "#J/token", "#tokens/s")), tuple(lines)),),
        empty="No machine here has an energy counter that could be read.",
    )
