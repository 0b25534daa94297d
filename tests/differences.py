"""Central differences: derivatives from function values alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDING = 1e-9  # of what is summed: float64's eps over the step is 1.5e-11, with room for long sums


class Slope(NamedTuple):
    """A derivative, and how far off it may be because the function bends."""

    value: float
    uncertainty: float


def central_difference(function: Callable[[float], float], step: float = 2.0**-16) -> Slope:
    """Return the derivative of `function` at 0.

    Two central differences, of steps h and h/2, err by c h² and c h²/4; Richardson's combination cancels c.
    Their distance is the uncertainty: around 1e-10 of the terms, more only where the function bends sharply,
    as layer norm does where its inputs are nearly equal.
    """
    coarse = (function(step) - function(-step)) / (2 * step)
    fine = (function(step / 2) - function(-step / 2)) / step
    return Slope((4 * fine - coarse) / 3, abs(fine - coarse))


def assert_slope(derivative: float, function: Callable[[float], float], what: str, *, summed: float) -> None:
    """Fail unless `derivative` is the derivative of `function` at 0.

    Args:
        derivative: what a backward pass says.
        function: float64 values along a line.
        what: operation, tensor, shape and dtype, for the failure text.
        summed: the magnitude of the terms that make the function and its derivative.
    """
    slope = central_difference(function)
    error, allowed = abs(derivative - slope.value), ROUNDING * summed + slope.uncertainty
    assert error <= allowed, (
        f"{what}, along a random direction: {derivative!r}, but its values rise by {slope.value!r}: "
        f"error {error:.3g} above {allowed:.3g}"
    )
