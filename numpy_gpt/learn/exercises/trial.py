"""An examination in a process of its own, so that no learner's file can hang, end or litter ours.

    python -m numpy_gpt.learn.exercises.trial NAME PATH RESULT TIMES SECONDS < source

writes the outcome to RESULT as JSON. If the time is up first, the interpreter's own watchdog writes to TIMES
where the file was at that moment, and ends the process.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from numpy_gpt.learn.exercises.course import find
from numpy_gpt.learn.exercises.examination import Outcome, examine
from numpy_gpt.learn.exercises.exercise import Exercise
from numpy_gpt.learn.exercises.learner_file import describe

SECONDS = 5.0
"""How long a learner's functions may take for one case, which a right file does in milliseconds."""

CHECKING = 6
"""How many times as long the checks may take after that, which call the functions some hundred times."""

START = 60.0
"""How long Python may take to begin, on a machine that is busy with other things."""


def examine_apart(exercise: Exercise, source: bytes, path: str, *, seconds: float = SECONDS) -> Outcome:
    """Examine a learner's file in a new process, and return its outcome or how the process ended.

    Args:
        exercise: which it is for.
        source: the file's bytes.
        path: as it is shown in messages.
        seconds: how long its functions may take for one case.
    """
    with tempfile.TemporaryDirectory(prefix="numpy-gpt-") as folder:
        result, times = Path(folder, "result.json"), Path(folder, "times.txt")
        command = [sys.executable, "-P", "-m", __spec__.name, exercise.name, path]
        code = _run(
            [*command, str(result), str(times), str(seconds)], source, (1 + CHECKING) * seconds + START
        )
        try:
            return _from_json(result.read_bytes())
        except (OSError, ValueError, TypeError, KeyError):  # not written, or not by us
            late = times.read_text(encoding="utf-8", errors="replace") if times.exists() else ""
    if late or code is None:
        return Outcome("broken", (f"no end to be seen{_place(late, path)}: a loop that never ends?",))
    return Outcome("broken", (f"{path} ended the whole program, with exit code {code}",))


def _run(command: list[str], source: bytes, seconds: float) -> int | None:
    """Run a command and return its exit code, None if it had to be ended."""
    paths = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONBREAKPOINT": "0",  # nobody sits at a debugger here
        "OPENBLAS_NUM_THREADS": "1",  # the arrays are tiny
    }
    try:
        return subprocess.run(
            command,
            input=source,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=seconds,
            check=False,
        ).returncode
    except (subprocess.TimeoutExpired, BrokenPipeError):
        return None


def _place(late: str, path: str) -> str:
    """Return where in the learner's file the watchdog found it."""
    found = re.search(rf'File "{re.escape(path)}", line (\d+) in (\w+)', late)
    return f" in {path}, line {found[1]}, in {found[2]}" if found else f" in {path}"


def _from_json(text: bytes) -> Outcome:
    values = json.loads(text)
    return Outcome(**{**values, "lines": tuple(values["lines"]), "right": tuple(values["right"])})


def main(arguments: list[str]) -> None:
    """Examine the file on standard input; see the module."""
    name, path, result, times, seconds = arguments
    source = sys.stdin.buffer.read()
    exercise = find(name)
    with Path(times).open("w", encoding="utf-8") as watchdog:

        def watch(limit: float) -> None:
            faulthandler.dump_traceback_later(limit, exit=True, file=watchdog)

        watch(float(seconds))
        try:
            outcome = examine(exercise, source, path, on_return=lambda: watch(CHECKING * float(seconds)))
        except BaseException as error:  # whatever a learner's file can think of
            outcome = Outcome("broken", (f"it ends with {describe(error, path)}",))
        faulthandler.cancel_dump_traceback_later()
    Path(result).write_text(json.dumps(dataclasses.asdict(outcome)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # at once, whatever threads a learner's file has started
