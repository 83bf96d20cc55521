"""What torch.compile did in this process: seconds by phase, graphs, breaks, recompilations, cache hits, kernels, from torch's own counters.

For the worker, after the samples; torch is imported by whoever calls this. What each figure means is said at protocol.Compilation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from llmbench.protocol import Compilation

#: Compilations that torch is asked to remember: its own limit, 64, is reached by a model that recompiles at each token.
REMEMBERED = 4096
#: Reasons that a block keeps, and their length.
MOST_REASONS, MOST_CHARACTERS = 8, 300


def remember() -> None:
    """To be called before anything is compiled."""
    import torch._dynamo.utils

    torch._dynamo.utils.set_compilation_metrics_limit(REMEMBERED)


def figures() -> Compilation | None:
    """What this process has compiled so far; None where it compiled nothing."""
    if "torch._dynamo" not in sys.modules:
        return None
    import torch._dynamo.utils as dynamo
    import torch._inductor.metrics as inductor

    frames = [frame for frame in dynamo.get_compilation_metrics() if frame.co_name is not None]
    if not frames:
        return None
    counters = dynamo.counters
    cache = counters["aot_autograd"], counters["inductor"]
    # AOTAutograd's cache holds Inductor's result too, so a hit there never asks Inductor's own.
    hits = max(cache[0]["autograd_cache_hit"], cache[1]["fxgraph_cache_hit"])
    misses = max(cache[0]["autograd_cache_miss"] + cache[0]["autograd_cache_bypass"], cache[1]["fxgraph_cache_miss"])
    total, backend, inside = (_sum(frames, f"{phase}_compile_time_s") for phase in ("entire_frame", "backend", "inductor"))
    uses_inductor = bool(inside or counters["inductor"])
    return Compilation(
        total_s=total,
        trace_s=max(0.0, total - backend),
        autograd_s=max(0.0, backend - inside),
        inductor_s=inside,
        codegen_s=_sum(frames, "code_gen_time_s"),
        frames=len(frames),
        graphs=counters["stats"]["unique_graphs"],
        graph_breaks=sum(counters["graph_break"].values()),
        recompiles=sum(_again(frame) for frame in frames),
        operators=counters["stats"]["calls_captured"],
        cache_hits=hits,
        cache_misses=misses,
        kernels=inductor.generated_kernel_count if uses_inductor else None,
        cudagraph_skips=counters["inductor"]["cudagraph_skips"],
        reasons=_reasons(frames, counters),
    )


def _sum(frames: Iterable[Any], name: str) -> float:
    return float(sum(getattr(frame, name, None) or 0.0 for frame in frames))


def _again(frame: Any) -> bool:
    """Whether a compilation is of a frame that was compiled before: the second number of "12/0" counts those."""
    number = str(frame.compile_id or "").partition("/")[2].partition("_")[0]
    return number not in ("", "0")


def _reasons(frames: Iterable[Any], counters: Mapping[str, Mapping[str, int]]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for text in counters["graph_break"]:
        found[_line("graph break", text)] = None
    for frame in frames:
        for kind, why in (
            ("recompiled", getattr(frame, "recompile_reason", None)),
            ("not compiled", frame.fail_reason),
            ("no CUDA graph", getattr(frame, "cudagraph_skip_reason", None)),
        ):
            if why:
                found[_line(f"{kind} ({frame.co_name})", str(why))] = None
    return tuple(found)[:MOST_REASONS]


def _line(kind: str, text: str) -> str:
    return f"{kind}: {' '.join(text.split())}"[:MOST_CHARACTERS]
