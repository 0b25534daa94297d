"""How a property compares numbers, and what it says when they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.measure import relative_error

FLOAT64_ROUNDING = 1e-10
"""Two right float64 answers that sum in different orders are closer than this."""

DIFFERENCE_LIMIT = 1e-8
"""Share of what is summed by which a measured slope may miss the true one. Rounding, divided by the step, and
what extrapolation leaves of a sharp bend stay below 1e-9 on the cases here; a wrong term is far above."""


def difference(
    what: str, value: Any, reference: Any, *, tolerance: float = FLOAT64_ROUNDING, floor: float = 0.0
) -> Iterator[str]:
    """Yield a line of evidence if two arrays differ by more than the tolerance.

    Args:
        what: operation and tensor.
        value: what is tried.
        reference: what is trusted.
        tolerance: on the relative error.
        floor: of the relative error's denominator; see `numpy_gpt.verify.measure`.
    """
    if value is None or np.shape(value) != np.shape(reference):
        yield f"{what}: {None if value is None else np.shape(value)} instead of {np.shape(reference)}"
        return
    error = relative_error(value, reference, floor)
    if error <= tolerance:
        return
    a, b = np.asarray(value, np.float64), np.asarray(reference, np.float64)
    distances = np.where(np.isfinite(a), np.abs(a - b), np.inf)
    index = tuple(int(i) for i in np.unravel_index(distances.argmax(), a.shape))
    yield f"{what} {a.shape}: error {error:.1e}, {a[index]:.6g} instead of {b[index]:.6g} at {index}"


def other_bits(what: str, value: Array, reference: Array) -> Iterator[str]:
    """Yield a line of evidence if two arrays are not the same, bit for bit."""
    if value.tobytes() != reference.tobytes():
        yield f"{what}: other bits, error {relative_error(value, reference):.1e}"


def slope(function: Callable[[float], float], step: float = 2.0**-13) -> float:
    """Return the derivative of `function` at 0, from its values alone.

    Central differences with steps h and h/2 err by about c h² and c h²/4, so that (4 · fine - coarse) / 3
    is free of c: Richardson's extrapolation.
    """
    coarse = (function(step) - function(-step)) / (2 * step)
    fine = (function(step / 2) - function(-step / 2)) / step
    return (4 * fine - coarse) / 3


def wrong_slope(
    what: str, predicted: float, function: Callable[[float], float], *, summed: float
) -> Iterator[str]:
    """Yield a line of evidence if `predicted` is not the derivative of `function` at 0.

    Args:
        what: operation and tensor.
        predicted: by a backward pass.
        function: the forward pass along a line.
        summed: the size of the terms that make up the derivative and the function.
    """
    measured = slope(function)
    if not abs(predicted - measured) <= DIFFERENCE_LIMIT * summed:
        yield f"{what}: predicts a slope of {predicted:.6g}, measured {measured:.6g}"
