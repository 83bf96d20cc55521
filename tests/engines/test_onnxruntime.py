"""The engine onnxruntime on its CPU provider, through the protocol that the worker speaks, and once through the worker."""

import dataclasses
import json

import numpy
import pytest
from graph import graph_jobs
from graph.graph_jobs import REQUEST, make_job, relative_error
from tiny import llmbench

from llmbench.engines.base import EngineError, Unavailable, Unsupported
from llmbench.engines.onnxruntime_engine import OnnxRuntimeEngine
from llmbench.graph.decoding import draw
from llmbench.protocol import Sampling, Status

pytestmark = pytest.mark.xdist_group("torch")


def test_generations_are_eagers_and_what_was_not_loaded_for_is_refused(tmp_path):
    job = make_job(tmp_path, "onnxruntime")
    engine, report = graph_jobs.loaded(OnnxRuntimeEngine(), job, tmp_path)
    assert (report.storage_dtype, report.arithmetic_dtype) == ("float32", "float32")
    assert (
        report.kv_cache_bytes == 2 * 3 * 2 * 2 * 32 * 16 * 4
    )  # k and v, layers, batch, KV heads, 27 positions rounded up, head dim, bytes
    graph_jobs.check_generations(engine, job)
    graph_jobs.check_refusals_when_loaded(engine)


def test_the_cache_is_written_where_it_lies(tmp_path):
    engine, _ = graph_jobs.loaded(OnnxRuntimeEngine(), make_job(tmp_path, "onnxruntime"), tmp_path)
    before = [value.data_ptr() for value in engine._cache]
    engine.run(numpy.array([[4, 5, 6]] * 2), 0)
    written = engine._cache[0].numpy()
    assert (abs(written[:, :, :3]).sum(axis=(1, 3)) > 0).all()
    assert not written[:, :, 3:].any()
    engine.run(None, 3)
    assert (abs(engine._cache[0].numpy()[:, :, 3]).sum(axis=(1, 2)) > 0).all()
    assert [value.data_ptr() for value in engine._cache] == before


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_quantized_weights_are_read_in_few_bits_and_the_products_are_exact(scheme, tmp_path):
    job = make_job(tmp_path, "onnxruntime", "llama", quantization=scheme)
    engine, report = graph_jobs.loaded(OnnxRuntimeEngine(), job, tmp_path)
    assert (report.storage_dtype, report.arithmetic_dtype) == (scheme, "float32")
    ids = list(range(3, 20))
    assert relative_error(engine.logits(ids), graph_jobs.rounded(job).logits(ids)) < 1e-4
    assert len(engine.generate(REQUEST)[1]) == 20
    fast = dataclasses.replace(job, variant=dataclasses.replace(job.variant, options={"activations": "int8"}))
    rough = OnnxRuntimeEngine()
    rough.supports(fast)
    assert rough.load(fast, tmp_path / "graph").arithmetic_dtype == "int8"
    assert 1e-4 < relative_error(rough.logits(ids), engine.logits(ids)) < 0.2


def test_float16_is_read_back_to_float32_and_said_to_be(tmp_path):
    job = make_job(tmp_path, "onnxruntime", "llama-gqa-tied", dtype="float16")
    engine, report = graph_jobs.loaded(OnnxRuntimeEngine(), job, tmp_path)
    assert (report.storage_dtype, report.arithmetic_dtype, report.settings["file_dtype"]) == ("float32", "float32", "float16")
    assert len(engine.generate(REQUEST)[1]) == 20
    ids = list(range(3, 20))
    assert relative_error(engine.logits(ids), graph_jobs.eager(job).logits(ids)) < 0.01


def test_what_it_cannot_do_is_refused_with_what_to_ask_for_instead(tmp_path):
    job = make_job(tmp_path, "onnxruntime")

    def refused(kind, words, **changes):
        variant = {name: changes.pop(name) for name in ("dtype", "quantization", "options") if name in changes}
        with pytest.raises(kind, match=words):
            OnnxRuntimeEngine().supports(dataclasses.replace(job, variant=dataclasses.replace(job.variant, **variant), **changes))

    refused(Unsupported, "no bfloat16 matrix product; use --dtype float32", dtype="bfloat16")
    refused(Unsupported, "'float64'; known: float32", dtype="float64")
    refused(Unsupported, "no quantization 'fp8'", quantization="fp8")
    refused(Unsupported, "no option 'mood'; known: activations", options={"mood": "good"})
    refused(Unsupported, "no activations 'int2'; known: float, int8", options={"activations": "int2"})
    refused(Unsupported, "is for quantized weights", options={"activations": "int8"})
    refused(Unsupported, "use --dtype float32 with quantization", dtype="float16", quantization="int8")
    refused(Unsupported, "device 'tpu'", device="tpu")
    refused(Unavailable, r"without CUDA; pip uninstall onnxruntime, pip install onnxruntime-gpu", device="cuda:0")
    refused(Unsupported, "more than the model's context of 128", request=dataclasses.replace(REQUEST, max_new_tokens=124))


def test_a_graph_that_is_none_fails_to_load_in_one_line(tmp_path):
    job = make_job(tmp_path, "onnxruntime")
    _, _ = graph_jobs.loaded(OnnxRuntimeEngine(), job, tmp_path)
    (tmp_path / "graph" / "model.onnx").write_bytes(b"not a graph")
    for artifact in (tmp_path / "graph", None):
        with pytest.raises(EngineError) as caught:
            OnnxRuntimeEngine().load(job, artifact)
        assert caught.value.status is Status.LOAD_FAILED
        assert "\n" not in caught.value.reason


def test_drawing_follows_the_probabilities():
    logits = numpy.log(numpy.array([[0.5, 0.3, 0.2, 1e-9]], dtype=numpy.float32)).repeat(20000, axis=0)
    random = numpy.random.default_rng(0)
    shares = numpy.bincount(draw(logits, Sampling(1.0, None), random)[:, 0], minlength=4) / 20000
    assert abs(shares - [0.5, 0.3, 0.2, 0]).max() < 0.02
    two = numpy.bincount(draw(logits, Sampling(1.0, 2), random)[:, 0], minlength=4) / 20000
    assert abs(two - [0.625, 0.375, 0, 0]).max() < 0.02
    flat = numpy.bincount(draw(logits, Sampling(2.0, 3), random)[:, 0], minlength=4) / 20000
    roots = numpy.sqrt([0.5, 0.3, 0.2])
    assert abs(flat[:3] - roots / roots.sum()).max() < 0.02


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_through_the_worker_with_accuracy_and_the_second_call_builds_nothing(engine, tmp_path):
    folder = make_job(tmp_path, engine, "llama-gqa-tied").checkpoint.path

    def rows():
        arguments = ("--model", folder, "--engines", engine, "--dtype", "float32", "--input-len", 4, "--max-new-tokens", 8)
        done = llmbench(tmp_path, "compare", *arguments, "--quick", "--num-iters", 1, "--format", "json")
        assert done.returncode == 0, done.stderr
        return {row["variant"]["engine"]: row["blocks"][0] for row in json.loads(done.stdout)["rows"]}

    first, second = rows()[engine], rows()[engine]
    for block, hit in ((first, False), (second, True)):
        assert block["status"] == "ok", block["reason"]
        assert (block["accuracy"]["method"], block["accuracy"]["passed"]) == ("logits", True)
        assert block["artifact"]["hit"] is hit
        assert len(block["ids"][0]) == 8
    assert first["artifact"]["key"] == second["artifact"]["key"]
    assert first["ids"] == second["ids"]
