"""The start-up picture: above, each variant's cold and warm start by parts; below, seconds until N tokens are there, where lines cross at the
break-even. matplotlib is imported only when something is drawn.
"""

from __future__ import annotations

import secrets
import warnings
from pathlib import Path
from typing import Any

from llmbench.protocol import Run
from llmbench.results.startup import Start, StartUp, start_ups
from llmbench.views import fields
from llmbench.views.colors import color
from llmbench.views.text import ViewError, number, plain, shorten_middle

_PARTS = (
    ("process_s", "process start", "#BBBBBB"),
    ("build_s", "build", "#0072B2"),
    ("load_s", "load", "#56B4E9"),
    ("compile_s", "compile (first generations)", "#E69F00"),
)
_STYLES = ("-", "--", "-.", ":")
_DPI = 160


def draw_startup(run: Run, path: Path) -> None:
    """Writes a run's start-up picture, as PNG or SVG by the suffix, whole or not at all.

    Raises ViewError for another suffix, where no start was measured, and where the folder can't be written.
    """
    if path.suffix.lower() not in (".png", ".svg"):
        raise ViewError(f"can't draw {plain(path.name)!r}: the name must end in .png or .svg")
    rows = [row for row in start_ups(run) if row.cold is not None and row.cold.ready_s is not None]
    if not rows:
        raise ViewError("nothing to draw: no start was measured")
    temporary = path.with_name(f".llmbench-{secrets.token_hex(6)}.tmp")
    try:
        with temporary.open("xb") as file:
            _save(run, rows, file, path.suffix.lower()[1:])
        temporary.replace(path)
    except OSError as error:
        raise ViewError(f"can't write {plain(str(path))}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _save(run: Run, rows: list[StartUp], file: Any, kind: str) -> None:
    import matplotlib.style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.style.context("default"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        matplotlib.rcParams.update({"font.size": 9, "svg.hashsalt": "llmbench", "text.usetex": False})
        bars = [(row, name, start) for row in rows for name, start in (("cold", row.cold), ("warm", row.warm)) if start is not None]
        height = 1.6 + 0.3 * len(bars) + 3.4
        figure: Any = Figure(figsize=(9.0, height), dpi=100, layout="constrained")
        FigureCanvasAgg(figure)
        upper, lower = figure.subplots(2, 1, height_ratios=[0.9 + 0.3 * len(bars), 3.2])
        figure.suptitle(_escape(f"What starting costs: {plain(run.model.name)}"), x=0.02, ha="left", weight="bold", size=13)
        _draw_parts(upper, bars)
        _draw_lines(lower, rows)
        words = " · ".join(part for part in (fields.run_words(run),) if part)
        figure.supxlabel(_escape(words), size=7.8, color="#666666", x=0.02, ha="left")
        figure.savefig(file, format=kind, dpi=_DPI, metadata={"Date": None} if kind == "svg" else {"Software": None})


def _draw_parts(axes: Any, bars: list[tuple[StartUp, str, Start]]) -> None:
    for place, (_, _, start) in enumerate(bars):
        left = 0.0
        for name, words, shade in _PARTS:
            seconds = getattr(start, name) or 0.0
            axes.barh(place, seconds, left=left, height=0.68, color=shade, label=words if place == 0 else None)
            left += seconds
        if start.ready_s is not None:
            axes.text(left, place, f"  {number(start.ready_s, most_decimals=2)} s", va="center", size=9, color="#222222")
    axes.set_yticks(range(len(bars)), [_escape(f"{shorten_middle(plain(row.label), 34)}, {name}") for row, name, _ in bars])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("seconds from the process's start to the steady rate", size=8)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.0 + 0.9 / len(bars)), ncols=4, frameon=False, fontsize=8)
    _clean(axes, "x")


def _draw_lines(axes: Any, rows: list[StartUp]) -> None:
    furthest = _furthest(rows)
    tokens = [furthest * step / 200 for step in range(201)]
    seen: dict[str, int] = {}
    for row in rows:
        if row.tokens_per_s is None:
            continue
        style = _STYLES[seen.setdefault(row.engine, 0) % len(_STYLES)]
        seen[row.engine] += 1
        for start, name, width in ((row.cold, "cold", 1.8), (row.warm, "warm", 0.9)):
            if start is not None and start.ready_s is not None:
                seconds = [start.ready_s + count / row.tokens_per_s for count in tokens]
                axes.plot(tokens, seconds, style, color=color(row.engine), linewidth=width,
                          label=_escape(f"{shorten_middle(plain(row.label), 34)}, {name}"))  # fmt: skip
    axes.set_xlabel("new tokens of one sequence", size=8)
    axes.set_ylabel("seconds, start included", size=8)
    axes.set_xlim(0, furthest)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=7.5)
    _clean(axes, "both")


def _furthest(rows: list[StartUp]) -> float:
    """Tokens that the slowest makes in twice the longest start: the crossings that matter to a user lie within, as far as there are any."""
    longest = max((start.ready_s or 0.0) for row in rows for start in (row.cold, row.warm) if start is not None)
    slowest = min((row.tokens_per_s for row in rows if row.tokens_per_s), default=1.0)
    return max(100.0, float(f"{4 * longest * slowest:.1g}"))


def _clean(axes: Any, grid: str) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.grid(axis=grid, color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)


def _escape(text: str) -> str:
    """Text in which matplotlib finds no mathematics."""
    return text.replace("$", r"\$")
