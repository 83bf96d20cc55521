"""What samples say against their own row."""

import pytest

from llmbench.plausibility import block_fault, repetition_fault, reuse_fault
from llmbench.protocol import Block, Sample, Status


def sample(kind: str, wall_s: float = 0.1, digest: str = "a", count: int = 4) -> Sample:
    return Sample(kind, wall_s, (count,), digest)


def test_equal_requests_must_give_equal_ids():
    assert repetition_fault([sample("sample"), sample("sample"), sample("first_token", digest="b")]) is None
    assert repetition_fault([sample("sample"), sample("sample", digest="b")]) == "the same request gave 2 different generations in 2"
    assert repetition_fault([sample("first_token"), sample("first_token", digest="b"), sample("sample")]) == (
        "the same request gave 2 different first tokens in 2"
    )


def test_a_single_sample_is_held_to_the_last_warmup():
    assert repetition_fault([sample("warmup", digest="x"), sample("warmup"), sample("sample")]) is None
    assert repetition_fault([sample("warmup"), sample("warmup", digest="x"), sample("sample")]) is not None
    assert repetition_fault([sample("warmup", digest="x"), sample("sample"), sample("sample")]) is None  # two samples suffice
    assert repetition_fault([]) is None


def prompts(repeated: list[float], fresh: list[float]) -> list[Sample]:
    return [*(sample("repeated_first_token", wall_s) for wall_s in repeated), *(sample("fresh_first_token", wall_s) for wall_s in fresh)]


def test_a_repeated_prompt_that_comes_too_fast_was_looked_up():
    why = reuse_fault(prompts([0.01, 0.012], [0.1, 0.09, 0.11]), 200)
    assert why is not None
    assert "12 ms at most" in why
    assert "90 ms at least" in why


@pytest.mark.parametrize(
    ("repeated", "fresh", "length"),
    [
        ([0.1, 0.1], [0.1, 0.1, 0.1], 200),  # read anew
        ([0.01, 0.06], [0.1, 0.1, 0.1], 200),  # one repeated prompt took its time
        ([0.01, 0.01], [0.1, 0.015, 0.1], 200),  # one fresh prompt was as fast: the others were disturbed
        ([0.01, 0.01], [0.1, 0.1, 0.1], 63),  # too short to tell
        ([0.0001, 0.0001], [0.004, 0.004, 0.004], 200),  # no longer than a pause of the scheduler
        ([0.01], [0.1], 200),
        ([0.01, 0.01], [], 200),
        ([], [0.1, 0.1], 200),
    ],
)
def test_what_decides_nothing(repeated, fresh, length):
    assert reuse_fault(prompts(repeated, fresh), length) is None


def test_a_blocks_fault_has_a_status():
    assert block_fault(Block(0, samples=[sample("sample"), sample("sample")]), 200) is None
    fault = block_fault(Block(0, samples=[sample("sample"), sample("sample", digest="b")]), 200)
    assert fault is not None
    assert fault[0] is Status.NONDETERMINISTIC
    fault = block_fault(Block(0, samples=prompts([0.01], [0.1, 0.1])), 200)
    assert fault is not None
    assert fault[0] is Status.IMPLAUSIBLE
