"""What of llmbench's own code, and of the environment, decides what is built: both go into artifacts' keys, so that neither change is a hit.

Modules are read and not imported: an interpreter that only runs an artifact need not have what building it takes. Standard library only.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Iterable
from pathlib import Path

from llmbench.protocol import Scalar

#: Variables by which users steer Inductor, Triton and the C++ compiler. Places of caches and numbers of compile workers change no code.
_STEERING = ("TORCHINDUCTOR_", "TORCH_COMPILE_", "TRITON_")
_COMPILER = ("CXX", "CXXFLAGS", "CFLAGS", "ATEN_CPU_CAPABILITY")
_HARMLESS = ("_DIR", "_PATH", "_THREADS")


def source_digest(modules: Iterable[str]) -> str:
    """16 hexadecimal digits of the modules' source files, by their full names."""
    digest = hashlib.sha256()
    for name in modules:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        digest.update(Path(spec.origin).read_bytes())
    return digest.hexdigest()[:16]


def compiler_environment() -> dict[str, Scalar]:
    """The variables that are set and change what torch's compilers write, under "environment NAME"; most users have none."""
    return {
        f"environment {name}": value
        for name, value in sorted(os.environ.items())
        if (name.startswith(_STEERING) and not name.endswith(_HARMLESS)) or name in _COMPILER
    }
