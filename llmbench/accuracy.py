"""Accuracy and honesty seen from the parent: what a block is asked for after its last sample, and the comparison after the first round.

`gather_fresh` and `gather_logits` run while the variant's worker still lives, outside of all that is timed and of the memory peaks;
`check_rows` starts a process of its own that computes the reference. The parent never touches a logit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from llmbench.plausibility import MIN_REUSE_PROMPT
from llmbench.protocol import Accuracy, Block, Job, Request, Run, Sample, Status, decode, encode
from llmbench.supervise import Worker, WorkerFailed

#: New ids of the first sequence whose logits are compared, and positions of them and of the prompt's end together.
MAX_NEW, MAX_KEPT = 128, 256
#: Ids that an engine's `logits` is asked for: half of them go through its decode step one by one.
MAX_FORCED = 1024
#: Ids of a sequence that the reference computes; attention's cost grows with the square.
MAX_REFERENCE = 4096
#: Different generations of a batch that are checked.
MAX_SEQUENCES = 4
#: First-token generations with prompts never seen before.
FRESH_PROMPTS = 3


class Ask(Protocol):
    """Has the block's worker do one thing."""

    def __call__(self, do: str, **arguments: Any) -> dict[str, Any]: ...


class Progress(Protocol):
    def block(self, label: str, round: int, rounds: int) -> None: ...

    def step(self, text: str) -> None: ...

    def message(self, text: str) -> None: ...


def span(request: Request, new_tokens: int) -> tuple[int, int]:
    """(first, stop): the positions of prompt and new ids whose logits are compared."""
    stop = min(len(request.prompt_ids) + min(new_tokens, MAX_NEW), MAX_FORCED)
    return max(0, stop - MAX_KEPT), stop


def fresh_prompts(request: Request, vocab: int) -> list[tuple[int, ...]]:
    """Synthetic prompts as long as the request's that differ from it and from each other from the first id on; none where too short to tell."""
    from llmbench.checkpoints.tokenizer import synthetic_ids

    length = len(request.prompt_ids)
    if length < MIN_REUSE_PROMPT or vocab < 2 * FRESH_PROMPTS:
        return []
    prompts = []
    for number in range(FRESH_PROMPTS):
        first = (request.prompt_ids[0] + 1 + number) % vocab
        prompts.append((first, *synthetic_ids(vocab, length - 1, request.sampling.seed + 7919 * (number + 1))))
    return prompts


def gather_fresh(ask: Ask, block: Block, job: Job, vocab: int) -> None:
    """After a block's last sample: times prompts never seen before beside the request's own, for plausibility.reuse_fault. Adds to block.samples."""
    for prompt in fresh_prompts(job.request, vocab):
        answer = ask("generate", kind="fresh_first_token", max_new_tokens=1, prompt_ids=prompt)
        block.samples.append(decode(Sample, answer["sample"]))
        # Right after it the request's prompt, so that a slow moment of the machine falls on both. Once unrecorded before: a cache that holds one
        # prompt has to read this one again.
        ask("generate", kind="first_token", max_new_tokens=1)
        block.samples.append(decode(Sample, ask("generate", kind="repeated_first_token", max_new_tokens=1)["sample"]))


def gather_logits(ask: Ask, block: Block, job: Job, into: Path) -> None:
    """After a block's last sample: has the engine write its logits to `into`.

    Why there are no logits is kept in block.accuracy until `check_rows` puts the verdict there: what an engine can't do about logits never fails
    its block.
    """
    if not block.ids:
        return
    first, stop = span(job.request, len(block.ids[0]))
    ids = [*job.request.prompt_ids, *block.ids[0]][:stop]
    why = None
    try:
        ask("logits", ids=ids, first=first, into=str(into))
    except WorkerFailed as failure:
        into.unlink(missing_ok=True)
        why = f"no logits: {failure.reason}"
    block.accuracy = Accuracy("pending", True, why)


def check_rows(
    run: Run,
    jobs: Mapping[str, Job],
    logits: Mapping[str, Path],
    *,
    cache: Path | None,
    log: Path,
    environment: Mapping[str, str],
    progress: Progress,
) -> None:
    """Compares each row's first good block with the reference, in a worker of llmbench's own interpreter. Failing rows become inaccurate.

    jobs, logits: by label, the rows to check and the files that `gather_logits` was given (which need not exist). Rows that have a verdict already
    keep it. Where the reference can't be computed, the check is skipped with the reason. Ctrl-C is passed on.
    """
    worker: Worker | None = None
    try:
        for row in run.rows:
            label = row.variant.label
            block = next((block for block in row.blocks if block.status is Status.OK and block.accuracy), None)
            if label not in jobs or block is None or any(block.accuracy and block.accuracy.method != "pending" for block in row.blocks):
                continue
            progress.block(label, block.round, run.plan.rounds)
            progress.step("comparing with float32 arithmetic")
            worker = worker or Worker(log, environment=environment)
            job, path = jobs[label], logits.get(label)
            try:
                block.accuracy = _ask(worker, run, job, block, path if path is not None and path.exists() else None, cache)
            except WorkerFailed as failure:
                block.accuracy = Accuracy("skipped", True, f"the reference could not be computed: {failure.reason}")
                if not failure.alive:
                    worker = None
            if path is not None:
                path.unlink(missing_ok=True)  # up to some 100 MB each, and the folder may lie in memory
            if not block.accuracy.passed:
                block.status, block.reason = Status.INACCURATE, block.accuracy.reason
                if Status.INACCURATE.severity > row.status.severity:
                    row.status, row.reason = block.status, block.reason
                progress.message(f"{label}: inaccurate: {block.reason}")
    except WorkerFailed as failure:  # the interpreter itself can't be started
        note = f"accuracy was not checked: {failure.reason}"
        if note not in run.notes:  # asked again after each round
            run.notes.append(note)
    except BaseException:  # Ctrl-C doesn't wait for a reference to be done
        if worker is not None:
            worker.end()
        raise
    if worker is not None:
        worker.close()


def _ask(worker: Worker, run: Run, job: Job, block: Block, logits: Path | None, cache: Path | None) -> Accuracy:
    assert block.ids
    longest = MAX_REFERENCE - len(job.request.prompt_ids)
    sequences = [ids[:longest] for ids in distinct(block.ids)[:MAX_SEQUENCES]]
    if longest < 1:
        return Accuracy("skipped", True, f"the prompt is longer than the {MAX_REFERENCE} ids that the reference is computed for")
    first, stop = span(job.request, len(sequences[0]))
    answer = worker.ask(
        "accuracy",
        timeout_s=run.plan.timeout_s,
        job=encode(job),
        new_ids=sequences,
        logits=None if logits is None else str(logits),
        first=first,
        stop=stop,
        cache=None if cache is None else str(cache),
    )
    found: Accuracy = decode(Accuracy, answer["accuracy"])
    if found.method == "ids" and found.reason is None and block.accuracy is not None:  # why there are no logits
        found = dataclasses.replace(found, reason=block.accuracy.reason)
    return found


def distinct(sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    """A batch's generations without repetitions, in order."""
    found: dict[tuple[int, ...], None] = dict.fromkeys(tuple(ids) for ids in sequences)
    return [list(ids) for ids in found]


def note_differences(run: Run) -> None:
    """Says in the run's notes which rows' blocks gave different ids. That is no fault: another process may pick other kernels."""
    for row in run.rows:
        generations = {str(block.ids) for block in row.blocks if block.ids and block.status is Status.OK}
        if len(generations) > 1:
            run.notes.append(f"{row.variant.label}: its blocks gave {len(generations)} different generations")
