"""Accuracy of a family that only transformers' model knows: held to that model in float32, with the same rules."""

import dataclasses
import json

import numpy as np
import pytest

from llmbench.engines.torch_engines import EagerEngine
from llmbench.protocol import CheckpointRef, Job, Request, Variant
from llmbench.suite_files import load as load_suite
from llmbench.worker.accuracy import check, write_logits

pytestmark = pytest.mark.xdist_group("torch")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """(job, new ids, logits) of eager in bfloat16 on a small GPT-2."""
    folder = tmp_path_factory.mktemp("gpt2")
    model = load_suite("huggingface").model("gpt2")
    assert model is not None
    (folder / "config.json").write_text(json.dumps(model.shape))
    job = Job(
        CheckpointRef("gpt2", str(folder), "dummy", 1), Variant("eager", "eager", "bfloat16"), Request((3, 50, 7, 91, 20), 16), "cpu", 1
    )
    engine = EagerEngine()
    engine.load(job)
    new = engine.generate(job.request)
    return job, new, engine.logits([*job.request.prompt_ids, *new[0]])


def test_eager_in_a_smaller_dtype_passes_and_the_reference_is_named(measured, tmp_path):
    job, new, logits = measured
    write_logits(logits, 0, len(logits), tmp_path / "logits")
    found = check(job, new, tmp_path / "logits", 0, len(logits), tmp_path / "cache")
    assert (found.method, found.passed) == ("logits", True)
    assert 0 < found.error <= found.tolerance
    assert "transformers' own float32 run" in found.reason
    again = check(job, new, tmp_path / "logits", 0, len(logits), tmp_path / "cache")  # from what is kept
    assert dataclasses.asdict(again) == dataclasses.asdict(found)


def test_wrong_logits_fail(measured, tmp_path):
    job, new, logits = measured
    wrong = logits.copy()
    wrong[-4:] = np.roll(wrong[-4:], 1, axis=1)  # as a cache that is off by one gives them
    write_logits(wrong, 0, len(wrong), tmp_path / "logits")
    found = check(job, new, tmp_path / "logits", 0, len(wrong), None)
    assert not found.passed
    assert "off by" in found.reason


def test_wrong_ids_fail(measured):
    job, new, _ = measured
    found = check(job, [[(token + 1) % 256 for token in new[0]]], None, 0, 21, None)
    assert (found.method, found.passed) == ("ids", False)
    assert "its first new id is" in found.reason
