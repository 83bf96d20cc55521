"""The engine aot-inductor: built in one process and run in another, held to eager in every family."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import ahead
import pytest
import torch

from llmbench.artifacts import Store
from llmbench.building import Provider
from llmbench.engines import compilers
from llmbench.engines.aot_inductor import AotInductorEngine, prefill_ranges
from llmbench.engines.base import EngineError, Unavailable, Unsupported
from llmbench.engines.torch_engines import EagerEngine
from llmbench.protocol import Request, Sampling, Status

pytestmark = pytest.mark.xdist_group("torch")
needs_compiler = pytest.mark.skipif(compilers.missing_compiler("cpu") is not None, reason=str(compilers.missing_compiler("cpu")))

MIB = 2**20


@needs_compiler
def test_built_once_small_and_loaded_without_a_second_copy_of_the_weights(tmp_path: Path) -> None:
    """Through the parent's own steps, on a shape whose weights are 125 MiB and whose code is as small as the tiny shapes'."""
    job = ahead.job_for(
        tmp_path / "wide", "aot-inductor", hidden_size=512, vocab_size=32000, num_hidden_layers=1, tie_word_embeddings=False
    )
    said: list[str] = []
    provider = Provider(Store(tmp_path / "engines"), ahead.environment, timeout_s=300, say=said.append)
    built = ahead.provide(provider, job, tmp_path / "build.log")
    assert not built.use.hit
    assert 0 < built.use.bytes < 8 * MIB
    built.close()
    other = dataclasses.replace(job, request=dataclasses.replace(job.request, prompt_ids=(5, 6, 7, 8, 9, 10, 11), max_new_tokens=10))
    found = ahead.provide(provider, other, tmp_path / "build.log")  # another prompt of another length
    assert found.use.hit
    assert len(said) == 1
    with ahead.worker_for(job, tmp_path / "log", ahead.environment(2, tmp_path / "caches")) as worker:
        loaded = worker.ask("load", timeout_s=300, artifact=str(found.path))
        weights = loaded["report"]["weights_bytes"]
        load_peak = worker.ask("end_phase", timeout_s=60)["peak_bytes"]
        ids = worker.ask("generate", timeout_s=300, kind="warmup", max_new_tokens=12, want_ids=True)["ids"]
        run_peak = worker.ask("end_phase", timeout_s=60)["peak_bytes"]
        compiled = worker.ask("compilation", timeout_s=60)["compilation"]
    assert weights > 120 * MIB
    assert max(load_peak, run_peak) < 1.5 * weights
    assert compiled is None  # nothing was traced or compiled in that process
    # What lies in its folder of caches is the packages unpacked, no work of a compiler.
    assert {path.relative_to(tmp_path / "caches").parts[1][:12] for path in (tmp_path / "caches").rglob("*.so")} == {"aotinductor_"}
    eager = EagerEngine()
    eager.load(job)
    assert ids == eager.generate(job.request)


@needs_compiler
@pytest.mark.parametrize("family", ahead.FAMILIES)
def test_eagers_ids_and_logits(family: str, tmp_path: Path) -> None:
    request = dataclasses.replace(ahead.REQUEST, batch_size=2)
    job = ahead.job_for(tmp_path / "tiny", "aot-inductor", family, request)
    engine, eager = AotInductorEngine(), EagerEngine()
    engine.supports(job)
    (tmp_path / "artifact").mkdir()
    engine.build(job, tmp_path / "artifact")
    engine.load(job, tmp_path / "artifact")
    eager.load(job)
    assert engine.model is not None
    try:
        # Up to the window, past it, and the shortest and longest that leave room: 23 of the cache's 24 positions.
        for length in (1, 2, 5, 6, 7, 13, 23):
            asked = dataclasses.replace(request, prompt_ids=tuple(range(3, 3 + length)), max_new_tokens=min(12, 24 - length))
            assert engine.generate(asked) == eager.generate(asked), length
        for ids in ([3, 9], list(range(3, 20))):
            assert abs(engine.logits(ids) - eager.logits(ids)).max() < 1e-4
        assert engine.generate(request) == eager.generate(request)  # what logits left in the caches is never read
        with pytest.raises(EngineError, match="asked for 1 sequences; compiled for 2"):
            engine.generate(ahead.REQUEST)
        with pytest.raises(EngineError, match=r"temperature 0.7 and top_k None; compiled for 0.0 and None"):
            engine.generate(dataclasses.replace(request, sampling=Sampling(0.7)))
        # The packages read the module's own tensors, not copies.
        engine.model.norm.weight.zero_()
        assert engine.logits([3, 4, 5, 6]).std() < 1e-6 or family == "Phi"
    finally:
        engine.close()


@needs_compiler
def test_sampling_is_compiled_in_and_draws_from_the_distribution(tmp_path: Path) -> None:
    request = dataclasses.replace(ahead.REQUEST, sampling=Sampling(0.8, 3, seed=7), batch_size=2)
    job = ahead.job_for(tmp_path / "tiny", "aot-inductor", request=request)
    engine, eager = AotInductorEngine(), EagerEngine()
    engine.build(job, tmp_path)
    engine.load(job, tmp_path)
    eager.load(job)
    likeliest = torch.tensor(eager.logits([*request.prompt_ids, 3])[len(request.prompt_ids) - 1]).topk(3)
    expected = torch.softmax(likeliest.values / 0.8, -1)
    drawn: list[int] = []
    for seed in range(400):
        asked = dataclasses.replace(request, max_new_tokens=1, sampling=dataclasses.replace(request.sampling, seed=seed))
        drawn += [sequence[0] for sequence in engine.generate(asked)]
    shares = torch.tensor([drawn.count(int(token)) / len(drawn) for token in likeliest.indices])
    assert shares.sum() == 1
    assert (shares - expected).abs().max() < 0.08  # over four standard deviations of 800 draws
    assert engine.generate(request) == engine.generate(request)
    assert engine.generate(request)[0] != engine.generate(request)[1]
    engine.close()


def test_prefills_cover_every_prompt_once() -> None:
    for length in (8, 16, 24):
        for window in (None, 1, 2, 6, length - 2, length - 1, length, 100):
            lengths = [at for _, low, high in prefill_ranges(window, length) for at in range(low, high + 1)]
            assert lengths == list(range(2, length))
            # No graph serves both sides of the window: the mask is part of one of them.
            assert all(not low <= window < high for _, low, high in prefill_ranges(window, length) if window is not None)


def test_the_recipe_follows_what_is_compiled_and_nothing_else(tmp_path: Path) -> None:
    job = ahead.job_for(tmp_path / "tiny", "aot-inductor")
    engine = AotInductorEngine()
    recipe = engine.recipe(job)
    assert recipe.executes
    assert recipe.maxima == {"batch": 1, "cache_length": 24}
    assert recipe.options["threads"] == 2

    def changed(**changes: object) -> bool:
        return engine.recipe(dataclasses.replace(job, request=dataclasses.replace(job.request, **changes))) != recipe

    assert not changed(prompt_ids=(3, 4, 5), max_new_tokens=20)
    assert not changed(sampling=Sampling(0.0, 50, seed=9))  # greedy whatever top_k and the seed
    assert changed(sampling=Sampling(0.5))
    assert engine.recipe(dataclasses.replace(job, threads=1)) != recipe
    assert changed(max_new_tokens=20)
    assert changed(batch_size=2)
    assert Request((1, 2), 7).cache_length == 16


def test_what_it_cannot_do_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = ahead.job_for(tmp_path / "tiny", "aot-inductor")
    with pytest.raises(EngineError, match="there is none") as caught:
        AotInductorEngine().load(job, None)
    assert caught.value.status is Status.LOAD_FAILED
    (tmp_path / "empty").mkdir()
    with pytest.raises(EngineError) as caught:
        AotInductorEngine().load(job, tmp_path / "empty")
    assert caught.value.status is Status.LOAD_FAILED
    assert "\n" not in caught.value.reason
    (tmp_path / "tiny" / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 100}')
    with pytest.raises(Unsupported, match="aot-inductor runs llmbench's own model alone"):
        AotInductorEngine().supports(job)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Unavailable, match="no-such-compiler"):
        AotInductorEngine().build(job, tmp_path / "empty")
    monkeypatch.delattr(torch._C, "_aoti")
    job = ahead.job_for(tmp_path / "tiny", "aot-inductor")
    with pytest.raises(Unsupported, match="no loader for AOTInductor"):
        AotInductorEngine().supports(job)
