"""What differs between two runs besides their numbers: what makes them incomparable, and what a reader must know before the numbers.

Each difference is a line, `what: old → new`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from llmbench.protocol import Row, Run

#: A run's request and dtype, as far as they decide the work: two runs with equal ones can be matched.
WorkKey = tuple[object, ...]


def work_key(run: Run) -> WorkKey:
    """The request and the dtype. The seed counts where something is drawn."""
    request, sampling = run.request, run.request.sampling
    drawn = sampling if sampling.temperature > 0 else dataclasses.replace(sampling, seed=0)
    return (request.prompt_ids, request.max_new_tokens, request.batch_size, drawn, run.dtype)


def work_differences(old: Run, new: Run) -> list[str]:
    """Another model or another request: there is nothing to compare, unless a reader wants just that."""
    prompts = [f"{len(run.request.prompt_ids)} ids" + (f" {run.prompt!r}" if run.prompt else "") for run in (old, new)]
    found = _differences(
        [
            ("model", old.model.name, new.model.name),
            ("dtype", old.dtype, new.dtype),
            ("new tokens", old.request.max_new_tokens, new.request.max_new_tokens),
            ("batch size", old.request.batch_size, new.request.batch_size),
            ("temperature", old.request.sampling.temperature, new.request.sampling.temperature),
            ("top_k", old.request.sampling.top_k, new.request.sampling.top_k),
        ]
    )
    if old.request.prompt_ids != new.request.prompt_ids:
        found.append(f"prompt: {prompts[0]} → {prompts[1] if prompts[1] != prompts[0] else 'other ids'}")
    if old.request.sampling.temperature > 0:
        found += _differences([("seed", old.request.sampling.seed, new.request.sampling.seed)])
    return found


def machine_differences(old: Run, new: Run) -> list[str]:
    """Another machine, device or number of threads: the same that a noise floor asks to be equal, and the device's memory."""
    return _differences(
        [
            ("device", old.machine.device, new.machine.device),
            ("device name", old.machine.device_name, new.machine.device_name),
            ("device memory", old.machine.device_memory_bytes, new.machine.device_memory_bytes),
            ("processor", old.machine.cpu, new.machine.cpu),
            ("usable CPUs", old.machine.cpu_count, new.machine.cpu_count),
            ("threads", old.threads, new.threads),
        ]
    )


def checkpoint_differences(old: Run, new: Run) -> list[str]:
    """Another checkpoint under the model's name. Digests of the weights decide where both runs have one, else the source and the shape."""
    before, now = old.model, new.model
    found = _differences([("weights", before.load_format, now.load_format)])
    if before.identity and now.identity:
        return found + _differences([("checkpoint", before.identity[:12], now.identity[:12])])
    # Other releases of llmbench keep more or fewer fields of a shape: those that both have must be equal.
    both = before.config.keys() & now.config.keys()
    found += _differences([(f"shape: {key}", before.config[key], now.config[key]) for key in sorted(both)])
    return found + _differences([("checkpoint", before.source, now.source), ("parameters", before.parameters, now.parameters)])


def other_changes(old: Run, new: Run) -> list[str]:
    """What may move the numbers and leaves the runs comparable: releases, the driver, how it was measured."""
    plans = [
        (name, getattr(old.plan, name), getattr(new.plan, name)) for name in ("num_iters", "num_iters_warmup", "interleave", "startup")
    ]
    found = _differences(
        [
            ("llmbench", old.llmbench_version, new.llmbench_version),
            ("driver", old.machine.driver, new.machine.driver),
            ("platform", old.machine.platform, new.machine.platform),
            ("memory of the machine", old.machine.memory_bytes, new.machine.memory_bytes),
            ("baseline", old.baseline, new.baseline),
            *plans,
        ]
    )
    for words, run in (("the old run", old), ("the new run", new)):
        if run.interrupted or run.finished_at is None:
            found.append(f"{words} was cut off: what it has is compared")
    return found


def row_changes(old: Row, new: Row) -> list[str]:
    """The same for one variant: libraries' releases, what the engine chose, dtypes of storage and arithmetic."""
    found = _differences(_keyed(_versions(old), _versions(new)))
    reports = [next((block.report for block in reversed(row.blocks) if block.report), None) for row in (old, new)]
    if reports[0] is not None and reports[1] is not None:
        found += _differences(
            [
                ("stored in", reports[0].storage_dtype, reports[1].storage_dtype),
                ("computed in", reports[0].arithmetic_dtype, reports[1].arithmetic_dtype),
                *_keyed(reports[0].settings, reports[1].settings),
            ]
        )
    return found


def _versions(row: Row) -> dict[str, Any]:
    """Of all blocks: a library that changed within a run has several."""
    found: dict[str, list[str]] = {}
    for block in row.blocks:
        for name, version in sorted(block.versions.items()):
            if version not in found.setdefault(name, []):
                found[name].append(version)
    return {name: " and ".join(versions) for name, versions in found.items()}


def _keyed(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(name, old.get(name), new.get(name)) for name in sorted({*old, *new})]


def _differences(pairs: Sequence[tuple[str, Any, Any]]) -> list[str]:
    return [f"{name}: {_words(before)} → {_words(now)}" for name, before, now in pairs if before != now]


def _words(value: Any) -> str:
    return "none" if value is None or value == "" else "yes" if value is True else "no" if value is False else str(value)
