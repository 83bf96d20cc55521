"""The engines eager and torch-compile, through the protocol that the worker speaks."""

import dataclasses
import json
import os
from pathlib import Path

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # before torch: a pool takes longer to start than these graphs to compile

import pytest
import torch

from llmbench.checkpoints.config import read_config
from llmbench.checkpoints.dummy import write_shards
from llmbench.engines import compilers
from llmbench.engines.base import EngineError, Unavailable, Unsupported
from llmbench.engines.torch_engines import EagerEngine, TorchCompileEngine
from llmbench.protocol import CheckpointRef, Job, Request, Sampling, Status, Variant

pytestmark = pytest.mark.xdist_group("torch")

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 199,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
REQUEST = Request(prompt_ids=(1, 17, 42, 9, 100), max_new_tokens=12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    (path / "config.json").write_text(json.dumps(CONFIG))
    write_shards(read_config(path), path, "float32", seed=5)
    return path


@pytest.fixture
def job(folder: Path) -> Job:
    checkpoint = CheckpointRef("tiny", str(folder))
    return Job(checkpoint, Variant("eager", "eager", "float32"), REQUEST, "cpu", torch.get_num_threads())


def with_variant(job: Job, **changes) -> Job:
    return dataclasses.replace(job, variant=dataclasses.replace(job.variant, **changes))


def test_loading_generating_and_closing(job):
    engine = EagerEngine()
    engine.supports(job)
    report = engine.load(job, None)
    assert (report.storage_dtype, report.arithmetic_dtype) == ("float32", "float32")
    parameters = 2 * 199 * 64 + 64 + 2 * (64 * 128 + 64 * 64 + 3 * 64 * 96 + 2 * 64)
    assert report.weights_bytes == 4 * parameters
    assert report.kv_cache_bytes == 2 * 2 * 2 * 24 * 16 * 4  # k and v, layers, KV heads, 17 positions rounded up to 24, head dim, bytes
    ids = engine.generate(REQUEST)
    assert [len(sequence) for sequence in ids] == [12]
    assert engine.generate(REQUEST) == ids
    assert engine.generate(dataclasses.replace(REQUEST, max_new_tokens=1)) == [ids[0][:1]]
    counts: list[int] = []
    assert engine.generate(REQUEST, counts.append) == ids
    assert counts == list(range(1, 13))
    engine.synchronize()
    engine.close()
    with pytest.raises(EngineError, match="no weights are loaded"):
        engine.generate(REQUEST)


def test_dummy_weights_are_those_of_the_file_with_the_same_seed(job, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    dummy = dataclasses.replace(job, checkpoint=CheckpointRef("tiny", str(tmp_path), "dummy", 5))
    drawn, read = EagerEngine(), EagerEngine()
    drawn.load(dummy, None)
    read.load(job, None)
    assert (drawn.logits([1, 2, 3, 4]) == read.logits([1, 2, 3, 4])).all()


def test_logits_agree_with_the_generated_ids(job):
    engine = EagerEngine()
    engine.load(job, None)
    new = engine.generate(REQUEST)[0]
    ids = [*REQUEST.prompt_ids, *new]
    logits = engine.logits(ids)
    assert logits.shape == (17, 199)
    assert logits.dtype.name == "float32"
    assert logits[4:-1].argmax(axis=-1).tolist() == new
    assert engine.generate(REQUEST)[0] == new  # what logits left in the cache is never read


def test_sampling_is_seeded_for_each_generation(job):
    def request(seed: int) -> Request:
        return dataclasses.replace(REQUEST, sampling=Sampling(1.0, 50, seed), batch_size=2)

    engine = EagerEngine()
    engine.load(dataclasses.replace(job, request=request(1)), None)
    first = engine.generate(request(1))
    assert engine.generate(request(2)) != first
    assert engine.generate(request(1)) == first
    assert first[0] != first[1]


def test_what_was_not_loaded_for_is_refused(job):
    engine = EagerEngine()
    engine.load(job, None)
    with pytest.raises(EngineError, match="asked for 2 sequences of 17 tokens; loaded for 1 of 24"):
        engine.generate(dataclasses.replace(REQUEST, batch_size=2))
    with pytest.raises(EngineError, match="loaded for 1 of 24"):
        engine.generate(dataclasses.replace(REQUEST, max_new_tokens=60))
    with pytest.raises(EngineError, match="token id 199 is not in the vocabulary of 199"):
        engine.generate(dataclasses.replace(REQUEST, prompt_ids=(3, 199)))
    with pytest.raises(EngineError, match="empty"):
        engine.generate(dataclasses.replace(REQUEST, prompt_ids=()))
    with pytest.raises(EngineError, match="can't generate 0 tokens"):
        engine.generate(dataclasses.replace(REQUEST, max_new_tokens=0))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": "float64"}, "'float64'; known: float32, bfloat16, float16"),
        ({"quantization": "int8"}, "'int8'"),
        ({"options": {"mood": "good"}}, "no option 'mood'; known: model, mode, regional"),
        ({"options": {"regional": "yes"}}, "regional is 'yes'; it is true or false"),
        ({"options": {"mode": "warp"}}, "no mode 'warp'; known: default, reduce-overhead"),
    ],
)
def test_variants_it_cannot_do_are_refused_by_name(changes, words, job):
    with pytest.raises(Unsupported, match=words):
        TorchCompileEngine().supports(with_variant(job, **changes))


