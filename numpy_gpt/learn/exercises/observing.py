"""Calling a function and seeing its variables when it ends."""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

MOST_CHARACTERS = 2000


class Observed(NamedTuple):
    """One call."""

    result: Any  # None when it raised
    variables: dict[str, Any]  # of the function, as they were when it ended
    error: BaseException | None


def observe(function: Callable[..., Any], *arguments: Any, **options: Any) -> Observed:
    """Call a function and note its variables, by the interpreter's profiling hook: nothing is rewritten."""
    code = getattr(function, "__code__", None)
    variables: dict[str, Any] = {}

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "return" and frame.f_code is code:
            variables.clear()
            variables.update(frame.f_locals)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        result = function(*arguments, **options)
    except (Exception, SystemExit) as error:
        return Observed(None, variables, error)
    finally:
        sys.setprofile(before)
    return Observed(result, variables, None)


class _Listener(io.TextIOBase):
    """Keeps the beginning of what is printed, however much that is."""

    def __init__(self) -> None:
        self.heard = ""

    def write(self, text: str) -> int:
        """Take a piece of text."""
        self.heard += text[: MOST_CHARACTERS - len(self.heard)]
        return len(text)


@contextlib.contextmanager
def hushed() -> Iterator[_Listener]:
    """Within the context, keep what is printed and warned of away from the terminal."""
    listener = _Listener()
    with (
        contextlib.redirect_stdout(listener),
        contextlib.redirect_stderr(listener),
        warnings.catch_warnings(),
        np.errstate(all="ignore"),
    ):
        warnings.simplefilter("ignore")
        yield listener
