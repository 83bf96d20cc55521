"""The machine's state: the kernel's files from a folder of the test's own, NVML from a stand-in held to the real library's signatures."""

from __future__ import annotations

import dataclasses
import inspect
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from llmbench import gpu_state, machine_state
from llmbench.machine_state import block_disturbances, disturbances, read_state
from llmbench.protocol import Block, Machine, MachineState, Model, Plan, Request, Run, decode, encode

# -------------------------------------------------------------------------------------------------------------------------- this machine


def test_a_state_of_this_machine() -> None:
    state = read_state("cpu")
    assert state.cpu_count == os.cpu_count()
    assert state.cpu_busy_s
    assert state.memory_available_bytes
    assert state.own_cpu_s
    assert state.gpu_power_w is None
    assert state.gpu_throttle_reasons is None
    assert decode(MachineState, encode(state)) == state


def test_counters_only_grow_and_children_count_as_ours() -> None:
    spin = "import sys\ntotal = sum(range(3_000_000))\nprint(flush=True)\nsys.stdin.read()"
    before = read_state("cpu")
    with subprocess.Popen([sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        alive = read_state("cpu")
        assert machine_state._descendants() >= {child.pid}
        child.communicate()
    after = read_state("cpu")
    for one, two in ((before, alive), (alive, after)):
        for name in ("cpu_busy_s", "cpu_steal_s", "own_cpu_s", "read_at_s"):
            assert getattr(one, name) <= getattr(two, name)
    assert before.own_cpu_s is not None
    assert alive.own_cpu_s is not None
    assert alive.own_cpu_s > before.own_cpu_s
    assert child.pid not in machine_state._descendants()


# ---------------------------------------------------------------------------------------------------------------------- the kernel's files


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty folders in the places of /proc and /sys."""
    monkeypatch.setattr(machine_state, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(machine_state, "_SYS", tmp_path / "sys")
    (tmp_path / "proc/self").mkdir(parents=True)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_processor_time(kernel: Path) -> None:
    write(kernel / "proc/stat", "cpu  100 20 30 5000 7 4 6 50 90 0\ncpu0 1 2\ncpu1 1 2\nintr 5\n")
    per_s = os.sysconf("SC_CLK_TCK")
    assert machine_state._cpu_counters() == {"cpu_busy_s": 160 / per_s, "cpu_steal_s": 50 / per_s, "cpu_count": 2}


@pytest.mark.parametrize("text", [None, "", "cpu", "cpu 1 2 3", "cpu x y z a b c d e"])
def test_processor_time_that_is_not_told(kernel: Path, text: str | None) -> None:
    if text is not None:
        write(kernel / "proc/stat", text)
    assert machine_state._cpu_counters() == {}


def test_throttling_of_control_groups_version_2(kernel: Path) -> None:
    write(kernel / "proc/self/cgroup", "0::/user/job\n")
    write(kernel / "sys/fs/cgroup/user/job/cpu.stat", "usage_usec 9\nthrottled_usec 1500000\n")
    write(kernel / "sys/fs/cgroup/user/cpu.stat", "throttled_usec 2500000\n")
    write(kernel / "sys/fs/cgroup/cpu.stat", "usage_usec 9\n")
    assert machine_state._cpu_throttled_s() == 2.5


def test_throttling_of_control_groups_version_1(kernel: Path) -> None:
    write(kernel / "proc/self/cgroup", "4:memory:/job\n1:cpu,cpuacct:/gone\n0::/\n")
    write(kernel / "sys/fs/cgroup/cpu/cpu.stat", "nr_periods 3\nthrottled_time 250000000\n")
    assert machine_state._cpu_throttled_s() == 0.25


def test_no_control_groups(kernel: Path) -> None:
    assert machine_state._cpu_throttled_s() is None
    write(kernel / "proc/self/cgroup", "0::/../../etc\n")
    assert machine_state._cpu_throttled_s() is None


def test_memory_is_what_the_control_group_leaves(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=1000))
    assert machine_state.memory_available() == 1000
    write(kernel / "proc/self/cgroup", "0::/job\n4:memory:/old\n")
    for name, text in (("memory.max", "800"), ("memory.current", "700"), ("memory.stat", "anon 5\ninactive_file 300\n")):
        write(kernel / "sys/fs/cgroup/job" / name, text)
    assert machine_state.memory_available() == 400
    for name, text in (("limit_in_bytes", "500"), ("usage_in_bytes", "450"), ("stat", "total_inactive_file 20\n")):
        write(kernel / "sys/fs/cgroup/memory/old" / f"memory.{name}", text)
    assert machine_state.memory_available() == 70
    write(kernel / "sys/fs/cgroup/job/memory.max", "max")
    write(kernel / "sys/fs/cgroup/memory/old/memory.limit_in_bytes", str(2**63 - 4096))
    assert machine_state.memory_available() == 1000


def test_only_the_processors_own_sensors_are_asked(kernel: Path) -> None:
    assert machine_state._cpu_temperature() is None
    for number, (name, value) in enumerate((("nvme", "99000"), ("coretemp", "61000"), ("k10temp", "garbage"))):
        write(kernel / f"sys/class/hwmon/hwmon{number}/name", f"{name}\n")
        write(kernel / f"sys/class/hwmon/hwmon{number}/temp1_input", f"{value}\n")
    assert machine_state._cpu_temperature() == 61.0


# ------------------------------------------------------------------------------------------------------------------------------ judgement

CALM = MachineState(
    cpu_steal_s=5.0,
    cpu_busy_s=100.0,
    cpu_throttled_s=1.0,
    own_cpu_s=20.0,
    cpu_count=4,
    read_at_s=1000.0,
    memory_available_bytes=8 * 2**30,
    gpu_throttle_reasons=(),
    gpu_foreign_processes=0,
    gpu_power_throttled_s=3.0,
    gpu_thermal_throttled_s=0.0,
)


def later(**gains: Any) -> MachineState:
    """CALM 10 s later, with what is gained; what is no number is set."""
    values = {"read_at_s": 10.0, **gains}
    changed = {name: getattr(CALM, name) + value if isinstance(value, float) else value for name, value in values.items()}
    return dataclasses.replace(CALM, **changed)


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        ({}, []),
        ({"cpu_busy_s": 21.9, "own_cpu_s": 20.0}, []),
        ({"cpu_busy_s": 25.0, "own_cpu_s": 20.0}, ["other processes kept 0.5 of 4 CPUs busy"]),
        ({"cpu_steal_s": 0.19}, []),
        ({"cpu_steal_s": 0.3}, ["the hypervisor took 0.3 CPU seconds in 10 s"]),
        ({"cpu_throttled_s": 2.0}, ["the control group's CPU quota held this group back for 2 of 10 s"]),
        ({"gpu_throttle_reasons": ("idle", "application clocks setting")}, []),
        (
            {"gpu_throttle_reasons": ("hardware thermal slowdown",)},
            ["the GPU's clocks were held back at the end: hardware thermal slowdown"],
        ),
        ({"gpu_power_throttled_s": 4.0}, ["the GPU's power limit held its clocks back for 4 of 10 s"]),
        ({"gpu_thermal_throttled_s": 1.0}, ["the GPU's heat held its clocks back for 1 of 10 s"]),
        ({"gpu_foreign_processes": 2}, ["2 other processes used the GPU"]),
        ({"memory_available_bytes": 200 * 2**20}, ["only 200 MiB of 16.0 GiB memory were available"]),
    ],
)
def test_disturbances_are_told_with_their_numbers(gains: dict[str, Any], words: list[str]) -> None:
    assert disturbances(CALM, later(**gains), memory_bytes=16 * 2**30) == words


def test_what_is_unknown_is_no_disturbance() -> None:
    assert disturbances(MachineState(), MachineState(), 10.0, 2**34) == []
    assert disturbances(MachineState(), later(cpu_steal_s=9.0), None, None) == []
    restarted = dataclasses.replace(CALM, read_at_s=1.0, cpu_busy_s=0.0, cpu_steal_s=0.0)
    assert disturbances(CALM, restarted) == []


def test_the_wall_may_be_given() -> None:
    assert disturbances(CALM, later(cpu_steal_s=0.3), 100.0) == []


def test_a_block_of_a_run_file() -> None:
    run = Run("r", Model("m", "", "", "", "float32"), Request((1,), 1), Plan(), Machine(memory_bytes=2**34), 1, "float32")
    block = Block(0, state_before=CALM, state_after=later(gpu_foreign_processes=1))
    assert block_disturbances(run, block) == ["1 other process used the GPU"]
    assert block_disturbances(run, Block(0)) == []


# ------------------------------------------------------------------------------------------------------------------------------------ GPU


class Nvml:
    """Two GPUs and a part of one. Answers only what pynvml has, with pynvml's own parameters; a handle is a number."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM = pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM
    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU
    NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL = pynvml.NVML_PERF_POLICY_POWER, pynvml.NVML_PERF_POLICY_THERMAL

    def __init__(self) -> None:
        self.names = ["NVIDIA H200", "NVIDIA H200"]
        self.pids = [101, 102]
        self.reasons = 0x4 | 0x40 | 1 << 40
        self.split = False
        self.refuses: set[str] = set()
        for attribute in gpu_state.REASONS:
            setattr(self, attribute, getattr(pynvml, attribute))

    def nvmlInit(self) -> None: ...  # noqa: N802

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.names)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return 10 + index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        if uuid != "MIG-7":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return 70

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return self.names[handle - 10]

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{handle}-abc"

    def nvmlDeviceIsMigDeviceHandle(self, device: int) -> int:  # noqa: N802
        return int(device == 70)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, migDevice: int) -> int:  # noqa: N802, N803
        return 11

    def nvmlDeviceGetMigMode(self, device: int) -> list[int]:  # noqa: N802
        return [int(self.split), 0]

    def nvmlDeviceGetClockInfo(self, handle: int, type: int) -> int:  # noqa: N802
        return {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201}[type] + handle - 10

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:  # noqa: N802
        return 55

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        if "power" in self.refuses:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 312_500

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:  # noqa: N802
        return self.reasons

    def nvmlDeviceGetViolationStatus(self, device: int, perfPolicyType: int) -> Any:  # noqa: N802, N803
        status = pynvml.c_nvmlViolationTime_t()
        status.violationTime = 2_500_000_000 if perfPolicyType == pynvml.NVML_PERF_POLICY_POWER else 0
        return status

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in self.pids]


