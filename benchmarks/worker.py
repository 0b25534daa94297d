"""One measurement in one fresh process: `python -m benchmarks.worker JOB` prints one line of JSON.

JOB is a JSON object: `task` names a function of `benchmarks.tasks`, `processors` those to run on, and the
rest are that function's arguments. A failure is one line on standard error and exit code 1.
"""

from __future__ import annotations

import json
import os
import sys


def main(arguments: list[str]) -> int:
    """Run the job and return the exit code."""
    job = json.loads(arguments[0])
    processors = job.pop("processors")
    if processors is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, processors)  # before any library counts the processors
    from benchmarks import tasks

    try:
        found = getattr(tasks, job.pop("task"))(**job)
    except (ValueError, ArithmeticError, ImportError, OSError, MemoryError, RuntimeError) as error:
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
