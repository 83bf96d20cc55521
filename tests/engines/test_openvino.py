"""The engine openvino on the CPU, through the protocol that the worker speaks. Through the worker itself: test_onnxruntime.py."""

import dataclasses

import openvino
import pytest
from graph import graph_jobs
from graph.graph_jobs import REQUEST, make_job, relative_error

from llmbench.engines.base import EngineError, Unavailable, Unsupported
from llmbench.engines.openvino_engine import OpenVinoEngine
from llmbench.protocol import Status

pytestmark = pytest.mark.xdist_group("torch")


def operators(engine: OpenVinoEngine) -> list[tuple[str, str]]:
    """(kind, precision of what it reads as weights) of all that the plugin runs."""
    found = engine._request.get_compiled_model().get_runtime_model().get_ordered_ops()
    return [(str(node.get_rt_info()["layerType"].astype(str)), str(node.get_rt_info()["runtimePrecision"].astype(str))) for node in found]


@pytest.mark.parametrize("family", ["mistral-window", "llama", "phi-2"])
def test_generations_are_eagers_and_what_was_not_loaded_for_is_refused(family, tmp_path):
    job = make_job(tmp_path, "openvino", family)
    engine, report = graph_jobs.loaded(OpenVinoEngine(), job, tmp_path)
    assert (report.storage_dtype, report.arithmetic_dtype) == ("float32", "float32")
    assert (report.settings["inference_precision"], report.settings["kv_cache_precision"]) == ("f32", "f32")
    graph_jobs.check_generations(engine, job)
    graph_jobs.check_refusals_when_loaded(engine)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_are_read_in_their_type_and_attention_is_one_operator_with_its_cache(dtype, tmp_path):
    job = make_job(tmp_path, "openvino", "llama-gqa-tied", dtype=dtype, options={"arithmetic": "float32"})
    engine, report = graph_jobs.loaded(OpenVinoEngine(), job, tmp_path)
    assert (report.storage_dtype, report.arithmetic_dtype) == (dtype, "float32")
    short = {"bfloat16": "bf16", "float16": "f16"}[dtype]
    assert report.settings["kv_cache_precision"] == "f16"
    kinds = operators(engine)
    assert [precision for kind, precision in kinds if kind == "FullyConnected"] == [short] * (4 * 3 + 1)
    assert sum(kind == "ScaledDotProductAttention" for kind, _ in kinds) == 3
    assert len(engine.generate(REQUEST)[1]) == 20
    ids = list(range(3, 20))
    exact = graph_jobs.eager(dataclasses.replace(job, variant=dataclasses.replace(job.variant, dtype="float32"))).logits(ids)
    # The weights are rounded once, and nothing else is but the cache: no further from float32 than eager in the same dtype.
    own, eagers = (relative_error(logits, exact) for logits in (engine.logits(ids), graph_jobs.eager(job).logits(ids)))
    assert own < 1.2 * eagers


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_arithmetic_is_the_variants_dtype_where_the_processor_has_it_and_reported(dtype, tmp_path):
    job = make_job(tmp_path, "openvino", "llama-gqa-tied", dtype=dtype)
    engine, report = graph_jobs.loaded(OpenVinoEngine(), job, tmp_path)
    capabilities = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    has_it = {"bfloat16": "BF16", "float16": "FP16"}[dtype] in capabilities
    assert report.arithmetic_dtype == (dtype if has_it else "float32")
    assert report.settings["inference_precision"] == ({"bfloat16": "bf16", "float16": "f16"}[dtype] if has_it else "f32")
    ids = list(range(3, 20))
    exact = graph_jobs.eager(dataclasses.replace(job, variant=dataclasses.replace(job.variant, dtype="float32"))).logits(ids)
    assert relative_error(engine.logits(ids), exact) < 2 * relative_error(graph_jobs.eager(job).logits(ids), exact)


@pytest.mark.parametrize(("dtype", "scheme", "bits"), [("float32", "int8", "i8"), ("float32", "int4", "i4"), ("bfloat16", "int4", "i4")])
def test_quantized_weights_are_read_in_few_bits_and_the_products_are_exact(dtype, scheme, bits, tmp_path):
    job = make_job(tmp_path, "openvino", "llama", quantization=scheme, dtype=dtype, options={"arithmetic": "float32"})
    engine, report = graph_jobs.loaded(OpenVinoEngine(), job, tmp_path)
    assert (report.storage_dtype, report.arithmetic_dtype) == (scheme, "float32")
    assert [precision for kind, precision in operators(engine) if kind == "FullyConnected"].count(bits) == 4 * 3 + 1
    ids = list(range(3, 20))
    exact = graph_jobs.rounded(dataclasses.replace(job, variant=dataclasses.replace(job.variant, dtype="float32"))).logits(ids)
    assert relative_error(engine.logits(ids), exact) < (1e-4 if dtype == "float32" else 0.03)
    assert len(engine.generate(REQUEST)[1]) == 20


def test_what_it_cannot_do_is_refused_with_what_to_ask_for_instead(tmp_path):
    job = make_job(tmp_path, "openvino")

    def refused(kind, words, **changes):
        variant = {name: changes.pop(name) for name in ("dtype", "quantization", "options") if name in changes}
        with pytest.raises(kind, match=words):
            OpenVinoEngine().supports(dataclasses.replace(job, variant=dataclasses.replace(job.variant, **variant), **changes))

    refused(Unsupported, "'float64'; known: float32", dtype="float64")
    refused(Unsupported, "no quantization 'fp8'", quantization="fp8")
    refused(Unsupported, "no option 'mood'; known: arithmetic, device", options={"mood": "good"})
    refused(Unsupported, "no arithmetic 'int8'; known: float32", options={"arithmetic": "int8"})
    refused(Unsupported, "no device 'NPU'; known: CPU, GPU", options={"device": "NPU"})
    refused(Unsupported, "device 'cuda:0'; known: cpu", device="cuda:0")
    if "GPU" not in openvino.Core().available_devices:
        refused(Unavailable, "finds no GPU here, only CPU", options={"device": "GPU"})


def test_a_model_that_is_none_fails_to_load_in_one_line(tmp_path):
    job = make_job(tmp_path, "openvino")
    graph_jobs.loaded(OpenVinoEngine(), job, tmp_path)
    (tmp_path / "own" / "openvino_model.xml").write_bytes(b"not a model")
    for artifact in (tmp_path / "own", None):
        with pytest.raises(EngineError) as caught:
            OpenVinoEngine().load(job, artifact)
        assert caught.value.status is Status.LOAD_FAILED
        assert "\n" not in caught.value.reason