def test_the_stand_in_has_the_real_librarys_signatures() -> None:
    calls = [name for name in vars(Nvml) if name.startswith("nvml")]
    assert calls
    for name in calls:
        own = list(inspect.signature(getattr(Nvml(), name)).parameters)
        real = inspect.signature(inspect.unwrap(getattr(pynvml, name)))
        assert own == [parameter for parameter, entry in real.parameters.items() if entry.default is inspect.Parameter.empty], name
    used = set(calls) | {"NVML_CLOCK_SM", "NVML_CLOCK_MEM", "NVML_TEMPERATURE_GPU", "NVML_PERF_POLICY_POWER", "NVML_PERF_POLICY_THERMAL"}
    assert used | set(gpu_state.REASONS) <= set(dir(pynvml))


def test_a_gpus_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    state = MachineState(**gpu_state.read_gpu(Nvml(), 1))
    assert (state.gpu_sm_mhz, state.gpu_memory_mhz, state.gpu_temperature_c, state.gpu_power_w) == (1981.0, 3202.0, 55.0, 312.5)
    assert state.gpu_throttle_reasons == ("software power cap", "hardware thermal slowdown", "reason 0x10000000000")
    assert (state.gpu_power_throttled_s, state.gpu_thermal_throttled_s) == (2.5, 0.0)
    assert state.gpu_foreign_processes == 2


