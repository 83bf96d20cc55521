"""What torch.compile compiles with, and what of it is missing here. Standard library only: the parent asks before it starts a worker."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path


def missing_compiler(device_type: str) -> tuple[str, str] | None:
    """(what TorchInductor lacks here for "cpu" or "cuda", the way to get it); None where it has all."""
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "Python's C headers are not here", "install them (Debian: apt-get install python3-dev)"
    if device_type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "Triton is not installed", "pip install triton"
        if not any(shutil.which(compiler) for compiler in (os.environ.get("CC") or "gcc", "clang")):
            return "no C compiler for Triton's launchers was found (CC, gcc, clang)", "install gcc (Debian: apt-get install gcc)"
        return None
    compiler = os.environ.get("CXX") or "g++"
    if shutil.which(compiler) is None:
        return f"no C++ compiler was found: {compiler} is not on PATH", "install g++ (Debian: apt-get install g++) or set CXX"
    return None
