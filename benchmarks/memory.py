"""How much memory this process takes, as the operating system counts it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")

FORGET_PEAK = "5"
"""What Linux resets the peak upon: see proc(5)."""


class Memory(NamedTuple):
    """What `MemoryMeter` measured, in bytes.

    Attributes:
        peak_bytes: the most that was resident meanwhile, whatever was resident before included: libraries,
            weights. Where the system forgets no peak, the most since the process began. None on Windows.
        growth_bytes: how much that is above what was resident at the start; None where the system forgets no
            peak, for then that may be older.
    """

    peak_bytes: int | None
    growth_bytes: int | None


class MemoryMeter:
    """Measures what is resident from when it is made, after a model was built and before its first step.

    What building took and gave back does not count; what the first step takes does, warm-up or not.
    """

    def __init__(self) -> None:
        self._before = resident_bytes() if forget_peak() else None

    def measure(self) -> Memory:
        """Return the peak since then, and the growth."""
        peak = peak_bytes()
        growth = None if self._before is None or peak is None else peak - self._before
        return Memory(peak, growth)


def forget_peak() -> bool:
    """Make what is resident now the peak, and return whether the system did: Linux does, if it is allowed."""
    try:
        CLEAR_REFS.write_text(FORGET_PEAK, encoding="ascii")
    except OSError:
        return False
    return True


def peak_bytes() -> int | None:
    """Return the most that was resident since `forget_peak`, Linux's VmHWM; None on Windows."""
    if STATUS.exists():
        return _status("VmHWM")
    if sys.platform == "win32":
        return None
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024  # Apple counts bytes, others kibibytes


def resident_bytes() -> int | None:
    """Return what is resident now, Linux's VmRSS; None elsewhere."""
    return _status("VmRSS") if STATUS.exists() else None


def _status(field: str) -> int | None:
    for line in STATUS.read_text(encoding="ascii", errors="replace").splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0]) * 1024
    return None
