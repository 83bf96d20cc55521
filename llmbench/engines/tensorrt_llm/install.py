"""Finds the installed tensorrt_llm and says what is missing: the package, a library that it needs, or the engine flow.

What an install can do is asked of the install, not of its version string. Importing tensorrt_llm prints a banner to stdout, which goes to the
worker's log, as the worker's protocol has descriptors of its own. Its MPI worker would start the main script again: it is told to stay in this
process. Its own build cache stays off: its key leaves out the GPU, TensorRT's version and the weights.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
from typing import Any

from llmbench.engines.base import EngineError, Unavailable
from llmbench.engines.registry import TENSORRT_LLM_INSTALL
from llmbench.protocol import Status

#: The last release with the engine flow, and what it runs under.
RELEASE = "1.2.1"
INSTALL = TENSORRT_LLM_INSTALL
#: Parts of a library's name in the loader's message -> how to get it.
_LIBRARIES = {
    "libmpi": "Open MPI is missing: apt-get install libopenmpi-dev",
    "libcuda.so": "NVIDIA's driver is missing here, or hidden from this container (docker run --gpus all)",
    "libcudart": "the CUDA runtime is missing: install torch's CUDA build as tensorrt_llm's wheel pins it",
    "libcublas": "CUDA's cuBLAS is missing: install torch's CUDA build as tensorrt_llm's wheel pins it",
    "libnccl": "NCCL is missing: install torch's CUDA build as tensorrt_llm's wheel pins it",
    "libnvinfer": "TensorRT's library is missing: pip install tensorrt~=10.14.1",
    "libpython": "this interpreter has no shared library: take one that is built with --enable-shared (Debian's libpython3.12)",
}


def library() -> Any:
    """The module tensorrt_llm. Raises Unavailable with what to install."""
    os.environ["TLLM_WORKER_USE_SINGLE_PROCESS"] = "1"
    os.environ.pop("TLLM_LLMAPI_BUILD_CACHE", None)
    try:
        return importlib.import_module("tensorrt_llm")
    except ModuleNotFoundError as error:
        if error.name == "tensorrt_llm":
            raise Unavailable(f"Python module 'tensorrt_llm' is not installed; {INSTALL}") from None
        raise Unavailable(f"tensorrt_llm is installed and lacks the Python module {error.name!r}; {INSTALL}") from error
    except (ImportError, OSError, RuntimeError) as error:
        text = " ".join(str(error).split())
        remedy = next((remedy for part, remedy in _LIBRARIES.items() if part in text), None)
        if remedy is not None:
            raise Unavailable(f"tensorrt_llm can't be imported ({text[:160]}); {remedy}") from error
        raise EngineError(f"tensorrt_llm can't be imported: {type(error).__name__}: {text[:300]}", Status.UNAVAILABLE) from error


def engine_flow() -> None:
    """Raises Unavailable where the installed tensorrt_llm builds and runs no TensorRT engines."""
    version = getattr(library(), "__version__", "of an unknown version")
    for module in ("tensorrt_llm._tensorrt_engine", "tensorrt_llm.builder", "tensorrt_llm.runtime.model_runner_cpp"):
        if not _has(module):
            raise Unavailable(
                f"tensorrt_llm {version} has no engine flow ({module} is not there): {RELEASE} is the last release with it, later ones have "
                "the PyTorch backend alone (tensorrt-llm-pytorch)"
            )


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def versions() -> dict[str, str]:
    """tensorrt_llm, TensorRT, torch with its CUDA, transformers and Python, as far as they are here."""
    found = {"tensorrt_llm": str(getattr(library(), "__version__", "unknown"))}
    for package in ("tensorrt", "transformers"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    import torch

    found["torch"] = torch.__version__
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    found["python"] = platform.python_version()
    return found
