"""The machine's state around a block, and what in it may have disturbed the measurement.

`read_state` is for the parent, before and after a block and never during a sample. It reads a few files of the kernel and, for a GPU, NVML:
milliseconds. What can't be read is null. `disturbances` compares two states and says in words what a reader should know; it decides nothing
and drops nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from llmbench import gpu_state
from llmbench.protocol import Block, MachineState, Run

#: Stolen CPU seconds, summed over CPUs, as a share of the wall. Threads that work in step wait for the slowest of them, so any CPU's loss may
#: be the whole team's; 2 % is --min-effect, the smallest difference that is called one.
MAX_STEAL = 0.02
#: Seconds in which the control group's quota held us back, as a share of the wall: the same reason.
MAX_CPU_THROTTLED = 0.02
#: CPU time of others as a share of all CPUs' time. An idle desktop takes 1 to 3 %; at 5 % one of 20 cores' work is not ours, and on 2 cores a
#: tenth of a core.
MAX_OTHERS_BUSY = 0.05
#: Share of memory that must be available: below it the kernel gives back file pages, the weights' among them.
MIN_MEMORY_AVAILABLE = 0.05
#: Seconds of GPU throttling as a share of the wall.
MAX_GPU_THROTTLED = 0.02
#: Reasons that mean heat or power held the GPU's clocks back. Idle and clocks that someone set are no disturbance.
DISTURBING_REASONS = (
    "software power cap",
    "hardware slowdown",
    "software thermal slowdown",
    "hardware thermal slowdown",
    "hardware power brake",
)

#: Where the kernel shows what is read here; a test puts a folder of its own in their place.
_PROC, _SYS = Path("/proc"), Path("/sys")
#: Kernel drivers of a processor's own sensors. Others (disks, batteries, boards) can take tens of milliseconds to answer.
_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")


def read_state(device: str) -> MachineState:
    """The machine now. device: "cpu" or "cuda:i". This process and all that descends from it, workers alive among them, count as ours."""
    own_pids = _descendants()
    return MachineState(
        load_1m=_load(),
        cpu_mhz=_cpu_mhz(),
        cpu_temperature_c=_cpu_temperature(),
        cpu_throttled_s=_cpu_throttled_s(),
        memory_available_bytes=memory_available(),
        read_at_s=time.monotonic(),
        own_cpu_s=_own_cpu_s(own_pids),
        **_cpu_counters(),
        **_gpu(device, own_pids),
    )


# ---------------------------------------------------------------------------------------------------------------------------- judgement


def disturbances(before: MachineState, after: MachineState, wall_s: float | None = None, memory_bytes: int | None = None) -> list[str]:
    """What may have disturbed what was measured between two states, each in words with its numbers; empty where nothing is known to have.

    wall_s: seconds between them, by their own clocks where it isn't given. memory_bytes: all memory there is, without which the available part
    is not judged. What one of the states doesn't know is passed over.
    """
    found: list[str] = []
    wall_s = _difference(before.read_at_s, after.read_at_s) if wall_s is None else wall_s
    if wall_s is not None and wall_s > 0:
        found += _cpu_disturbances(before, after, wall_s) + _gpu_throttling(before, after, wall_s)
    low = min((state.memory_available_bytes for state in (before, after) if state.memory_available_bytes is not None), default=None)
    if low is not None and memory_bytes and low < MIN_MEMORY_AVAILABLE * memory_bytes:
        found.append(f"only {low / 2**20:.0f} MiB of {memory_bytes / 2**30:.1f} GiB memory were available")
    reasons = [name for name in after.gpu_throttle_reasons or () if name in DISTURBING_REASONS]
    if reasons:
        found.append(f"the GPU's clocks were held back at the end: {', '.join(reasons)}")
    foreign = max(before.gpu_foreign_processes or 0, after.gpu_foreign_processes or 0)
    if foreign:
        found.append(f"{foreign} other process{'es' if foreign > 1 else ''} used the GPU")
    return found


def block_disturbances(run: Run, block: Block) -> list[str]:
    """`disturbances` of a block of a run file; empty where a state was not read."""
    if block.state_before is None or block.state_after is None:
        return []
    return disturbances(block.state_before, block.state_after, memory_bytes=run.machine.memory_bytes or None)


def _cpu_disturbances(before: MachineState, after: MachineState, wall_s: float) -> list[str]:
    found = []
    steal_s = _difference(before.cpu_steal_s, after.cpu_steal_s)
    if steal_s is not None and steal_s > MAX_STEAL * wall_s:
        found.append(f"the hypervisor took {steal_s:.2g} CPU seconds in {wall_s:.3g} s")
    throttled_s = _difference(before.cpu_throttled_s, after.cpu_throttled_s)
    if throttled_s is not None and throttled_s > MAX_CPU_THROTTLED * wall_s:
        found.append(f"the control group's CPU quota held this group back for {throttled_s:.2g} of {wall_s:.3g} s")
    busy_s, own_s = _difference(before.cpu_busy_s, after.cpu_busy_s), _difference(before.own_cpu_s, after.own_cpu_s)
    if busy_s is not None and own_s is not None and after.cpu_count:
        others = (busy_s - own_s) / wall_s
        if others > MAX_OTHERS_BUSY * after.cpu_count:
            found.append(f"other processes kept {others:.2g} of {after.cpu_count} CPUs busy")
    return found


def _gpu_throttling(before: MachineState, after: MachineState, wall_s: float) -> list[str]:
    found = []
    for what, start, end in (
        ("power limit", before.gpu_power_throttled_s, after.gpu_power_throttled_s),
        ("heat", before.gpu_thermal_throttled_s, after.gpu_thermal_throttled_s),
    ):
        seconds = _difference(start, end)
        if seconds is not None and seconds > MAX_GPU_THROTTLED * wall_s:
            found.append(f"the GPU's {what} held its clocks back for {seconds:.2g} of {wall_s:.3g} s")
    return found


def _difference(start: float | None, end: float | None) -> float | None:
    """What a counter gained; null where either reading is missing or the counter began anew."""
    return end - start if start is not None and end is not None and end >= start else None


# ------------------------------------------------------------------------------------------------------------------------------ readings


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _cpu_counters() -> dict[str, Any]:
    """Busy and stolen seconds of all CPUs together, and how many CPUs that is. A guest's time is in user's already (proc_stat(5))."""
    try:
        lines = (_PROC / "stat").read_text().splitlines()
        ticks = [int(word) for word in lines[0].split()[1:]]
        per_s = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return {}
    if len(ticks) < 8:
        return {}
    user, nice, system, _idle, _iowait, irq, softirq, steal = ticks[:8]
    return {
        "cpu_busy_s": (user + nice + system + irq + softirq) / per_s,
        "cpu_steal_s": steal / per_s,
        "cpu_count": sum(line.startswith("cpu") for line in lines[1:]) or None,
    }


def _descendants() -> set[int]:
    """The processes alive that descend from this one."""
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        for path in (_PROC / str(waiting.pop()) / "task").glob("*/children"):
            fresh = {int(word) for word in (_text(path) or "").split()} - found
            found |= fresh
            waiting += fresh
    return found


def _own_cpu_s(descendants: Collection[int]) -> float:
    """CPU seconds of this process, of its children that have ended, and of the descendants alive with theirs."""
    own = os.times()
    total = own.user + own.system + own.children_user + own.children_system
    for pid in descendants:
        # Behind the name, which may hold blanks and brackets: utime, stime, cutime, cstime are fields 14 to 17 (proc_pid_stat(5)).
        words = (_text(_PROC / str(pid) / "stat") or "").rpartition(")")[2].split()
        if len(words) > 15:  # it may have ended meanwhile
            total += sum(int(word) for word in words[11:15]) / os.sysconf("SC_CLK_TCK")
    return total


def _cpu_mhz() -> float | None:
    import psutil

    try:
        found = psutil.cpu_freq()
    except (OSError, NotImplementedError):
        return None
    return found.current if found is not None and found.current > 0 else None


def _cpu_temperature() -> float | None:
    """The hottest of the processor's own sensors, degrees Celsius."""
    readings = []
    for name in (_SYS / "class/hwmon").glob("hwmon*/name"):
        if _text(name) in _CPU_SENSORS:
            readings += [int(text) / 1000 for path in name.parent.glob("temp*_input") if (text := _text(path)) and text.isdigit()]
    return max(readings, default=None)


