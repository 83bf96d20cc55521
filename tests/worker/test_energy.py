"""Energy counters against stand-ins for sysfs and for the driver's two libraries."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from llmbench.worker import energy
from llmbench.worker.energy import EnergyCounter, Meter
from llmbench.worker.timing import timed


def zone(root: Path, name: str, kind: str, energy_uj: int, span: int = 1_000_000) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{kind}\n")
    (folder / "energy_uj").write_text(f"{energy_uj}\n")
    (folder / "max_energy_range_uj").write_text(f"{span}\n")
    return folder / "energy_uj"


def test_packages_are_added_and_their_parts_are_not(tmp_path: Path) -> None:
    first = zone(tmp_path, "intel-rapl:0", "package-0", 100)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 200)
    core = zone(tmp_path, "intel-rapl:0:0", "core", 50)
    zone(tmp_path, "intel-rapl:2", "psys", 0)
    counter = EnergyCounter("cpu", tmp_path)
    start = counter.read_j()
    first.write_text("600100")
    second.write_text("300200")
    core.write_text("999999")
    end = counter.read_j()
    assert start is not None
    assert end is not None
    assert end - start == pytest.approx(0.9)


def test_a_counter_that_begins_anew_goes_on(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", 900_000)
    counter = EnergyCounter("cpu", tmp_path)
    readings = []
    for value in (950_000, 50_000, 60_000):
        path.write_text(str(value))
        readings.append(counter.read_j())
    assert readings == pytest.approx([0.05, 0.15, 0.16])


@pytest.mark.parametrize("content", ["", "garbage"])
def test_a_counter_that_can_not_be_read_is_absent(tmp_path: Path, content: str) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", 1)
    path.write_text(content)
    assert EnergyCounter("cpu", tmp_path).read_j() is None


def test_a_counter_that_goes_away_is_absent(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", 1)
    counter = EnergyCounter("cpu", tmp_path)
    path.unlink()
    assert counter.read_j() is None


def test_no_counter_here(tmp_path: Path) -> None:
    assert EnergyCounter("cpu", tmp_path / "none").read_j() is None
    assert EnergyCounter("cuda:7", tmp_path).read_j() is None


class Library:
    """The calls that the GPU's counter makes, as the C headers have them; `log` keeps their order."""

    def __init__(self, split: int = 0, refuses: str = "") -> None:
        self.split, self.refuses = split, refuses
        self.millijoules = 5_000
        self.asked: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in dir(type(self)) and name not in ("cuInit", "nvmlInit_v2"):
            raise AttributeError(name)
        return lambda *_: 999 if self.refuses == name else 0

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        device._obj.value = 10 + index
        return 0

    def cuDeviceGetPCIBusId(self, address: Any, length: int, device: Any) -> int:  # noqa: N802
        assert length >= 13
        address.value = f"0000:{device.value}:00.0".encode()
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, address: Any, handle: Any) -> int:  # noqa: N802
        self.asked["address"] = address.value
        handle._obj.value = 42
        return 0

    def nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int:  # noqa: N802
        assert isinstance(pending._obj, ctypes.c_uint)
        current._obj.value = self.split
        return 3 if self.refuses == "nvmlDeviceGetMigMode" else 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, millijoules: Any) -> int:  # noqa: N802
        assert handle.value == 42
        if self.refuses == "nvmlDeviceGetTotalEnergyConsumption":
            return 3
        millijoules._obj.value = self.millijoules
        return 0


def gpu(library: Library) -> energy._Nvml:
    return energy._Nvml(1, lambda name: library)


def test_a_gpu_is_found_by_its_pci_address() -> None:
    library = Library()
    source = gpu(library)
    assert library.asked["address"] == b"0000:11:00.0"
    assert source.read_j() == 5.0
    library.refuses = "nvmlDeviceGetTotalEnergyConsumption"
    assert source.read_j() is None


@pytest.mark.parametrize("fault", ["cuInit", "nvmlInit_v2", "nvmlDeviceGetTotalEnergyConsumption"])
def test_a_gpu_without_a_counter(fault: str) -> None:
    with pytest.raises(OSError):
        gpu(Library(refuses=fault))


def test_a_part_of_a_gpu_has_no_counter_of_its_own() -> None:
    with pytest.raises(OSError, match="MIG"):
        gpu(Library(split=1))
    assert gpu(Library(refuses="nvmlDeviceGetMigMode")).read_j() == 5.0


def test_a_meter_reads_outside_the_timed_region() -> None:
    calls: list[str] = []
    joules = iter([100.0, 103.5])

    def read() -> float:
        calls.append("read")
        return next(joules)

    meter = Meter(read, lambda: calls.append("synchronize"))
    timed(lambda: calls.append("generate"), meter.synchronize)
    assert meter.energy_j(1.0) == pytest.approx(3.5)
    assert calls == ["synchronize", "read", "generate", "synchronize", "read"]


@pytest.mark.parametrize(("before", "after", "wall_s"), [(1.0, 1.0, 2.0), (None, 1.0, 2.0), (1.0, None, 2.0), (1.0, 5.0, 0.1)])
def test_energy_is_absent_and_never_zero(before: float | None, after: float | None, wall_s: float) -> None:
    readings = iter([before, after])
    meter = Meter(lambda: next(readings), lambda: None, min_wall_s=1.0)
    meter.synchronize()
    assert meter.energy_j(wall_s) is None
