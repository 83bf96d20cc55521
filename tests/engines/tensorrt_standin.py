"""A stand-in for TensorRT's runtime, for machines without a GPU: it computes the plan's graph by ONNX Runtime at the addresses it is given.

Every call is held to the installed wheel: the method must exist there, and number and types of the arguments must fit one of the signatures in its
docstring. It is stricter than the wheel where a mistake would be a wrong number or a crash on a GPU: all shapes, addresses and the profile have
to be set, a cache may be written in place only where the plan says so, and a context that is a CUDA graph keeps its addresses.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import onnxruntime
import tensorrt_rtx_bindings as wheel

from llmbench.graph.contract import IDS, MODEL_FILE, POSITIONS, GraphInfo, past_names, present_names

STREAM = 0x5EED


def signatures(kind: type, name: str) -> list[list[tuple[str, str, bool]]]:
    """(name, type, needed) of the arguments of each overload, read off pybind's docstring; the first, self, left out."""
    found = []
    for line in (getattr(kind, name).__doc__ or "").splitlines():
        match = re.match(rf"(?:\d+\. )?{name}\((.*)\) -> ", line)
        if match and "*args" not in match[1]:
            found.append([_argument(text) for text in _split(match[1])][1:])
    return found


def _split(text: str) -> Iterator[str]:
    depth, start = 0, 0
    for index, letter in enumerate(text):
        depth += (letter in "([<{") - (letter in ")]>}")
        if letter == "," and depth == 0:
            yield text[start:index].strip()
            start = index + 1
    yield text[start:].strip()


def _argument(text: str) -> tuple[str, str, bool]:
    name, _, rest = text.partition(": ")
    kind, equals, _ = rest.partition(" = ")
    return name, kind, not equals


def fits(value: Any, kind: str) -> bool:
    """Whether pybind would take a value for an argument of this type."""
    last = kind.rpartition(".")[2].rpartition("::")[2]
    if last in ("SupportsInt", "int"):
        return isinstance(value, int) and not isinstance(value, bool)
    if last in ("str", "bool", "tuple", "list"):
        return type(value).__name__ == last
    if last == "Buffer":
        return bool(memoryview(value).nbytes)
    if last == "Dims":
        return isinstance(value, (tuple, list))
    return type(value).__name__ == last


def check_call(kind: type, name: str, arguments: tuple[Any, ...]) -> None:
    """Fails where the wheel has no such method or would not take these arguments."""
    overloads = signatures(kind, name)
    assert overloads, f"{kind.__name__}.{name} has no signature in {wheel.__name__}"
    for wanted in overloads:
        needed = sum(must for _, _, must in wanted)
        if needed <= len(arguments) <= len(wanted) and all(
            fits(value, text) for value, (_, text, _) in zip(arguments, wanted, strict=False)
        ):
            return
    raise AssertionError(f"{kind.__name__}.{name}{arguments!r} fits none of {overloads}")


def held(method: Callable[..., Any]) -> Callable[..., Any]:
    """A stand-in's method, checked against the wheel's of the same name at each call."""

    @functools.wraps(method)
    def checked(self: Any, *arguments: Any) -> Any:
        self._world.calls.append((type(self).__name__, method.__name__, arguments))
        check_call(getattr(wheel, type(self).__name__), method.__name__, arguments)
        return method(self, *arguments)

    return checked


