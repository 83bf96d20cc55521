"""What compiled code is bound to: a processor with its instruction set, or a CUDA device with its compute capability.

Standard library only; torch is asked where it is loaded already.
"""

from __future__ import annotations

import hashlib
import platform
import re
import sys
from pathlib import Path


def device_target(device: str) -> str:
    """The text that stands for "cpu" or "cuda:i" in a Recipe's targets: equal on machines that run the same code alike."""
    if device == "cpu":
        return cpu_target()
    torch = sys.modules["torch"]
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor} {torch.cuda.get_device_name(device)}"


def cpu_target() -> str:
    """The processor's name and a digest of its instruction set as the kernel lists it: "cpu AMD EPYC 7763 isa 1f2e3d4c"."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    features = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    known = " ".join(sorted(features[1].split())) if features else platform.machine()
    digest = hashlib.sha256(known.encode()).hexdigest()[:8]
    return f"cpu {name[1].strip() if name else platform.processor() or platform.machine()} isa {digest}"
