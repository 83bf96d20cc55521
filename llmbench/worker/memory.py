"""Memory peaks of this process by phase, host and device.

Host: the kernel keeps the highest resident size (VmHWM) and lets a process reset its own through /proc/self/clear_refs, so each phase's peak
is exact and costs nothing while samples run. Device: what the CUDA driver says is used on the whole device, the same source for every engine,
whatever allocator it brings; read at the phases' ends and raised by how far torch's allocator stood above its present size, where torch is
loaded. The device part has not been run on a GPU by this project yet.
"""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


def host_bytes(field: str) -> int | None:
    """VmRSS or VmHWM of this process in bytes; null where there is no /proc."""
    try:
        found = re.search(rf"^{field}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) * 1024 if found else None


def reset_host_peak() -> bool:
    """Sets VmHWM back to the present size. False where the platform doesn't allow it."""
    try:
        _CLEAR_REFS.write_text("5")
    except OSError:
        return False
    return True


class DeviceMemory:
    """Used bytes of one CUDA device through the driver's own library. Knows nothing of torch or any engine."""

    def __init__(self, index: int) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        device, self._context = ctypes.c_int(), ctypes.c_void_p()
        self._check(self._driver.cuInit(0))
        self._check(self._driver.cuDeviceGet(ctypes.byref(device), index))
        # The primary context is the one that the CUDA runtime, and so every engine, uses.
        self._check(self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), device))

    def used_bytes(self) -> int:
        free, total, popped = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_void_p()
        self._check(self._driver.cuCtxPushCurrent_v2(self._context))
        try:
            self._check(self._driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
        finally:
            self._driver.cuCtxPopCurrent_v2(ctypes.byref(popped))
        return total.value - free.value

    @staticmethod
    def _check(code: int) -> None:
        if code:
            raise OSError(f"CUDA driver error {code}")


class PhasePeaks:
    """Peaks since the last phase ended, above the process's and the device's size when this object was made."""

    def __init__(self, device: str) -> None:
        self.baseline_bytes = host_bytes("VmRSS")
        self._can_reset = reset_host_peak()
        self._device: DeviceMemory | None = None
        self._device_baseline = 0
        self._index = int(device.partition(":")[2] or 0)
        if device.startswith("cuda"):
            try:
                self._device = DeviceMemory(self._index)
                _torch_slack_bytes(self._index)  # forgets what was allocated before, the bandwidth probe's buffer among it
                self._device_baseline = self._device.used_bytes()
            except OSError:
                self._device = None

    def end_phase(self) -> tuple[int | None, int | None]:
        """(host, device) peak bytes of the phase that ends here; null where it can't be told."""
        peak = host_bytes("VmHWM")
        host = peak - self.baseline_bytes if self._can_reset and peak is not None and self.baseline_bytes is not None else None
        if host is not None:
            host = max(host, 0)
        device = None
        if self._device is not None:
            device = max(0, self._device.used_bytes() - self._device_baseline + _torch_slack_bytes(self._index))
        reset_host_peak()
        return host, device


def _torch_slack_bytes(index: int) -> int:
    """How far torch's CUDA allocator stood above its present size since the last call."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    slack = int(torch.cuda.max_memory_reserved(index) - torch.cuda.memory_reserved(index))
    torch.cuda.reset_peak_memory_stats(index)
    return max(0, slack)