class Held:
    """A stand-in object: named as the wheel's class, and with no attribute that one doesn't have."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            assert hasattr(getattr(wheel, type(self).__name__), name), f"{type(self).__name__} has no attribute {name}"
        object.__setattr__(self, name, value)


class World:
    """What the stand-ins of one test share; `module` is what the runner takes for TensorRT."""

    def __init__(self, graph: Path, info: GraphInfo, plan: bytes, prompt_maximum: int, in_place: bool) -> None:
        self.info, self.plan, self.prompt_maximum, self.in_place = info, plan, prompt_maximum, in_place
        self.session = onnxruntime.InferenceSession(str(graph / MODEL_FILE), providers=["CPUExecutionProvider"])
        self.calls: list[tuple[str, str, tuple[Any, ...]]] = []
        self.inputs = [entry.name for entry in self.session.get_inputs()]
        self.outputs = [entry.name for entry in self.session.get_outputs()]
        self.refused: str | None = None  # a method that answers as at a failure
        self.module = _Module(self)

    def made(self, name: str) -> int:
        return sum(method == name for _, method, _ in self.calls)


class _Module:
    """The wheel, with a runtime of our own."""

    def __init__(self, world: World) -> None:
        self.__name__ = wheel.__name__
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(wheel, name)

    def Runtime(self, logger: Any) -> Runtime:  # noqa: N802
        assert isinstance(logger, wheel.ILogger)
        return Runtime(self._world)


class Runtime(Held):
    @held
    def deserialize_cuda_engine(self, data: Any) -> ICudaEngine | None:
        assert bytes(data) == self._world.plan
        return None if self._world.refused == "deserialize_cuda_engine" else ICudaEngine(self._world)


class ICudaEngine(Held):
    @property
    def num_io_tensors(self) -> int:
        return len(self._world.inputs) + len(self._world.outputs)

    @held
    def get_tensor_name(self, index: int) -> str:
        return [*self._world.inputs, *self._world.outputs][index]

    @held
    def get_tensor_mode(self, name: str) -> Any:
        return wheel.TensorIOMode.INPUT if name in self._world.inputs else wheel.TensorIOMode.OUTPUT

    @held
    def get_tensor_dtype(self, name: str) -> Any:
        entry = next(entry for entry in (*self._world.session.get_inputs(), *self._world.session.get_outputs()) if entry.name == name)
        return {
            "tensor(int64)": wheel.DataType.INT64,
            "tensor(float)": wheel.DataType.FLOAT,
            "tensor(float16)": wheel.DataType.HALF,
        }[entry.type]

    @held
    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[tuple[int, ...]]:
        batch, longest = self._world.info.batch, self._world.prompt_maximum
        assert (name, profile_index) == (IDS, 0)
        return [(batch, 1), (batch, 1), (batch, longest)]

    @held
    def get_aliased_input_tensor(self, name: str) -> str:
        layers = self._world.info.layers
        return dict(zip(present_names(layers), past_names(layers), strict=True))[name] if self._world.in_place else ""

    @held
    def create_runtime_config(self) -> IRuntimeConfig:
        return IRuntimeConfig(self._world)

    @held
    def create_execution_context(self, runtime_config: Any = None) -> IExecutionContext | None:
        return None if self._world.refused == "create_execution_context" else IExecutionContext(self._world, runtime_config)


class IRuntimeConfig(Held):
    cuda_graph_strategy: Any = None
    dynamic_shapes_kernel_specialization_strategy: Any = None
    _cache: Any = None

    @held
    def create_runtime_cache(self) -> IRuntimeCache:
        return IRuntimeCache(self._world)

    @held
    def set_runtime_cache(self, cache: Any) -> bool:
        self._cache = cache
        return True


class IRuntimeCache(Held):
    _blob = b"kernels of another shape"

    @held
    def deserialize(self, blob: Any) -> bool:
        self._blob = bytes(blob)
        return True

    @held
    def serialize(self) -> bytes:
        return self._blob + b", and these"


class IExecutionContext(Held):
    def __init__(self, world: World, config: Any) -> None:
        super().__init__(world)
        self._config = config
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._profile: int | None = None
        self._captured: dict[str, int] | None = None

    @held
    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        assert stream_handle == STREAM
        self._profile = profile_index
        return True

    @held
    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        assert name in (IDS, POSITIONS), name
        if not 1 <= shape[-1] <= self._world.prompt_maximum:
            return False
        self._shapes[name] = shape
        return True

    @held
    def set_tensor_address(self, name: str, memory: int) -> bool:
        # TensorRT wants a multiple of 256, which torch's CUDA allocator keeps; its allocator on the CPU keeps 64.
        assert memory % 64 == 0, f"{name} is a view into another tensor"
        self._addresses[name] = memory
        return True

    @held
    def execute_async_v3(self, stream_handle: int) -> bool:
        world = self._world
        assert stream_handle == STREAM
        assert self._profile == 0, "no optimization profile is chosen"
        assert set(self._shapes) == {IDS, POSITIONS}, "a dynamic input has no shape"
        assert set(self._addresses) == {*world.inputs, *world.outputs}, "a tensor has no address"
        for past, present in zip(past_names(world.info.layers), present_names(world.info.layers), strict=True):
            assert (self._addresses[past] == self._addresses[present]) is world.in_place, f"{past} and {present}"
        if self._config is not None and self._config.cuda_graph_strategy == wheel.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE:
            assert self._captured in (None, self._addresses), "a captured context's addresses have changed"
            self._captured = dict(self._addresses)
        if world.refused == "execute_async_v3":
            return False
        fed = {entry.name: self._array(entry).copy() for entry in world.session.get_inputs()}
        for entry, value in zip(world.session.get_outputs(), world.session.run(world.outputs, fed), strict=True):
            self._array(entry)[...] = value
        return True

    def _array(self, entry: Any) -> numpy.ndarray[Any, Any]:
        """What lies at a tensor's address."""
        shape = self._shapes.get(entry.name) or tuple(entry.shape)
        kind = numpy.dtype({"tensor(int64)": "int64", "tensor(float)": "float32", "tensor(float16)": "float16"}[entry.type])
        size = int(numpy.prod(shape)) * kind.itemsize
        memory = (ctypes.c_char * size).from_address(self._addresses[entry.name])
        return numpy.frombuffer(memory, dtype=kind).reshape(shape)


class Stream:
    """A stream on which all is done at once. `captured` counts what would be CUDA graphs."""

    handle = STREAM

    def __init__(self) -> None:
        self.captured = 0
        self.waits = 0
        self.depth = 0

    @contextmanager
    def current(self) -> Iterator[None]:
        self.depth += 1
        yield
        self.depth -= 1

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        assert self.depth, "captured outside of the stream"
        work()
        self.captured += 1
        return work

    def wait(self) -> None:
        self.waits += 1
