"""Runs a plan on the device: memory of torch's, kernels of TensorRT's, one id copied for each token and nothing waited for.

Two kinds of execution contexts of one engine. Prefill's is given its shapes and addresses for each call. A decode step's shapes and addresses
never change, so it can be a CUDA graph; where the cache is copied it goes from one buffer to the other, and there are two such contexts, one for
each direction. The edition for RTX captures graphs by itself, once its kernels are compiled; the classic one is captured through torch.

torch is what sampling needs anyway, and brings streams, graphs and memory that llmbench's figures already know.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from llmbench.engines.base import EngineError
from llmbench.engines.tensorrt.bindings import Edition, log
from llmbench.engines.tensorrt.runtime_cache import RuntimeCache
from llmbench.graph.contract import IDS, LOGITS, NEXT_IDS, POSITIONS, GraphInfo, past_names, present_names
from llmbench.protocol import Sampling, Status
from llmbench.torchfast.generate import sample

TORCH_TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_TYPE_NAMES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16"}


class Stream(Protocol):
    """What the runner wants of a stream."""

    handle: int

    def current(self) -> Any: ...  # a context in which torch works on it
    def capture(self, work: Callable[[], None]) -> Callable[[], None]: ...
    def wait(self) -> None: ...


class CudaStream:
    """A CUDA stream of the runner's own: graphs can't be captured on the default one."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self.handle = int(self._stream.cuda_stream)

    @contextmanager
    def current(self) -> Iterator[None]:
        with torch.cuda.stream(self._stream):
            yield

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """A CUDA graph of `work` as a function that replays it. `work` runs once before, as TensorRT settles on shapes in the first call."""
        work()
        self.wait()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            work()
        replay: Callable[[], None] = graph.replay
        return replay

    def wait(self) -> None:
        self._stream.synchronize()


@dataclass(frozen=True)
class RunOptions:
    """What is chosen when a plan is loaded."""

    in_place: bool = False  # the plan updates its cache where it lies
    cuda_graph: bool = True
    specialization: str = "eager"  # of kernels, for an edition with a runtime configuration: eager, lazy, none


