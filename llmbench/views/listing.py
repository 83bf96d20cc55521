"""What `llmbench engines` and `llmbench models` print: every engine, usable here or not, why not, and what would make it usable; every model of
the catalog with its shape, its size in each dtype, and what of it lies here already."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llmbench.checkpoints import layout
from llmbench.checkpoints.catalog import CATALOG, CatalogEntry
from llmbench.engines.registry import engines, problem
from llmbench.protocol import DTYPE_BYTES
from llmbench.views.text import count, plain, size


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
                "written_against": spec.written_against,
            }
        )
    return found


def engines_json() -> str:
    """The list as JSON."""
    return json.dumps(engines_data(), indent=1)


def engines_table(width: int, color: bool) -> str:
    """The list for a person: a line with name and verdict, then what it is and what is missing."""
    from rich.text import Text

    blocks = []
    for entry in engines_data():
        verdict = Text("usable here", style="green") if entry["usable"] else Text("not usable here", style="red")
        lines = [entry["summary"]]
        if not entry["usable"]:
            lines.append(f"missing: {entry['reason']}" + (f"; make it usable with: {entry['remedy']}" if entry["remedy"] else ""))
        lines.append(f"devices {', '.join(entry['devices'])}; dtypes {', '.join(entry['dtypes'])}")
        lines.extend(f"option {name}: {text}" for name, text in entry["options"].items())
        if entry["not_run_on"]:
            against = f"written against {entry['written_against']}'s API, " if entry["written_against"] else ""
            lines.append(f"{against}not yet run on {entry['not_run_on']} by this project")
        blocks.append((Text.assemble((entry["name"], "bold"), "  ", verdict, "" if entry["default"] else "  (only when named)"), lines))
    return folded(blocks, width, color)


def models_data(home: Path) -> dict[str, Any]:
    """{"catalog": an entry for each alias, "kept": what lies in home/checkpoints and belongs to none of them}. Lengths in elements or tokens."""
    from llmbench.checkpoints.fetch import kept

    here = [
        {"name": plain(one.name), "source": plain(one.source), "path": str(one.path), "bytes": one.nbytes, "whole": one.path.exists()}
        for one in kept(home)
    ]
    catalog = [_model(entry, here) for entry in CATALOG.values()]
    taken = {one["name"] for entry in catalog for one in entry["kept"]}
    return {"catalog": catalog, "kept": [one for one in here if one["name"] not in taken]}


def models_json(home: Path) -> str:
    """The catalog as JSON."""
    return json.dumps(models_data(home), indent=1)


def models_table(home: Path, width: int, color: bool) -> str:
    """The catalog for a person: alias and hub id, shape, bytes, and what lies in checkpoints/."""
    from rich.text import Text

    data = models_data(home)
    blocks = []
    for entry in data["catalog"]:
        shape = entry["shape"]
        window = f", sliding window {shape['sliding_window']}" if shape["sliding_window"] else ""
        sizes = ", ".join(f"{dtype} {size(nbytes)}" for dtype, nbytes in entry["weights_bytes"].items())
        own = shape["dtype"]
        lines = [
            f"{shape['architecture']}, {count(entry['parameters'])} parameters, context {shape['context']}{window}, published in {own}",
            f"{shape['layers']} layers, hidden {shape['hidden']}, feed-forward {shape['mlp']}, {shape['heads']} heads of {shape['head_dim']} "
            f"({shape['kv_heads']} for keys and values), vocabulary {shape['vocab']}" + (", tied embeddings" if shape["tied"] else ""),
            f"weights: {sizes}; KV cache: {size(entry['kv_bytes_per_token'])} a token in {own}",
            *(_kept_words(one) for one in entry["kept"]),
        ]
        gate = "  (gated: its licence must be accepted on the hub)" if entry["gated"] else ""
        blocks.append((Text.assemble((entry["alias"], "bold"), f"  {entry['hub_id']}{gate}"), lines))
    if data["kept"]:
        blocks.append((Text("also in checkpoints/", style="bold"), [f"{one['name']}: {_kept_words(one)}" for one in data["kept"]]))
    return folded(blocks, width, color)


def _model(entry: CatalogEntry, here: list[dict[str, Any]]) -> dict[str, Any]:
    shape = entry.shape
    names = (entry.alias, entry.hub_id.replace("/", "--"))
    fields = (
        "architecture",
        "hidden",
        "layers",
        "heads",
        "kv_heads",
        "head_dim",
        "mlp",
        "vocab",
        "context",
        "sliding_window",
        "tied",
        "dtype",
    )
    return {
        "alias": entry.alias,
        "hub_id": entry.hub_id,
        "gated": entry.gated,
        "parameters": layout.parameter_count(shape),
        "weights_bytes": {dtype: layout.weights_bytes(shape, nbytes) for dtype, nbytes in DTYPE_BYTES.items()},
        "kv_bytes_per_token": round(layout.kv_bytes_per_position(shape, DTYPE_BYTES[shape.dtype])),
        "shape": {name: getattr(shape, name) for name in fields},
        "kept": [one for one in here if one["name"].partition("@")[0] in names],
    }


def _kept_words(one: dict[str, Any]) -> str:
    return f"here: {one['source']}, {size(one['bytes'])}" + ("" if one["whole"] else ", no longer whole: it will be fetched again")


def folded(blocks: Iterable[tuple[Any, list[str]]], width: int, color: bool) -> str:
    """Headings, each with indented lines, folded at `width` cells."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=color, no_color=not color, highlight=False)
    for heading, lines in blocks:
        console.print(heading)
        for line in lines:
            console.print(Padding(Text(line), (0, 0, 0, 4)))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())
