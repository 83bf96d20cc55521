"""The engines as the parent knows them: names, needs and defaults, without importing any engine's library.

Other packages add engines through the entry-point group `llmbench.engines`; each entry names an EngineSpec.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
from dataclasses import dataclass, field

from llmbench.engines.compilers import missing_compiler

GROUP = "llmbench.engines"


@dataclass(frozen=True)
class EngineSpec:
    """One engine, for the parent."""

    name: str
    target: str  # "module:Class", imported in the worker only
    summary: str  # one line for `llmbench engines`
    requires: tuple[str, ...] = ()  # Python modules that its interpreter must have
    extra: str | None = None  # the extra of llmbench that brings them
    remedy: str | None = None  # how to get them where no extra can
    devices: tuple[str, ...] = ("cpu", "cuda")
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    quantizations: tuple[str, ...] = ()
    needs_compiler: bool = False  # a C++ compiler at run time
    compiles: bool = False  # its first generations compile: the card's estimate of time counts with it
    artifact: bool = False  # has a build step, at least with some options, whose result is kept in engines/
    source: str | None = None  # the engine whose artifact this one builds from, or loads as it is
    measured: bool = True  # false for a builder of what others load: it can't be compared
    targets: bool = False  # builds for hardware that isn't here
    default: bool = True  # measured when the user names no engines
    not_run_on: str | None = None  # what this project has not run it on yet, in words
    written_against: str | None = None  # the release of its library whose API it follows, where it has not run at all
    options: dict[str, str] = field(default_factory=dict)  # variant options: name -> what it does
    reads_weights: bool = True  # false for the fake engine: no read-bandwidth limit applies


@dataclass(frozen=True)
class Problem:
    """Why an engine can't be used here, and the command that would make it usable."""

    reason: str
    remedy: str | None = None

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}" if self.remedy else self.reason


_MODEL = "whose model is run: own, or transformers; own where llmbench knows the family"
_GRAPHS = "CUDA graphs for the decode steps: true (default) or false"
_KV_FRACTION = "of the GPU memory that is free, the most that its KV cache may take: 0.9"
#: How to get what no extra can bring.
TENSORRT_LLM_INSTALL = (
    "in an interpreter of its own (Python 3.12, Linux, an NVIDIA GPU): pip install tensorrt_llm==1.2.1 from NVIDIA's package index, then "
    "llmbench engines set tensorrt-llm PATH/bin/python; see docs/tensorrt-llm.md"
)
_REGIONAL = "true: all layers are calls of one compiled function, so there is less to compile"

_TENSORRT = {
    "kv_cache": "copied (default): from one buffer to the other; in-place: written by TensorRT's own cache layers",
    "workspace_mib": "scratch memory that a kernel may want while it is built, in MiB",
    "cuda_graph": "false: a step's kernels are launched one by one; true is the default",
}