class Runner:
    """One plan on one device, for the batch and the cache length that it was built for."""

    def __init__(
        self,
        edition: Edition,
        trt: Any,
        plan: Path,
        info: GraphInfo,
        device: torch.device,
        stream: Stream,
        options: RunOptions,
        cache: RuntimeCache | None = None,
    ) -> None:
        """Loads the plan and makes caches and contexts. Raises EngineError (load failed, out of device memory)."""
        self._edition, self._trt, self.info, self._device = edition, trt, info, device
        self.stream, self._options, self._cache = stream, options, cache
        self._engine = self._deserialize(plan)
        self._check_tensors()
        self.prompt_maximum = int(tuple(self._engine.get_tensor_profile_shape(IDS, 0)[2])[1])
        with stream.current():
            self._make_buffers()
            self._prefill_context = self._context(graph=False)
            sides = 1 if options.in_place else 2
            # Kept: a context that is forgotten is freed, and with it what its graph replays.
            self._step_contexts = [self._step_context(side) for side in range(sides)]
            self._steps = [self._step_of(context) for context in self._step_contexts]
            self._clear()
        stream.wait()

    # ------------------------------------------------------------------------------------------------------------------- loading

    def _deserialize(self, plan: Path) -> Any:
        """The engine; the plan is mapped, so that its gigabytes aren't in memory a second time."""
        log.errors.clear()
        # Also kept: an engine must not outlive its runtime.
        self._runtime = self._trt.Runtime(log.logger(self._trt))
        with plan.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            engine = self._runtime.deserialize_cuda_engine(data)
        if engine is None:
            raise log.failure(f"{self._edition.title} can't load the plan", Status.LOAD_FAILED)
        return engine

    def _check_tensors(self) -> None:
        """The plan's inputs and outputs are the contract's, or it is refused: an address too few is a crash later."""
        engine, trt, layers = self._engine, self._trt, self.info.layers
        modes = {name: engine.get_tensor_mode(name) for name in (engine.get_tensor_name(at) for at in range(engine.num_io_tensors))}
        wanted = dict.fromkeys((IDS, POSITIONS, *past_names(layers)), trt.TensorIOMode.INPUT)
        wanted.update(dict.fromkeys((NEXT_IDS, LOGITS, *present_names(layers)), trt.TensorIOMode.OUTPUT))
        if modes != wanted:
            other = sorted(set(modes) ^ set(wanted)) or sorted(name for name in wanted if modes[name] != wanted[name])
            raise EngineError(f"the plan's tensor {other[0]!r} is not as the graph's contract has it; build it again", Status.LOAD_FAILED)
        kinds = dict.fromkeys((IDS, POSITIONS, NEXT_IDS), trt.DataType.INT64)
        kinds[LOGITS] = trt.DataType.FLOAT
        kinds.update(dict.fromkeys((*past_names(layers), *present_names(layers)), getattr(trt.DataType, _TYPE_NAMES[self.info.dtype])))
        for name, kind in kinds.items():
            if engine.get_tensor_dtype(name) != kind:
                raise EngineError(f"the plan's tensor {name!r} is {engine.get_tensor_dtype(name)}, not {kind}", Status.LOAD_FAILED)
        for past, present in zip(past_names(layers), present_names(layers), strict=True) if self._options.in_place else ():
            if engine.get_aliased_input_tensor(present) != past:
                raise EngineError(f"the plan does not update {past!r} in place; build it again", Status.LOAD_FAILED)

    def _make_buffers(self) -> None:
        info, device = self.info, self._device
        kind = TORCH_TYPES[info.dtype]
        buffers = 1 if self._options.in_place else 2
        # Zeros: what isn't written yet is read as well, and hidden by the mask only as long as it is finite.
        self._caches = [[torch.zeros(info.cache_shape, dtype=kind, device=device) for _ in past_names(info.layers)] for _ in range(buffers)]
        self._side = 0  # the buffer that holds the cache
        self._token = torch.zeros((info.batch, 1), dtype=torch.int64, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._next_ids = torch.zeros((info.batch, 1), dtype=torch.int64, device=device)
        self.logits = torch.zeros((info.batch, info.vocab), dtype=torch.float32, device=device)

    def _context(self, graph: bool) -> Any:
        """An execution context. graph: TensorRT itself replays it as a CUDA graph, where it can."""
        if self._edition.runtime_config:
            context = self._engine.create_execution_context(self._runtime_config(graph))
        else:
            context = self._engine.create_execution_context()
        if context is None or not context.set_optimization_profile_async(0, self.stream.handle):
            raise log.failure("no execution context can be made", Status.LOAD_FAILED)
        return context

    def _runtime_config(self, graph: bool) -> Any:
        trt = self._trt
        config = self._engine.create_runtime_config()
        strategies = trt.CudaGraphStrategy
        config.cuda_graph_strategy = strategies.WHOLE_GRAPH_CAPTURE if graph else strategies.DISABLED
        # Lazily, kernels for these very shapes are compiled beside the first tokens and those run slower: not what a steady state is.
        kinds = trt.DynamicShapesKernelSpecializationStrategy
        config.dynamic_shapes_kernel_specialization_strategy = getattr(kinds, self._options.specialization.upper())
        if self._cache is not None:
            self._cache.attach(config)
        return config

    def _step_context(self, side: int) -> Any:
        """A context of one token that reads the cache in buffer `side` and writes it to the other one."""
        context = self._context(graph=self._options.cuda_graph)
        self._bind(context, self._token, self._position, side)
        return context

    def _bind(self, context: Any, ids: Tensor, positions: Tensor, side: int) -> None:
        """All shapes and addresses of a context."""
        shapes = {IDS: tuple(ids.shape), POSITIONS: tuple(positions.shape)}
        for name, shape in shapes.items():
            if not context.set_input_shape(name, shape):
                raise log.failure(f"{name} of shape {shape} is refused", Status.FAILED)
        tensors = {IDS: ids, POSITIONS: positions, NEXT_IDS: self._next_ids, LOGITS: self.logits}
        tensors.update(zip(past_names(self.info.layers), self._caches[side], strict=True))
        tensors.update(zip(present_names(self.info.layers), self._caches[self._other(side)], strict=True))
        for name, tensor in tensors.items():
            if not context.set_tensor_address(name, tensor.data_ptr()):
                raise log.failure(f"the address of {name} is refused", Status.FAILED)

    def _step_of(self, context: Any) -> Callable[[], None]:
        def step() -> None:
            self._enqueue(context)

        return self.stream.capture(step) if self._options.cuda_graph and not self._edition.runtime_config else step

    def _enqueue(self, context: Any) -> None:
        if not context.execute_async_v3(self.stream.handle):
            raise log.failure(f"{self._edition.title} did not run", Status.FAILED)

    def _other(self, side: int) -> int:
        return 0 if self._options.in_place else 1 - side

    def _clear(self) -> None:
        for buffer in self._caches:
            for tensor in buffer:
                tensor.zero_()

    # ---------------------------------------------------------------------------------------------------------------- generating

    @property
    def kv_cache_bytes(self) -> int:
        """Of all buffers."""
        return sum(tensor.nbytes for buffer in self._caches for tensor in buffer)

    def generate(
        self, prompt: list[list[int]], new_tokens: int, sampling: Sampling, on_token: Callable[[int], None] | None = None
    ) -> list[list[int]]:
        """Exactly new_tokens ids for each row of the prompt, no stop at EOS; seeded anew. on_token makes each step wait for its ids."""
        with self.stream.current():
            torch.manual_seed(sampling.seed)
            ids = torch.empty((self.info.batch, new_tokens), dtype=torch.int64, device=self._device)
            self._prefill(prompt)
            for index in range(new_tokens):
                if index > 0:
                    self._step()
                self._token.copy_(self._chosen(sampling))
                ids[:, index : index + 1] = self._token
                if on_token is not None:
                    self._token.cpu()
                    on_token(index + 1)
            found: list[list[int]] = ids.tolist()
        return found

    def teacher_forced(self, ids: list[int]) -> Tensor:
        """float32 on the host [len(ids), vocab]. A prefill gives its last row only, so the first half's rows come from steps; then the caches are
        emptied, prefill fills them again and gives the half's last row, and the rest steps on from what it wrote."""
        half = max(1, len(ids) // 2)
        rows = torch.empty((len(ids), self.info.vocab), dtype=torch.float32)
        with self.stream.current():
            self._position.zero_()
            for index in range(half - 1):
                self._token.fill_(ids[index])
                self._step()
                rows[index] = self.logits[0]
            self._clear()
            self._prefill([ids[:half]] * self.info.batch)
            rows[half - 1] = self.logits[0]
            for index in range(half, len(ids)):
                self._token.fill_(ids[index])
                self._step()
                rows[index] = self.logits[0]
        return rows

    def _prefill(self, prompt: list[list[int]]) -> None:
        """Fills the cache from position 0. A prompt longer than the plan's profile goes through in pieces; one that was asked for never is."""
        length = len(prompt[0])
        for start in range(0, length, self.prompt_maximum):
            stop = min(start + self.prompt_maximum, length)
            # Tensors of their own, not views: TensorRT wants addresses at multiples of 256, as torch's allocator gives them on a GPU.
            ids = torch.tensor([row[start:stop] for row in prompt], dtype=torch.int64, device=self._device)
            positions = torch.arange(start, stop, dtype=torch.int64, device=self._device)
            self._bind(self._prefill_context, ids, positions, self._side)
            self._enqueue(self._prefill_context)
            self._side = self._other(self._side)
        self._position.fill_(length)

    def _step(self) -> None:
        """The ids in _token at _position: next_ids, logits and one more position in the cache."""
        self._steps[self._side]()
        self._side = self._other(self._side)
        self._position.add_(1)

    def _chosen(self, sampling: Sampling) -> Tensor:
        return self._next_ids if sampling.temperature == 0.0 else sample(self.logits, sampling.temperature, sampling.top_k)

    def close(self) -> None:
        """Gives contexts, engine and memory back, in the order that TensorRT wants."""
        self.stream.wait()
        if self._cache is not None:
            self._cache.save()
        self._steps.clear()
        self._step_contexts.clear()
        self._prefill_context = self._engine = self._runtime = None
        self._caches.clear()
