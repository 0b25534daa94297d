"""Whether two gradients are equal, and if not, whether one is the other in disguise."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.kinds import Kind
from numpy_gpt.verify.measure import relative_error

TOLERANCE = 1e-6
"""A relative error in float64 that no other way of computing the same gradient comes near."""

MOST_AXES = 5


@dataclass(frozen=True)
class Difference:
    """How a value differs from what it should be.

    Args:
        text: what is to be seen, in one line.
        kind: the mistake that makes the one from the other, where that is plain.
    """

    text: str
    kind: Kind | None = None


def as_array(value: Any) -> Array | None:
    """Return a value in float64; None where it is no number or array of numbers."""
    try:
        array = np.asarray(value)
        return array.astype(np.float64) if array.dtype.kind in "fiub" else None
    except (TypeError, ValueError):
        return None


def difference(value: Any, right: Any, *, floor: float = 0.0, may_be_flat: bool = False) -> Difference | None:
    """Return how a value differs from the right one, None where it does not.

    Args:
        value: the learner's.
        right: an array or a number.
        floor: the size below which an error is rounding.
        may_be_flat: whether another shape of the same numbers in the same order is as good.
    """
    expected = np.asarray(right, np.float64)
    got = as_array(value)
    if got is None:
        return Difference(f"is no array of real numbers but {_described(value)}")
    if may_be_flat and got.size == expected.size:
        got = got.reshape(expected.shape)
    if got.shape != expected.shape:
        kind = _kind_of_shape(got, expected, floor)
        return Difference(f"has shape {got.shape}, and its value has {expected.shape}", kind)
    if relative_error(got, expected, floor) <= TOLERANCE:
        return None
    if not np.isfinite(got).all():
        return Difference(f"is not finite at {_index(np.argmin(np.isfinite(got)), got.shape)}")
    worst = _index(np.argmax(np.abs(got - expected)), got.shape)
    place = f" at {worst}" if worst else ""
    seen = f"is {_number(got[worst])}{place}, where {_number(expected[worst])} is right"
    factor = _factor(got, expected, floor)
    if factor is not None:
        everywhere = f"{seen}, and {_number(factor)} times the right value everywhere"
        return Difference(everywhere, Kind.CONSTANT_FACTOR)
    return Difference(seen, _kind_of_order(got, expected, floor))


def right_part(value: Any, right: Any) -> str | None:
    """Say where a wrong value is right all the same, None where it is nowhere or everywhere wrong."""
    got, expected = as_array(value), np.asarray(right, np.float64)
    if got is None or got.shape != expected.shape:
        return None
    scale = float(np.max(np.abs(expected), initial=0.0))
    fits = np.abs(got - expected) <= TOLERANCE * scale
    for axis in range(got.ndim):
        others = tuple(i for i in range(got.ndim) if i != axis)
        right_there: Array = np.atleast_1d(fits.all(axis=others))
        if 0 < right_there.sum() < len(right_there):
            wrong = ", ".join(str(i) for i in np.flatnonzero(~right_there)[:6])
            return f"it is wrong at index {wrong} of axis {axis} only"
    return None


def _factor(got: Array, expected: Array, floor: float) -> float | None:
    square = float(np.sum(expected * expected))
    if square == 0 or got.size < 2:
        return None
    factor = float(np.sum(got * expected)) / square
    if abs(factor) < 1e-6 or not math.isfinite(factor):
        return None
    return factor if relative_error(got, factor * expected, floor) <= TOLERANCE else None


def _kind_of_shape(got: Array, expected: Array, floor: float) -> Kind | None:
    def fits(candidate: Array) -> bool:
        return candidate.shape == expected.shape and relative_error(candidate, expected, floor) <= TOLERANCE

    if got.ndim <= MOST_AXES and sorted(got.shape) == sorted(expected.shape):
        orders = itertools.permutations(range(got.ndim))
        if any(fits(got.transpose(order)) for order in orders):
            return Kind.TRANSPOSED if got.ndim == 2 else Kind.PERMUTED_AXES
    for number in range(1, got.ndim + 1):
        for axes in itertools.combinations(range(got.ndim), number):
            if fits(got.sum(axis=axes)) or fits(got.sum(axis=axes, keepdims=True)):
                return Kind.MISSING_REDUCTION
    return Kind.MISSING_REDUCTION if got.ndim > expected.ndim else None


def _kind_of_order(got: Array, expected: Array, floor: float) -> Kind | None:
    if (
        expected.ndim == 2
        and len(set(expected.shape)) == 1
        and relative_error(got.T, expected, floor) <= TOLERANCE
    ):
        return Kind.TRANSPOSED
    sorted_got, sorted_right = np.sort(got, axis=None), np.sort(expected, axis=None)
    if got.size > 1 and relative_error(sorted_got, sorted_right, floor) <= TOLERANCE:
        return Kind.PERMUTED_AXES
    return None


def _index(flat: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(flat), shape))


def _number(value: Any) -> str:
    return f"{float(value):.4g}"


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    return "None" if value is None else f"a {type(value).__name__}"
