"""The words that the parent, the worker and the run file share, as plain dataclasses: their only definition.

Standard library only: a worker may run under another interpreter that has none of our dependencies. The parent and the worker trust each
other, so `decode` here checks little; the run file may come from anywhere, and llmbench.results checks it against these same classes.
Units stand in the names: _s seconds, _bytes bytes, _gib GiB (2**30 bytes), _gb_per_s 10**9 bytes per second.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from dataclasses import dataclass, field
from typing import Any, TypeVar

#: Raised whenever a reader of an older version could misread a newer run file. New optional fields don't raise it.
SCHEMA_VERSION = 1

#: Storage dtypes that `--dtype` knows, with bytes per element.
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

Scalar = str | int | float | bool


class Status(str, enum.Enum):
    """How a block or a row ended. Ordered from good to worst by `severity`."""

    OK = "ok"
    NOT_MEASURED = "not_measured"  # its turn never came, or its first block was cut off; what views say of a row without a sample
    UNAVAILABLE = "unavailable"  # the engine's library, tool or device isn't here
    UNSUPPORTED = "unsupported"  # it is here, but can't do this request: dtype, quantization, length, batch
    INTERRUPTED = "interrupted"  # Ctrl-C
    NONDETERMINISTIC = "nondeterministic"  # the same request gave other ids
    IMPLAUSIBLE = "implausible"  # faster than the memory can be read, or the prompt came from an earlier request's cache
    INACCURATE = "inaccurate"  # its logits or ids are further from the reference than its dtype explains
    WRONG_COUNT = "wrong_count"  # not exactly max_new_tokens ids in the vocabulary for each sequence
    TIMED_OUT = "timed_out"
    OUT_OF_HOST_MEMORY = "out_of_host_memory"
    OUT_OF_DEVICE_MEMORY = "out_of_device_memory"
    BUILD_FAILED = "build_failed"
    LOAD_FAILED = "load_failed"
    FAILED = "failed"  # an error while generating
    CRASHED = "crashed"  # the worker process died: a signal, or an exit without a word

    @property
    def severity(self) -> int:
        return list(Status).index(self)

    @property
    def words(self) -> str:
        """The status as users read it."""
        return self.value.replace("_", " ")

    @staticmethod
    def worst(statuses: typing.Iterable[Status]) -> Status:
        return max(statuses, key=lambda status: status.severity, default=Status.OK)


# ---------------------------------------------------------------------------------------------------------------- what is to be measured


@dataclass(frozen=True)
class Variant:
    """An engine with its options. `label` is its canonical text (`torch-compile[quantization=int8]`), unique within a run."""

    label: str
    engine: str
    dtype: str  # resolved: never "auto"
    quantization: str | None = None
    options: dict[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class Sampling:
    """Greedy at temperature 0; otherwise softmax(logits / temperature) over the top_k most likely ids (all, where top_k is None)."""

    temperature: float = 0.0
    top_k: int | None = None
    seed: int = 1234


@dataclass(frozen=True)
class Request:
    """What every engine is asked. One prompt, repeated batch_size times."""

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    batch_size: int = 1
    sampling: Sampling = field(default_factory=Sampling)

    @property
    def total_tokens(self) -> int:
        """Positions that a sequence needs: prompt and new tokens."""
        return len(self.prompt_ids) + self.max_new_tokens

    @property
    def cache_length(self) -> int:
        """Positions of a static KV cache: all of the request's, rounded up to a multiple of 8, which keeps the products' rows aligned. Every
        engine with such a cache takes this length, so that all read caches of one size."""
        return -(-self.total_tokens // 8) * 8


@dataclass(frozen=True)
class CheckpointRef:
    """A checkpoint directory in Hugging Face layout, as the worker gets it. With load_format "dummy" it holds config.json and no weights."""

    name: str  # as the user reads it: alias, hub id or path
    path: str  # absolute
    load_format: str = "safetensors"  # or "dummy": random weights drawn from dummy_seed
    dummy_seed: int = 0
    source: str = ""  # in words, release or commit included: "hub HuggingFaceTB/SmolLM2-135M-Instruct@12fd25f"
    identity: str = ""  # digest of config and weights, for artifacts' keys; empty where no engine of the run keeps any


@dataclass(frozen=True)
class Job:
    """All that a worker needs to run one variant. `request` gives the greatest lengths and batch that generate will be asked for."""

    checkpoint: CheckpointRef
    variant: Variant
    request: Request
    device: str  # "cpu" or "cuda:i"
    threads: int
    targets: tuple[str, ...] = ()  # hardware that an artifact is built for, by name ("rtx-4090"); empty: the device above


@dataclass(frozen=True)
class Recipe:
    """All that decides what an engine builds, beside the checkpoint, the dtype and the quantization. An artifact's key covers every field."""

    adapter: int  # raised whenever the adapter would write something else for the same job
    versions: dict[str, str]  # libraries whose release changes the result
    targets: tuple[
        str, ...
    ]  # what it runs on, one entry each: "sm_89", a processor with its instruction set; one built for more serves too
    maxima: dict[str, int] = field(default_factory=dict)  # greatest batch and lengths it is built for, never the request itself
    options: dict[str, Scalar] = field(default_factory=dict)  # everything else that was chosen
    executes: bool = False  # loading it runs machine code or unpickles inside a library: only ever from a place of the user's own


