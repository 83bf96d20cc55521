"""What compiling took, by phases, as torch itself counts it: one table from Block.compilation."""

from __future__ import annotations

from llmbench.dashboard.model import Cell, Table
from llmbench.dashboard.parts import WHERE, Parts, amount, headings
from llmbench.protocol import Block, Compilation


def profile(parts: Parts) -> Table:
    lines = []
    for one in parts.measured:
        for row in one.run.rows:
            for words, found in _told(row.blocks):
                cells = (
                    *one.where(),
                    one.engine(row.variant.label),
                    Cell(words),
                    *(
                        amount(getattr(found, key), most_decimals=2)
                        for key in ("total_s", "trace_s", "autograd_s", "inductor_s", "codegen_s")
                    ),
                    *(
                        _count(getattr(found, key))
                        for key in ("graphs", "graph_breaks", "recompiles", "cache_hits", "cache_misses", "kernels")
                    ),
                )
                lines.append(one.line(cells))
    return Table(
        "profile",
        "Compilation profile: seconds by phase, graphs and caches",
        (*WHERE, *headings("engine", "start", "#total", "#trace", "#autograd", "#inductor", "#of it codegen", "#graphs", "#breaks",
                           "#recompiles", "#cache hits", "#misses", "#kernels")),
        tuple(lines),
        ("total = trace + autograd + inductor. cold: the first process, nothing in the compiler's caches; warm: the last one.",),
    )  # fmt: skip


def _told(blocks: list[Block]) -> list[tuple[str, Compilation]]:
    told = [(block, block.compilation) for block in blocks if block.compilation is not None]
    cold = next((("cold", found) for block, found in told if block.cold), None)
    warm = next((("warm", found) for block, found in reversed(told) if not block.cold), None)
    return [entry for entry in (cold, warm) if entry is not None]


def _count(value: int | None) -> Cell:
    return amount(None if value is None else float(value), digits=12, most_decimals=0)
