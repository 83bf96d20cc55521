"""What `llmbench doctor` prints for people: the machine, each engine with what it lacks, the folders, the hub, and what could be better."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

from llmbench.views.text import number, plain, size

_LEFT = 15  # cells of the left column


def page(found: Mapping[str, Any], width: int = 100, color: bool = False) -> str:
    """The findings of doctor.examine as lines of at most `width` cells."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=color, no_color=not color, highlight=False, markup=False, emoji=False)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_header=False)
    table.add_column(width=_LEFT, overflow="fold")
    table.add_column(overflow="fold")
    for left, right, style in _lines(found):
        table.add_row(Text(plain(left), style="bold" if style else "dim"), Text(plain(right), style=style))
    console.print(table)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def _lines(found: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(left, right, style of the right)."""
    machine, state = found["machine"], found["machine"]["state"]
    yield "llmbench", str(found["llmbench"]), ""
    yield "platform", machine["platform"], ""
    yield "cpu", f"{machine['cpu']}, {machine['cpu_count']} usable, {machine['threads']} threads by default", ""
    free = state["memory_available_bytes"]
    load = f", load {number(state['load_1m'])}" if state["load_1m"] is not None else ""
    yield "memory", f"{size(machine['memory_bytes'])}" + (f", {size(free)} available" if free is not None else "") + load, ""
    yield from _gpus(found["gpus"])
    for one in found["bandwidth"]:
        words = f"{number(one['gb_per_s'])} GB/s" if one["gb_per_s"] is not None else f"unknown: {one['reason']}"
        cache = one.get("last_level_cache_bytes")
        yield "read bandwidth", f"{one['device']}: {words}" + (f", last-level cache {size(cache)}" if cache else ""), ""
    for one in found["interpreters"]:
        yield "interpreter", _interpreter(one), "red" if one["fault"] else ""
    for entry in found["engines"]:
        yield from _engine(entry)
    compilers = [f"{name}: {version}" for name, version in found["compilers"].items() if version]
    yield "compilers", "; ".join(compilers) or "none found", ""
    for folder in found["folders"]:
        yield folder["what"], _folder(folder), ""
    hub = found["hub"]
    verdict = {True: "reachable", False: "not reachable", None: "not asked"}[hub["reachable"]]
    yield "model hub", f"{hub['endpoint']}: {verdict} ({hub['words']}); a token is {'set' if hub['token'] else 'not set'}", ""
    for name, value in found["variables"].items():
        yield "variable", f"{name}={value}", ""
    for remark in found["remarks"]:
        yield "remark", remark["text"] + (f"; change it with: {remark['remedy']}" if remark["remedy"] else ""), "yellow"


def _gpus(gpus: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    if not gpus["devices"]:
        yield "gpu", "no NVIDIA driver answers" if gpus["driver"] is None else f"driver {gpus['driver']}, no device", ""
    for index, gpu in enumerate(gpus["devices"]):
        parts = [f"{index}: {gpu['name']}", f"{size(gpu['memory_bytes'])}, {size(gpu['free_bytes'])} free", f"driver {gpus['driver']}"]
        yield "gpu", ", ".join([*parts, f"CUDA up to {gpus['cuda']}"] if gpus["cuda"] else parts), ""


def _interpreter(one: Mapping[str, Any]) -> str:
    name = one["path"] + (" (llmbench's own)" if one["own"] else "")
    if one["fault"]:
        return f"{name}: {one['fault']}"
    torch = f"torch {one['torch']}" + (f" for CUDA {one['cuda']}" if one["cuda"] else "") if one["torch"] else "no torch"
    devices = ", ".join(f"{device['name']} (sm {device['compute_capability']})" for device in one["devices"])
    return f"{name}: Python {one['python']}, {torch}" + (f", {devices}" if devices else "")


def _engine(entry: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    versions = ", ".join(f"{name} {version}" for name, version in entry["versions"].items())
    if entry["usable"]:
        yield entry["name"], f"usable on {' and '.join(entry['devices'])}" + (f" ({versions})" if versions else ""), "green"
    else:
        yield entry["name"], f"not usable: {entry['reason']}", "red"
        if entry["remedy"]:
            yield "", f"make it usable with: {entry['remedy']}", ""
    if entry.get("contract") is not None:
        against = f"the API of {entry['written_against']} that the adapter is written against"
        count = len(entry["contract"])
        yield "", f"{count} differences from {against}:" if count else f"no difference from {against}", "yellow" if count else ""
        for difference in entry["contract"]:
            yield "", plain(difference), "yellow"


def _folder(folder: Mapping[str, Any]) -> str:
    held = "nothing yet" if folder["bytes"] is None else ("" if folder["whole"] else "more than ") + size(folder["bytes"])
    room = f", {size(folder['disk_free_bytes'])} free on its disk" if folder["disk_free_bytes"] is not None else ""
    return f"{folder['path']}: {held}{room}"