def test_other_jobs_it_cannot_do_are_refused_by_name(job):
    with pytest.raises(Unsupported, match="eager has no option 'mode'; known: model"):
        EagerEngine().supports(with_variant(job, options={"mode": "default"}))
    with pytest.raises(Unsupported, match="129, more than the model's context of 128"):
        EagerEngine().supports(dataclasses.replace(job, request=dataclasses.replace(REQUEST, max_new_tokens=124)))
    with pytest.raises(Unsupported, match="device 'tpu'"):
        EagerEngine().supports(dataclasses.replace(job, device="tpu"))
    with pytest.raises(Unavailable, match=r"cuda:99|without CUDA"):
        EagerEngine().supports(dataclasses.replace(job, device="cuda:99"))


def test_a_checkpoint_without_weights_fails_to_load_in_one_line(job, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(EngineError) as caught:
        EagerEngine().load(dataclasses.replace(job, checkpoint=CheckpointRef("empty", str(tmp_path))), None)
    assert caught.value.status is Status.LOAD_FAILED
    assert "\n" not in caught.value.reason


def test_a_cache_beyond_memory_is_out_of_memory(job):
    # More than the address space holds, so that no system can promise it.
    request = dataclasses.replace(REQUEST, batch_size=2**40)
    with pytest.raises(EngineError) as caught:
        EagerEngine().load(dataclasses.replace(job, request=request), None)
    assert caught.value.status is Status.OUT_OF_HOST_MEMORY
    assert "\n" not in caught.value.reason


def test_a_missing_compiler_is_said_with_what_to_install(job, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Unavailable, match=r"no-such-compiler is not on PATH.*apt-get install g\+\+"):
        TorchCompileEngine().supports(job)
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(compilers.sysconfig, "get_path", lambda name: "/nowhere")
    with pytest.raises(Unavailable, match="python3-dev"):
        TorchCompileEngine().supports(job)


def test_versions_name_torch():
    assert EagerEngine().versions()["torch"] == torch.__version__


@pytest.mark.skipif(compilers.missing_compiler("cpu") is not None, reason=str(compilers.missing_compiler("cpu")))
@pytest.mark.parametrize("regional", [False, True])
def test_compiled_gives_eagers_ids_and_compiles_once(regional, job):
    job = with_variant(job, engine="torch-compile", options={"regional": regional})
    eager, compiled = EagerEngine(), TorchCompileEngine()
    eager.load(job, None)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled.supports(job)
    report = compiled.load(job, None)
    assert (report.settings["mode"], report.settings["regional"]) == ("default", regional)
    assert compiled.generate(REQUEST) == eager.generate(REQUEST)
    stats = torch._dynamo.utils.counters["stats"]
    assert stats["unique_graphs"] == 2  # prefill and decode
    one = dataclasses.replace(REQUEST, max_new_tokens=1)
    assert compiled.generate(one) == eager.generate(one)
    assert compiled.generate(REQUEST) == eager.generate(REQUEST)
    ids = list(range(3, 20))
    assert abs(compiled.logits(ids) - eager.logits(ids)).max() < 1e-5
    assert stats["unique_graphs"] == 2
    compiled.close()
