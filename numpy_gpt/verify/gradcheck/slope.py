"""A direction to move an input in, and the slope measured along it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from numpy_gpt.arrays import Array

SAFETY = 10.0
"""An uncertainty is a standard deviation, more or less: ten of them separate right from wrong."""


@dataclass(frozen=True)
class Direction:
    """A way to move one input: which elements, and how far each moves per unit of t.

    Args:
        index: what `x[index]` selects; () for the whole input, a full index for one element.
        steps: of the selection's shape; zero or plus or minus a power of two, so that x ± h·step is exact.
    """

    index: tuple[Any, ...]
    steps: Array

    def along(self, gradient: Array) -> float:
        """Return the slope along this direction that a gradient of the input's shape claims."""
        return float(np.sum(gradient[self.index] * self.steps))

    def size(self, gradient: Array) -> float:
        """Return what `along` would be if the terms had random signs: the scale to hold its error against."""
        return float(np.linalg.norm(np.ravel(gradient[self.index] * self.steps)))

    @property
    def is_element(self) -> bool:
        """Whether one element moves, and its partial derivative is what is measured."""
        return self.steps.ndim == 0


@dataclass(frozen=True)
class Slope:
    """A measured directional derivative of upstream · output, per upstream gradient: all arrays (K,).

    `noise` is the part of the uncertainty that rounding in forward explains.
    At a kink the slopes on its two sides differ and any value from `low` to `high` is a right answer;
    elsewhere both equal `value`.
    """

    value: Array
    uncertainty: Array
    noise: Array
    low: Array
    high: Array

    @property
    def at_kink(self) -> bool:
        """Whether the two sides differ."""
        return bool((self.low != self.high).any())

    def distance(self, claim: Array) -> Array:
        """Return how far claims (K,) lie outside what is right; NaN for a claim that is not a number."""
        distance: Array = np.maximum(np.maximum(self.low - claim, claim - self.high), 0.0)
        return distance
