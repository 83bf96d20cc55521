"""Words and numbers as people read them: the helpers that every view shares.

Names, reasons and prompts come from run files and checkpoints that anyone may have written, so they pass through `plain` before they reach
a terminal, a table or a picture.
"""

from __future__ import annotations

import math
import re
import unicodedata
from datetime import datetime, timezone
from typing import Any

DASH = "—"

_CONTROL_SEQUENCE = re.compile("(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]")


class ViewError(ValueError):
    """A view that can't be made as asked: one line that says what is wrong and what to do."""


def plain(text: str) -> str:
    """Text on one line without anything that a terminal would obey.

    Whitespace becomes one space. Control characters (C0, DEL, C1: escape sequences begin with one), text-direction marks and halves of
    surrogate pairs are taken out, and colour and cursor sequences whole.
    """
    text = _CONTROL_SEQUENCE.sub("", text)
    kept = (" " if char.isspace() else char for char in text)
    visible = (char for char in kept if unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Cn"))
    return " ".join("".join(visible).split())


def csv_cell(value: Any) -> Any:
    """Texts without what a terminal obeys, and never the start of a spreadsheet's formula."""
    text = "; ".join(map(str, value)) if isinstance(value, list) else value
    if not isinstance(text, str):
        return text
    text = plain(text)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def shorten(text: str, length: int) -> str:
    """At most `length` characters, the end replaced by an ellipsis where it was longer."""
    return text if len(text) <= length else text[: max(0, length - 1)].rstrip() + "…"


def shorten_middle(text: str, length: int) -> str:
    """At most `length` characters, cut in the middle: labels often differ at their ends."""
    if len(text) <= length:
        return text
    head = (length - 1) // 2
    return f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"


def decimals_for(value: float, digits: int) -> int:
    """How many decimals show `value` with that many significant digits; 0 where the integer part has them already."""
    if value == 0 or not math.isfinite(value):
        return 0
    return max(0, digits - 1 - math.floor(math.log10(abs(value))))


def number(value: float | None, digits: int = 3, *, most_decimals: int | None = None) -> str:
    """A number with that many significant digits, never in exponents above 1e-4; a dash for null.

    `most_decimals` bounds what is written after the point, where the unit has a floor below which digits are noise.
    """
    if value is None or not math.isfinite(value):
        return DASH
    decimals = decimals_for(value, digits)
    if most_decimals is not None:
        decimals = min(decimals, most_decimals)
    if value and abs(value) < 1e-4 and most_decimals is None:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{decimals}f}"


def with_deviation(value: float | None, deviation: float | None, digits: int = 4) -> str:
    """`62.31 ± 0.42`: the deviation has the value's decimals; without one the value stands alone."""
    if value is None or not math.isfinite(value):
        return DASH
    if deviation is None or not math.isfinite(deviation):
        return number(value, digits)
    decimals = decimals_for(value, digits)
    return f"{value:.{decimals}f} ± {deviation:.{decimals}f}"


def count(value: int) -> str:
    """A large count: `134.5 million`, `6.74 billion`."""
    for size, word in ((10**9, "billion"), (10**6, "million")):
        if value >= size:
            return f"{value / size:.{decimals_for(value / size, 4)}f} {word}"
    return str(value)


def size(value: float) -> str:
    """Bytes in binary units: `257 MiB`, `12.6 GiB`."""
    for unit, word in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= unit:
            return f"{number(value / unit)} {word}"
    return f"{value:.0f} bytes"


def plural(amount: int, word: str) -> str:
    """`1 sample`, `3 samples`."""
    return f"{amount} {word}" if amount == 1 else f"{amount} {word}s"


def duration(seconds: float) -> str:
    """`8.2 s`, `42 s`, `3 min 20 s`, `2 h 5 min`."""
    if not math.isfinite(seconds):
        return DASH
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def date(stamp: str) -> str:
    """An ISO 8601 time as `2026-11-30 23:30 UTC`; what isn't one is given back as plain text."""
    try:
        moment = datetime.fromisoformat(stamp.strip().replace("Z", "+00:00"))
        if moment.tzinfo is not None:
            moment = moment.astimezone(timezone.utc)
    except (ValueError, OverflowError):  # no time, or one at the calendar's end
        return plain(stamp)
    return moment.strftime("%Y-%m-%d %H:%M UTC")
