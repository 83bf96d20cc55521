"""What is here: devices, versions, read bandwidth. Uses torch where this interpreter has it and says so where it doesn't."""

from __future__ import annotations

import platform
import re
import time
from pathlib import Path
from typing import Any

from llmbench.protocol import Bandwidth

#: Reads of one probe; the fastest counts, since whatever disturbs a read only slows it.
REPEATS = 8
_MIN_BYTES, _MAX_BYTES = 256 * 2**20, 8 * 2**30


def last_level_cache_bytes() -> int | None:
    """All last-level caches together, in bytes: a processor of many chiplets has one on each. Null where sysfs doesn't tell."""
    levels: dict[int, dict[str, int]] = {}
    for index in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cache/index*"):
        try:
            level, shared = int((index / "level").read_text()), (index / "shared_cpu_list").read_text().strip()
            found = re.fullmatch(r"(\d+)([KMG]?)", (index / "size").read_text().strip())
        except (OSError, ValueError):
            continue
        if found:
            size = int(found.group(1)) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[found.group(2)]
            levels.setdefault(level, {})[shared] = size
    return sum(levels[max(levels)].values()) if levels else None


def read_bandwidth(device: str, threads: int) -> Bandwidth:
    """Bytes per second at which `threads` threads, or the GPU, sum a buffer far larger than the last-level cache.

    A sum reads every byte once and writes nothing, which is what decoding does to the weights. The buffer is at least 8 caches large: half
    a cache's worth of it may still lie there from the read before.
    """
    try:
        import torch
    except ImportError:
        return Bandwidth(None, "this engine's interpreter has no torch to probe the read bandwidth with", last_level_cache_bytes())
    cuda = device.startswith("cuda")
    try:
        cache = torch.cuda.get_device_properties(device).L2_cache_size if cuda else last_level_cache_bytes()
        size = min(max(_MIN_BYTES, 8 * (cache or 0)), _MAX_BYTES)
        torch.set_num_threads(threads)
        buffer = torch.ones(size // 4, dtype=torch.float32, device=device)
        best_s = float("inf")
        for _ in range(REPEATS):
            start = time.perf_counter()
            buffer.sum()
            if cuda:
                torch.cuda.synchronize(device)
            best_s = min(best_s, time.perf_counter() - start)
        del buffer
        if cuda:
            torch.cuda.empty_cache()
    except RuntimeError as error:
        return Bandwidth(None, f"the read bandwidth could not be probed: {str(error).splitlines()[0]}", None)
    return Bandwidth(size / best_s / 1e9, None, cache)


def devices() -> dict[str, Any]:
    """This interpreter's Python and torch, and the CUDA devices that torch can use: {"python", "torch", "cuda", "devices": [...]}."""
    found: dict[str, Any] = {"python": platform.python_version(), "torch": None, "cuda": None, "devices": []}
    try:
        import torch
    except ImportError:
        return found
    found["torch"] = torch.__version__
    found["cuda"] = torch.version.cuda
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            found["devices"].append(
                {
                    "name": properties.name,
                    "memory_bytes": properties.total_memory,
                    "compute_capability": f"{properties.major}.{properties.minor}",
                }
            )
    return found
