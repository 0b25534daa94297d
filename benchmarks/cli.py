"""The command line of the benchmarks: parse, run, print, write."""

from __future__ import annotations

import dataclasses
import errno
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tyro
from rich.console import Console

from benchmarks.commands.compare import CompareOptions
from benchmarks.commands.decode import DecodeOptions
from benchmarks.commands.ladder import LadderOptions
from benchmarks.commands.op import OpOptions
from benchmarks.commands.scaling import ScalingOptions
from benchmarks.commands.step import StepOptions
from benchmarks.commands.table import TableOptions
from benchmarks.opponents import require
from benchmarks.options import MeasureOptions
from benchmarks.plots import plot_ratios
from benchmarks.processes import WorkerError
from benchmarks.report import machine_lines, notes, one_line, results_table
from benchmarks.results import Results, Skipped
from benchmarks.runner import Runner
from numpy_gpt.output import Output, open_streams, say_on_standard_error

DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 128 + signal.SIGINT

PAGE_WIDTH = 160

COMMANDS: dict[str, Callable[..., Any]] = {
    "step": StepOptions,
    "op": OpOptions,
    "decode": DecodeOptions,
    "scaling": ScalingOptions,
    "ladder": LadderOptions,
    "compare": CompareOptions,
    "table": TableOptions,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    open_streams()
    options = tyro.extras.subcommand_cli_from_dict(
        COMMANDS,
        prog="python -m benchmarks",
        description="How fast and how large a training step is, and against whom.",
        args=sys.argv[1:] if arguments is None else list(arguments),
    )
    try:
        if isinstance(options, MeasureOptions):
            command = next(name for name, kind in COMMANDS.items() if type(options) is kind)
            measure(command, options, _console())
        else:
            options.run(_console())
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except FileExistsError as error:
        return _complain(error, WRONG_USAGE)
    except (OSError, ValueError, ArithmeticError, ImportError, WorkerError) as error:
        return _complain(error, FAILED)
    return DONE


def measure(command: str, options: MeasureOptions, console: Console) -> None:
    """Measure, save after every comparison, and print what was found.

    Raises:
        OSError: when a file to write is there already, or its folder is not.
        ImportError: when torch is missing, or what makes pictures.
        ArithmeticError: when a contestant computes wrongly, or nobody could be measured.
    """
    require("torch")  # everything is checked against it
    if options.plot is not None:
        require("matplotlib")
    _require_room(options)
    with console.status("") as status:
        runner = Runner(options.plan, options.chosen_threads, tell=status.update)
        results = Results(command, _settings(options), runner.describe())
        for line in machine_lines(results.machine):
            console.print(line)
        for found in options.compare(runner):
            if isinstance(found, Skipped):
                results.skipped.append(found)
            else:
                results.comparisons.append(found)
                console.print(one_line(found))
            if options.out is not None:
                results.save(options.out)
    console.print()
    if results.comparisons:
        console.print(results_table(results))
    for note in notes(results):
        console.print(note)
    if not results.comparisons:
        raise ArithmeticError("nothing was measured")
    if options.plot is not None:
        plot_ratios(results, options.plot)


def _require_room(options: MeasureOptions) -> None:
    """Raise OSError now, and not after hours, when a file could not be written."""
    for path in filter(None, (options.out, options.plot)):
        if path.exists():
            raise FileExistsError(errno.EEXIST, "is there already, and nothing is overwritten", str(path))
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(path.parent))


def _settings(options: MeasureOptions) -> dict[str, Any]:
    """Return what was asked for, but for where it is written, and what followed from it."""
    given = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in dataclasses.asdict(options).items()
        if name not in ("out", "plot")
    }
    return {**given, "plan": dataclasses.asdict(options.plan), "threads": options.chosen_threads}


def _console() -> Console:
    console = Output()
    if not console.is_terminal:
        console.width = PAGE_WIDTH
    return console


def _complain(error: object, exit_code: int) -> int:
    """Say in one line on standard error what went wrong, and return the exit code."""
    reason = str(error)
    if isinstance(error, OSError) and error.filename and error.strerror:
        reason = f"{error.filename}: {error.strerror}"
    say_on_standard_error(f"benchmarks: {' '.join(reason.split())}")
    return exit_code
