"""The engine `onnxruntime`: the exported graph as it is, on ONNX Runtime's CPU or CUDA provider.

The cache never passes through Python and is never copied: each layer's past and present are one buffer, bound to the input and to the output
alike. ScatterND writes in place where the two are at one address (core/providers/cpu/tensor/scatter_nd.cc copies only where they differ),
and the graph's contract says that nothing else reads the past.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy
import onnxruntime

from llmbench.engines.base import EngineError, Unavailable, Unsupported
from llmbench.engines.faults import classify
from llmbench.graph.contract import IDS, LOGITS, MODEL_FILE, NEXT_IDS, POSITIONS, past_names, present_names, read_info
from llmbench.graph.decoding import Array, GraphEngine
from llmbench.protocol import EngineReport, Job, Recipe, Status

#: ONNX's number of bfloat16, which numpy doesn't have.
_BFLOAT16 = 16
#: MatMulNBits' accuracy_level: what a quantized product multiplies in. onnxruntime's own choice would be int8.
_ACCURACY_LEVELS = {"float": "1", "int8": "4"}


class OnnxRuntimeEngine(GraphEngine):
    """One session, two bindings that take turns, so that a call reads the ids that the last one wrote where they lie."""

    name = "onnxruntime"
    options = ("activations",)
    quantizations = ("int8", "int4")

    def __init__(self) -> None:
        super().__init__()
        self._session: Any = None
        self._bindings: list[Any] = []
        self._tokens: list[Any] = []  # int64 [B, 1] on the device: what one binding reads, the other writes
        self._logits: Any = None
        self._position: Any = None
        self._cache: list[Any] = []
        self._place = ("cpu", 0)
        self._turn = 0  # the binding of the next decode step; self._tokens[turn] is its input

    def supports(self, job: Job) -> None:
        super().supports(job)
        activations = job.variant.options.get("activations", "float")
        if activations not in _ACCURACY_LEVELS:
            raise Unsupported(f"onnxruntime has no activations {activations!r}; known: {', '.join(_ACCURACY_LEVELS)}")
        if activations != "float" and job.variant.quantization is None:
            raise Unsupported(f"activations={activations} is for quantized weights; add quantization=int4 or int8")
        kind, _, index = job.device.partition(":")
        if kind == "cpu":
            if job.variant.dtype == "bfloat16":
                raise Unsupported("onnxruntime's CPU provider has no bfloat16 matrix product; use --dtype float32, or float16")
            if job.variant.quantization is not None and job.variant.dtype != "float32":
                raise Unsupported(
                    "onnxruntime's CPU provider computes quantized products in float32; use --dtype float32 with quantization"
                )
        elif kind == "cuda" and index.isdecimal():
            if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
                raise Unavailable(
                    f"onnxruntime {onnxruntime.__version__} is built without CUDA; pip uninstall onnxruntime, pip install onnxruntime-gpu"
                )
        else:
            raise Unsupported(f"onnxruntime can't run on device {job.device!r}; known: cpu, cuda:0, cuda:1, ...")

    def recipe(self, job: Job) -> Recipe | None:
        return None  # the graph is loaded as it is

    def build(self, job: Job, into: Path, source: Path | None = None) -> None:
        raise EngineError("onnxruntime builds no artifact: it loads onnx-graph's")

    def load(self, job: Job, artifact: Path | None) -> EngineReport:
        if artifact is None:
            raise EngineError("onnxruntime got no graph to load", Status.LOAD_FAILED)
        info = read_info(artifact)
        kind, _, index = job.device.partition(":")
        self._place = (kind, int(index or 0))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = job.threads
        options.inter_op_num_threads = 1
        activations = str(job.variant.options.get("activations", "float"))
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", _ACCURACY_LEVELS[activations])
        provider: Any = "CPUExecutionProvider"
        if kind == "cuda":
            provider = ("CUDAExecutionProvider", {"device_id": self._place[1], "use_tf32": "0"})  # float32 is float32
        try:
            session = onnxruntime.InferenceSession(str(artifact / MODEL_FILE), options, providers=[provider])
            wanted = provider if isinstance(provider, str) else provider[0]
            if session.get_providers()[0] != wanted:  # it falls back to the CPU with no more than a warning
                raise EngineError(f"onnxruntime could not start {wanted}; its log says why", Status.LOAD_FAILED)
            self._session, self.info = session, info
            self._bind()
        except EngineError:
            raise
        except Exception as error:  # its exceptions have no common class
            raise _fault(error, Status.LOAD_FAILED) from error
        # The CPU provider has no float16 matrix product: it reads the weights back to float32 when it loads.
        held = "float32" if kind == "cpu" else info.dtype
        return EngineReport(
            storage_dtype=info.quantization or held,
            arithmetic_dtype=held if activations == "float" else activations,
            weights_bytes=info.weights_bytes * (2 if held != info.dtype else 1),
            kv_cache_bytes=sum(numpy.prod(value.shape()).item() * (4 if info.dtype == "float32" else 2) for value in self._cache),
            settings={
                "provider": wanted,
                "kv_cache_length": info.length,
                "kv_cache": "one buffer for past and present, written in place",
                "file_dtype": info.dtype,
            },
        )

    def _bind(self) -> None:
        """Buffers of fixed address for all that a decode step reads and writes, and the two bindings of them."""
        info = self._loaded()
        self._cache = [self._zeros(info.cache_shape, info.dtype) for _ in past_names(info.layers)]
        self._tokens = [self._zeros((info.batch, 1), "int64") for _ in range(2)]
        self._logits = self._zeros((info.batch, info.vocab), "float32")
        self._position = self._zeros((1,), "int64")
        self._bindings = []
        for turn in range(2):
            binding = self._new_binding(self._tokens[turn], self._position)
            binding.bind_ortvalue_output(NEXT_IDS, self._tokens[1 - turn])
            self._bindings.append(binding)

    def _new_binding(self, ids: Any, positions: Any) -> Any:
        info = self._loaded()
        binding = self._session.io_binding()
        binding.bind_ortvalue_input(IDS, ids)
        binding.bind_ortvalue_input(POSITIONS, positions)
        binding.bind_ortvalue_output(LOGITS, self._logits)
        for past, present, value in zip(past_names(info.layers), present_names(info.layers), self._cache, strict=True):
            binding.bind_ortvalue_input(past, value)
            binding.bind_ortvalue_output(present, value)
        return binding

    def _zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        if dtype == "bfloat16":
            return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(numpy.zeros(shape, numpy.uint16), _BFLOAT16)
        return onnxruntime.OrtValue.ortvalue_from_numpy(numpy.zeros(shape, dtype), *self._place)

    def start(self) -> None:
        """Nothing: what an earlier prompt left is hidden until it is overwritten."""

    def run(self, ids: Array | None, position: int) -> None:
        try:
            if ids is not None and ids.shape[1] > 1:
                positions = numpy.arange(position, position + ids.shape[1])
                binding = self._new_binding(self._value(ids), self._value(positions))
                binding.bind_ortvalue_output(NEXT_IDS, self._tokens[self._turn])
            else:
                if ids is not None:
                    self._tokens[self._turn].update_inplace(numpy.ascontiguousarray(ids))
                self._position.update_inplace(numpy.array([position], dtype=numpy.int64))
                binding = self._bindings[self._turn]
                self._turn = 1 - self._turn
            self._session.run_with_iobinding(binding)
        except Exception as error:
            raise _fault(error, Status.FAILED) from error

    def _value(self, array: Array) -> Any:
        return onnxruntime.OrtValue.ortvalue_from_numpy(numpy.ascontiguousarray(array, dtype=numpy.int64), *self._place)

    def next_ids(self) -> Array:
        return numpy.array(self._tokens[self._turn].numpy())  # a copy: the buffer is written again

    def last_logits(self) -> Array:
        return self._logits.numpy()

    def versions(self) -> dict[str, str]:
        return {"onnxruntime": str(onnxruntime.__version__)}

    def close(self) -> None:
        self._bindings, self._tokens, self._cache = [], [], []
        self._session = self._logits = self._position = self.info = None
        gc.collect()


def _fault(error: Exception, otherwise: Status) -> EngineError:
    """onnxruntime's error as one line with a status: out of memory where it is that."""
    text = " ".join(str(error).split())
    return EngineError(f"{type(error).__name__}: {text}"[:400], classify(error) or otherwise)
