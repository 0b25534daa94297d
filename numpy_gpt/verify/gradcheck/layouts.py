"""The same numbers laid out differently in memory: an answer that changes with them is wrong.

Kernels that assume C order, or a stride that is not zero, have passed gradient checks that only ever handed
in fresh C-ordered arrays, and failed under the first `.sum()` or transpose in front of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.operation import OperationRaisedError
from numpy_gpt.verify.gradcheck.report import Finding, Property
from numpy_gpt.verify.gradcheck.subject import (
    ROUNDING,
    Subject,
    as_gradient,
    copies,
    disagreement,
    largest,
    nudged,
)


def same_values(array: Array) -> Iterator[tuple[str, Array]]:
    """Yield an array's values in other layouts, each with its name."""
    if array.ndim >= 2:
        yield "Fortran-ordered", np.asfortranarray(array)
    if array.ndim >= 1:
        wide = np.full([2 * length for length in array.shape], _filler(array), dtype=array.dtype)
        strided = wide[(slice(None, None, 2),) * array.ndim]
        strided[...] = array
        yield "a strided slice", strided


def broadcasts(array: Array) -> Iterator[tuple[str, Array]]:
    """Yield arrays of the same shape that repeat values of `array` by strides of zero, each with its name."""
    if array.size == 0:
        return
    for axis in range(array.ndim):
        if array.shape[axis] > 1:
            row = np.take(array, [0], axis=axis)
            yield f"a stride-0 broadcast along axis {axis}", _repeated(row, array.shape)
    if array.ndim > 1:
        one = array[(slice(1),) * array.ndim]
        yield "a stride-0 broadcast of one value", _repeated(one, array.shape)


def _repeated(row: Array, shape: tuple[int, ...]) -> Array:
    """Repeat `row` along its axes of length 1, in memory that is as large as if it were repeated in earnest.

    A compiled kernel that reads straight on then meets fillers, not memory that is somebody else's.
    """
    memory = np.full(math.prod(shape), _filler(row), dtype=row.dtype)
    memory[: row.size] = row.ravel()
    start = memory[: row.size].reshape(row.shape)
    strides = [0 if length == 1 else stride for length, stride in zip(row.shape, start.strides, strict=True)]
    return np.lib.stride_tricks.as_strided(start, shape, strides, writeable=False)


def _filler(array: Array) -> Any:
    """NaN stands between the values, zero among integers: whoever reads the memory straight on meets it."""
    return np.nan if array.dtype.kind == "f" else 0


Arguments = tuple[tuple[Any, ...], tuple[Any, ...]]
"""Inputs and upstream gradients."""


class Trial(NamedTuple):
    """Arguments in an odd layout, and the same values in C order."""

    situation: str
    odd: Arguments
    plain: Arguments
    at_point: bool  # only the upstream gradient has other values, where any, and every one is valid


def layout_findings(subject: Subject, noise: float) -> list[Finding]:
    """Try every layout of every array, one at a time.

    Args:
        subject: the operation at its point.
        noise: the rounding noise of its outputs, which another order of a sum may change.
    """
    size = max(largest(subject.values), 16 * noise / ROUNDING)
    trials = chain(_upstream_layouts(subject), _input_layouts(subject))
    return [finding for trial in trials for finding in _compare(subject, size, trial)]


def _upstream_layouts(subject: Subject) -> Iterator[Trial]:
    d_outputs = subject.run.shaped(subject.upstreams[0])
    for position, d_output in enumerate(d_outputs):
        place = (
            "the upstream gradient" if subject.run.single else f"the upstream gradient of output {position}"
        )
        for layout, odd, plain in _variants(d_output):
            yield Trial(
                f"{place} is {layout}",
                odd=(copies(subject.inputs), _with(d_outputs, position, odd)),
                plain=(copies(subject.inputs), _with(d_outputs, position, plain.copy())),
                at_point=True,
            )


def _input_layouts(subject: Subject) -> Iterator[Trial]:
    d_outputs = subject.run.shaped(subject.upstreams[0])
    for i, value in enumerate(subject.inputs):
        for layout, odd, plain in _variants(value):
            yield Trial(
                f"the input {subject.names[i]} is {layout}",
                odd=(_with(subject.inputs, i, odd), copies(d_outputs)),
                plain=(_with(subject.inputs, i, plain.copy()), copies(d_outputs)),
                at_point=False,
            )


def _with(arrays: tuple[Any, ...], position: int, value: Array) -> tuple[Any, ...]:
    """Copy all arrays but one, which is handed on itself: a copy would lose its layout."""
    return tuple(value if at == position else copied for at, copied in enumerate(copies(arrays)))


def _variants(value: Any) -> Iterator[tuple[str, Array, Array]]:
    """Yield a name, an array in that layout, and its values in C order."""
    if isinstance(value, np.ndarray):
        yield from ((layout, odd, value) for layout, odd in same_values(value))
        yield from ((layout, odd, np.array(odd, order="C")) for layout, odd in broadcasts(value))


def _compare(subject: Subject, size: float, trial: Trial) -> Iterator[Finding]:
    """Compare the answer to arrays in an odd layout with that to the same values in C order.

    Outputs are held against `size`.
    """
    situation, odd, plain, at_point = trial
    kept = copies(plain[0]), copies(plain[1])
    try:
        values, gradients = _answer(subject, plain)
    except (OperationRaisedError, ValueError) as error:
        if at_point:
            subject.faults.append(f"{error}, when values in the upstream gradient repeat")
        else:
            subject.excuse(error)  # repeated values may be outside the operation's domain
        return
    if not np.isfinite(values).all():
        return
    try:
        odd_values, odd_gradients = _answer(subject, odd)
    except (OperationRaisedError, ValueError) as error:
        if isinstance(error, OperationRaisedError) and not error.recurs:
            subject.excuse(error)
        else:
            yield Finding(Property.LAYOUT, f"{error}, when {situation}")
        return
    gap = disagreement(odd_values, values, size)
    difference = subject.worst_difference(odd_gradients, gradients)
    if gap <= ROUNDING and not difference:
        return
    blur = _blur(subject, kept, values, gradients)
    if gap > max(ROUNDING, blur):
        yield Finding(Property.LAYOUT, f"changes by {gap:.1e} of its size when {situation}", "output")
    if difference and difference[1] > blur:
        name, gap = difference
        yield Finding(
            Property.LAYOUT, f"its gradient changes by {gap:.1e} of its size when {situation}", name
        )


def _answer(subject: Subject, arguments: Arguments) -> tuple[Array, tuple[Array | None, ...]]:
    inputs, d_outputs = arguments
    run = subject.operation.run(inputs)
    values = run.values
    return values, tuple(map(as_gradient, subject.operation.gradients(run, d_outputs)))


def _blur(subject: Subject, plain: Arguments, values: Array, gradients: tuple[Array | None, ...]) -> float:
    """Return how much rounding may change this answer: ten times what nudging all inputs a little does.

    Repeated values can be a bad place, such as a variance of zero, where the order of a sum shows.
    """
    worst = 0.0
    for inputs in nudged(plain[0]):
        try:
            nudged_values, nudged_gradients = _answer(subject, (inputs, copies(plain[1])))
        except (OperationRaisedError, ValueError) as error:
            subject.excuse(error)
            return float("inf")
        difference = subject.worst_difference(nudged_gradients, gradients)
        worst = max(
            worst, disagreement(nudged_values, values, size=0.0), difference[1] if difference else 0.0
        )
    return 10 * worst
