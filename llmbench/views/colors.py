"""One engine, one colour, in every picture: the colours of Okabe and Ito, which colour-blind readers tell apart, and shades of them.

There are more engines than such colours, so engines of one kind share a hue at different lightness; bars carry their names as well, and
colour alone never tells a reader anything. Variants of one engine share its colour and differ by hatch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

COLORS = {
    "eager": "#999999",
    "aot-eager": "#5C5C5C",
    "torch-compile": "#E69F00",
    "torch-compile-no-cudagraphs": "#F5CD79",
    "torch-compile-packed": "#A06F00",
    "cudagraphs": "#F0E442",
    "aot-inductor": "#D55E00",
    "nvfuser": "#F2A477",
    "tensorrt-llm": "#009E73",
    "tensorrt-llm-pytorch": "#7FCEB9",
    "tensorrt": "#005F45",
    "tensorrt-rtx": "#B5D99C",
    "onnxruntime": "#CC79A7",
    "openvino": "#0072B2",
    "transformers": "#56B4E9",
    "fake": "#1A1A1A",
}

#: For engines of other packages: shades that no engine above has.
OTHERS = ("#80B8D8", "#8F4A72", "#E5BCD3", "#00405F", "#C9BE18", "#7A3600")

HATCHES = ("//", "..", "xx", "\\\\", "++", "oo", "--", "**")


def color(engine: str) -> str:
    """The engine's colour as #RRGGBB: fixed for those named here, else chosen by the name's hash, the same in every process."""
    if engine in COLORS:
        return COLORS[engine]
    return OTHERS[hashlib.sha256(engine.encode("utf-8", "replace")).digest()[0] % len(OTHERS)]


def hatches(variants: Iterable[tuple[str, str]]) -> dict[str, str]:
    """A matplotlib hatch for each label, given (engine, label) pairs: none where the label is the engine's plain name.

    Labels of one engine get hatches in the order they come, and start again once all are used.
    """
    seen: dict[str, str] = {}
    used: dict[str, int] = {}
    for engine, label in variants:
        if label in seen:
            continue
        if label == engine:
            seen[label] = ""
        else:
            seen[label] = HATCHES[used.get(engine, 0) % len(HATCHES)]
            used[engine] = used.get(engine, 0) + 1
    return seen
