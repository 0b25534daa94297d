"""Starting a fresh process for one measurement, with the same threads for every library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.machine import processors_for

CHECKOUT = Path(__file__).resolve().parents[1]

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


class WorkerError(Exception):
    """A measurement that failed, with the last line that its process wrote."""


def run_job(task: str, *, threads: int, **arguments: Any) -> Any:
    """Run a task of `benchmarks.tasks` in a fresh process, and return what it found.

    The process may use `threads` processors, on as many cores as there are, where the system lets it be told
    so; and every library is told the number when it starts.

    Raises:
        WorkerError: when it fails.
    """
    job = {"task": task, "processors": processors_for(threads), "threads": threads, **arguments}
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads))}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.worker", json.dumps(job)],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env=environment,
        check=False,
    )
    if finished.returncode != 0:
        lines = finished.stderr.strip().splitlines() or ["it said nothing"]
        how = f"signal {-finished.returncode}" if finished.returncode < 0 else f"exit {finished.returncode}"
        raise WorkerError(f"{task} failed ({how}): {lines[-1]}")
    try:
        return json.loads(finished.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise WorkerError(f"{task} failed: it ended well, but the last that it wrote is no result") from None
