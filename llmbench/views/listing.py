"""What `llmbench engines` prints: every engine, usable here or not, why not, and what would make it usable."""

from __future__ import annotations

import io
import json
from typing import Any

from llmbench.engines.registry import engines, problem


def engines_data() -> list[dict[str, Any]]:
    """One entry an engine; `usable` is judged without importing anything, for the interpreter that llmbench runs under."""
    found = []
    for spec in engines().values():
        why = problem(spec)
        found.append(
            {
                "name": spec.name,
                "usable": why is None,
                "reason": why.reason if why else None,
                "remedy": why.remedy if why else None,
                "summary": spec.summary,
                "devices": list(spec.devices),
                "dtypes": list(spec.dtypes),
                "quantizations": list(spec.quantizations),
                "options": dict(spec.options),
                "default": spec.default,
                "not_run_on": spec.not_run_on,
            }
        )
    return found


def engines_json() -> str:
    """The list as JSON."""
    return json.dumps(engines_data(), indent=1)


def engines_table(width: int, color: bool) -> str:
    """The list for a person: a line with name and verdict, then what it is and what is missing."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=color, no_color=not color, highlight=False)
    for entry in engines_data():
        verdict = Text("usable here", style="green") if entry["usable"] else Text("not usable here", style="red")
        console.print(Text.assemble((entry["name"], "bold"), "  ", verdict, "" if entry["default"] else "  (only when named)"))
        lines = [entry["summary"]]
        if not entry["usable"]:
            lines.append(f"missing: {entry['reason']}" + (f"; make it usable with: {entry['remedy']}" if entry["remedy"] else ""))
        lines.append(f"devices {', '.join(entry['devices'])}; dtypes {', '.join(entry['dtypes'])}")
        lines.extend(f"option {name}: {text}" for name, text in entry["options"].items())
        if entry["not_run_on"]:
            lines.append(f"not yet run on {entry['not_run_on']} by this project")
        for line in lines:
            console.print(Padding(Text(line), (0, 0, 0, 4)))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())
