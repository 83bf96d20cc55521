"""What the makers' datasheets say of the GPUs that people compare on: for building plans without the card at hand, for a limit where the
read bandwidth can't be probed, and to order charts that span several machines.

Rates are dense (no structured sparsity), at boost clocks, with float32 accumulation for float16 and bfloat16 products. A datasheet's bandwidth is
an upper bound that no program reaches: where a probe exists, the probe counts. Standard library only.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field


class UnknownHardware(ValueError):
    """A name that no profile has; the text offers near matches."""


@dataclass(frozen=True)
class HardwareProfile:
    """One card as its datasheet has it."""

    name: str  # as --target takes it
    device_name: str  # what drivers call it, up to suffixes as "80GB HBM3"
    compute_capability: tuple[int, int]
    memory_bytes: int
    bandwidth_gb_per_s: float  # of device memory, 10**9 bytes per second
    tflops: dict[str, float] = field(default_factory=dict)  # dense tensor rates by dtype: tf32, float16, bfloat16, float8, int8 (TOPS)
    source: str = ""  # the datasheet
    pattern: str = ""  # of names that drivers give; searched without regard to case

    @property
    def sm(self) -> str:
        """The compute capability as compilers write it: "sm_89"."""
        return f"sm_{self.compute_capability[0]}{self.compute_capability[1]}"


_GIB = 2**30
#: No card below has more on-chip cache than the RTX 5090's 96 MiB.
LARGEST_CACHE_BYTES = 96 * 2**20

PROFILES = (
    HardwareProfile(
        "rtx-3090", "NVIDIA GeForce RTX 3090", (8, 6), 24 * _GIB, 936.0,
        {"tf32": 35.6, "float16": 71.0, "bfloat16": 71.0, "int8": 284.0},
        "NVIDIA Ampere GA102 GPU architecture whitepaper, appendix A", r"RTX 3090(?! Ti)",
    ),
    HardwareProfile(
        "rtx-4090", "NVIDIA GeForce RTX 4090", (8, 9), 24 * _GIB, 1008.0,
        {"tf32": 82.6, "float16": 165.2, "bfloat16": 165.2, "float8": 330.3, "int8": 660.6},
        "NVIDIA Ada GPU architecture whitepaper, appendix A", r"RTX 4090(?! Laptop| D)",
    ),
    HardwareProfile(
        "rtx-5090", "NVIDIA GeForce RTX 5090", (12, 0), 32 * _GIB, 1792.0,
        {"tf32": 104.8, "float16": 209.5, "bfloat16": 209.5, "float8": 419.0, "int8": 838.0},
        "NVIDIA RTX Blackwell GPU architecture whitepaper, appendix A", r"RTX 5090(?! Laptop| D)",
    ),
    HardwareProfile(
        "h100-sxm", "NVIDIA H100 80GB HBM3", (9, 0), 80 * _GIB, 3350.0,
        {"tf32": 494.7, "float16": 989.4, "bfloat16": 989.4, "float8": 1978.9, "int8": 1978.9},
        "NVIDIA H100 Tensor Core GPU datasheet", r"H100 80GB HBM3|H100 SXM",
    ),
    HardwareProfile(
        "h100-pcie", "NVIDIA H100 PCIe", (9, 0), 80 * _GIB, 2000.0,
        {"tf32": 378.0, "float16": 756.0, "bfloat16": 756.0, "float8": 1513.0, "int8": 1513.0},
        "NVIDIA H100 Tensor Core GPU datasheet", r"H100 PCIe",
    ),
    HardwareProfile(
        "a100", "NVIDIA A100-SXM4-80GB", (8, 0), 80 * _GIB, 2039.0,
        {"tf32": 156.0, "float16": 312.0, "bfloat16": 312.0, "int8": 624.0},
        "NVIDIA A100 Tensor Core GPU datasheet, SXM4 80 GB", r"A100-SXM4-80GB|A100 80GB SXM",
    ),
    HardwareProfile(
        "h200", "NVIDIA H200", (9, 0), 141 * 10**9, 4800.0,
        {"tf32": 494.5, "float16": 989.5, "bfloat16": 989.5, "float8": 1979.0, "int8": 1979.0},
        "NVIDIA H200 Tensor Core GPU datasheet, SXM", r"H200(?! NVL)",
    ),
    HardwareProfile(
        "l4", "NVIDIA L4", (8, 9), 24 * _GIB, 300.0,
        {"tf32": 60.0, "float16": 121.0, "bfloat16": 121.0, "float8": 242.5, "int8": 242.5},
        "NVIDIA L4 Tensor Core GPU datasheet, rates with sparsity halved", r"\bL4\b",
    ),
    HardwareProfile(
        "l40s", "NVIDIA L40S", (8, 9), 48 * _GIB, 864.0,
        {"tf32": 183.0, "float16": 362.05, "bfloat16": 362.05, "float8": 733.0, "int8": 733.0},
        "NVIDIA L40S GPU datasheet", r"\bL40S\b",
    ),
)  # fmt: skip

#: Other ways to write a name.
_ALIASES = {"3090": "rtx-3090", "4090": "rtx-4090", "5090": "rtx-5090", "h100": "h100-sxm", "a100-sxm": "a100", "h200-sxm": "h200"}


def find(name: str) -> HardwareProfile:
    """The profile of that name, written as "rtx-4090", "RTX 4090" or "4090". Raises UnknownHardware with near matches."""
    wanted = re.sub(r"[\s_]+", "-", name.strip().lower().removeprefix("nvidia").strip(" -").removeprefix("geforce").strip(" -"))
    wanted = re.sub(r"^rtx(\d)", r"rtx-\1", wanted)
    wanted = _ALIASES.get(wanted, wanted)
    for profile in PROFILES:
        if profile.name == wanted:
            return profile
    names = [profile.name for profile in PROFILES]
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names)}"
    raise UnknownHardware(f"unknown hardware {name[:60]!r}; {hint}")


def of_device(device_name: str) -> HardwareProfile | None:
    """The profile of a card by the name that its driver gives; null for others: a name that is merely like one is not enough."""
    if "MIG" in device_name:  # a slice of a card has a part of its bandwidth
        return None
    return next((profile for profile in PROFILES if re.search(rf"\b(?:{profile.pattern})", device_name, re.IGNORECASE)), None)
