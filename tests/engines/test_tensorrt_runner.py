"""The runner end to end without a GPU: every call held to the installed wheel, every number to the eager engine's."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from ahead import REQUEST, job_for

pytest.importorskip("tensorrt_rtx_bindings", reason="NVIDIA's wheels exist for Linux on x86-64 alone")
from tensorrt_standin import Stream, World, check_call, fits, signatures, wheel

from llmbench.engines.base import EngineError
from llmbench.engines.tensorrt import bindings
from llmbench.engines.tensorrt.bindings import RTX
from llmbench.engines.tensorrt.builder import PLAN_FILE
from llmbench.engines.tensorrt.engine import TensorRTForRTXEngine
from llmbench.engines.torch_engines import EagerEngine
from llmbench.graph.contract import INFO_FILE, read_info
from llmbench.graph.onnx_graph import OnnxGraph
from llmbench.protocol import Job, Request, Sampling, Status

pytestmark = pytest.mark.xdist_group("torch")

CLASSIC_LIKE = dataclasses.replace(RTX, runtime_config=False)


class Case:
    """A job, its graph, and an engine that runs on the stand-in; `world` sees all calls."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, job: Job, prompt_maximum: int = 8, edition: bindings.Edition = RTX
    ) -> None:
        self.job = job
        self.artifact = folder / "0123456789abcdef"
        self.artifact.mkdir()
        OnnxGraph().build(job, folder)
        (self.artifact / INFO_FILE).write_bytes((folder / INFO_FILE).read_bytes())
        (self.artifact / PLAN_FILE).write_bytes(b"what the stand-in takes for a plan")
        in_place = job.variant.options.get("kv_cache") == "in-place"
        plan = (self.artifact / PLAN_FILE).read_bytes()
        self.world = World(folder, read_info(folder), plan, prompt_maximum, in_place)
        monkeypatch.setattr(bindings, "load", lambda edition: self.world.module)
        self.stream = Stream()
        self.engine = TensorRTForRTXEngine()
        self.engine.edition = edition

    def load(self) -> Any:
        return self.engine.load_on(self.job, self.artifact, torch.device("cpu"), self.stream)


def eager(job: Job) -> EagerEngine:
    engine = EagerEngine()
    engine.load(dataclasses.replace(job, variant=dataclasses.replace(job.variant, options={})))
    return engine


@pytest.mark.parametrize("edition", [RTX, CLASSIC_LIKE], ids=["rtx", "classic"])
@pytest.mark.parametrize("kv_cache", ["copied", "in-place"])
@pytest.mark.parametrize(("family", "batch"), [("Llama", 1), ("Llama", 2), ("Mistral", 1)])
def test_ids_and_logits_are_the_eager_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, batch: int, kv_cache: str, edition: bindings.Edition
) -> None:
    request = dataclasses.replace(REQUEST, batch_size=batch)
    case = Case(
        tmp_path, monkeypatch, job_for(tmp_path / "c", "tensorrt-rtx", family, request, options={"kv_cache": kv_cache}), edition=edition
    )
    report = case.load()
    reference = eager(case.job)
    ids = case.engine.generate(request)
    assert ids == reference.generate(request)
    assert [len(row) for row in ids] == [12] * batch
    assert case.engine.generate(request) == ids
    assert case.engine.generate(dataclasses.replace(request, max_new_tokens=1)) == [row[:1] for row in ids]
    # An odd number of steps has left the cache in the other buffer.
    other = dataclasses.replace(request, prompt_ids=(7,))
    assert case.engine.generate(other) == reference.generate(other)
    known = [*request.prompt_ids, *ids[0]]
    torch.testing.assert_close(torch.from_numpy(case.engine.logits(known)), torch.from_numpy(reference.logits(known)), rtol=1e-4, atol=1e-4)
    cache_bytes = 2 * 2 * batch * case.world.info.kv_heads * 24 * 8 * 4
    assert report.kv_cache_bytes == cache_bytes * (1 if kv_cache == "in-place" else 2)
    assert case.stream.captured == (0 if edition is RTX else 1 if kv_cache == "in-place" else 2)
    case.engine.close()


