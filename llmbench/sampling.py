"""Named ways to sample, for `--sampling`: what other projects' published figures were measured with."""

from __future__ import annotations

from llmbench.comparison import UsageError

#: Name -> (temperature, top_k). gpt-fast: the defaults of its generate.py, so of the tokens per second in its README.
PRESETS: dict[str, tuple[float, int | None]] = {"greedy": (0.0, None), "gpt-fast": (0.8, 200)}


def settle(name: str | None, temperature: float, top_k: int | None) -> tuple[float, int | None]:
    """(temperature, top_k) of a preset, or as they are without one. Raises UsageError for an unknown name, and where both are given."""
    if name is None:
        return temperature, top_k
    if name not in PRESETS:
        raise UsageError(f"unknown --sampling {name!r}; there are {', '.join(PRESETS)}")
    if temperature != 0 or top_k is not None:
        raise UsageError(f"--sampling {name} settles the temperature and top-k; leave --temperature and --top-k out")
    return PRESETS[name]