def _cpu_throttled_s() -> float | None:
    """Seconds that a CPU quota has held this process's control group back, its own or one above it: the most of them."""
    seconds = []
    for folder in _cgroup_folders("cpu"):
        for line in (_text(folder / "cpu.stat") or "").splitlines():
            name, _, value = line.partition(" ")
            if value.isdigit() and name in ("throttled_usec", "throttled_time"):  # version 2, version 1 (nanoseconds)
                seconds.append(int(value) / (1e6 if name == "throttled_usec" else 1e9))
    return max(seconds, default=None)


def memory_available() -> int | None:
    """Bytes that can be had without swapping: the machine's, or the control group's rest where that is less."""
    import psutil

    rooms = [int(psutil.virtual_memory().available)]
    for folder in _cgroup_folders("memory"):
        for limit_name, used_name, cached_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, used = _text(folder / limit_name), _text(folder / used_name)
            if limit and used and limit.isdigit() and used.isdigit():
                stat = dict(line.split(" ", 1) for line in (_text(folder / "memory.stat") or "").splitlines() if " " in line)
                rooms.append(max(0, int(limit) - int(used) + int(stat.get(cached_name, "0"))))
    return min(rooms)


def _cgroup_folders(controller: str) -> Iterator[Path]:
    """This process's control group and those above it, of version 2 and of version 1's hierarchy of that controller."""
    for line in (_text(_PROC / "self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            root = _SYS / "fs/cgroup"
        elif controller in controllers.split(","):
            root = _SYS / "fs/cgroup" / controller
        else:
            continue
        folder = root / path.lstrip("/")
        if ".." not in folder.parts and folder.is_dir():
            yield from (place for place in (folder, *folder.parents) if place == root or root in place.parents)
        elif root.is_dir():  # seen from inside a container the path may be that of the machine outside
            yield root


def _gpu(device: str, own_pids: Collection[int]) -> dict[str, Any]:
    if not device.startswith("cuda"):
        return {}
    nvml = gpu_state.load_nvml()
    return {} if nvml is None else gpu_state.read_gpu(nvml, int(device.partition(":")[2] or 0), own_pids)


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
