"""A model of a family that llmbench's own code doesn't know, from the command line to the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import llmbench, run_files

from llmbench.protocol import Status
from llmbench.results.files import load
from llmbench.results.summary import summarise
from llmbench.suite_files import load as load_suite

pytestmark = pytest.mark.xdist_group("torch")


def test_transformers_model_is_run_and_what_follows_from_a_shape_is_null_with_a_reason(tmp_path: Path) -> None:
    model = load_suite("huggingface").model("gpt2")
    assert model is not None
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(model.shape))
    fixed = ("--load-format", "dummy", "--input-len", 5, "-n", 8, "--quick", "--num-iters", 1)
    done = llmbench(tmp_path, "compare", "--model", "./mine", *fixed, "--engines", "eager,eager[model=own],transformers")
    assert done.returncode == 3, done.stderr
    (path,) = run_files(tmp_path)
    run = load(path)
    assert [row.status for row in run.rows] == [Status.OK, Status.UNSUPPORTED, Status.OK]
    assert "architectures is 'GPT2LMHeadModel', which is not supported" in str(run.rows[1].reason)
    assert run.model.config == {}
    assert run.model.architecture == "GPT2LMHeadModel"
    assert any("the torch engines run transformers' model" in note for note in run.notes)
    assert str(tmp_path) not in json.dumps(run.notes)
    report = run.rows[0].blocks[0].report
    assert report is not None
    assert report.settings["model"] == "transformers"
    eager, _, generate = summarise(run)
    assert eager.limit_tokens_per_s is None
    assert eager.limit_reason == "bytes per token are not known for this architecture"
    assert (eager.accuracy, generate.accuracy) == ("passed", "passed")
    assert "transformers' own float32 run" in str(generate.accuracy_reason)
    assert run.rows[0].blocks[0].ids == run.rows[2].blocks[0].ids
    assert "limit      unknown: bytes per token are not known" in done.stderr


def test_a_prompt_past_the_context_is_told_before_anything_runs(tmp_path: Path) -> None:
    model = load_suite("huggingface").model("gpt2")
    assert model is not None
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(model.shape))
    done = llmbench(tmp_path, "compare", "--model", "./mine", "--load-format", "dummy", "--input-len", 120, "-n", 50)
    assert done.returncode == 2
    assert "context of 128" in done.stderr