# --------------------------------------------------------------------------------------------------------------------- what was measured


@dataclass(frozen=True)
class Sample:
    """One timed generation.

    `kind`: "warmup", "sample" (max_new_tokens new tokens), "first_token" (one new token), "fresh_first_token" (one new token after a prompt
    of the same length that this process has not seen before), "repeated_first_token" (the request's own prompt right after such a one),
    "starting_first_token" (one new token, before all else that this process generates; in start-up runs only).
    """

    kind: str
    wall_s: float
    new_tokens: tuple[int, ...]  # counted by the worker, one entry for each sequence
    ids_sha256: str  # of all new ids: equal digests are equal generations
    started_s: float = 0.0  # seconds after the block began
    energy_j: float | None = None  # of the device or the processor package, where a counter exists


@dataclass(frozen=True)
class Memory:
    """Peaks above the process's size after its imports, in bytes; null where this platform can't tell.

    Host: VmHWM, reset through /proc/self/clear_refs. Device: the device's used memory as CUDA reports it, sampled at the phases' ends and
    raised by the allocator's own peak where there is one.
    """

    baseline_bytes: int | None = None  # resident after imports
    load_peak_bytes: int | None = None
    warmup_peak_bytes: int | None = None  # compiling included
    steady_peak_bytes: int | None = None
    device_load_peak_bytes: int | None = None
    device_warmup_peak_bytes: int | None = None
    device_steady_peak_bytes: int | None = None


@dataclass(frozen=True)
class EngineReport:
    """What an engine says of itself once it has loaded."""

    storage_dtype: str
    arithmetic_dtype: str
    weights_bytes: int | None = None
    kv_cache_bytes: int | None = None
    settings: dict[str, Scalar] = field(default_factory=dict)  # what it chose: compile mode, attention, ...


@dataclass(frozen=True)
class ArtifactUse:
    """The artifact that a block loaded."""

    engine: str  # whose folder of engines/ it lies in
    key: str
    hit: bool  # it was there; else this block had it built
    bytes: int  # on disk
    build_s: float  # wall of its building, whenever that was: process start to publishing, and that of the artifact it was built from
    built_at: str  # UTC, ISO 8601
    build_peak_bytes: int | None = None  # of the building process, see Memory
    waited_s: float = 0.0  # for another process that was building it


@dataclass(frozen=True)
class Bandwidth:
    """Read bandwidth of the memory the weights lie in, as probed by the worker; gb_per_s is null with a reason where it can't be probed."""

    gb_per_s: float | None
    reason: str | None = None
    last_level_cache_bytes: int | None = None


@dataclass(frozen=True)
class MachineState:
    """The machine at one moment, read between blocks by the parent. Null where this machine doesn't tell, never zero for that."""

    load_1m: float | None = None  # processes that wanted a CPU, mean of the last minute
    cpu_steal_s: float | None = None  # counter: CPU seconds that the hypervisor gave to others, all CPUs
    cpu_busy_s: float | None = None  # counter: CPU seconds at work, all CPUs and processes
    cpu_throttled_s: float | None = None  # counter: seconds that the control group's quota held this group back
    cpu_mhz: float | None = None  # mean over CPUs
    cpu_temperature_c: float | None = None
    memory_available_bytes: int | None = None
    gpu_sm_mhz: float | None = None
    gpu_memory_mhz: float | None = None
    gpu_temperature_c: float | None = None
    gpu_power_w: float | None = None
    gpu_throttle_reasons: tuple[str, ...] | None = None  # empty: nothing holds the clocks back
    gpu_foreign_processes: int | None = None  # processes on the device that are not this run's
    read_at_s: float | None = None  # monotonic seconds since the machine started: the wall between two states is their difference
    cpu_count: int | None = None  # CPUs that cpu_busy_s and cpu_steal_s sum over: all of the machine, usable by this process or not
    own_cpu_s: float | None = None  # counter: CPU seconds of this process and of its workers, part of cpu_busy_s
    gpu_power_throttled_s: float | None = None  # counter: seconds that the power limit held the clocks below what was asked for
    gpu_thermal_throttled_s: float | None = None  # counter: the same for heat


