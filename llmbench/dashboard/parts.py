"""What all sections are made from: the newest run of each case, whole, with its answer, and the cells that many tables share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from llmbench.dashboard.answer import Answer
from llmbench.dashboard.collect import Case, Collected, name, sentence
from llmbench.dashboard.model import Cell, Line
from llmbench.protocol import Run, Status
from llmbench.results.startup import StartUp
from llmbench.results.suite_summary import LEAST_COMPRESSION, LEAST_SPEEDUP, MOST_COMPILE_S
from llmbench.results.summary import RowSummary
from llmbench.views.fields import FIELDS
from llmbench.views.text import DASH, number, shorten

#: The most characters of a figure: 1e300 has three hundred.
FIGURE = 40
_FIELDS = {field.key: field for field in FIELDS}


@dataclass(frozen=True)
class Choices:
    """What a reader may set. `limits`: figure of suite_summary.Entry -> the value past which a model is flagged."""

    worst: int = 10
    limits: dict[str, float] = field(
        default_factory=lambda: {"speedup": LEAST_SPEEDUP, "compile_s": MOST_COMPILE_S, "memory_compression": LEAST_COMPRESSION}
    )
    most_cases: int = 300
    most_samples: int = 60_000

    def is_beyond(self, metric: str, value: float) -> bool:
        return value > self.limits[metric] if metric == "compile_s" else value < self.limits[metric]


@dataclass(frozen=True)
class Shown:
    """The newest run of a case. `place` numbers it, and with it the names of its rows' details."""

    place: int
    case: Case
    run: Run
    answer: Answer
    starts: tuple[StartUp, ...]

    def row_name(self, label: str) -> str:
        return f"c{self.place}r{next((place for place, row in enumerate(self.run.rows) if row.variant.label == label), 0)}"

    def line(self, cells: Sequence[Cell]) -> Line:
        return Line(tuple(cells), self.case.machine, self.case.model, self.case.dtype)

    def where(self) -> list[Cell]:
        """The cells that most tables begin with: machine, model, dtype."""
        return [Cell(self.case.machine), Cell(self.case.model), Cell(self.case.dtype)]

    def engine(self, label: str) -> Cell:
        return Cell(name(label), row=self.row_name(label))

    @property
    def good_rows(self) -> list[RowSummary]:
        """Rows with a rate that can be believed: an inaccurate one's is no engine's."""
        sound = (Status.OK, Status.INTERRUPTED)
        return [row for row in self.answer.rows if row.tokens_per_s is not None and row.status in sound]


@dataclass
class Parts:
    """Everything that sections are made from."""

    collected: Collected
    shown: list[Shown]
    choices: Choices

    @property
    def measured(self) -> list[Shown]:
        """Without runs of start-ups whose request was measured as usual, too."""
        usual = {one.case.key[:-1] for one in self.shown if not one.case.startup}
        return [one for one in self.shown if not one.case.startup or one.case.key[:-1] not in usual]


#: Headings of `Shown.where`.
WHERE = (("machine", False), ("model", False), ("dtype", False))


def figure(row: RowSummary, key: str, hint: str = "") -> Cell:
    """A figure of a row as every table of llmbench shows it, sorted by its exact value."""
    value = getattr(row, key)
    order = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    return Cell(shorten(_FIELDS[key].show(row), FIGURE), order, hint)


def amount(value: float | None, *, digits: int = 3, most_decimals: int | None = None, unit: str = "", hint: str = "") -> Cell:
    """A number with its unit; a dash for null."""
    text = shorten(number(value, digits, most_decimals=most_decimals), FIGURE)
    return Cell(text if text == DASH else f"{text}{unit}", value, hint)


def why(status: Status, reason: str | None) -> str:
    """`out of device memory: needs 14 GiB`."""
    return status.words + (f": {sentence(reason)}" if reason else "")


def headings(*names: str) -> tuple[tuple[str, bool], ...]:
    """Columns: a name that begins with # holds numbers."""
    return tuple((one.lstrip("#"), one.startswith("#")) for one in names)
