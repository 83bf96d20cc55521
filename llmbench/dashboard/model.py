"""What the page shows, as plain values: tables of cells, bars and lines, in the order they are read. No HTML, no colours.

page.py and markdown.py write the same Report down, so that a pull request and a browser tell the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cell:
    """One cell. `order`: what it is sorted by; null sorts last. `flag`: past a limit. `row`: whose raw samples it opens."""

    text: str
    order: float | None = None
    hint: str = ""  # where the figure comes from, shown below the table and on pointing
    flag: bool = False
    row: str | None = None


@dataclass(frozen=True)
class Line:
    """One row of a table. The filters go by machine, model and dtype; empty: it belongs to all."""

    cells: tuple[Cell, ...]
    machine: str = ""
    model: str = ""
    dtype: str = ""


@dataclass(frozen=True)
class Table:
    """`columns`: a heading and whether it holds numbers. `notes` stand below, a line each."""

    name: str
    caption: str
    columns: tuple[tuple[str, bool], ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    evidence: bool = False  # hints are footnotes


@dataclass(frozen=True)
class Bar:
    """One row's bar in a case. Rates in tokens/s of one sequence; null where nothing was measured."""

    row: str
    label: str
    engine: str
    rate: float | None
    deviation: float | None
    value: str  # as people read it
    ratio: str
    words: str  # verdict, or the status and the reason
    is_best: bool
    limit: float | None


@dataclass(frozen=True)
class CaseView:
    """The newest run of one case: the answer, its bars, what went wrong."""

    name: str
    machine: str
    model: str
    dtype: str
    request: str
    when: str
    head: str  # "torch-compile"
    by: str  # "1.12x tensorrt-llm"
    sentence: str
    rest: str  # the sentence without what head and by say
    bars: tuple[Bar, ...]
    limit_words: str
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Point:
    time: float
    value: float
    words: str
    change: str = ""  # "faster" or "slower" than the point before, where the intervals decide it


@dataclass(frozen=True)
class Series:
    label: str
    engine: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Chart:
    """Lines over dates (`dates`), or over a quantity. `marks`: times at which something else changed, with what."""

    name: str
    title: str
    unit: str
    series: tuple[Series, ...]
    dates: bool = True
    marks: tuple[tuple[float, str], ...] = ()
    across: str = ""  # what the x axis is, where it isn't dates
    machine: str = ""
    model: str = ""
    dtype: str = ""


@dataclass(frozen=True)
class Section:
    name: str
    title: str
    short: str  # in the list of sections
    lead: str
    tables: tuple[Table, ...] = ()
    charts: tuple[tuple[Chart, ...], ...] = ()  # groups: of each one is seen at a time
    empty: str = ""  # what is said where there is nothing to show


@dataclass(frozen=True)
class Detail:
    """A row's raw material: figures as the terminal's details show them, blocks with their samples' walls in seconds."""

    title: str
    about: str
    figures: tuple[tuple[str, str], ...]
    blocks: tuple[tuple[str, tuple[tuple[str, tuple[float, ...]], ...]], ...]  # words -> (kind, walls)
    notes: tuple[str, ...] = ()


@dataclass
class Report:
    title: str
    made: str
    about: str  # how many runs, of when
    headline: str
    headline_parts: tuple[str, ...]
    cases: tuple[CaseView, ...]
    sections: tuple[Section, ...]
    details: dict[str, Detail] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what was left out, and files that could not be read
    machines: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
