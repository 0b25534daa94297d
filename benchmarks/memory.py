"""How much memory this process takes, as the operating system counts it."""

from __future__ import annotations

import sys
from pathlib import Path

STATUS = Path("/proc/self/status")


def peak_bytes() -> int | None:
    """Return the most that was ever resident, Linux's VmHWM; None on Windows."""
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