@dataclass(frozen=True)
class Accuracy:
    """How far a variant's arithmetic is from float32 on the same weights, and how far its weights are from the unquantised model.

    Errors are root mean squares of the difference of logits over the reference's root mean square, both centred per position; sums in
    float64. `passed` is decided by `error` or, where the engine gives no logits, by its greedy ids; quality never fails a row.
    """

    method: str  # "logits", "ids", "skipped", or "pending" until the comparison after the first round
    passed: bool
    reason: str | None = None  # why it failed, or why it was skipped
    positions: int = 0  # logits or ids compared
    error: float | None = None
    eager_error: float | None = None  # of eager PyTorch in the same dtype on the same ids
    tolerance: float | None = None  # the greatest error that passes
    first_difference: int | None = None  # the first new id that is not the reference's most likely one; null where all are
    first_margin: float | None = None  # how much more likely the reference holds its own id there, in logits
    quality_kl: float | None = None  # mean Kullback-Leibler divergence from the unquantised model, nats
    quality_top1: float | None = None  # share of positions with the unquantised model's most likely id


@dataclass(frozen=True)
class Compilation:
    """What torch compiled in a block's process until after its last sample, as torch itself counts it. Null where it doesn't tell.

    The phases are parts of total_s: total_s = trace_s + autograd_s + inductor_s. A cache hit skips Inductor, so its seconds are then in
    autograd_s, which looked it up.
    """

    total_s: float  # wall of compiling, all frames together
    trace_s: float  # Dynamo: bytecode to graph, and guards
    autograd_s: float  # AOTAutograd, or the backend's own time where that isn't Inductor
    inductor_s: float  # lowering, fusing, code generation, the C++ compiler and Triton
    codegen_s: float  # the last three of these
    frames: int  # compilations of a frame, again-compiled ones included
    graphs: int
    graph_breaks: int
    recompiles: int  # compilations of a frame that had been compiled before
    operators: int  # calls in the captured graphs
    cache_hits: int  # graphs that came out of a cache on disk
    cache_misses: int
    kernels: int | None = None  # that Inductor wrote, calls of libraries not counted; null with another backend
    cudagraph_skips: int = 0  # graphs that were to run as CUDA graphs and didn't
    reasons: tuple[str, ...] = ()  # for breaks, recompilations and skips, a line each, the first ones


@dataclass
class Block:
    """One process of one variant: load, warm up, take samples."""

    round: int
    status: Status = Status.OK
    reason: str | None = None
    started_at: str = ""  # UTC, ISO 8601
    cold: bool = False  # the variant's first block in this run: nothing in the compiler's caches
    start_s: float | None = None  # from starting the process until the engine's libraries are imported and the job is accepted
    build_s: float | None = None  # building or finding the artifact, waiting for others excluded; null for engines without
    artifact: ArtifactUse | None = None
    load_s: float | None = None
    samples: list[Sample] = field(default_factory=list)
    ids: list[list[int]] | None = None  # the last timed generation's, batch x max_new_tokens
    report: EngineReport | None = None
    memory: Memory = field(default_factory=Memory)
    bandwidth: list[Bandwidth] = field(default_factory=list)  # before loading and after the samples
    state_before: MachineState | None = None
    state_after: MachineState | None = None
    accuracy: Accuracy | None = None  # of the block whose logits or ids were checked: each variant's first
    compilation: Compilation | None = None  # of torch engines that compile
    trace: str | None = None  # torch.profiler's trace of a generation after the last sample: a path relative to the run file
    versions: dict[str, str] = field(default_factory=dict)
    log: str | None = None  # what the worker wrote to its stdout and stderr: a path relative to the run file

    def of_kind(self, kind: str) -> list[Sample]:
        return [sample for sample in self.samples if sample.kind == kind]


