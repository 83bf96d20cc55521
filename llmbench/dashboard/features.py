"""What each engine can do, a feature a line: filled from what the runs show and from what the registry declares, each cell with its evidence.

Nothing is asserted from memory: where no run shows it and the registry doesn't say it, the cell is "not measured".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from llmbench import statistics
from llmbench.dashboard.collect import name
from llmbench.dashboard.model import Cell, Line, Section, Table
from llmbench.dashboard.parts import Parts, Shown
from llmbench.engines.registry import EngineSpec, engines
from llmbench.protocol import Row, Status
from llmbench.results.startup import StartUp
from llmbench.views.text import duration, plural, shorten

UNKNOWN = "not measured"
MOST_ENGINES = 12


@dataclass
class Seen:
    """What the newest runs show of one engine. `spec`: what the registry declares; null for an engine that isn't installed here."""

    spec: EngineSpec | None
    rows: list[tuple[Shown, Row, StartUp]] = field(default_factory=list)  # good ones alone

    def unique(self, of: Callable[[Shown, Row], str]) -> list[str]:
        return list(dict.fromkeys(name(of(one, row)) for one, row, _ in self.rows if of(one, row)))

    def starts(self, of: Callable[[StartUp], float | None]) -> list[float]:
        return [value for _, _, start in self.rows if (value := of(start)) is not None]


def features(parts: Parts) -> Section:
    seen = _seen(parts)
    kinds = (
        ("dynamic shapes", _shapes), ("hardware", _hardware), ("precision", _precision), ("steps to deploy", _steps),
        ("reuse of compilation", _reuse),
    )  # fmt: skip
    lines = tuple(Line((Cell(words), *(of(entry) for entry in seen.values()))) for words, of in kinds)
    return Section(
        "features",
        "What each engine can do",
        "Features",
        "Filled from these runs and from what the engines declare, never from memory; the numbers lead to the evidence below the table.",
        (Table("features-table", "Features by engine", (("feature", False), *((engine, False) for engine in seen)), lines if seen else (),
               evidence=True),),
        empty="No engine was measured.",
    )  # fmt: skip


def _seen(parts: Parts) -> dict[str, Seen]:
    known = engines()
    found: dict[str, Seen] = {}
    for one in parts.shown:
        for row, start in zip(one.run.rows, one.starts, strict=True):
            seen = found.setdefault(name(row.variant.engine), Seen(known.get(row.variant.engine)))
            if row.status is Status.OK and start.tokens_per_s is not None:
                seen.rows.append((one, row, start))
    ranked = sorted((entry for entry in found.items() if entry[0] != "fake" or len(found) == 1), key=lambda entry: -len(entry[1].rows))
    return dict(ranked[:MOST_ENGINES])


def _shapes(seen: Seen) -> Cell:
    """One compilation, or one artifact, for prompts of several lengths; or how often it compiled again."""
    if not seen.rows:
        return Cell(UNKNOWN)
    told = [found for _, row, _ in seen.rows for block in row.blocks if (found := block.compilation) is not None]
    lengths: dict[str, set[int]] = {}
    for one, row, _ in seen.rows:
        for block in row.blocks:
            if block.artifact is not None:
                lengths.setdefault(block.artifact.key, set()).add(len(one.run.request.prompt_ids))
    if lengths:
        most = max(map(len, lengths.values()))
        hint = f"{plural(len(lengths), 'artifact')} in these runs; the most used one served prompts of {plural(most, 'length')}"
        return Cell(f"one artifact, {most} prompt lengths" if most > 1 else UNKNOWN, hint=hint)
    if told:
        again = max(found.recompiles for found in told)
        hint = f"the most in one of {len(told)} processes, each of which generated one token and many"
        return Cell("no recompilation" if again == 0 else plural(again, "recompilation"), hint=hint)
    if seen.spec is not None and not seen.spec.compiles and not seen.spec.artifact:
        return Cell("any", hint="declared: it neither compiles nor builds")
    return Cell(UNKNOWN)


def _hardware(seen: Seen) -> Cell:
    measured = seen.unique(lambda one, row: one.case.machine)
    declared = f"declared: {', '.join(seen.spec.devices)}" if seen.spec is not None else ""
    if not measured:
        return Cell(f"{UNKNOWN}; {declared}" if declared else UNKNOWN)
    shown = ", ".join(measured[:4]) + (f" and {len(measured) - 4} more" if len(measured) > 4 else "")
    return Cell(shown, hint="; ".join(part for part in (f"good rows on {plural(len(measured), 'machine')}", declared) if part))


def _precision(seen: Seen) -> Cell:
    formats = seen.unique(lambda one, row: row.variant.quantization or row.variant.dtype)
    declared = f"declared: {', '.join((*seen.spec.dtypes, *seen.spec.quantizations))}" if seen.spec is not None else ""
    if not formats:
        return Cell(f"{UNKNOWN}; {declared}" if declared else UNKNOWN)
    return Cell(", ".join(formats), hint="; ".join(part for part in (f"{plural(len(seen.rows), 'good row')}", declared) if part))


def _steps(seen: Seen) -> Cell:
    spec = seen.spec
    if spec is None and not seen.rows:
        return Cell(UNKNOWN)
    steps = [f"install llmbench[{spec.extra}]" if spec is not None and spec.extra else "install"]
    hints = []
    build = seen.starts(lambda start: start.cold.build_s if start.cold is not None and start.cold.build_s else None)
    if build:
        steps.append(f"build, {_seconds(build)}")
        hints.append(f"build: median of {plural(len(build), 'row')}")
    elif spec is not None and spec.artifact and not spec.compiles:
        steps.append("build")
    load = seen.starts(lambda start: start.cold.load_s if start.cold is not None else None)
    steps.append(f"load, {_seconds(load)}" if load else "load")
    compiled = seen.starts(lambda start: start.cold.compile_s if start.cold is not None else None)
    if spec is not None and spec.compiles:
        steps.append(f"compile on first use, {_seconds(compiled)}" if compiled else "compile on first use")
    hints.append(f"seconds: medians over {plural(len(load), 'row')}" if load else "declared")
    return Cell(" → ".join(steps), hint="; ".join(hints))


def _seconds(values: list[float]) -> str:
    return shorten(duration(statistics.median(values) or 0.0), 20)


def _reuse(seen: Seen) -> Cell:
    pairs = [
        (start.cold.ready_s, start.warm.ready_s)
        for _, _, start in seen.rows
        if start.cold is not None and start.warm is not None and start.cold.ready_s and start.warm.ready_s
    ]
    if not pairs:
        return Cell(UNKNOWN)
    cold, warm = (_seconds([pair[place] for pair in pairs]) for place in (0, 1))
    hits = sum(block.compilation.cache_hits for _, row, _ in seen.rows for block in row.blocks if block.compilation is not None)
    hint = f"start-up seconds, medians over {plural(len(pairs), 'row')}" + (f"; {hits} graphs came out of a cache" if hits else "")
    return Cell(f"cold {cold}, warm {warm}", hint=hint)