def test_float16_and_sampling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage in float16; ids drawn as the torch engines draw them, from the same seed."""
    request = dataclasses.replace(REQUEST, sampling=Sampling(temperature=0.8, top_k=20, seed=3))
    job = job_for(tmp_path / "c", "tensorrt-rtx", request=request)
    job = dataclasses.replace(job, variant=dataclasses.replace(job.variant, dtype="float16"))
    case = Case(tmp_path, monkeypatch, job)
    report = case.load()
    assert (report.storage_dtype, report.settings["tf32"]) == ("float16", False)
    known = list(range(1, 17))
    torch.testing.assert_close(
        torch.from_numpy(case.engine.logits(known)), torch.from_numpy(eager(job).logits(known)), rtol=2e-2, atol=2e-2
    )
    drawn = case.engine.generate(request)
    assert case.engine.generate(request) == drawn
    assert case.engine.generate(dataclasses.replace(request, sampling=Sampling(0.8, 20, 4))) != drawn
    assert case.engine.generate(dataclasses.replace(request, sampling=Sampling())) != drawn
    case.engine.close()


def test_sampled_ids_are_the_eager_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = dataclasses.replace(REQUEST, sampling=Sampling(temperature=1.5, top_k=None, seed=11))
    case = Case(tmp_path, monkeypatch, job_for(tmp_path / "c", "tensorrt-rtx", request=request))
    case.load()
    assert case.engine.generate(request) == eager(case.job).generate(request)
    case.engine.close()


def test_a_prompt_past_the_profile_goes_through_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Teacher forcing prefills half of all ids, which may be more than the prompt the plan is for."""
    case = Case(tmp_path, monkeypatch, job_for(tmp_path / "c", "tensorrt-rtx"), prompt_maximum=3)
    case.load()
    assert case.engine.generate(REQUEST) == eager(case.job).generate(REQUEST)
    case.engine.close()


def test_tokens_are_told_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(tmp_path, monkeypatch, job_for(tmp_path / "c", "tensorrt-rtx"))
    case.load()
    told: list[int] = []
    case.engine.generate(REQUEST, told.append)
    assert told == list(range(1, 13))
    case.engine.close()


def test_what_a_generation_asks_of_the_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One enqueue for each token and, but for prefill, no shape or address: that is all the host does in a step."""
    case = Case(tmp_path, monkeypatch, job_for(tmp_path / "c", "tensorrt-rtx"))
    case.load()
    before, tensors = len(case.world.calls), len(case.world.inputs) + len(case.world.outputs)
    case.engine.generate(REQUEST)
    made = [name for _, name, _ in case.world.calls[before:]]
    assert made.count("execute_async_v3") == REQUEST.max_new_tokens
    assert made.count("set_tensor_address") == tensors
    assert made.count("set_input_shape") == 2
    assert len(made) == REQUEST.max_new_tokens + tensors + 2
    case.engine.close()


@pytest.mark.parametrize("graph", [True, False])
def test_runtime_configuration_and_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graph: bool) -> None:
    """Steps are CUDA graphs where that is asked for, prefill never; kernels go into the run's folder of caches and come back from it."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "caches" / "inductor"))
    job = job_for(tmp_path / "c", "tensorrt-rtx", options={"cuda_graph": graph, "specialization": "lazy"})
    case = Case(tmp_path, monkeypatch, job)
    assert case.load().settings["runtime_cache"] == "new"
    configs = [arguments[0] for _, name, arguments in case.world.calls if name == "create_execution_context"]
    strategies, kinds = wheel.CudaGraphStrategy, wheel.DynamicShapesKernelSpecializationStrategy
    steps = strategies.WHOLE_GRAPH_CAPTURE if graph else strategies.DISABLED
    assert [config.cuda_graph_strategy for config in configs] == [strategies.DISABLED, steps, steps]
    assert {config.dynamic_shapes_kernel_specialization_strategy for config in configs} == {kinds.LAZY}
    assert len({id(config._cache) for config in configs}) == 1, "one cache for all contexts"
    assert configs[0]._cache is not None
    case.engine.close()
    file = tmp_path / "caches" / "tensorrt-rtx" / "0123456789abcdef.cache"
    assert file.read_bytes() == b"kernels of another shape, and these"
    assert [entry.name for entry in file.parent.iterdir()] == [file.name]
    again = TensorRTForRTXEngine()
    assert again.load_on(job, case.artifact, torch.device("cpu"), case.stream).settings["runtime_cache"] == "found"
    again.close()
    assert file.read_bytes() == b"kernels of another shape, and these, and these"
    without = dataclasses.replace(job, variant=dataclasses.replace(job.variant, options={"runtime_cache": False}))
    assert again.load_on(without, case.artifact, torch.device("cpu"), case.stream).settings["runtime_cache"] == "none"
    again.close()
    assert file.read_bytes() == b"kernels of another shape, and these, and these"


