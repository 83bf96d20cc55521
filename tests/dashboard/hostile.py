"""Run files that someone wrote to do harm: text that a browser would obey, very long names, numbers that no machine gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

PAYLOADS = (
    "</script><script>window.harmed = 1</script>",
    "\"'><img src=x onerror='window.harmed = 1'>",
    "<svg onload=window.harmed=1>",
    "{{ 7 * 191 }}{% for x in y %}",
    "javascript:window.harmed=1",
    "x" * 10_000,
    "\x1b]0;harm\x07\u202e\u0000|`*[a](http://example.com)",
)
#: Strings that aren't free text: a run file with another value there is refused, or means another kind of sample.
_KEPT = {"status", "kind", "started_at", "finished_at", "new_tokens"}


def with_texts(data: Any, text: str, key: str = "") -> Any:
    """Every free text of an encoded run replaced, labels kept different from each other by a number at their end."""
    number = iter(range(10**6))

    def change(value: Any, key: str) -> Any:
        if isinstance(value, dict):
            return {name: change(entry, name) for name, entry in value.items()}
        if isinstance(value, list):
            return [change(entry, key) for entry in value]
        if not isinstance(value, str) or key in _KEPT:
            return value
        return f"{text}{next(number)}" if key == "label" else text

    return change(data, key)


def number_fields(data: Any) -> list[str]:
    """The names of all fields that hold numbers."""
    found: dict[str, None] = {}

    def walk(value: Any, key: str) -> None:
        if isinstance(value, dict):
            for name, entry in value.items():
                walk(entry, name)
        elif isinstance(value, list):
            for entry in value:
                walk(entry, key)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[key] = None

    walk(data, "")
    return list(found)


def with_number(data: Any, field: str, value: float) -> Any:
    """Every number of that field replaced, whole ones by whole ones."""

    def change(entry: Any, key: str) -> Any:
        if isinstance(entry, dict):
            return {name: change(inner, name) for name, inner in entry.items()}
        if isinstance(entry, list):
            return [change(inner, key) for inner in entry]
        if key != field or isinstance(entry, bool) or not isinstance(entry, (int, float)):
            return entry
        return max(-(2**62), min(int(value), 2**62)) if isinstance(entry, int) else float(value)

    return change(data, "")


def absurd(data: Any, values: tuple[float, ...] = (0, -1e308, 1e308, 1e-308)) -> Iterator[tuple[str, float, Callable[[], Any]]]:
    """(field, value, what makes the run) for each field and each absurd value."""
    for field in number_fields(data):
        for value in values:
            yield field, value, lambda field=field, value=value: with_number(data, field, value)
