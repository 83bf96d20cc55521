"""One GPU's clocks, heat, power, throttling and processes, by NVIDIA's management library (NVML), for machine_state.

NVML numbers devices in the order of the PCI bus, CUDA by its own rule and by CUDA_VISIBLE_DEVICES. Where it can't be told which device is
meant, everything is null: figures of another GPU would be worse than none. Each reading that fails is null by itself.

The NVML calls have not been run on a GPU by this project yet; they are tested against a stand-in with the real library's signatures.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

#: The first PID namespace of a machine always has this number (the kernel's PROC_PID_INIT_INO). NVML gives process numbers of that one.
_FIRST_PID_NAMESPACE = "pid:[4026531836]"

#: Bits of the clocks' event reasons (nvml.h), by the attribute that names each in pynvml, and how users read them.
REASONS = {
    "nvmlClocksThrottleReasonGpuIdle": "idle",
    "nvmlClocksThrottleReasonApplicationsClocksSetting": "application clocks setting",
    "nvmlClocksThrottleReasonSwPowerCap": "software power cap",
    "nvmlClocksThrottleReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksThrottleReasonSyncBoost": "sync boost",
    "nvmlClocksThrottleReasonSwThermalSlowdown": "software thermal slowdown",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "hardware thermal slowdown",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "hardware power brake",
    "nvmlClocksThrottleReasonDisplayClockSetting": "display clock setting",
}


def load_nvml() -> Any | None:
    """pynvml, initialised; None where there is no driver, no library or no permission. Starting it again is cheap: NVML counts the calls."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # pynvml's own errors, or a library that isn't what it should be
        return None
    return nvml


def find_handle(nvml: Any, index: int, environ: Mapping[str, str] = os.environ) -> Any | None:
    """NVML's handle of the device that CUDA calls `index`, or None where that can't be told.

    CUDA_VISIBLE_DEVICES picks by number or by UUID, an abbreviated one too. By default CUDA sorts by speed and NVML by PCI bus; the two agree
    where all devices have one name, or where CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    count = _try(lambda: int(nvml.nvmlDeviceGetCount()))
    if count is None:
        return None
    handles = [_try(lambda place=place: nvml.nvmlDeviceGetHandleByIndex(place)) for place in range(count)]  # type: ignore[misc]
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    number = str(index)
    if visible is not None:
        entries = [entry.strip() for entry in visible.split(",")]
        if index >= len(entries):
            return None
        number = entries[index]
    if number.startswith("MIG-"):
        return _try(lambda: nvml.nvmlDeviceGetHandleByUUID(number))
    if number.startswith("GPU-"):
        matches = [handle for handle in handles if handle is not None and (_uuid(nvml, handle) or "").startswith(number)]
        return matches[0] if len(matches) == 1 else None
    if not number.isdigit() or int(number) >= count:
        return None
    names = {_try(lambda handle=handle: nvml.nvmlDeviceGetName(handle)) for handle in handles}  # type: ignore[misc]
    if len(names) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return None
    return handles[int(number)]


def read_gpu(nvml: Any, index: int, own_pids: Collection[int] = ()) -> dict[str, Any]:
    """The gpu_ fields of a MachineState for the device that CUDA calls `index`. Empty where there is no telling which one that is."""
    handle = find_handle(nvml, index)
    if handle is None:
        return {}
    # Part of a GPU (MIG): clocks, heat and power are the whole device's, and others on it are not told apart from us.
    is_part = bool(_try(lambda: nvml.nvmlDeviceIsMigDeviceHandle(handle)))
    whole = _try(lambda: nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)) if is_part else handle
    is_split = not is_part and bool(_try(lambda: nvml.nvmlDeviceGetMigMode(handle)[0]))
    if whole is None:
        return {}
    power_mw = _try(lambda: float(nvml.nvmlDeviceGetPowerUsage(whole)))
    return {
        "gpu_sm_mhz": _try(lambda: float(nvml.nvmlDeviceGetClockInfo(whole, nvml.NVML_CLOCK_SM))),
        "gpu_memory_mhz": _try(lambda: float(nvml.nvmlDeviceGetClockInfo(whole, nvml.NVML_CLOCK_MEM))),
        "gpu_temperature_c": _try(lambda: float(nvml.nvmlDeviceGetTemperature(whole, nvml.NVML_TEMPERATURE_GPU))),
        "gpu_power_w": None if power_mw is None else power_mw / 1e3,
        "gpu_throttle_reasons": _try(lambda: reason_names(nvml, int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(whole)))),
        "gpu_power_throttled_s": _violation_s(nvml, whole, "NVML_PERF_POLICY_POWER"),
        "gpu_thermal_throttled_s": _violation_s(nvml, whole, "NVML_PERF_POLICY_THERMAL"),
        "gpu_foreign_processes": None if is_split else foreign_processes(nvml, handle, own_pids),
    }


def reason_names(nvml: Any, mask: int) -> tuple[str, ...]:
    """The set bits in words; a bit that this list doesn't know is named by its number."""
    known = {getattr(nvml, attribute): words for attribute, words in REASONS.items() if hasattr(nvml, attribute)}
    bits = [1 << place for place in range(64) if mask >> place & 1]
    return tuple(known.get(bit, f"reason {bit:#x}") for bit in bits)


def foreign_processes(nvml: Any, handle: Any, own_pids: Collection[int], namespace: str | None = None) -> int | None:
    """How many processes use the device beside `own_pids`; null where it can't be told.

    NVML gives numbers of the machine's first PID namespace: in a container ours are others, so that with workers alive nothing can be said.
    Processes that only draw are not counted: a desktop's are always there.
    """
    found = _try(lambda: {int(process.pid) for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)})
    if found is None:
        return None
    if own_pids and (namespace or _pid_namespace()) != _FIRST_PID_NAMESPACE:
        return 0 if not found else None
    return len(found - set(own_pids))


def _pid_namespace() -> str:
    return _try(lambda: str(Path("/proc/self/ns/pid").readlink())) or ""


def _uuid(nvml: Any, handle: Any) -> str | None:
    return _try(lambda: str(nvml.nvmlDeviceGetUUID(handle)))


def _violation_s(nvml: Any, handle: Any, policy: str) -> float | None:
    """Seconds so far in which one limit held the clocks below the application clocks. NVML counts nanoseconds (nvmlViolationTime_t)."""
    return _try(lambda: nvml.nvmlDeviceGetViolationStatus(handle, getattr(nvml, policy)).violationTime / 1e9)


def _try(read: Callable[[], T]) -> T | None:
    """A reading, or None where this device, driver or user can't have it: NVML raises for each of those."""
    try:
        return read()
    except Exception:
        return None
