"""How finely forward resolves its outputs: the rounding noise that every difference quotient magnifies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.stepping import Stepper
from numpy_gpt.verify.gradcheck.subject import EPS

FINER_THAN_FLOAT32 = 1e-10
"""Relative noise below this is float64's own, magnified by ill-conditioned sums or not."""


@dataclass(frozen=True)
class Noise:
    """The noise of forward at the subject's point.

    Args:
        level: per output (M,), its standard deviation.
        relative: the median over the outputs of noise over output.
        reacts: whether the outputs feel a change of the inputs by one unit in the last place of float64.
    """

    level: Array
    relative: float
    reacts: bool

    @property
    def is_single_precision(self) -> bool:
        """Whether forward computes in float32, whatever its inputs: coarse noise that no tiny nudge excites.

        An ill-conditioned float64 computation is as noisy, but it is tiny nudges that it magnifies.
        """
        return self.relative > FINER_THAN_FLOAT32 and not self.reacts


def measure_noise(stepper: Stepper) -> Noise:
    """Move all inputs a little, seven steps in a row: what no parabola explains is noise.

    Curvature leaves more the larger the steps, noise the same at any size: so what counts are the smallest
    that the output can follow. float64 follows down to 2**-40 of the inputs' size, float32 to about 2**-24.

    Source: the idea of J. Moré and S. Wild, Estimating Computational Noise, 2011.
    """
    values = stepper.subject.values
    residual, _ = _residuals(stepper, 2.0**-8)
    for step in (2.0**-24, 2.0**-32, 2.0**-40):
        finer, moving = _residuals(stepper, step)
        residual = np.where(moving, finer, residual)
    usable = np.isfinite(residual) & np.isfinite(values) & (values != 0.0)
    if not usable.any():
        return Noise(np.zeros_like(values), 0.0, reacts=True)
    size = np.abs(values[usable])
    relative = float(np.median(residual[usable] / size))
    response = float(np.median(_response_to_nudge(stepper)[usable] / size))
    level = np.fmax(residual, max(relative, EPS) * np.abs(values))
    return Noise(np.where(np.isfinite(level), level, 0.0), relative, reacts=response > relative / 30)


def _residuals(stepper: Stepper, step: float) -> tuple[Array, Array]:
    """Return per output (M,) what a parabola leaves, the most of three directions, and whether it moves.

    It moves if in one direction every step changes it.
    """
    # All on one side, since the point itself may be a kink; and no multiples of a power of two, since these
    # can be exact where nothing else is.
    at = np.pi * np.arange(1, 8)
    basis = np.linalg.qr(np.stack([at**0, at, at**2], axis=1))[0]  # (7, 3)
    degrees_of_freedom = 4  # seven points less three coefficients
    residuals = []
    moving = np.zeros(stepper.subject.values.shape, dtype=bool)
    for _ in range(3):
        steps = {i: step * stepper.signs(unit).steps for i, unit in stepper.unit_steps.items()}
        points = [{i: stepper.subject.inputs[i] + t * v for i, v in steps.items()} for t in at]
        rows = np.stack([stepper.values(point) for point in points])  # (7, M)
        left = rows - basis @ (basis.T @ rows)
        residuals.append(np.sqrt(np.sum(left**2, axis=0) / degrees_of_freedom))
        moving |= (rows[1:] != rows[:-1]).all(axis=0)
    return np.max(residuals, axis=0), moving


def _response_to_nudge(stepper: Stepper) -> Array:
    subject = stepper.subject
    moved = {}
    for i in subject.tensors:
        signs = stepper.random.choice([-1.0, 1.0], size=subject.inputs[i].shape)
        moved[i] = subject.inputs[i] * (1 + EPS * signs)
    response: Array = np.abs(stepper.values(moved) - subject.values)
    return response
