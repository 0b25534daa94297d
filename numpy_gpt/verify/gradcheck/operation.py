"""The operation under test: how it is called, and what it may answer."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from numpy_gpt.arrays import Array

Function = Callable[..., Any]


class OperationRaisedError(Exception):
    """The operation itself raised: a fault of the operation, not of how the check was called.

    Args:
        call: "forward" or "backward".
        cause: what it raised.
        recurs: whether it raises again when called with the same arguments; if not, these are no reason.
    """

    def __init__(self, call: str, cause: Exception, recurs: bool) -> None:
        super().__init__(f"{call} raised {type(cause).__name__}: {cause}{_place(cause)}")
        self.call = call
        self.cause = cause
        self.recurs = recurs


class Run(NamedTuple):
    """One call of forward."""

    inputs: tuple[Any, ...]  # the very objects that forward was given
    outputs: tuple[Any, ...]
    saved: Any
    single: bool  # forward returned one output, not a tuple of them

    @property
    def values(self) -> Array:
        """All outputs in one new float64 vector (M,): forward may reuse its buffers, this vector stays."""
        pieces = [np.asarray(output, dtype=np.float64).ravel() for output in self.outputs]
        return np.concatenate(pieces) if pieces else np.zeros(0)

    def shaped(self, vector: Array, dtype: Any = np.float64) -> tuple[Any, ...]:
        """Cut a vector (M,) into upstream gradients of the outputs' shapes, C-ordered and of their kind.

        A Python float answers a Python float, as it would in a program.
        """
        pieces: list[Any] = []
        start = 0
        for output in self.outputs:
            stop = start + np.size(output)
            piece = np.array(vector[start:stop], dtype=dtype).reshape(np.shape(output))
            if type(output) is float:
                pieces.append(float(piece))
            elif isinstance(output, np.generic):
                pieces.append(piece[()])
            else:
                pieces.append(piece)
            start = stop
        return tuple(pieces)


@dataclass(frozen=True)
class Operation:
    """A pair `forward(*inputs) -> (output, saved)` and `backward(d_output, saved) -> gradients`."""

    forward: Function
    backward: Function

    def run(self, inputs: Sequence[Any]) -> Run:
        """Call forward on exactly these objects.

        Raises:
            OperationRaisedError: when forward raises.
            ValueError: when what it returns cannot be checked.
        """
        result = _call("forward", self.forward, *inputs)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise ValueError(
                f"forward must return (output, saved), but it returned {described(result)}: "
                "return saved=None when backward needs nothing"
            )
        output, saved = result
        single = not isinstance(output, tuple | list)
        outputs = (output,) if single else tuple(output)
        for each in outputs:
            if not (isinstance(each, float | np.ndarray | np.generic) and _is_float(each)):
                raise ValueError(
                    f"forward must return a floating-point output or a tuple of them, not {described(each)}: "
                    "keep anything else in saved"
                )
        return Run(tuple(inputs), outputs, saved, single)

    def gradients(self, run: Run, d_outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Call backward for one run.

        Raises:
            OperationRaisedError: when backward raises.
            ValueError: when it returns no tuple aligned with the inputs.
        """
        result = _call("backward", self.backward, d_outputs[0] if run.single else d_outputs, run.saved)
        if not isinstance(result, tuple | list):
            raise ValueError(
                f"backward must return a tuple with one gradient per input, but it returned "
                f"{described(result)}: for a single input, `return (d_x,)`"
            )
        if len(result) != len(run.inputs):
            raise ValueError(
                f"backward must return one gradient per input, but it returned {len(result)} for "
                f"{len(run.inputs)} inputs: give None for inputs without a gradient"
            )
        return tuple(result)


def _call(name: str, function: Function, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as cause:
        raise OperationRaisedError(name, cause, _raises(function, *arguments)) from cause


def _place(cause: Exception) -> str:
    """Say in which line of the caller's own file it was raised, where there is one."""
    frames = traceback.extract_tb(cause.__traceback__)[1:]  # the first is our own call
    if not frames:
        return ""
    frame = next(frame for frame in reversed(frames) if frame.filename == frames[0].filename)
    return f" (line {frame.lineno} of {Path(frame.filename).name})"


def _raises(function: Function, *arguments: Any) -> bool:
    try:
        function(*arguments)
    except Exception:
        return True
    return False


def _is_float(value: Any) -> bool:
    return np.asarray(value).dtype.kind == "f"


def described(value: Any) -> str:
    """Name what the caller's function returned, for a message."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"{type(value).__name__}"
