"""The engine `aot-inductor`: llmbench's own model, exported by torch.export and compiled by AOTInductor before it is measured.

The artifact is machine code and nothing else: .pt2 packages of some MB, one for the decode step and one or two for prefill. A process that
loads it needs neither Dynamo nor Inductor. It reads the checkpoint into one Transformer, as every torch engine does, and hands that module's
parameters and buffers to all packages as constants that stay its own (user_managed): weights are in memory once, and the packages write
into the same KV caches. Building touches no weights, only their shapes.

The prompt's length is open in prefill, so another prompt is served by the same artifact; the batch, the cache's length and the sampling are
compiled in. A checkpoint with a sliding window shorter than its cache has two prefills, for prompts up to the window and for longer ones.
A prompt of one id is a decode step at position 0: torch.export would make a length of 1 a case of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from llmbench.checkpoints.config import ModelConfig, read_config
from llmbench.checkpoints.errors import CheckpointError
from llmbench.engines.base import EngineError, Unavailable, Unsupported
from llmbench.engines.compilers import missing_compiler
from llmbench.engines.faults import told_as
from llmbench.engines.sources import compiler_environment, source_digest
from llmbench.engines.torch_engines import TorchEngine
from llmbench.protocol import EngineReport, Job, Recipe, Request, Scalar, Status
from llmbench.torchfast import programs
from llmbench.torchfast.weights import DTYPES, build_empty
from llmbench.worker.targets import device_target

STEP = "step.pt2"
#: What is compiled: with another model or another way to sample, an older artifact is another one.
_SOURCES = (
    "llmbench.torchfast.model",
    "llmbench.torchfast.generate",
    "llmbench.torchfast.programs",
    "llmbench.engines.aot_inductor",
)
#: The packages hold code; at loading they get the weights that lie in memory already.
INDUCTOR_CONFIG = {"aot_inductor.package_constants_in_so": False}


class AotInductorEngine(TorchEngine):
    """Runs the packages; builds them in another process."""

    ADAPTER = 1

    name = "aot-inductor"
    options = ()
    traces = False

    def __init__(self) -> None:
        super().__init__()
        self._artifact: Path | None = None
        self._step: Callable[..., Any] | None = None
        self._prefill: Callable[[Tensor], Any] | None = None

    # ------------------------------------------------------------------------------------------------------------- before loading

    def supports(self, job: Job) -> None:
        super().supports(job)
        _own_config(job)
        if not hasattr(getattr(torch._C, "_aoti", None), "AOTIModelPackageLoader"):
            raise Unsupported(f"torch {torch.__version__} has no loader for AOTInductor's packages; install torch 2.9 or newer")

    def recipe(self, job: Job) -> Recipe:
        """The code follows from the shapes and the sampling; on a CPU also from the threads, whose number Inductor writes into its loops."""
        sampling = job.request.sampling
        options: dict[str, Scalar] = {
            "temperature": float(sampling.temperature),
            "source": source_digest(_SOURCES),
            **compiler_environment(),
        }
        if sampling.temperature > 0 and sampling.top_k is not None:
            options["top_k"] = sampling.top_k
        if job.device == "cpu":
            options["threads"] = job.threads
        return Recipe(
            adapter=self.ADAPTER,
            versions=self.versions(),
            targets=(device_target(job.device),),
            maxima={"batch": job.request.batch_size, "cache_length": job.request.cache_length},
            options=options,
            executes=True,
        )

    def build(self, job: Job, into: Path, source: Path | None = None) -> None:
        """Exports and compiles. Weights get memory here that is never written nor read: only their shapes count."""
        torch.set_num_threads(job.threads)
        device = self._device(job.device)
        missing = missing_compiler(device.type)
        if missing is not None:
            raise Unavailable("; ".join(missing))
        config, sampling, batch = _own_config(job), job.request.sampling, job.request.batch_size
        length = job.request.cache_length
        with told_as(Status.BUILD_FAILED), torch.no_grad():
            model = build_empty(config, DTYPES[job.variant.dtype], device)
            model.setup_caches(batch, length, device)
            for name, low, high in prefill_ranges(config.sliding_window, length):
                # A length in the middle: the ends are where a graph would be made for one of them alone.
                ids = torch.zeros((batch, (low + high) // 2), dtype=torch.int64, device=device)
                # One length alone can't be an open dimension.
                open_length = {1: torch.export.Dim("length", min=low, max=high)} if low < high else None
                _compile(programs.PrefillProgram(model, sampling), (ids,), (open_length,), into / name)
            ids = torch.zeros((batch, 1), dtype=torch.int64, device=device)
            input_pos = torch.zeros(1, dtype=torch.int64, device=device)
            _compile(programs.StepProgram(model, sampling), (ids, input_pos), None, into / STEP)

    # -------------------------------------------------------------------------------------------------------------------- loading

    def load(self, job: Job, artifact: Path | None = None) -> EngineReport:
        if artifact is None:
            raise EngineError("aot-inductor runs an artifact, and there is none", Status.LOAD_FAILED)
        self._artifact = artifact
        return super().load(job, artifact)

    def prepare(self, job: Job) -> dict[str, str | int | float | bool]:
        """Loads the packages and gives them the module's tensors. They are machine code, so the folder is the user's own and was checked."""
        assert self._artifact is not None
        model = self._loaded()
        ranges = prefill_ranges(_own_config(job).sliding_window, model.length)
        with told_as(Status.LOAD_FAILED), _unpacking_in_caches():
            step = self._open(self._artifact / STEP)
            prefills = [(low, high, self._open(self._artifact / name)) for name, low, high in ranges]
        first = torch.zeros(1, dtype=torch.int64, device=self.device)

        def prefill(ids: Tensor) -> Any:
            length = ids.shape[1]
            if length == 1:
                return step([ids, first])
            return next(run for low, high, run in prefills if low <= length <= high)([ids])

        self._step, self._prefill = step, prefill
        self.prefill = lambda model, ids, temperature, top_k: prefill(ids)[0]
        self.decode_one_token = lambda model, ids, input_pos, temperature, top_k: step([ids, input_pos])
        return {"weights_in_package": False, "prefill_packages": len(prefills), "fullgraph": True}

    def _open(self, package: Path) -> Callable[[list[Tensor]], Any]:
        """A package's function from its inputs to its outputs.

        torch._inductor.aoti_load_package does the same after a check that this artifact's key holds already (the processor), for which
        it imports Inductor and, with empty caches, starts the C++ compiler: seconds that no one needs.
        """
        loader = torch._C._aoti.AOTIModelPackageLoader(
            str(package), "model", True, 1, self.device.index if self.device.index is not None else -1
        )
        model = self._loaded()
        tensors = {f"model.{name}": tensor for named in (model.named_parameters(), model.named_buffers()) for name, tensor in named}
        wanted = loader.get_constant_fqns()
        unknown = sorted(set(wanted) - set(tensors))
        if unknown:
            raise EngineError(f"{package.name} wants the tensor {unknown[0]}, which this model doesn't have", Status.LOAD_FAILED)
        # Into the active buffers, all of them, and not copied: the loader keeps addresses, and self.model keeps the tensors.
        loader.load_constants({name: tensors[name] for name in wanted}, False, True, True)
        run: Callable[[list[Tensor]], Any] = loader.run
        return run

    # ------------------------------------------------------------------------------------------------------------------ generating

    def generate(self, request: Request, on_token: Callable[[int], None] | None = None) -> list[list[int]]:
        """As of every torch engine; batch and sampling must be those that it was compiled for."""
        self._loaded()
        assert self.request is not None
        if request.batch_size != self.request.batch_size:
            raise EngineError(f"asked for {request.batch_size} sequences; compiled for {self.request.batch_size}")
        asked, compiled = request.sampling, self.request.sampling
        if (asked.temperature, asked.top_k) != (compiled.temperature, compiled.top_k):
            raise EngineError(
                f"asked to sample with temperature {asked.temperature} and top_k {asked.top_k}; compiled for {compiled.temperature} and "
                f"{compiled.top_k}"
            )
        return super().generate(request, on_token)

    def logits(self, ids: list[int]) -> Any:
        """float32 array [len(ids), vocab]. Prefill hands out its last row only, so the first half's rows come from steps; then the caches are
        emptied, prefill fills them again and gives the half's last row, and the rest steps on from what it wrote."""
        model = self._loaded()
        assert self.request is not None
        assert self._step is not None
        assert self._prefill is not None
        batch = self._ids(ids, self.request.batch_size, len(ids))
        half = max(1, len(ids) // 2)
        rows = torch.empty((len(ids), model.config.vocab), dtype=torch.float32)
        with told_as(Status.FAILED), torch.no_grad():
            for index in range(len(ids)):
                if index == half:
                    for block in model.blocks:
                        block.attention.k_cache.zero_()
                        block.attention.v_cache.zero_()
                    rows[half - 1] = self._prefill(batch[:, :half].contiguous())[1][0]
                input_pos = torch.full((1,), index, dtype=torch.int64, device=self.device)
                rows[index] = self._step([batch[:, index : index + 1].contiguous(), input_pos])[1][0]
        return rows.numpy()

    def close(self) -> None:
        self._step = self._prefill = None  # ends the packages, and with them what they unpacked
        super().close()


def prefill_ranges(window: int | None, length: int) -> list[tuple[str, int, int]]:
    """(package, least and greatest prompt length) for prompts of 2 to length - 1 ids, since a prompt leaves room for a new one.

    Past the window the model makes a mask that shorter prompts don't need, so these are two graphs.
    """
    last = length - 1
    border = last if window is None else min(window, last)
    ranges = [("prefill.pt2", 2, border), ("prefill_past_window.pt2", max(border + 1, 2), last)]
    return [(name, low, high) for name, low, high in ranges if low <= high]


def _compile(program: Any, inputs: tuple[Tensor, ...], dynamic_shapes: Any, package: Path) -> None:
    import torch._inductor

    exported = torch.export.export(program, inputs, dynamic_shapes=dynamic_shapes)
    torch._inductor.aoti_compile_and_package(exported, package_path=str(package), inductor_configs=INDUCTOR_CONFIG)


def _own_config(job: Job) -> ModelConfig:
    """The shape; Unsupported where llmbench's own model doesn't know the family, since only that one is written to be exported."""
    try:
        return read_config(Path(job.checkpoint.path))
    except CheckpointError as error:
        raise Unsupported(f"aot-inductor runs llmbench's own model alone: {error.reason}") from error


@contextmanager
def _unpacking_in_caches() -> Iterator[None]:
    """Has packages unpacked in this process's folder of compiler caches, which its parent removes: a killed process can't tidy up."""
    caches, before = os.environ.get("TORCHINDUCTOR_CACHE_DIR"), os.environ.get("TMPDIR")
    if caches is None:
        yield
        return
    Path(caches).mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = caches
    try:
        yield
    finally:
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before
