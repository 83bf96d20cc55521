"""The engine `openvino`: the exported graph, rewritten for OpenVINO once and kept as its IR, on the CPU or an Intel GPU.

Weights stay in their type (2 bytes each in bfloat16 and float16, fewer in int8 and int4). Arithmetic is the variant's dtype where the processor
computes in it, else float32, and what the option `arithmetic` says where it is given. The cache is kept in float32 or float16. All three are set
explicitly and reported, since OpenVINO's own choice differs between processors and releases (a cache of 8 bits among them).
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy
import openvino

from llmbench.engines.base import EngineError, Unavailable, Unsupported
from llmbench.engines.faults import classify
from llmbench.engines.sources import source_digest
from llmbench.graph.contract import GRAPH_SOURCES, IDS, LOGITS, NEXT_IDS, POSITIONS, VERSION, read_info
from llmbench.graph.decoding import Array, GraphEngine
from llmbench.graph.openvino_model import BEAM_INDEX, from_graph, mark_decompression
from llmbench.protocol import DTYPE_BYTES, EngineReport, Job, Recipe, Status

#: What writes the graph and rewrites it: a change in any of them is another artifact.
_SOURCES = ("llmbench.graph.openvino_model", *GRAPH_SOURCES)
MODEL_XML = "openvino_model.xml"
#: The cache's type by the variant's dtype: float16 for both of 16 bits, as optimum-intel sets it. A bfloat16 cache made a step 1.2 to 1.3 times
#: as long on a processor without bfloat16 arithmetic.
_CACHE_TYPES = {"float32": "f32", "bfloat16": "f16", "float16": "f16"}
_TYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


class OpenVinoEngine(GraphEngine):
    """One compiled model with its cache inside, one infer request."""

    #: Raised whenever another model is written for the same job.
    ADAPTER = 1

    name = "openvino"
    options = ("arithmetic", "device")
    quantizations = ("int8", "int4")

    def __init__(self) -> None:
        super().__init__()
        self._request: Any = None
        self._token: Any = None  # int64 [B, 1], the buffers that decode steps read
        self._position: Any = None

    def supports(self, job: Job) -> None:
        super().supports(job)
        if job.device != "cpu":
            raise Unsupported(f"openvino can't run on device {job.device!r}; known: cpu, and an Intel GPU by the option device=GPU")
        options = job.variant.options
        arithmetic = options.get("arithmetic")
        if arithmetic is not None and arithmetic not in _TYPES:
            raise Unsupported(f"openvino has no arithmetic {arithmetic!r}; known: {', '.join(_TYPES)}")
        device = options.get("device", "CPU")
        if device not in ("CPU", "GPU"):
            raise Unsupported(f"openvino has no device {device!r}; known: CPU, GPU")
        core = openvino.Core()
        found = core.available_devices
        if not any(name.partition(".")[0] == device for name in found):
            raise Unavailable(f"OpenVINO finds no {device} here, only {', '.join(found) or 'nothing'}; install its driver")
        capabilities = core.get_property(device, "OPTIMIZATION_CAPABILITIES")
        if arithmetic is not None and not _computes_in(str(arithmetic), capabilities):
            raise Unsupported(f"this {device} computes in {', '.join(capabilities)}, not in {arithmetic}; leave arithmetic out")

    def recipe(self, job: Job) -> Recipe | None:
        return Recipe(
            adapter=self.ADAPTER,
            versions=self.versions(),
            targets=("any",),  # the IR is not compiled yet
            maxima={"batch": job.request.batch_size, "tokens": job.request.cache_length},
            options={"contract": VERSION, "graph": source_digest(_SOURCES)},
        )

    def build(self, job: Job, into: Path, source: Path | None = None) -> None:
        if source is None:
            raise EngineError("openvino got no graph to build from", Status.BUILD_FAILED)
        info = read_info(source)
        try:
            openvino.serialize(from_graph(source, info), into / MODEL_XML)
        except RuntimeError as error:
            raise _fault(error, Status.BUILD_FAILED) from error
        info.write(into)

    def load(self, job: Job, artifact: Path | None) -> EngineReport:
        if artifact is None:
            raise EngineError("openvino got no model to load", Status.LOAD_FAILED)
        info = read_info(artifact)
        options = job.variant.options
        device = str(options.get("device", "CPU"))
        settings: dict[str, Any] = {
            "PERFORMANCE_HINT": "LATENCY",
            "KV_CACHE_PRECISION": _CACHE_TYPES[info.dtype],
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,  # activations are not rounded to 8 bits
        }
        if device == "CPU":
            settings["INFERENCE_NUM_THREADS"] = job.threads
        try:
            core = openvino.Core()
            own = info.dtype if _computes_in(info.dtype, core.get_property(device, "OPTIMIZATION_CAPABILITIES")) else "float32"
            arithmetic = str(options.get("arithmetic", own))
            settings["INFERENCE_PRECISION_HINT"] = _TYPES[arithmetic]
            model = core.read_model(artifact / MODEL_XML)
            mark_decompression(model)
            compiled = core.compile_model(model, device, settings)
            self._request = compiled.create_infer_request()
            taken = {name: compiled.get_property(name).get_type_name() for name in ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION")}
        except RuntimeError as error:
            raise _fault(error, Status.LOAD_FAILED) from error
        del model
        if taken["INFERENCE_PRECISION_HINT"] != _TYPES[arithmetic]:
            raise EngineError(
                f"OpenVINO computes in {taken['INFERENCE_PRECISION_HINT']} where {arithmetic} was asked for", Status.UNSUPPORTED
            )
        self.info = info
        self._token = numpy.zeros((info.batch, 1), dtype=numpy.int64)
        self._position = numpy.zeros(1, dtype=numpy.int64)
        self._request.set_tensor(BEAM_INDEX, openvino.Tensor(numpy.arange(info.batch, dtype=numpy.int32)))
        per_token = 2 * info.layers * info.batch * info.kv_heads * info.head_dim * DTYPE_BYTES[info.dtype]
        return EngineReport(
            storage_dtype=info.quantization or info.dtype,
            arithmetic_dtype=arithmetic,
            weights_bytes=info.weights_bytes,
            kv_cache_bytes=per_token * job.request.total_tokens,
            settings={
                "device": device,
                "kv_cache": "OpenVINO's own state, growing; its bytes are those of all tokens",
                "inference_precision": taken["INFERENCE_PRECISION_HINT"],
                "kv_cache_precision": taken["KV_CACHE_PRECISION"],
            },
        )

    def start(self) -> None:
        self._request.reset_state()

    def run(self, ids: Array | None, position: int) -> None:
        request = self._request
        try:
            if ids is not None and ids.shape[1] > 1:
                request.set_tensor(IDS, openvino.Tensor(numpy.ascontiguousarray(ids)))
                request.set_tensor(POSITIONS, openvino.Tensor(numpy.arange(position, position + ids.shape[1])))
            else:
                self._token[:] = self.next_ids() if ids is None else ids
                self._position[0] = position
                request.set_tensor(IDS, openvino.Tensor(self._token, shared_memory=True))
                request.set_tensor(POSITIONS, openvino.Tensor(self._position, shared_memory=True))
            request.infer()
        except RuntimeError as error:
            raise _fault(error, Status.FAILED) from error

    def next_ids(self) -> Array:
        return numpy.array(self._request.get_tensor(NEXT_IDS).data)  # a copy: the buffer is written again

    def last_logits(self) -> Array:
        return self._request.get_tensor(LOGITS).data

    def versions(self) -> dict[str, str]:
        return {"openvino": str(openvino.__version__)}

    def close(self) -> None:
        self._request = self._token = self._position = self.info = None
        gc.collect()


def _computes_in(dtype: str, capabilities: list[str]) -> bool:
    """Whether a device has arithmetic in a dtype, by the capabilities that OpenVINO reads off it."""
    return {"float32": "FP32", "bfloat16": "BF16", "float16": "FP16"}[dtype] in capabilities


def _fault(error: Exception, otherwise: Status) -> EngineError:
    """OpenVINO's error, several lines of places in its source, as one line with a status."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("Exception from")]
    text = " ".join(lines) or str(error)
    return EngineError(f"{type(error).__name__}: {text}"[:400], classify(error) or otherwise)
