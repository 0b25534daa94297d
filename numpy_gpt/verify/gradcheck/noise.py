"""How finely forward resolves its outputs: the rounding noise that every difference quotient magnifies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.stepping import Stepper
from numpy_gpt.verify.gradcheck.subject import EPS

FINER_THAN_FLOAT32 = 1e-10
"""Relative noise below this is float64's own, magnified by ill-conditioned sums or not."""

NOTHING_BUT_NOISE = 1e-2
"""Relative noise above this is that of a sum of which nothing is left, in whatever precision."""

DIRECTIONS = 3
"""In which all inputs are moved."""


@dataclass(frozen=True)
class Noise:
    """The noise of forward at the subject's point.

    Args:
        level: per output (M,), its standard deviation.
        part: per output (M,), its part of the output, or of what moving the inputs changes if that is more.
        relative: the median over the outputs of noise over output.
        reacts: whether the outputs feel a change of the inputs by some units in the last place of float64.
    """

    level: Array
    part: Array
    relative: float
    reacts: bool

    @property
    def is_single_precision(self) -> bool:
        """Whether forward computes in float32, whatever its inputs: coarse noise that no tiny nudge excites.

        An ill-conditioned float64 computation is as noisy, but it is tiny nudges that it magnifies.
        """
        return FINER_THAN_FLOAT32 < self.relative < NOTHING_BUT_NOISE and not self.reacts

    def beside(self, *outputs: Array) -> Array:
        """Return the noise (M,) where the outputs are these: larger ones are noisier."""
        size = np.nan_to_num(np.max(np.abs(outputs), axis=0), nan=0.0, posinf=0.0)
        noise: Array = np.maximum(self.level, self.part * size)
        return noise


def measure_noise(stepper: Stepper) -> Noise:
    """Move all inputs a little, seven steps in a row: what no parabola explains is noise.

    Curvature leaves more the larger the steps, noise the same at any size: so what counts are the smallest
    that the output can follow. float64 follows down to 2**-40 of the inputs' size, float32 to about 2**-24.

    Source: the idea of J. Moré and S. Wild, Estimating Computational Noise, 2011.
    """
    values = stepper.subject.values
    directions = [
        {i: stepper.signs(unit).steps for i, unit in stepper.unit_steps.items()} for _ in range(DIRECTIONS)
    ]
    residual, change = _residuals(stepper, directions, 2.0**-8)
    for step in (2.0**-24, 2.0**-32, 2.0**-40):
        finer, moved = _residuals(stepper, directions, step)
        residual = np.where(moved > 0.0, finer, residual)
    size = np.abs(values)
    usable = np.isfinite(residual) & np.isfinite(values) & (values != 0.0)
    relative, response = (
        float(np.quantile(noise[usable] / size[usable], 0.5, method="lower")) if usable.any() else 0.0
        for noise in (residual, stepper.subject.response)
    )
    level = np.nan_to_num(np.fmax(residual, max(relative, EPS) * size), nan=0.0, posinf=0.0)
    whole = np.fmax(size, change)
    part = np.divide(level, whole, out=np.zeros_like(level), where=np.isfinite(whole) & (whole > 0.0))
    return Noise(level, np.minimum(part, 1.0), relative, reacts=response >= relative / 30)


def _residuals(stepper: Stepper, directions: list[dict[int, Array]], step: float) -> tuple[Array, Array]:
    """Return per output (M,) what a parabola leaves and what it changes by, the most of all directions.

    A direction counts for the change only if every step in it changes the output.
    """
    # All on one side, since the point itself may be a kink; and no multiples of a power of two, since these
    # can be exact where nothing else is.
    at = np.pi * np.arange(1, 8)
    basis = np.linalg.qr(np.stack([at**0, at, at**2], axis=1))[0]  # (7, 3)
    degrees_of_freedom = 4  # seven points less three coefficients
    residuals = []
    change = np.zeros(stepper.subject.values.shape)
    for direction in directions:
        points = [{i: stepper.subject.inputs[i] + step * t * v for i, v in direction.items()} for t in at]
        rows = np.stack([stepper.values(point) for point in points])  # (7, M)
        left = rows - basis @ (basis.T @ rows)
        residuals.append(np.sqrt(np.sum(left**2, axis=0) / degrees_of_freedom))
        moves = (rows[1:] != rows[:-1]).all(axis=0)
        change = np.fmax(change, np.where(moves, np.ptp(rows, axis=0), 0.0))
    return np.max(residuals, axis=0), change