def test_a_reading_that_is_refused_is_null_alone() -> None:
    nvml = Nvml()
    nvml.refuses.add("power")
    state = gpu_state.read_gpu(nvml, 0)
    assert state["gpu_power_w"] is None
    assert state["gpu_sm_mhz"] == 1980.0


@pytest.mark.parametrize(
    ("index", "environ", "handle"),
    [
        (0, {}, 10),
        (1, {}, 11),
        (2, {}, None),
        (0, {"CUDA_VISIBLE_DEVICES": "1"}, 11),
        (1, {"CUDA_VISIBLE_DEVICES": "1"}, None),
        (1, {"CUDA_VISIBLE_DEVICES": "1, 0"}, 10),
        (0, {"CUDA_VISIBLE_DEVICES": "GPU-11"}, 11),
        (0, {"CUDA_VISIBLE_DEVICES": "GPU-1"}, None),  # fits both
        (0, {"CUDA_VISIBLE_DEVICES": "MIG-7"}, 70),
        (0, {"CUDA_VISIBLE_DEVICES": "MIG-8"}, None),
        (0, {"CUDA_VISIBLE_DEVICES": ""}, None),
        (0, {"CUDA_VISIBLE_DEVICES": "-1"}, None),
    ],
)
def test_which_device_cuda_means(index: int, environ: dict[str, str], handle: int | None) -> None:
    assert gpu_state.find_handle(Nvml(), index, environ) == handle


def test_gpus_of_two_kinds_are_numbered_by_speed_unless_told() -> None:
    nvml = Nvml()
    nvml.names = ["NVIDIA T400", "NVIDIA H200"]
    assert gpu_state.find_handle(nvml, 0, {}) is None
    assert gpu_state.find_handle(nvml, 0, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == 10
    assert gpu_state.read_gpu(nvml, 5) == {}


def test_others_on_the_gpu() -> None:
    nvml = Nvml()
    first = "pid:[4026531836]"
    assert gpu_state.foreign_processes(nvml, 10, (), "pid:[1]") == 2
    assert gpu_state.foreign_processes(nvml, 10, (101,), first) == 1
    assert gpu_state.foreign_processes(nvml, 10, (101, 102), first) == 0
    assert gpu_state.foreign_processes(nvml, 10, (5,), "pid:[1]") is None  # in a container the numbers are others
    nvml.split = True
    assert gpu_state.read_gpu(nvml, 0)["gpu_foreign_processes"] is None


def test_part_of_a_gpu_has_the_whole_ones_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-7")
    assert gpu_state.read_gpu(Nvml(), 0)["gpu_sm_mhz"] == 1981.0


def test_without_a_driver_nothing_is_known() -> None:
    def init() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=init))
        assert gpu_state.load_nvml() is None
        assert read_state("cuda:0").gpu_sm_mhz is None
        patch.setitem(sys.modules, "pynvml", Nvml())
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        assert read_state("cuda:0").gpu_sm_mhz == 1980.0