BUILT_IN = (
    EngineSpec(
        name="eager",
        target="llmbench.engines.torch_engines:EagerEngine",
        summary="PyTorch, one operator after the other: llmbench's own decoding loop, not compiled",
        requires=("torch",),
        extra="eager",
        not_run_on="CUDA",
        options={"model": _MODEL},
    ),
    EngineSpec(
        name="torch-compile",
        target="llmbench.engines.torch_start:StartableTorchCompileEngine",
        summary="the same loop with prefill and decode step under torch.compile (CUDA graphs where there are any)",
        requires=("torch",),
        extra="torch-compile",
        needs_compiler=True,
        compiles=True,
        artifact=True,
        not_run_on="CUDA",
        options={
            "model": _MODEL,
            "mode": "torch.compile's mode: default, reduce-overhead, max-autotune, max-autotune-no-cudagraphs",
            "regional": _REGIONAL,
            "start": "what a process has of an earlier one's compiling: disk (default), cold, bundle, aot; the last two build an artifact",
        },
    ),
    EngineSpec(
        name="torch-compile-no-cudagraphs",
        target="llmbench.engines.torch_backends:TorchCompileNoCudagraphsEngine",
        summary="torch-compile in mode default on every device: Inductor's kernels, launched one by one",
        requires=("torch",),
        extra="torch-compile",
        needs_compiler=True,
        compiles=True,
        default=False,
        not_run_on="CUDA",
        options={"model": _MODEL, "regional": _REGIONAL},
    ),
    EngineSpec(
        name="aot-eager",
        target="llmbench.engines.torch_backends:AotEagerEngine",
        summary="the same loop through Dynamo and AOTAutograd, operators not fused: what compiling costs and Inductor doesn't bring",
        requires=("torch",),
        extra="eager",
        compiles=True,
        default=False,
        not_run_on="CUDA",
        options={"model": _MODEL},
    ),
    EngineSpec(
        name="cudagraphs",
        target="llmbench.engines.torch_backends:CudagraphsEngine",
        summary="the same graphs, operators not fused, replayed as CUDA graphs: what launching costs",
        requires=("torch",),
        extra="eager",
        devices=("cuda",),
        compiles=True,
        default=False,
        not_run_on="any device",
        options={"model": _MODEL},
    ),
    EngineSpec(
        name="nvfuser",
        target="llmbench.engines.torch_backends:NvfuserEngine",
        summary="the same loop through lightning-thunder with NVIDIA's fuser",
        requires=("thunder",),
        remedy="in an interpreter of its own: pip install torch==2.10.* lightning-thunder==0.2.6 nvfuser-cu128-torch210 numpy, then "
        "--python nvfuser=PATH",
        devices=("cuda",),
        compiles=True,
        default=False,
        not_run_on="any device",
        options={"model": _MODEL},
    ),
    EngineSpec(
        name="transformers",
        target="llmbench.engines.transformers_engine:TransformersEngine",
        summary="transformers' own generate with a static cache: any causal language model it can build",
        requires=("torch", "transformers"),
        extra="transformers",
        default=False,
        not_run_on="CUDA",
        options={"compile": "true: its forward pass is compiled, as generate does by itself on a GPU"},
    ),
    EngineSpec(
        name="aot-inductor",
        target="llmbench.engines.aot_inductor:AotInductorEngine",
        summary="the same loop, exported and compiled before it is measured; a process that runs it compiles and traces nothing",
        requires=("torch",),
        extra="torch-compile",
        artifact=True,
        not_run_on="CUDA",
    ),
    EngineSpec(
        name="onnxruntime",
        target="llmbench.engines.onnxruntime_engine:OnnxRuntimeEngine",
        summary="ONNX Runtime on the exported graph: its CPU or CUDA provider, buffers bound once, the cache written in place",
        requires=("onnxruntime", "numpy"),
        extra="onnxruntime",
        quantizations=("int8", "int4"),
        options={"activations": "of quantized products: float (default), or int8, faster and less exact"},
        artifact=True,
        source="onnx-graph",
        default=False,
        not_run_on="CUDA",
    ),
    EngineSpec(
        name="openvino",
        target="llmbench.engines.openvino_engine:OpenVinoEngine",
        summary="OpenVINO on the exported graph: 16-bit weights read as they are, arithmetic in the variant's dtype where the processor has it",
        requires=("openvino", "numpy"),
        extra="openvino",
        devices=("cpu",),
        quantizations=("int8", "int4"),
        artifact=True,
        source="onnx-graph",
        default=False,
        not_run_on="an Intel GPU",
        options={
            "arithmetic": "float32, bfloat16 or float16, where the device computes in it; default: the variant's dtype, else float32",
            "device": "CPU, or GPU for an Intel GPU",
        },
    ),
    EngineSpec(
        name="onnx-graph",
        target="llmbench.graph.onnx_graph:OnnxGraph",
        summary="no engine: writes the model as an ONNX graph, which onnxruntime, openvino and tensorrt run or build from",
        requires=("torch", "onnx"),
        extra="onnxruntime",
        quantizations=("int8", "int4"),
        artifact=True,
        measured=False,
        default=False,
    ),
    EngineSpec(
        name="tensorrt-rtx",
        target="llmbench.engines.tensorrt.engine:TensorRTForRTXEngine",
        summary="TensorRT for RTX on the exported graph: plans for GeForce and workstation cards, built on any machine",
        requires=("torch", "tensorrt_rtx_bindings"),
        extra="tensorrt-rtx",
        devices=("cuda",),
        compiles=True,
        artifact=True,
        source="onnx-graph",
        targets=True,
        default=False,
        not_run_on="a GPU",
        options={
            **_TENSORRT,
            "runtime_cache": "false: each process compiles its kernels anew; true (default): a run's later ones find the first one's",
            "specialization": "of kernels for the shapes at hand: eager (default), lazy (beside the first tokens), none",
        },
    ),
    EngineSpec(
        name="tensorrt",
        target="llmbench.engines.tensorrt.engine:ClassicTensorRTEngine",
        summary="TensorRT on the exported graph: plans built on the very GPU that runs them, data-centre cards included",
        requires=("torch", "tensorrt"),
        extra="tensorrt",
        devices=("cuda",),
        artifact=True,
        source="onnx-graph",
        default=False,
        not_run_on="any device",
        options=_TENSORRT,
    ),
    EngineSpec(
        name="tensorrt-llm",
        target="llmbench.engines.tensorrt_llm.runner:TensorRTLLMBuiltEngine",
        summary="TensorRT-LLM's engine flow: the checkpoint converted, built to a TensorRT plan and run by its C++ runtime",
        requires=("tensorrt_llm",),
        remedy=TENSORRT_LLM_INSTALL,
        devices=("cuda",),
        quantizations=("w8a16", "w4a16", "fp8"),
        artifact=True,
        default=False,
        written_against="1.2.1",
        not_run_on="a GPU",
        options={"cuda_graphs": _GRAPHS, "kv_fraction": _KV_FRACTION},
    ),
    EngineSpec(
        name="tensorrt-llm-pytorch",
        target="llmbench.engines.tensorrt_llm.pytorch_backend:TensorRTLLMPyTorchEngine",
        summary="TensorRT-LLM's PyTorch backend through its LLM API: reads the checkpoint, builds no plan; no Phi-2",
        requires=("tensorrt_llm",),
        remedy=TENSORRT_LLM_INSTALL.replace("set tensorrt-llm ", "set tensorrt-llm-pytorch "),
        devices=("cuda",),
        artifact=True,
        default=False,
        written_against="1.2.1",
        not_run_on="a GPU",
        options={"cuda_graphs": _GRAPHS, "kv_fraction": _KV_FRACTION},
    ),
    EngineSpec(
        name="fake",
        target="llmbench.engines.fake:FakeEngine",
        summary="no model: waits at a set speed; for tests of everything that engines share",
        default=False,
        reads_weights=False,
        artifact=True,
        targets=True,
        options={
            "artifact_bytes": "above 0: builds an artifact of this size and loads it",
            "build_s": "seconds that building takes",
            "tokens_per_s": "its speed",
            "prefill_s": "seconds of the first token",
            "noise": "relative deviation of a generation",
            "block_noise": "the same, drawn once for each process",
            "noise_seed": "of both; -1 draws another in each process",
            "compile_s": "seconds added to the first generation",
            "load_s": "seconds to load",
            "fault": "what goes wrong, see engines/fake.py",
            "fault_at": "open, build, load, warmup or sample",
        },
    ),
)


