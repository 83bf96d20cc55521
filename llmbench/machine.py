"""The machine as the parent sees it, and the choice of a device. Imports no torch: a probe worker asks torch what it can use."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

import psutil

from llmbench.protocol import Machine


class DeviceError(ValueError):
    """A device that can't be used; the text says why and what there is."""


def check_device_name(device: str) -> None:
    """Raises DeviceError unless the text is auto, cpu, cuda or cuda:i."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", device):
        raise DeviceError(f"device {device!r} is not supported; llmbench measures on auto, cpu, cuda or cuda:i")


def choose_device(wanted: str, probe: dict[str, Any]) -> str:
    """ "cpu" or "cuda:i" for --device, from what a worker's probe found. Raises DeviceError where a named one isn't there."""
    check_device_name(wanted)
    count = len(probe["devices"])
    if wanted == "auto":
        return "cuda:0" if count else "cpu"
    if wanted == "cpu":
        return wanted
    index = int(wanted.partition(":")[2] or 0)
    if count == 0:
        built = (
            f"torch {probe['torch']} here is built for CUDA {probe['cuda']}"
            if probe["cuda"]
            else f"torch {probe['torch']} here is a CPU build"
        )
        raise DeviceError(f"device {wanted!r} is not here: torch finds no CUDA device ({built}); use --device cpu")
    if index >= count:
        raise DeviceError(f"device {wanted!r} is not here: torch finds {count} CUDA device(s), cuda:0 to cuda:{count - 1}")
    return f"cuda:{index}"


def usable_cpus() -> int:
    """CPUs that this process may use: its affinity, cut to the control group's quota (v2, v1)."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_cpus()
    return max(1, min(count, int(quota))) if quota else count


def default_threads() -> int:
    """Physical cores among the usable CPUs: a second thread on a core adds no bandwidth."""
    physical = psutil.cpu_count(logical=False) or usable_cpus()
    return max(1, min(physical, usable_cpus()))


def describe(device: str, probe: dict[str, Any]) -> Machine:
    """What a run file says of the machine."""
    machine = Machine(
        device=device,
        device_name=cpu_name(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=cpu_name(),
        cpu_count=usable_cpus(),
        memory_bytes=memory_bytes(),
    )
    if device.startswith("cuda"):
        found = probe["devices"][int(device.partition(":")[2])]
        machine.device_name = found["name"]
        machine.device_memory_bytes = found["memory_bytes"]
        machine.driver = _driver_version()
    return machine


def cpu_name() -> str:
    """The processor's name as the kernel gives it."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def memory_bytes() -> int:
    """Memory that this process may use: the machine's, or the control group's limit where that is lower."""
    limits = [psutil.virtual_memory().total]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _read(path)
        if text and text.isdigit():
            limits.append(int(text))
    return min(limits)


def _cgroup_cpus() -> float | None:
    quota, _, period = (_read("/sys/fs/cgroup/cpu.max") or "").partition(" ")
    if not period:
        quota, period = _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") or "", _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us") or ""
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _driver_version() -> str | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # no driver, no library, no permission: the version is a nicety
        return None