@dataclass
class Row:
    """All blocks of one variant; `status` is the worst of its blocks', its good samples stay."""

    variant: Variant
    status: Status = Status.OK
    reason: str | None = None
    blocks: list[Block] = field(default_factory=list)

    def add(self, block: Block) -> None:
        self.blocks.append(block)
        if block.status.severity > self.status.severity:
            self.status, self.reason = block.status, block.reason


@dataclass(frozen=True)
class Plan:
    """How often to measure. `time_budget_s` cuts samples first and rounds last."""

    rounds: int = 5
    num_iters: int = 3  # samples in a block
    num_iters_warmup: int = 2  # full generations before them, the same rule for every engine
    seed: int = 0  # of the order within rounds
    time_budget_s: float | None = None
    timeout_s: float = 1800.0  # for each step of a worker: load, one generation, ...
    quick: bool = False  # one round, so no verdict
    interleave: bool = False  # the processes of a round live side by side and take single samples in turn (ABBA)
    min_effect: float = 0.02  # a ratio nearer to 1 than this makes no difference to anyone
    confidence: float = 0.95  # of all intervals of a run together
    accuracy: bool = True
    startup: bool = False  # what is asked for is how each way starts: one token first, in every process, before the warm-ups
    profile: bool = False  # a trace of one more generation of each variant, after its samples


@dataclass
class Machine:
    """Where it ran. Nothing in it names a user or a host."""

    device: str = ""  # "cpu", "cuda:0"
    device_name: str = ""
    platform: str = ""
    cpu: str = ""
    cpu_count: int = 0  # usable by this process
    memory_bytes: int = 0
    driver: str | None = None
    device_memory_bytes: int | None = None


@dataclass
class Model:
    """What is run: where it came from, and the shape that the limits follow from."""

    name: str
    source: str
    path: str
    architecture: str
    dtype: str  # config.json's
    config: dict[str, Any] = field(default_factory=dict)  # the resolved shape, as ModelConfig's fields
    load_format: str = "safetensors"
    parameters: int = 0
    identity: str | None = None  # equal for copies of one checkpoint; see checkpoints.identity
    warnings: list[str] = field(default_factory=list)


@dataclass
class Run:
    """One checkpoint and one request, all rows: one run file."""

    run_id: str
    model: Model
    request: Request
    plan: Plan
    machine: Machine
    threads: int
    dtype: str  # of the baseline's storage, and of every variant that doesn't say otherwise
    rows: list[Row] = field(default_factory=list)
    prompt: str | None = None  # null for synthetic ids
    baseline: str | None = None  # a variant's label
    started_at: str = ""
    finished_at: str | None = None  # null: still running, or cut off
    interrupted: bool = False
    command: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what was cut or left out, in words
    suite_id: str | None = None
    aa: bool = False  # the same variant under several names: what it shows is this machine's noise floor
    noise_floor: float | None = None  # relative: the newest A/A run's on this machine; smaller differences are undecided
    noise_floor_source: str | None = None  # that A/A run, in words
    llmbench_version: str = ""
    schema_version: int = SCHEMA_VERSION

    def row(self, label: str) -> Row | None:
        return next((row for row in self.rows if row.variant.label == label), None)


# ------------------------------------------------------------------------------------------------------------------------------- messages


@dataclass(frozen=True)
class Command:
    """Parent to worker: do one thing, then answer with exactly one Reply of the same number."""

    number: int
    do: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """Worker to parent. `status` other than ok goes with a one-line reason; the traceback is in the log."""

    number: int
    status: Status = Status.OK
    reason: str | None = None
    result: dict[str, Any] = field(default_factory=dict)


T = TypeVar("T")


def encode(value: Any) -> Any:
    """A dataclass as what json.dumps takes. Enums become their values, tuples lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: encode(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {key: encode(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(entry) for entry in value]
    return value


def decode(kind: type[T], data: Any) -> T:
    """The inverse of `encode` for messages between parent and worker. Unknown keys are passed over; it converts, it doesn't validate."""
    return typing.cast(T, _decode(kind, data))


def _decode(kind: Any, data: Any) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        if data is None:
            return None
        options = [option for option in typing.get_args(kind) if option is not type(None)]
        return _decode(options[0], data) if len(options) == 1 else data
    if origin is list:
        return [_decode(typing.get_args(kind)[0], entry) for entry in data]
    if origin is tuple:
        return tuple(_decode(typing.get_args(kind)[0], entry) for entry in data)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        names = [entry.name for entry in dataclasses.fields(kind) if entry.name in data]
        return kind(**{name: _decode(hints[name], data[name]) for name in names})
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(data)
    return data