def test_a_runtime_cache_that_cannot_be_kept_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "caches").write_text("no folder")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "caches" / "inductor"))
    case = Case(tmp_path, monkeypatch, job_for(tmp_path / "c", "tensorrt-rtx"))
    case.load()
    case.engine.close()
    assert "the runtime cache can't be kept in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("refused", "status", "words"),
    [
        ("deserialize_cuda_engine", Status.LOAD_FAILED, "can't load the plan: the cause"),
        ("create_execution_context", Status.LOAD_FAILED, "no execution context can be made: the cause"),
        ("execute_async_v3", Status.FAILED, "did not run: the cause"),
    ],
)
def test_a_refusal_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str, status: Status, words: str) -> None:
    case = Case(tmp_path, monkeypatch, job_for(tmp_path / "c", "tensorrt-rtx"))
    if refused == "execute_async_v3":
        case.load()
    case.world.refused = refused
    monkeypatch.setattr(bindings.log, "errors", _Logged())
    with pytest.raises(EngineError, match=words) as caught:
        case.engine.generate(REQUEST) if refused == "execute_async_v3" else case.load()
    assert caught.value.status is status


class _Logged(list[str]):
    """What TensorRT logs while it refuses: it outlives the clearing before the call."""

    def __init__(self) -> None:
        super().__init__(["the cause", "what follows from it"])

    def clear(self) -> None:
        pass


def test_out_of_device_memory_is_told_apart() -> None:
    log = bindings.Log()
    log.take("ERROR", "[cudaMemory.cpp::allocate] Error Code 1: Cuda Runtime (out of memory)\n")
    log.take("INFO", "no error")
    assert log.errors == ["[cudaMemory.cpp::allocate] Error Code 1: Cuda Runtime (out of memory)"]
    assert log.failure("no context", Status.LOAD_FAILED).status is Status.OUT_OF_DEVICE_MEMORY
    assert "does not say why" in log.failure("no context", Status.LOAD_FAILED).reason


@pytest.mark.parametrize("change", ["in-place", "name", "dtype"])
def test_a_plan_of_another_form_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    options = {"kv_cache": "in-place"} if change == "in-place" else {}
    case = Case(tmp_path, monkeypatch, job_for(tmp_path / "c", "tensorrt-rtx", options=options))
    if change == "in-place":
        case.world.in_place = False
    elif change == "name":
        case.world.inputs[2] = "other"
    else:
        text = (case.artifact / INFO_FILE).read_text()
        (case.artifact / INFO_FILE).write_text(text.replace('"float32"', '"float16"'))
    with pytest.raises(EngineError) as caught:
        case.load()
    assert caught.value.status is Status.LOAD_FAILED


def test_requests_that_were_not_built_for_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(tmp_path, monkeypatch, job_for(tmp_path / "c", "tensorrt-rtx"))
    with pytest.raises(EngineError, match="no plan is loaded"):
        case.engine.generate(REQUEST)
    case.load()
    for request, words in (
        (Request((1, 2), 40), "asked for 42 tokens"),
        (Request((1, 999), 4), "id 999 is not in the vocabulary"),
        (Request((1, 2), 4, batch_size=2), "2 sequences; built for 1"),
        (Request((), 4), "with 0 given"),
        (Request((1,), 0), "asked for 0 tokens"),
    ):
        with pytest.raises(EngineError, match=words):
            case.engine.generate(request)
    case.engine.close()


def test_the_stand_in_holds_calls_to_the_wheel() -> None:
    """A wrong name, number or type of arguments is told, so a runner that makes such a call fails the tests above."""
    assert [name for name, _, _ in signatures(wheel.IExecutionContext, "set_tensor_address")[0]] == ["name", "memory"]
    assert len(signatures(wheel.IExecutionContext, "set_input_shape")) == 3
    check_call(wheel.IExecutionContext, "execute_async_v3", (1,))
    for name, arguments in (("execute_async_v3", ()), ("execute_async_v3", ("1",)), ("set_tensor_address", ("ids",))):
        with pytest.raises(AssertionError):
            check_call(wheel.IExecutionContext, name, arguments)
    with pytest.raises(AttributeError):
        check_call(wheel.IExecutionContext, "execute_async_v9", (1,))
    assert not fits(True, "typing.SupportsInt")


@pytest.mark.skipif(torch.cuda.is_available(), reason="what happens without a GPU")
def test_without_a_gpu_a_real_plan_is_refused_in_one_line(tmp_path: Path) -> None:
    """The wheel itself, no stand-in."""
    case_job = job_for(tmp_path / "c", "tensorrt-rtx")
    graph, artifact = tmp_path / "graph", tmp_path / "plan"
    graph.mkdir()
    artifact.mkdir()
    OnnxGraph().build(case_job, graph)
    engine = TensorRTForRTXEngine()
    engine.build(dataclasses.replace(case_job, targets=("rtx-4090",)), artifact, graph)
    with pytest.raises(EngineError, match=r"can't load the plan: .*cudaError 35") as caught:
        engine.load_on(case_job, artifact, torch.device("cpu"), Stream())
    assert caught.value.status is Status.LOAD_FAILED