class UnknownEngine(ValueError):
    """A name that no engine has; the text offers near matches."""


def engines() -> dict[str, EngineSpec]:
    """All engines by name: those of llmbench first, then other packages'. A package that can't be read is left out with a warning."""
    found = {spec.name: spec for spec in BUILT_IN}
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            spec = entry.load()
        except Exception as error:  # another package's fault must not end this program
            import warnings

            warnings.warn(f"engine {entry.name!r} of another package could not be loaded: {error}", stacklevel=2)
            continue
        if isinstance(spec, EngineSpec):
            found.setdefault(spec.name, spec)
    return found


def find(name: str) -> EngineSpec:
    """The engine of that name, or UnknownEngine with the nearest ones."""
    known = engines()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
    raise UnknownEngine(f"unknown engine {name!r}; {hint} (`llmbench engines` lists all)")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # "package.part" where there is no package, or a module without a spec
        return False


def problem(spec: EngineSpec, device: str | None = None) -> Problem | None:
    """Why this interpreter can't run the engine, or None where nothing is known to be missing. Imports nothing."""
    for module in spec.requires:
        if not _is_installed(module):
            command = f"pip install 'llmbench[{spec.extra}]'" if spec.extra else f"pip install {module}"
            return Problem(f"Python module {module!r} is not installed", spec.remedy or command)
    if device is not None and device.partition(":")[0] not in spec.devices:
        wanted = " or ".join(spec.devices)
        also = "; its artifacts can be built here: llmbench build --target" if spec.targets and spec.measured else ""
        return Problem(f"it does not run on {device}", f"it needs {wanted}, so a machine that has it, and --device {spec.devices[0]}{also}")
    if spec.needs_compiler:
        missing = missing_compiler((device or "cpu").partition(":")[0])
        if missing is not None:
            return Problem(*missing)
    return None
