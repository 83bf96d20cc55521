"""Energy that a generation took, where the hardware counts it: the processor packages through RAPL, a GPU through NVML's total.

Counters are read before and after a generation, outside the timed region; a read is a small file (some 20 µs) or one call of the driver's
library. Where there is no counter, or it may not be read (RAPL's files are root's on most systems), energy is absent, never zero. What a
counter shows is the whole package's or the whole GPU's, others' work included. Not yet run on hardware by this project: neither counter
exists where it was made; both are tested against stand-ins.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

_POWERCAP = Path("/sys/class/powercap")

#: Generations shorter than this say nothing: RAPL counts anew about each millisecond, NVML's total about each tenth of a second.
_MIN_WALL_S = {"cpu": 0.05, "cuda": 1.0}


class _Source(Protocol):
    def read_j(self) -> float | None:
        """Joules since some moment; null where the reading fails."""


class _Rapl:
    """All processor packages. Each counts microjoules up to max_energy_range_uj, then from zero."""

    def __init__(self, root: Path) -> None:
        packages = [zone for zone in sorted(root.glob("intel-rapl:*")) if _text(zone / "name").startswith("package")]
        self._zones = [zone / "energy_uj" for zone in packages]
        self._ranges = [int(_text(zone / "max_energy_range_uj")) for zone in packages]
        self._last = [int(_text(zone)) for zone in self._zones]
        self._total_uj = 0
        if not self._zones:
            raise OSError("no package zones")

    def read_j(self) -> float | None:
        try:
            now = [int(_text(zone)) for zone in self._zones]
        except (OSError, ValueError):
            return None
        for current, last, span in zip(now, self._last, self._ranges, strict=True):
            self._total_uj += current - last if current >= last else current + span - last
        self._last = now
        return self._total_uj / 1e6


class _Nvml:
    """A GPU's total energy, through the driver's two libraries: CUDA's numbering gives the PCI address, by which NVML finds the device."""

    def __init__(self, index: int, load: Callable[[str], Any] = ctypes.CDLL) -> None:
        cuda, nvml = load("libcuda.so.1"), load("libnvidia-ml.so.1")
        address = ctypes.create_string_buffer(32)
        device = ctypes.c_int()
        _check(cuda.cuInit(0))
        _check(cuda.cuDeviceGet(ctypes.byref(device), index))
        _check(cuda.cuDeviceGetPCIBusId(address, len(address), device))
        _check(nvml.nvmlInit_v2())
        self._nvml, self._handle = nvml, ctypes.c_void_p()
        _check(nvml.nvmlDeviceGetHandleByPciBusId_v2(address, ctypes.byref(self._handle)))
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        # Part of a GPU (MIG): the counter is the whole device's, so it isn't ours. An error means that this GPU can't be split.
        if nvml.nvmlDeviceGetMigMode(self._handle, ctypes.byref(current), ctypes.byref(pending)) == 0 and current.value:
            raise OSError("the GPU is split (MIG); its counter is of all parts together")
        if self.read_j() is None:
            raise OSError("no total energy on this GPU")

    def read_j(self) -> float | None:
        millijoules = ctypes.c_ulonglong()
        if self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle, ctypes.byref(millijoules)):
            return None
        return millijoules.value / 1e3


class EnergyCounter:
    """Joules of the device that a job runs on: "cuda:i" that GPU's, "cpu" the processor packages'."""

    def __init__(self, device: str, root: Path = _POWERCAP) -> None:
        self._source: _Source | None = None
        kind, _, index = device.partition(":")
        self._min_wall_s = _MIN_WALL_S.get(kind, 0.0)
        with contextlib.suppress(OSError, ValueError, AttributeError):  # not here, not readable, not what it should be, too old a driver
            self._source = _Nvml(int(index or 0)) if kind == "cuda" else _Rapl(root)

    def read_j(self) -> float | None:
        """Joules since this object was made or some moment before; null where there is no counter."""
        return self._source.read_j() if self._source is not None else None

    def around(self, synchronize: Callable[[], None]) -> Meter:
        """For one timed call; see Meter."""
        return Meter(self.read_j, synchronize, self._min_wall_s)


class Meter:
    """Joules of one call under worker.timing.timed, whose `synchronize` this object gives.

    timed() calls it last before the clock starts: there, once the device is idle, the counter is read. The second call, which is inside the
    timed region, only synchronizes.
    """

    def __init__(self, read_j: Callable[[], float | None], synchronize: Callable[[], None], min_wall_s: float = 0.0) -> None:
        self._read_j, self._synchronize, self._min_wall_s = read_j, synchronize, min_wall_s
        self._before_j: float | None = None
        self._started = False

    def synchronize(self) -> None:
        self._synchronize()
        if not self._started:
            self._started = True
            self._before_j = self._read_j()

    def energy_j(self, wall_s: float) -> float | None:
        """Joules since the first synchronize(): ask right after the call. Null where it was too short for the counter, or nothing counted."""
        after_j = self._read_j()
        if self._before_j is None or after_j is None or wall_s < self._min_wall_s:
            return None
        joules = after_j - self._before_j
        return joules if joules > 0 else None


def _text(path: Path) -> str:
    return path.read_text().strip()


def _check(code: int) -> None:
    if code:
        raise OSError(f"driver error {code}")
