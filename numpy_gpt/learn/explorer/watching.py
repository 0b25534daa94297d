"""Watch a function run: what every one of its lines computed, and what it was called with.

So the page shows each line of the source beside the array that this line made, in the run it tells of.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np

from numpy_gpt.learn.explorer.statements import statements_of

WATCHED = "numpy_gpt.ops."
"""Functions of these modules are watched, where their names end in _forward or _backward."""


@dataclass
class Execution:
    """One run of one function.

    Attributes:
        name: the function's.
        arguments: copies of what it was called with.
        lines: for each statement's first line in its file, copies of the variables that it set, in order.
        result: what it returned, itself.
        returned: a copy of that, taken at once, as the caller may change the arrays later.
        inner: the watched functions that it called, in order.
    """

    name: str
    arguments: dict[str, Any]
    lines: dict[int, dict[str, Any]] = field(default_factory=dict)
    result: Any = None
    returned: Any = None
    inner: list[Execution] = field(default_factory=list)

    def within(self, name: str) -> Execution:
        """Return the watched function of that name that this one called."""
        return next(execution for execution in self.inner if execution.name == name)


def watch(function: Callable[..., Any], *arrays: Any, **options: Any) -> Execution:
    """Call the function and return what happened, with the tracing hook that debuggers use."""
    root = Execution("", {})
    open_frames = [root]

    def on_call(frame: FrameType, event: str, argument: Any) -> Any:
        if not _is_watched(frame):
            return None
        watcher = _Watcher(frame)
        open_frames[-1].inner.append(watcher.execution)
        open_frames.append(watcher.execution)

        def on_line(frame: FrameType, event: str, argument: Any) -> Any:
            if event in ("line", "return"):
                watcher.note(frame)
            if event == "return":
                watcher.execution.result, watcher.execution.returned = argument, copied(argument)
                open_frames.pop()
            return on_line

        return on_line

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        function(*arrays, **options)
    finally:
        sys.settrace(before)
    return root.inner[0]


def copied(value: Any) -> Any:
    """Return the value with every array in it copied."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, tuple):
        parts = [copied(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def _is_watched(frame: FrameType) -> bool:
    name = frame.f_code.co_name
    return frame.f_globals.get("__name__", "").startswith(WATCHED) and (
        name.endswith(("_forward", "_backward"))
    )


class _Watcher:
    """Attributes what changed among a frame's variables to the statement that ran before."""

    def __init__(self, frame: FrameType) -> None:
        self.statements = {
            line: statement
            for statement in statements_of(frame.f_code)
            for line in range(statement.first, statement.last + 1)
        }
        self.known = _snapshot(frame)
        self.execution = Execution(frame.f_code.co_name, dict(self.known))
        self.running = 0  # the line that is being executed; none at first

    def note(self, frame: FrameType) -> None:
        """Take down what the line that has just run changed."""
        if statement := self.statements.get(self.running):
            now = _snapshot(frame)
            changed = {
                name: value
                for name, value in now.items()
                if name in statement.assigned or name not in self.known or not _equal(value, self.known[name])
            }
            self.execution.lines.setdefault(statement.first, {}).update(changed)
            self.known = now
        self.running = frame.f_lineno


def _snapshot(frame: FrameType) -> dict[str, Any]:
    return {name: copied(value) for name, value in frame.f_locals.items()}


def _equal(value: Any, other: Any) -> bool:
    if isinstance(value, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(value, other)
    if isinstance(value, tuple) and isinstance(other, tuple):
        return len(value) == len(other) and all(map(_equal, value, other))
    return type(value) is type(other) and bool(value == other)
