"""Bars and lines as inline SVG: presentation attributes and no style, so that the page's policy needs to allow none.

Colours are the engines' own (views.colors), as in every picture of llmbench; everything else takes its colour from the page's style sheet by class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

from llmbench.dashboard.model import Bar, Chart, Point, Series
from llmbench.views.colors import color

#: A limit further out than this many times the longest bar is told in words alone: it would squash the bars.
FAR = 2.0
_WIDTH, _HEIGHT = 720, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 12, 30
_DASHES = ("", "6 3", "2 3", "8 3 2 3", "12 4")


def bar(one: Bar, most: float) -> Markup:
    """One bar with its deviation and its limit, as wide as its place. `most`: the rate that fills it, tokens/s."""
    if not one.rate or not most:
        return Markup('<svg class="plot" height="20" aria-hidden="true"></svg>')
    width = 100 * one.rate / most
    parts = [f'<rect class="bar" height="20" width="{width:.2f}%" fill="{color(one.engine)}" rx="2"/>']
    if one.deviation:
        ends = [100 * max(0.0, min(one.rate + side * one.deviation, most)) / most for side in (-1, 1)]
        parts.append(f'<line class="whisker" x1="{ends[0]:.2f}%" x2="{ends[1]:.2f}%" y1="10" y2="10"/>')
    if one.limit is not None and one.limit <= most:
        at = f"{100 * one.limit / most:.2f}%"
        parts.append(f'<line class="limit" x1="{at}" x2="{at}" y1="0" y2="20"/>')
    return Markup(f'<svg class="plot" height="20" aria-hidden="true">{"".join(parts)}</svg>')


def reach(bars: Sequence[Bar]) -> float:
    """The rate that fills the width of a case's bars: the longest with its deviation, and limits that are not too far out."""
    longest = max((one.rate + (one.deviation or 0.0) for one in bars if one.rate), default=0.0)
    limits = [one.limit for one in bars if one.limit is not None and one.limit <= FAR * longest]
    return max([longest, *limits]) * 1.01


def shows_limit(bars: Sequence[Bar]) -> bool:
    """Whether any bar of a case has its limit drawn."""
    return any(one.rate and one.limit is not None and one.limit <= reach(bars) for one in bars)


def chart(one: Chart) -> Markup:
    """Lines over dates or over a quantity, with the changes marked and a text for each point on pointing."""
    points = [point for line in one.series for point in line.points]
    xs, top = [point.time for point in points], max(point.value for point in points)
    across = _Scale(min(xs), max(xs), _LEFT, _WIDTH - _RIGHT)
    ticks = _ticks(top)
    up = _Scale(0.0, max(top, ticks[-1]), _HEIGHT - _BOTTOM, _TOP)
    parts = [_grid(ticks, up)]
    parts += [_mark(across(time), words) for time, words in one.marks if min(xs) <= time <= max(xs)]
    parts += [_line(line, place, across, up) for place, line in enumerate(one.series)]
    parts += _x_axis(one, xs, across)
    label = f"{one.unit}: {one.title}; {', '.join(line.label for line in one.series)}"
    return Markup(
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"<title>{escape(label)}</title>{''.join(parts)}</svg>"
    )


class _Scale:
    """A linear scale from values to places; one value alone stands in the middle."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.span, self.start, self.end = low, high - low, start, end

    def __call__(self, value: float) -> float:
        share = (value - self.low) / self.span if self.span else 0.5
        return self.start + share * (self.end - self.start)


def _ticks(top: float) -> list[float]:
    """0 and a few round values up to or just past `top`."""
    if top <= 0:
        return [0.0, 1.0]
    step = 10 ** math.floor(math.log10(top / 3))
    step *= next((factor for factor in (1, 2, 5, 10) if top / (step * factor) <= 5), 10)
    return [step * place for place in range(math.ceil(top / step) + 1)]


def _grid(ticks: Sequence[float], up: _Scale) -> str:
    parts = []
    for tick in ticks:
        y = up(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(f"{tick:g}")}</text>')
    return "".join(parts)


def _mark(x: float, words: str) -> str:
    return f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"><title>{escape(words)}</title></line>'


def dashes(place: int) -> str:
    """The dashes of a chart's line of that place, for colour-blind readers and for engines of one hue."""
    return _DASHES[place % len(_DASHES)]


def _line(line: Series, place: int, across: _Scale, up: _Scale) -> str:
    where = [(across(point.time), up(point.value), point) for point in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in where)
    dash = f' stroke-dasharray="{dashes(place)}"' if dashes(place) else ""
    own = color(line.engine)
    parts = [f'<polyline class="line" points="{path}" stroke="{own}"{dash}/>']
    parts += [_point(x, y, point, line, own) for x, y, point in where if point.change or len(where) <= 24]
    return "".join(parts)


def _point(x: float, y: float, point: Point, line: Series, own: str) -> str:
    words = f"{line.label}, {point.words}{f', {point.change} than before' if point.change else ''}"
    size, kind = (5, "turn") if point.change else (2.5, "dot")
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{own}"><title>{escape(words)}</title></circle>'


def _x_axis(one: Chart, xs: Sequence[float], across: _Scale) -> list[str]:
    places = sorted(set(xs))
    if one.dates:
        from datetime import datetime, timezone

        def words(value: float) -> str:
            return f"{datetime.fromtimestamp(value, timezone.utc):%Y-%m-%d}"

        places = [places[0], (places[0] + places[-1]) / 2, places[-1]] if len(places) > 1 else places
    else:

        def words(value: float) -> str:
            return f"{value:g}"

        places = places[:: max(1, math.ceil(len(places) / 6))]
    found = []
    for value in places:
        x = across(value)
        anchor = "start" if x < _LEFT + 30 else "end" if x > _WIDTH - 60 else "middle"
        found.append(f'<text class="tick" x="{x:.1f}" y="{_HEIGHT - 10}" text-anchor="{anchor}">{escape(words(value))}</text>')
    return found
