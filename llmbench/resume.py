"""`compare --resume RUN`: the options that a kept run was made with, and what of it still has to be measured.

A run is only continued where the request, the checkpoint and the machine are the ones that it began with: blocks of different things must not
stand in one row.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from llmbench.comparison import Options, Prepared, UsageError
from llmbench.protocol import Run, Status


def options_of(run: Run, given: Options) -> Options:
    """What the run was made with, as options; `given` supplies what a run file doesn't keep: the home folder, offline, interpreters."""
    from llmbench.checkpoints.fetch import SHAPE

    sampling = run.request.sampling
    path = Path(run.model.path).expanduser()
    as_path = path if path.is_absolute() else given.home / path
    named_by_path = SHAPE in as_path.name or (
        run.model.name not in run.model.source and ("/" in run.model.name or as_path.name == run.model.name)
    )
    return dataclasses.replace(
        given,
        model=str(as_path) if named_by_path and (as_path / "config.json").is_file() else run.model.name,
        engines=",".join(row.variant.label for row in run.rows),
        baseline=run.baseline,
        prompt=run.prompt,
        prompt_file=None,
        input_len=None if run.prompt is not None else len(run.request.prompt_ids),
        max_new_tokens=run.request.max_new_tokens,
        batch_size=run.request.batch_size,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        dtype=run.dtype,
        device=run.machine.device,
        threads=run.threads,
        plan=dataclasses.replace(run.plan, time_budget_s=given.plan.time_budget_s),
        load_format=run.model.load_format,
        seed=run.plan.seed,
    )


def continue_from(prepared: Prepared, old: Run) -> int:
    """Puts the kept blocks of `old` into the prepared run; returns how many there are. Raises UsageError where it is another run.

    Interrupted blocks are measured again; rows that failed stay failed.
    """
    new = prepared.run
    held: list[tuple[str, object, object]] = [
        ("checkpoint", old.model.identity or old.model.source, new.model.identity or new.model.source),
        ("request", old.request, new.request),
        ("dtype", old.dtype, new.dtype),
        ("device", (old.machine.device, old.machine.device_name), (new.machine.device, new.machine.device_name)),
        ("processor", (old.machine.cpu, old.machine.cpu_count), (new.machine.cpu, new.machine.cpu_count)),
        ("number of threads", old.threads, new.threads),
        ("list of variants", [row.variant for row in old.rows], [row.variant for row in new.rows]),
    ]
    for what, before, now in held:
        if before != now:
            raise UsageError(f"this run can't be resumed: its {what} was {_short(before)} and is now {_short(now)}")
    kept = 0
    for row, old_row in zip(new.rows, old.rows, strict=True):
        if not old_row.blocks:  # then `prepare` has just judged anew whether it can be run
            continue
        row.status, row.reason = Status.OK, None
        for block in old_row.blocks:
            if block.status is not Status.INTERRUPTED:
                if block.accuracy is not None and block.accuracy.method == "pending":
                    block.accuracy = None  # its logits are gone with the process that was cut off; the next block is asked again
                row.add(block)
                kept += 1
    new.run_id, new.started_at, new.suite_id = old.run_id, old.started_at, old.suite_id
    new.notes = [*(note for note in old.notes if not note.startswith("time budget")), f"resumed after {kept} blocks"]
    return kept


def is_whole(run: Run) -> bool:
    """Whether nothing is left to measure: every row failed or has all its rounds."""
    left = any(
        row.status is Status.INTERRUPTED or (row.status is Status.OK and len({block.round for block in row.blocks}) < run.plan.rounds)
        for row in run.rows
    )
    return run.finished_at is not None and not run.interrupted and not left


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 120 else text[:117] + "..."
