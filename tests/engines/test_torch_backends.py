"""torch.compile's other ways: the same ids as eager, the settings that they rest on, and what each says where it can't run."""

import dataclasses
import inspect
import json
import os
from pathlib import Path

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import pytest
import torch

from llmbench.engines import torch_backends
from llmbench.engines.base import Unavailable, Unsupported
from llmbench.engines.registry import find, problem
from llmbench.engines.torch_backends import AotEagerEngine, CudagraphsEngine, NvfuserEngine, TorchCompileNoCudagraphsEngine
from llmbench.engines.torch_engines import EagerEngine
from llmbench.protocol import CheckpointRef, Job, Request, Variant

pytestmark = pytest.mark.xdist_group("torch")

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 199,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
REQUEST = Request((1, 17, 42, 9), 8)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    return Job(CheckpointRef("tiny", str(tmp_path), "dummy", 2), Variant("x", "x", "float32"), REQUEST, "cpu", 1)


@pytest.fixture
def dynamo_settings():
    import torch._dynamo.config as settings

    names = ("cudagraph_backend_keep_input_mutation", "cudagraph_backend_support_input_mutation")
    before = {name: getattr(settings, name) for name in names}
    yield settings
    for name, value in before.items():
        setattr(settings, name, value)


def test_aot_eager_gives_eagers_ids_and_counts_what_it_compiled(job):
    eager, compiled = EagerEngine(), AotEagerEngine()
    eager.load(job)
    compiled.supports(job)
    report = compiled.load(job)
    assert (report.settings["backend"], report.settings["model"]) == ("aot_eager", "own")
    assert compiled.generate(REQUEST) == eager.generate(REQUEST)
    ids = [*REQUEST.prompt_ids, 5, 6]
    torch.testing.assert_close(torch.from_numpy(compiled.logits(ids)), torch.from_numpy(eager.logits(ids)))
    found = compiled.compilation()
    assert found is not None
    assert found.graphs >= 2
    assert found.inductor_s == 0
    compiled.close()


def test_no_cudagraphs_is_inductor_in_mode_default(job):
    engine = TorchCompileNoCudagraphsEngine()
    engine.supports(job)
    assert engine.load(job).settings["mode"] == "default"
    with pytest.raises(Unsupported, match="no option 'mode': it is default"):
        engine.supports(dataclasses.replace(job, variant=dataclasses.replace(job.variant, options={"mode": "max-autotune"})))


@pytest.mark.parametrize(("kind", "words"), [(CudagraphsEngine, "there are none on the CPU"), (NvfuserEngine, "there are none on the CPU")])
def test_what_needs_cuda_says_so(job, kind, words):
    with pytest.raises(Unavailable, match=words):
        kind().supports(job)
    assert "does not run on cpu" in str(problem(dataclasses.replace(find(kind.name), requires=()), "cpu"))


def test_nvfuser_says_what_it_needs():
    if problem(find("nvfuser"), "cuda") is None:
        pytest.skip("thunder is installed here")
    assert "lightning-thunder==0.2.6 nvfuser-cu128-torch210" in str(problem(find("nvfuser"), "cuda"))


def test_the_cudagraphs_backend_is_there_and_told_to_leave_the_cache_where_it_is(job, dynamo_settings):
    """What the engine rests on, held to the installed torch: the rest needs a GPU and has not been run."""
    assert "cudagraphs" in torch._dynamo.list_backends()
    assert dynamo_settings.cudagraph_backend_keep_input_mutation is False
    engine = CudagraphsEngine()
    engine.load(job)
    assert dynamo_settings.cudagraph_backend_keep_input_mutation is True
    assert dynamo_settings.cudagraph_backend_support_input_mutation is True
    source = inspect.getsource(inspect.getmodule(torch._dynamo.lookup_backend("cudagraphs").__class__))
    assert "config.cudagraph_backend_support_input_mutation" in source
    assert "config.cudagraph_backend_keep_input_mutation" in source


def test_thunders_compiler_takes_executors():
    thunder = pytest.importorskip("thunder", reason="lightning-thunder pins another torch; its 0.2.6 was read for this")
    from thunder.dynamo import ThunderCompiler

    assert any(entry.kind is inspect.Parameter.VAR_KEYWORD for entry in inspect.signature(ThunderCompiler).parameters.values())
    assert callable(thunder.get_executor)
    assert torch_backends.thunder_backend([]).thunder_options["executors"] == []
