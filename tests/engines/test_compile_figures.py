"""torch's own counters as one dataclass: graphs, breaks, recompilations, caches, seconds by phase."""

import os

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import pytest
import torch

from llmbench.engines import compile_figures

pytestmark = pytest.mark.xdist_group("torch")


@pytest.fixture(autouse=True)
def fresh():
    import torch._dynamo.utils as utils
    import torch._inductor.metrics as metrics

    def clear() -> None:
        torch._dynamo.reset()
        utils.counters.clear()
        utils.clear_compilation_metrics()
        metrics.reset()

    clear()
    compile_figures.remember()
    yield
    clear()


def test_nothing_compiled_is_nothing():
    assert compile_figures.figures() is None


def test_breaks_and_recompilations_are_counted_with_their_reasons():
    @torch.compile(backend="eager", dynamic=False)
    def step(x):
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    step(torch.ones(2))
    before = compile_figures.figures()
    assert before is not None
    assert (before.graphs, before.graph_breaks, before.recompiles, before.kernels) == (2, 1, 0, None)
    step(torch.ones(3))
    found = compile_figures.figures()
    assert found is not None
    assert found.recompiles == 2  # both halves, for another length
    assert found.frames == before.frames + 2
    assert any(line.startswith("graph break: ") for line in found.reasons)
    assert any(line.startswith("recompiled (step): ") for line in found.reasons)
    assert all("\n" not in line and len(line) <= compile_figures.MOST_CHARACTERS for line in found.reasons)


def test_inductors_seconds_kernels_and_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    def step(x):
        return (x.sin() + 1).sum()

    torch.compile(step)(torch.ones(64))
    cold = compile_figures.figures()
    assert cold is not None
    assert (cold.graphs, cold.cache_hits, cold.cache_misses) == (1, 0, 1)
    assert (cold.kernels or 0) >= 1
    assert cold.total_s == pytest.approx(cold.trace_s + cold.autograd_s + cold.inductor_s)
    assert 0 < cold.codegen_s <= cold.inductor_s <= cold.total_s
    torch._dynamo.reset()
    torch.compile(step)(torch.ones(64))
    warm = compile_figures.figures()
    assert warm is not None
    assert (warm.cache_hits, warm.cache_misses) == (1, 1)
    assert warm.inductor_s == cold.inductor_s  # a hit skips Inductor
