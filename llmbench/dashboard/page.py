"""A Report as one HTML file that needs nothing else: style, script and data stand in it, and its policy forbids every request.

All text goes through Jinja's escaping, since run files come from anywhere. Nothing has an inline style or handler, so the policy names the one
style sheet and the one script by their digests and allows no other.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from markupsafe import Markup

from llmbench.dashboard import svg
from llmbench.dashboard.collect import Collected
from llmbench.dashboard.model import Report
from llmbench.dashboard.parts import Choices
from llmbench.dashboard.report import report
from llmbench.views.colors import color

FOLDER = Path(__file__).resolve().parent / "templates"
#: No page is larger than this; what is shown is halved until it fits, which the page then says.
MOST_BYTES = 5_000_000


def html(collected: Collected, choices: Choices | None = None) -> str:
    """The page of all that was collected."""
    choices = choices or Choices()
    while True:
        text = render(report(collected, choices))
        if len(text.encode()) <= MOST_BYTES or choices.most_cases <= 1:
            return text
        choices = dataclasses.replace(choices, most_cases=choices.most_cases // 2, most_samples=choices.most_samples // 2)


def render(shown: Report) -> str:
    style, script = ((FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    text: str = (
        _environment()
        .get_template("page.html.j2")
        .render(
            report=shown,
            style=Markup(style),
            script=Markup(script),
            policy=f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri 'none'; form-action 'none'",
            data=Markup(_json(shown)),
            svg=svg,
            color=color,
        )
    )
    return text


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _json(shown: Report) -> str:
    """What the script shows on a click, compact, with nothing in it that could end its element."""
    titles: dict[str, int] = {}
    rows = {
        name: {
            "t": one.title,
            "a": one.about,
            "f": [[titles.setdefault(title, len(titles)), text] for title, text in one.figures],
            "b": one.blocks,
            "n": one.notes,
        }
        for name, one in shown.details.items()
    }
    text = json.dumps({"titles": list(titles), "rows": rows}, separators=(",", ":"), ensure_ascii=False)
    return (
        text.replace("&", "\\u0026")
        .replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


@lru_cache(maxsize=1)
def _environment() -> Any:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
