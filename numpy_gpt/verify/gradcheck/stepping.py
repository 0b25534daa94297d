"""Moving the inputs of a subject and calling forward: what every measurement is made of."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.slope import Direction
from numpy_gpt.verify.gradcheck.subject import Subject, copies, typical_size


class Stepper:
    """Calls forward at points near the subject's own, and counts what that costs.

    Args:
        subject: the operation and the point.
        random: draws the signs of directions.
    """

    def __init__(self, subject: Subject, random: np.random.Generator) -> None:
        self.subject = subject
        self.random = random
        self.unit_steps = {i: _unit_steps(subject.inputs[i]) for i in subject.tensors}
        self.calls = 0
        self.seconds = 0.0

    def values(self, moved: dict[int, Array]) -> Array:
        """Return the outputs (M,) with some inputs replaced; NaN if forward raises or its shapes change."""
        start = time.process_time()
        inputs = list(copies(self.subject.inputs))
        for i, value in moved.items():
            inputs[i] = value
        values = self.subject.values_at(inputs)
        self.calls += 1
        self.seconds += time.process_time() - start
        return np.full_like(self.subject.values, np.nan) if values is None else values

    @property
    def seconds_per_call(self) -> float:
        """What a call of forward has cost on average so far."""
        return max(self.seconds, 1e-6) / self.calls

    def element(self, i: int, index: tuple[int, ...]) -> Direction:
        """Return the direction that moves one element."""
        return Direction(index, self.unit_steps[i][index])

    def signs(self, unit_steps: Array, index: tuple[Any, ...] = ()) -> Direction:
        """Return a direction that moves a whole selection by its unit steps, with random signs."""
        steps = unit_steps[index]
        return Direction(index, np.asarray(steps * self.random.choice([-1.0, 1.0], size=steps.shape)))


def _unit_steps(value: Array) -> Array:
    """Return each element's own size as a power of two, at least a hundredth of the typical one.

    Elements near zero are where kinks lie, and where logarithms end: small steps there. Infinite ones stay.
    """
    finite = np.isfinite(value)
    sizes = np.maximum(np.abs(np.where(finite, value, 1.0)), typical_size(value) / 128)
    return np.where(finite, 2.0 ** np.floor(np.log2(sizes)), 0.0)
