"""The card before the measurement: what will run, on what, how fast the memory lets it be, and how long it takes. For stderr.

It is there so that a wrong model, dtype or prompt is seen before minutes are spent on it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from llmbench.protocol import Bandwidth, Run
from llmbench.results.summary import limit_tokens_per_s, token_bytes
from llmbench.views import fields
from llmbench.views.text import count, duration, number, plain, plural, shorten, size

_NAMES = 11  # cells of the left column


def card(
    run: Run,
    *,
    bandwidth: Bandwidth | None = None,
    left_out: Mapping[str, str] | None = None,
    estimate_s: float | None = None,
    width: int = 80,
    color: bool = False,
) -> str:
    """Lines that end with a newline.

    run: as planned; its rows say what will run. bandwidth: of the memory the weights will lie in, or null where it is first probed beside the
    rows. left_out: engine name -> why it doesn't run. estimate_s: seconds for everything, or null where there is no telling.
    """
    lines = [
        ("model", fields.model_words(run)),
        ("", _shape(run)),
        ("dtype", _dtype(run)),
        ("device", fields.device_words(run)),
        ("prompt", _prompt(run)),
        ("generate", f"{plural(run.request.max_new_tokens, 'new token')}, batch {run.request.batch_size}, {fields.sampling_words(run)}"),
        ("limit", _limit(run, bandwidth)),
        ("runs", ", ".join(_variant(run, row.variant.label) for row in run.rows) or "nothing"),
        ("", _schedule(run)),
        ("decides", _decides(run)),
        *(("left out", f"{plain(name)}: {plain(reason)}") for name, reason in (left_out or {}).items()),
        ("time", _time(run, estimate_s)),
    ]
    lines += [("warning", plain(warning)) for warning in run.model.warnings]
    return "".join(_line(name, text, width, color) for name, text in lines if text)


def _line(name: str, text: str, width: int, color: bool) -> str:
    room = max(20, width - _NAMES)
    first, *rest = textwrap.wrap(text, room, break_on_hyphens=False) or [""]
    left = f"{name:<{_NAMES}}"
    if color and name:
        left = f"\x1b[2m{left}\x1b[0m"
    return "\n".join([left + first, *(" " * _NAMES + line for line in rest)]) + "\n"


def _shape(run: Run) -> str:
    parts = [plain(run.model.architecture), f"{count(run.model.parameters)} parameters" if run.model.parameters else ""]
    return ", ".join(part for part in parts if part)


def _dtype(run: Run) -> str:
    own, checkpoint = plain(run.dtype), plain(run.model.dtype)
    return f"{own} (the checkpoint's is {checkpoint})" if checkpoint and checkpoint != own else own


def _prompt(run: Run) -> str:
    ids = plural(len(run.request.prompt_ids), "id")
    return f"synthetic, {ids}" if run.prompt is None else f'"{shorten(plain(run.prompt), 48)}", {ids}'


def _variant(run: Run, label: str) -> str:
    return f"{plain(label)} (baseline)" if label == run.baseline else plain(label)


def _schedule(run: Run) -> str:
    plan = run.plan
    block = f"{plural(plan.num_iters_warmup, 'warm-up')} + {plural(plan.num_iters, 'sample')}"
    how = "side by side in processes of their own, samples in turn" if plan.interleave else "each in a process of its own"
    return f"{plural(plan.rounds, 'round')} x ({block}), {how}" if run.rows else ""


def _decides(run: Run) -> str:
    """What a verdict will rest on."""
    if len(run.rows) < 2 or (run.baseline is None and not run.aa):
        return ""
    if run.plan.quick or run.plan.rounds < 2:
        return "nothing: one round gives no interval and no verdict"
    parts = [f"a {100 * run.plan.confidence:g} % interval", f"differences under {100 * run.plan.min_effect:g} % don't count"]
    if run.noise_floor is not None:
        parts.append(f"noise floor {number(100 * run.noise_floor, 2)} % ({plain(run.noise_floor_source or 'A/A run')})")
    return "; ".join(parts)


def _time(run: Run, estimate_s: float | None) -> str:
    parts = [f"about {duration(estimate_s)}" if estimate_s is not None else "no estimate yet"]
    if run.plan.time_budget_s is not None:
        parts.append(f"budget {duration(run.plan.time_budget_s)}")
    return ", ".join(parts)


def _limit(run: Run, bandwidth: Bandwidth | None) -> str:
    """Bytes for a token, read bandwidth, and the limit that follows, of the baseline's dtype or the first row's."""
    variants = [row.variant for row in run.rows]
    variant = next((one for one in variants if one.label == run.baseline), variants[0] if variants else None)
    reads = token_bytes(run, variant) if variant else None
    if reads is None:
        return "unknown: bytes per token are not known"
    per_step = "a token" if run.request.batch_size == 1 else f"a step of {run.request.batch_size} tokens"
    known = f"{per_step} reads {size(reads)}"
    if bandwidth is None:
        return f"{known}; read bandwidth is probed beside each row"
    limit, reason = limit_tokens_per_s([bandwidth], reads, run.request.batch_size)
    if limit is None:
        return f"unknown: {plain(reason or 'read bandwidth was not probed')}"
    together = "" if run.request.batch_size == 1 else " for all sequences together"
    return f"{number(limit)} tokens/s{together}: {known}, memory gives {number(bandwidth.gb_per_s)} GB/s"
