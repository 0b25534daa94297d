"""The machine: its processor, what of it this process may use, and how busy others keep it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LIBRARIES = ("numpy", "torch", "jax", "transformers", "threadpoolctl")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def describe_machine() -> dict[str, Any]:
    """Return what a reader needs to know of the machine, as JSON values."""
    return {
        "processor": processor_name(),
        "logical_processors": os.cpu_count(),
        "usable_processors": len(usable_processors()),
        "usable_cores": len(usable_cores()),
        "quota": quota(),
        "memory_bytes": memory_bytes(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "libraries": library_versions(),
    }


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that are installed."""
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def processor_name() -> str:
    """Return the processor's model as its maker calls it, as far as the system tells."""
    for line in _lines(Path("/proc/cpuinfo")):
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model"):  # x86 says the first, many Arm boards the second
            return value.strip()
    if sys.platform == "darwin":
        return _sysctl("machdep.cpu.brand_string") or platform.machine()
    return platform.processor() or platform.machine()


def usable_processors() -> tuple[int, ...]:
    """Return the logical processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def usable_cores() -> list[int]:
    """Return one usable logical processor of every physical core."""
    if sys.platform == "darwin" and (count := _sysctl("hw.physicalcpu")):
        return list(range(int(count)))
    first_of_core: dict[str, int] = {}
    for number in usable_processors():
        siblings = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        first_of_core.setdefault("".join(_lines(siblings)) or str(number), number)
    return list(first_of_core.values())


def processors_for(threads: int) -> list[int] | None:
    """Return the logical processors for so many threads: one on each core, then the cores' other halves.

    None where the threads are as many as all usable processors, and nothing need be said.
    """
    cores, usable = usable_cores(), usable_processors()
    if threads >= len(usable):
        return None
    return [*cores, *(number for number in usable if number not in cores)][:threads]


def quota() -> float | None:
    """Return how many processors' time a control group grants; None without a limit."""
    for line in _lines(Path("/sys/fs/cgroup/cpu.max")):  # version 2
        most, period = line.split()
        return None if most == "max" else int(most) / int(period)
    group = Path("/sys/fs/cgroup/cpu")  # version 1
    limits = [int(line) for name in ("quota", "period") for line in _lines(group / f"cpu.cfs_{name}_us")]
    return limits[0] / limits[1] if len(limits) == 2 and limits[0] > 0 else None


def memory_bytes() -> int | None:
    """Return the size of the memory, where the system tells."""
    if sys.platform == "darwin":
        return int(_sysctl("hw.memsize") or 0) or None
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


class LoadMeter:
    """Measures what others take of the usable processors from when it is made.

    Linux counts every processor's busy time; what this process and its children took is subtracted. Elsewhere
    the load average from before the start has to do.
    """

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._busy = busy_seconds()
        self._own = _own_seconds()
        self._load_before = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0

    def share_of_others(self) -> float:
        """Return the share of the usable processors' time, from 0 to 1, that went to other programs."""
        processors = len(usable_processors())
        busy = busy_seconds()
        if busy is None or self._busy is None:
            return self._load_before / processors
        elapsed = time.monotonic() - self._started
        others = (busy - self._busy) - (_own_seconds() - self._own)
        return min(1.0, max(0.0, others / (elapsed * processors))) if elapsed > 0 else 0.0


def busy_seconds() -> float | None:
    """Return how long the usable processors have been busy since the machine started; None if untold."""
    names = {f"cpu{number}" for number in usable_processors()}
    rows = [line.split() for line in _lines(Path("/proc/stat"))]
    ticks = [
        # user, nice, system, interrupts, soft interrupts, and time stolen by other guests of the host
        sum(int(row[i]) for i in (1, 2, 3, 6, 7, 8) if i < len(row))
        for row in rows
        if row and row[0] in names
    ]
    return sum(ticks) / TICKS_PER_SECOND if any(ticks) else None


def _own_seconds() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _sysctl(name: str) -> str:
    try:
        found = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip()
