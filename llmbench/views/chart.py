"""The bar chart: for each run a group of bars, one for each variant, with spread, values and the limit that reading the weights sets.

Bars lie on their side, so that names, values and reasons are read without turning the head and thirty of them still fit. Every text has a
place of its own, computed from its drawn width: nothing overlaps whatever the numbers. matplotlib is imported only when something is drawn.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmbench import noise_floor
from llmbench.protocol import Run, Status
from llmbench.results.summary import RowSummary, sample_rates, summarise
from llmbench.views import fields
from llmbench.views.colors import color, hatches
from llmbench.views.text import ViewError, date, number, plain, shorten, shorten_middle, with_deviation

SUFFIXES = (".png", ".svg")

# Inches.
_WIDTH, _EDGE, _SLOT, _LIMIT_SLOT = 9.0, 0.18, 0.31, 0.26
_TITLE, _GROUP_TITLE, _GAP, _AXIS, _LINE = 0.38, 0.26, 0.2, 0.3, 0.17
_PANEL = 0.3

_FONT, _SMALL = 9.0, 7.8  # points
_INK, _FAINT, _LIMIT_INK = "#222222", "#666666", "#B00020"
_LABEL, _LABEL_FIRST, _DPI = 34, 24, 160
_PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}  # behind texts that a line may cross

#: Runs whose fastest rows differ by more than this have scales of their own: the smaller one's bars would be slivers.
_OWN_SCALE = 6.0
#: A limit further out than this many times the longest bar is named at the edge instead of drawn, which would squash the bars.
_FAR_LIMIT = 2.0


@dataclass(frozen=True)
class _Bar:
    row: RowSummary
    samples: list[float]
    text: str
    limit: float | None  # tokens/s per sequence, as the bars are

    @property
    def value(self) -> float | None:
        return self.row.tokens_per_s

    @property
    def end(self) -> float:
        """The furthest that anything drawn of this bar reaches, its text aside."""
        value = self.value or 0.0
        return max([value + (self.row.tokens_per_s_deviation or 0.0), *self.samples])


@dataclass(frozen=True)
class _Limit:
    """One line across neighbouring bars that read the same bytes for a token."""

    value: float
    dtype: str
    first: int
    last: int


@dataclass(frozen=True)
class _Group:
    run: Run
    bars: list[_Bar]
    limits: list[_Limit]
    panel: str = ""  # the device whose panel begins with this group; empty within one, and where all runs are of one device

    @property
    def height(self) -> float:
        return _SLOT * len(self.bars) + _LIMIT_SLOT * len(self.limits)

    @property
    def longest(self) -> float:
        return max((bar.end for bar in self.bars), default=0.0)

    @property
    def reach(self) -> float:
        """How far the scale has to go: the bars, and limits that are not too far off."""
        return max([self.longest, *(limit.value for limit in self.limits if not self.is_far(limit))])

    def is_far(self, limit: _Limit) -> bool:
        return limit.value > _FAR_LIMIT * self.longest


def draw(runs: Sequence[Run], path: Path) -> None:
    """Writes the runs' bar chart, as PNG or SVG by the suffix. The file appears whole or not at all, and replaces one of its name.

    Raises ViewError for another suffix, for no rows at all, and where the folder can't be written.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ViewError(f"can't draw {plain(path.name)!r}: the name must end in {' or '.join(SUFFIXES)}")
    groups = _panels([_group(run) for run in runs if run.rows])
    if not groups:
        raise ViewError("nothing to draw: the runs have no rows")
    temporary = path.with_name(f".llmbench-{secrets.token_hex(6)}.tmp")
    try:
        with temporary.open("xb") as file:
            _save(groups, file, path.suffix.lower()[1:])
        temporary.replace(path)
    except OSError as error:
        raise ViewError(f"can't write {plain(str(path))}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _panels(groups: list[_Group]) -> list[_Group]:
    """The groups, those of one device together, where the runs are of several: machines in the order in which they first come."""
    devices = list(dict.fromkeys(fields.device_words(group.run) for group in groups))
    if len(devices) < 2:
        return groups
    found: list[_Group] = []
    for device in devices:
        first, *others = [group for group in groups if fields.device_words(group.run) == device]
        found += [replace(first, panel=device), *others]
    return found


def _group(run: Run) -> _Group:
    batch = run.request.batch_size
    bars = []
    for row, summary in zip(run.rows, summarise(run), strict=True):
        samples = [rate for block in row.blocks for rate in sample_rates(run, block)]
        limit = summary.limit_tokens_per_s
        bars.append(_Bar(summary, samples, _bar_text(summary), None if limit is None else limit / batch))
    return _Group(run, bars, _limits(bars))


def _bar_text(row: RowSummary) -> str:
    """What stands beside a bar. The reason of a row that has a bar is left to the table: it would push the bars aside."""
    if row.tokens_per_s is None:
        words = "not measured" if row.status is Status.OK else row.status.words
        return f"{words}: {plain(row.reason)}" if row.reason else words
    parts = [with_deviation(row.tokens_per_s, row.tokens_per_s_deviation)]
    if row.speedup is not None and not row.is_baseline:
        parts.append(fields.ratio_words(row))
        parts += [row.verdict.value] if row.verdict else []
    if row.status is not Status.OK:
        parts.append(row.status.words)
    return "   ".join(parts)


def _noise_floor(run: Run) -> str:
    if run.aa:
        floor = noise_floor.of_run(run)
        return (
            f"one variant under two names: noise floor {number(100 * floor, 2)} %" if floor is not None else "one variant under two names"
        )
    return f"noise floor {number(100 * run.noise_floor, 2)} %" if run.noise_floor is not None else ""


def _limits(bars: Sequence[_Bar]) -> list[_Limit]:
    """Neighbouring rows with the same bytes per token share a limit: the highest bandwidth probed around any of them.

    Rows without one (failed, say) go with the limit before them.
    """
    limits: list[_Limit] = []
    reads: int | None = None
    for place, bar in enumerate(bars):
        if bar.limit is None:
            continue
        if limits and bar.row.bytes_per_token == reads:
            limits[-1] = _Limit(max(limits[-1].value, bar.limit), bar.row.dtype, limits[-1].first, place)
        else:
            limits.append(_Limit(bar.limit, bar.row.dtype, 0 if not limits else place, place))
        reads = bar.row.bytes_per_token
    return limits


# ---------------------------------------------------------------------------------------------------------------------------- drawing


def _save(groups: list[_Group], file: Any, kind: str) -> None:
    import matplotlib.style

    # The user's own matplotlibrc (usetex, fonts, sizes) must not change the picture; a glyph that the font lacks is a box and no warning.
    with matplotlib.style.context("default"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        matplotlib.rcParams.update({"font.size": _FONT, "svg.hashsalt": "llmbench", "hatch.linewidth": 0.7, "text.usetex": False})
        figure = _Picture(groups).figure
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(file, format=kind, dpi=_DPI, metadata=metadata)


def _escape(text: str) -> str:
    """Text in which matplotlib finds no mathematics."""
    return text.replace("$", r"\$")


class _Picture:
    def __init__(self, groups: list[_Group]) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.groups = groups
        self.hatch = hatches((bar.row.engine, bar.row.label) for group in groups for bar in group.bars)
        reaches = [group.reach for group in groups if group.longest > 0]
        self.own_scales = len(reaches) > 1 and max(reaches) > _OWN_SCALE * min(reaches)

        self.figure: Any = Figure(figsize=(_WIDTH, 1), dpi=100)
        self.canvas: Any = FigureCanvasAgg(self.figure)
        lines = [line for group in groups for bar in group.bars for line in self._label(bar).split("\n")]
        self.left = _EDGE + max(self._inches(line, _FONT) for line in lines) + 0.1
        self.plot_width = _WIDTH - self.left - _EDGE
        caption = self._caption()

        measured = [group for group in groups if group.longest > 0]
        axes = [group in measured and (self.own_scales or group is measured[-1]) for group in groups]
        titles = [self._group_title(group) for group in groups]
        heights = [_GROUP_TITLE + _LINE * (len(title) - 1) + group.height for group, title in zip(groups, titles, strict=True)]
        panels = [_PANEL if group.panel else 0.0 for group in groups]
        height = _TITLE + sum(heights) + sum(panels) + _AXIS * sum(axes) + _GAP * len(groups) + _LINE * len(caption) + 2 * _EDGE
        self.height = height
        self.figure.set_size_inches(_WIDTH, height)

        top = height - _EDGE
        self._write(_EDGE, top, "Tokens per second" + (", per sequence" if self._batched() else ""), size=13, weight="bold", va="top")
        top -= _TITLE
        shared = None if self.own_scales else max(self._scale(group) for group in groups)
        for group, title, with_axis, taken, panel in zip(groups, titles, axes, heights, panels, strict=True):
            if group.panel:
                self._write(_EDGE, top, self._fit(group.panel, _WIDTH - 2 * _EDGE, 12), size=11.5, weight="bold", color=_FAINT, va="top")
            top -= panel
            for place, line in enumerate(title):
                self._write(_EDGE, top - _LINE * place, line, size=10 if place == 0 else _SMALL, weight="bold" if place == 0 else "normal",
                            color=_INK if place == 0 else _FAINT, va="top")  # fmt: skip
            bottom = top - taken
            self._draw_group(group, bottom, shared or self._scale(group), with_axis)
            top = bottom - _GAP - (_AXIS if with_axis else 0.0)
        for place, line in enumerate(reversed(caption)):
            self._write(_EDGE, _EDGE + _LINE * place, line, size=_SMALL, color=_FAINT, va="bottom")

    def _batched(self) -> bool:
        return any(group.run.request.batch_size > 1 for group in self.groups)

    # ---- text and its size

    def _inches(self, text: str, size: float, weight: str = "normal") -> float:
        from matplotlib.font_manager import FontProperties

        renderer = self.canvas.get_renderer()
        font = FontProperties(size=size, weight=weight)
        width, _, _ = renderer.get_text_width_height_descent(text, font, ismath=False)
        return float(width) / float(self.figure.dpi)

    def _fit(self, text: str, inches: float, size: float) -> str:
        """The text, shortened until it is no wider."""
        if self._inches(text, size) <= inches:
            return text
        fits, longer = 1, len(text)
        while longer - fits > 1:
            middle = (fits + longer) // 2
            fits, longer = (middle, longer) if self._inches(shorten(text, middle), size) <= inches else (fits, middle)
        return shorten(text, fits)

    def _write(self, x: float, y: float, text: str, **style: Any) -> None:
        """Text at inches from the lower left corner."""
        self.figure.text(x / _WIDTH, y / self.height, _escape(text), **{"color": _INK, **style})

    def _label(self, bar: _Bar) -> str:
        """The variant's label, on two lines where its options make it long."""
        label = plain(bar.row.label)
        if len(label) <= _LABEL_FIRST:
            return label or "?"
        engine, bracket, options = label.partition("[")
        lines = [engine, bracket + options] if engine and bracket else [label]
        return "\n".join(shorten_middle(line, _LABEL) for line in lines)

    def _common(self) -> list[str]:
        """What all runs share, for the caption, so that titles carry only what differs."""
        facts = [self._facts(group.run) for group in self.groups]
        return [fact for fact in facts[0] if all(fact in others for others in facts)]

    @staticmethod
    def _facts(run: Run) -> list[str]:
        facts = (
            fields.source_words(run),
            plain(run.dtype),
            fields.device_words(run),
            fields.request_words(run),
            fields.plan_words(run),
            date(run.started_at),
            "interrupted" if run.interrupted else "",
            _noise_floor(run),
        )
        return [fact for fact in facts if fact]

    def _group_title(self, group: _Group) -> list[str]:
        common = self._common()
        named = {fields.device_words(group.run)} if any(group.panel for group in self.groups) else set()  # the panel says it
        own = [fact for fact in self._facts(group.run) if fact not in common and fact not in named]
        return [self._fit(plain(group.run.model.name) or "unnamed model", _WIDTH - 2 * _EDGE, 10.5), *self._lines(own)]

    def _caption(self) -> list[str]:
        return [*self._lines(self._common()), *self._lines(self._legend())]

    def _legend(self) -> list[str]:
        """How to read what is drawn, for those things that are."""
        bars = [bar for group in self.groups for bar in group.bars]
        if all(bar.value is None for bar in bars):
            return []
        parts = ["bar: median of the rounds", "whisker: ± standard deviation", "dot: one generation"]
        baselines = {plain(bar.row.label) for bar in bars if bar.row.is_baseline}
        if baselines and len(bars) > 1:
            words = f"x: ratio to {shorten(baselines.pop(), _LABEL) if len(baselines) == 1 else 'the baseline'}"
            confidences = {group.run.plan.confidence for group in self.groups}
            if any(bar.row.verdict for bar in bars) and len(confidences) == 1:
                words += f" [{100 * confidences.pop():g} % interval, all ratios of a run together]"
            parts.append(words)
        if any(group.limits for group in self.groups):
            sources = sorted({bar.row.limit_source for bar in bars if bar.row.limit_source})
            parts.append("limit: what the probed memory bandwidth allows" + (f", or the {', '.join(sources)}" if sources else ""))
        if self.own_scales:
            parts.append("each group has its own scale")
        return parts

    def _lines(self, parts: list[str]) -> list[str]:
        """Parts between middle dots, on as many lines as they need."""
        lines: list[str] = []
        for part in parts:
            longer = f"{lines[-1]} · {part}" if lines else part
            if lines and self._inches(longer, _SMALL) <= _WIDTH - 2 * _EDGE:
                lines[-1] = longer
            else:
                lines.append(self._fit(part, _WIDTH - 2 * _EDGE, _SMALL))
        return lines

    # ---- one group

    def _scale(self, group: _Group) -> float:
        """The value at the right edge: each bar's text has room beyond its end, the limits lie within."""
        edge = group.reach * 1.02
        for bar in group.bars:
            if bar.value is None:
                continue
            room = self.plot_width - min(self._inches(self._value_text(bar), _FONT), 0.72 * self.plot_width) - 0.16
            edge = max(edge, bar.end * self.plot_width / room)
        return edge or 1.0

    def _value_text(self, bar: _Bar) -> str:
        return self._fit(bar.text, 0.7 * self.plot_width if bar.value is not None else self.plot_width - 0.2, _FONT)

    def _draw_group(self, group: _Group, bottom: float, edge: float, with_axis: bool) -> None:
        axes = self.figure.add_axes((self.left / _WIDTH, bottom / self.height, self.plot_width / _WIDTH, group.height / self.height))
        axes.set_xlim(0, edge)
        axes.set_ylim(group.height, 0)  # inches from the top, so that slots are as high everywhere
        axes.set_yticks([])
        for side in ("top", "right", "bottom"):
            axes.spines[side].set_visible(False)
        axes.spines["left"].set_color("#AAAAAA")
        axes.spines["left"].set_visible(group.longest > 0)
        axes.tick_params(axis="x", colors=_FAINT, labelsize=_SMALL, length=3, labelbottom=with_axis, bottom=with_axis)
        axes.xaxis.set_major_locator(_locator())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        if group.longest > 0:
            axes.grid(axis="x", color="#E6E6E6", linewidth=0.8)
        axes.set_axisbelow(True)

        y = 0.0
        for place, bar in enumerate(group.bars):
            for limit in group.limits:
                if limit.first == place:
                    self._draw_limit(axes, group, limit, y, edge)
                    y += _LIMIT_SLOT
            self._draw_bar(axes, bar, y + _SLOT / 2, edge)
            y += _SLOT

    def _draw_bar(self, axes: Any, bar: _Bar, y: float, edge: float) -> None:
        label = _escape(self._label(bar))
        axes.text(-0.07 / self.plot_width * edge, y, label, ha="right", va="center" if "\n" in label else "center_baseline",
                  color=_INK, size=_FONT - ("\n" in label), linespacing=1.15)  # fmt: skip
        per_inch = edge / self.plot_width
        if bar.value is None:
            axes.text(0.08 * per_inch, y, _escape(self._value_text(bar)), va="center_baseline", color=_FAINT, size=_FONT, style="italic",
                      zorder=6, bbox=_PAPER)  # fmt: skip
            return
        is_good = bar.row.status is Status.OK
        axes.barh(y, bar.value, height=_SLOT * 0.72, color=color(bar.row.engine), alpha=1.0 if is_good else 0.45, zorder=2,
                  hatch=self.hatch[bar.row.label], edgecolor="white" if self.hatch[bar.row.label] else "none", linewidth=0)  # fmt: skip
        if bar.row.tokens_per_s_deviation:
            axes.errorbar(bar.value, y, xerr=bar.row.tokens_per_s_deviation, fmt="none", ecolor=_INK, elinewidth=1.1, capsize=3.5, zorder=4)
        if len(bar.samples) > 1:
            # Spread over the bar's height in the order they were taken: drift from round to round shows as a slope.
            heights = [y + _SLOT * 0.5 * (place / (len(bar.samples) - 1) - 0.5) for place in range(len(bar.samples))]
            axes.scatter(bar.samples, heights, s=5, color="white", edgecolors=_INK, linewidths=0.5, zorder=5)
        axes.text(bar.end + 0.08 * per_inch, y, _escape(self._value_text(bar)), va="center_baseline", size=_FONT, color=_INK, zorder=6,
                  bbox=_PAPER)  # fmt: skip

    def _draw_limit(self, axes: Any, group: _Group, limit: _Limit, y: float, edge: float) -> None:
        """The line across its bars, its label in a slot above them."""
        dtypes = {one.dtype for one in group.limits}
        text = f"limit {number(limit.value)} tokens/s" + (f" in {plain(limit.dtype)}" if len(dtypes) > 1 else "")
        style: dict[str, Any] = {"va": "center", "size": _SMALL, "color": _LIMIT_INK, "zorder": 6, "bbox": _PAPER}
        middle = y + _LIMIT_SLOT / 2
        if limit.value > edge:
            axes.text(edge, middle, _escape(f"{text} →"), ha="right", **style)
            return
        bottom = y + _LIMIT_SLOT + _SLOT * (limit.last - limit.first + 1)
        axes.plot([limit.value] * 2, [y + 0.04, bottom], color=_LIMIT_INK, linewidth=1.2, linestyle=(0, (4, 2)), zorder=3, clip_on=False)
        gap = 0.07 * edge / self.plot_width
        fits_left = limit.value / edge * self.plot_width > self._inches(text, _SMALL) + 0.1
        axes.text(
            limit.value - gap if fits_left else limit.value + gap, middle, _escape(text), ha="right" if fits_left else "left", **style
        )


def _locator() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=6, min_n_ticks=2, steps=[1, 2, 2.5, 5, 10])
