"""transformers' generate as an engine: exactly as many ids as asked for, those of its own model, whatever the checkpoint's settings say."""

import dataclasses
import json
import os
from pathlib import Path

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import pytest
import torch

from llmbench.engines.base import Unsupported
from llmbench.engines.torch_engines import EagerEngine
from llmbench.engines.transformers_engine import TransformersEngine
from llmbench.protocol import CheckpointRef, Job, Request, Sampling, Variant
from llmbench.suite_files import load as load_suite
from llmbench.torchfast.transformers_model import build

pytestmark = pytest.mark.xdist_group("torch")

REQUEST = Request((1, 17, 42, 9, 100), 12)


def job_of(folder: Path, name: str, **options) -> Job:
    model = load_suite("huggingface").model(name)
    assert model is not None
    (folder / "config.json").write_text(json.dumps(model.shape))
    return Job(
        CheckpointRef(name, str(folder), "dummy", 1), Variant("transformers", "transformers", "float32", None, options), REQUEST, "cpu", 1
    )


def greedy(job: Job) -> list[int]:
    """The ids by the model itself, the whole sequence anew at each step."""
    model = build(job.checkpoint, "float32", "cpu")
    ids = list(job.request.prompt_ids)
    with torch.no_grad():
        for _ in range(job.request.max_new_tokens):
            ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(job.request.prompt_ids) :]


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "opt"])
def test_its_ids_are_the_models(tmp_path, name):
    job = job_of(tmp_path, name)
    engine = TransformersEngine()
    engine.supports(job)
    report = engine.load(job)
    assert (report.settings["loop"], report.settings["compile"]) == ("generate", False)
    expected = greedy(job)
    assert engine.generate(REQUEST) == [expected]
    assert engine.generate(REQUEST) == [expected]  # over what the first left in the cache
    counts: list[int] = []
    assert engine.generate(REQUEST, counts.append) == [expected]
    assert counts == list(range(1, 13))
    assert engine.generate(dataclasses.replace(REQUEST, max_new_tokens=1)) == [expected[:1]]
    assert engine.logits([*REQUEST.prompt_ids, *expected])[4:-1].argmax(axis=-1).tolist() == expected
    eager = EagerEngine()
    eager.load(job)
    assert eager.generate(REQUEST) == [expected]


def test_an_end_of_sequence_and_penalties_of_the_checkpoint_change_nothing(tmp_path):
    job = job_of(tmp_path, "gpt2")
    expected = greedy(job)
    build(job.checkpoint, "float32", "cpu").save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"eos_token_id": expected[2], "repetition_penalty": 5.0, "do_sample": True})
    )
    engine = TransformersEngine()
    engine.load(dataclasses.replace(job, checkpoint=CheckpointRef("real", str(tmp_path))))
    assert engine.generate(REQUEST) == [expected]


def test_compiled_it_gives_the_same_ids_and_no_logits(tmp_path):
    job = job_of(tmp_path, "gpt2", compile=True)
    engine = TransformersEngine()
    engine.supports(job)
    assert engine.load(job).settings["mode"] == "default"
    expected = greedy(job)
    assert [engine.generate(REQUEST), engine.generate(REQUEST)] == [[expected]] * 2
    with pytest.raises(Unsupported, match="its ids have to do"):
        engine.logits([1, 2, 3])
    found = engine.compilation()
    assert found is not None
    assert found.recompiles == 0
    assert (found.kernels or 0) > 0
    engine.close()


def test_sampling_is_seeded_and_a_batch_is_whole(tmp_path):
    request = dataclasses.replace(REQUEST, batch_size=3, sampling=Sampling(1.0, 20, 7))
    engine = TransformersEngine()
    engine.load(dataclasses.replace(job_of(tmp_path, "gpt2"), request=request))
    first = engine.generate(request)
    assert [len(ids) for ids in first] == [12] * 3
    assert engine.generate(request) == first
    assert engine.generate(dataclasses.replace(request, sampling=Sampling(1.0, 20, 8))) != first


def test_an_option_that_is_no_yes_or_no(tmp_path):
    with pytest.raises(Unsupported, match="compile is 'maybe'; it is true or false"):
        TransformersEngine().supports(job_of(tmp_path, "gpt2", compile="maybe"))
