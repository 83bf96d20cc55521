"""The two engines as the worker asks them: what they refuse and why, and what decides a plan."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from ahead import REQUEST, job_for

pytest.importorskip("tensorrt_rtx_bindings", reason="NVIDIA's wheels exist for Linux on x86-64 alone")

from llmbench.engines import registry
from llmbench.engines.base import EngineError
from llmbench.engines.tensorrt import engine as module
from llmbench.engines.tensorrt.engine import ClassicTensorRTEngine, TensorRTForRTXEngine, prompt_maximum
from llmbench.protocol import Job, Request, Status

pytestmark = pytest.mark.xdist_group("torch")


def job(folder: Path, *targets: str, dtype: str = "float32", request: Request = REQUEST, **options: Any) -> Job:
    found = job_for(folder / "checkpoint", "tensorrt-rtx", request=request, options=options)
    return dataclasses.replace(found, targets=targets, variant=dataclasses.replace(found.variant, dtype=dtype))


def test_building_for_hardware_that_is_not_here_is_supported(tmp_path: Path) -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        TensorRTForRTXEngine().supports(job(tmp_path, "rtx-4090", "rtx-3090", dtype=dtype, kv_cache="in-place", workspace_mib=512))


@pytest.mark.parametrize(
    ("targets", "changes", "words"),
    [
        (("h100-sxm",), {}, "does not run on sm_90, only on sm_75, .*; use tensorrt there"),
        (("rtx-4090",), {"dtype": "float8"}, "can't run in dtype 'float8'"),
        (
            ("rtx-4090",),
            {"no_such": 1},
            "has no option 'no_such'; known: kv_cache, workspace_mib, cuda_graph, runtime_cache, specialization",
        ),
        (("rtx-4090",), {"kv_cache": "paged"}, "option kv_cache is 'paged'; known: copied, in-place"),
        (("rtx-4090",), {"specialization": 1}, "option specialization is 1; known: eager, lazy, none"),
        (("rtx-4090",), {"cuda_graph": "yes"}, "option cuda_graph is 'yes'; it is true or false"),
        (("rtx-4090",), {"workspace_mib": 0}, "option workspace_mib is 0"),
        (("rtx-4090",), {"workspace_mib": True}, "option workspace_mib is True"),
        (("rtx-4090",), {"request": Request((1, 2), 99)}, "101, more than the model's context of 64"),
    ],
)
def test_refusals(tmp_path: Path, targets: tuple[str, ...], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(EngineError, match=words) as caught:
        TensorRTForRTXEngine().supports(job(tmp_path, *targets, **changes))
    assert caught.value.status is Status.UNSUPPORTED


def test_bfloat16_needs_a_card_that_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TensorRTForRTXEngine, "_targets", lambda self, job: ("sm_75",))
    TensorRTForRTXEngine().supports(job(tmp_path, dtype="float16"))
    with pytest.raises(EngineError, match="sm_75 has no bfloat16 arithmetic"):
        TensorRTForRTXEngine().supports(job(tmp_path, dtype="bfloat16"))


def test_without_a_gpu_both_are_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match="runs on NVIDIA GPUs, and the device is cpu; llmbench build --target") as caught:
        TensorRTForRTXEngine().supports(job(tmp_path))
    assert caught.value.status is Status.UNAVAILABLE
    monkeypatch.setattr(torch.version, "cuda", None)
    on_cuda = dataclasses.replace(job(tmp_path), device="cuda:0")
    with pytest.raises(EngineError, match="built without CUDA") as caught:
        TensorRTForRTXEngine().supports(on_cuda)
    assert caught.value.status is Status.UNAVAILABLE
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(EngineError, match="cuda:0 isn't here: torch sees 0 CUDA devices") as caught:
        TensorRTForRTXEngine().supports(on_cuda)
    assert caught.value.status is Status.UNAVAILABLE


def test_the_classic_edition_builds_on_its_own_card_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.bindings, "load", lambda edition: pytest.importorskip("tensorrt_rtx_bindings"))
    with pytest.raises(EngineError, match="builds on the card that runs the plan and for no other"):
        ClassicTensorRTEngine().supports(dataclasses.replace(job(tmp_path), targets=("rtx-4090",)))
    with pytest.raises(EngineError, match="has no option 'runtime_cache'"):
        ClassicTensorRTEngine().supports(job(tmp_path, runtime_cache=True))
    with pytest.raises(EngineError, match="TensorRT runs on NVIDIA GPUs"):
        ClassicTensorRTEngine().supports(job(tmp_path))


def test_on_a_card_the_plan_is_for_that_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the edition for RTX its compute capability, of the classic one the card's name as well: its kernels were timed there."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA GeForce RTX 4090")
    on_cuda = dataclasses.replace(job(tmp_path), device="cuda:0")
    assert TensorRTForRTXEngine().recipe(on_cuda).targets == ("sm_89",)
    monkeypatch.setattr(module.bindings, "load", lambda edition: pytest.importorskip("tensorrt_rtx_bindings"))
    assert ClassicTensorRTEngine().recipe(on_cuda).targets == ("sm_89 NVIDIA GeForce RTX 4090",)


def test_what_decides_a_plan(tmp_path: Path) -> None:
    engine = TensorRTForRTXEngine()
    first = engine.recipe(job(tmp_path, "rtx-4090", "rtx-3090"))
    assert first.targets == ("sm_86", "sm_89")
    assert first.executes
    assert first.maxima == {"batch": 1, "cache_length": 24, "prompt": 8}
    assert first.versions.keys() == {"tensorrt-rtx"}
    same = job(tmp_path, "rtx-3090", "rtx-4090", request=Request((1, 2, 3, 4, 5, 6), 11), cuda_graph=False, specialization="lazy")
    assert engine.recipe(same) == first, "a prompt that is one longer, and what only running knows"
    for other in (
        job(tmp_path, "rtx-4090", "rtx-3090", request=Request(tuple(range(9)), 8)),
        job(tmp_path, "rtx-4090", "rtx-3090", kv_cache="in-place"),
        job(tmp_path, "rtx-4090", "rtx-3090", workspace_mib=64),
    ):
        assert engine.recipe(other) != first


def test_prompt_maximum() -> None:
    assert [prompt_maximum(Request(tuple(range(length)), 8)) for length in (1, 2, 3, 5, 8, 9)] == [1, 2, 4, 8, 8, 16]
    assert prompt_maximum(Request(tuple(range(33)), 1)) == 40, "never more than the cache holds"


def test_registered_options_are_the_engines() -> None:
    for engine in (TensorRTForRTXEngine, ClassicTensorRTEngine):
        spec = registry.find(engine.edition.engine)
        assert set(spec.options) == set(engine.options)
        assert spec.source == "onnx-graph"
        assert spec.targets is engine.edition.cross_builds
        assert engine.edition.module in spec.requires
        assert spec.devices == ("cuda",)


def test_calls_before_loading_are_told(tmp_path: Path) -> None:
    engine = TensorRTForRTXEngine()
    with pytest.raises(EngineError, match="there is none"):
        engine.load(job(tmp_path), None)
    with pytest.raises(EngineError, match="builds from the ONNX graph"):
        engine.build(job(tmp_path, "rtx-4090"), tmp_path)
    with pytest.raises(EngineError, match="no plan is loaded"):
        engine.logits([1])
    engine.synchronize()
    engine.close()
