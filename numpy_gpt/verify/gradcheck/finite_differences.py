"""Derivatives by central differences, each with an error estimate of its own: no tolerance is guessed.

Along a line x + t v the slope of every output is taken at steps t = h of several sizes h. Large steps err by
curvature, in proportion to h²; small ones by the rounding noise of forward, in proportion to 1/h. Two
neighbouring sizes are extrapolated to h = 0 (Richardson). What they differ by, or the measured noise if that
is more, is the uncertainty: it covers curvature, noise and kinks, since each makes two sizes disagree.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.noise import measure_noise
from numpy_gpt.verify.gradcheck.slope import SAFETY, Direction, Slope
from numpy_gpt.verify.gradcheck.step_search import EXTRAPOLATION, STRIDE, Search
from numpy_gpt.verify.gradcheck.stepping import Stepper
from numpy_gpt.verify.gradcheck.subject import EPS, Subject

FINEST, COARSEST = -28, -4
FINEST_OF_ALL, COARSEST_OF_ALL = -43, 20
"""Steps are 2**level of an element's own size, at every third level: finer than FINEST where curvature or
a kink demands it, coarser than COARSEST where noise does."""


class Differences(Stepper):
    """Measures slopes of one subject.

    Args:
        subject: the operation and the point.
        random: draws the signs of directions.
    """

    def __init__(self, subject: Subject, random: np.random.Generator) -> None:
        super().__init__(subject, random)
        self.noise = measure_noise(self)
        self.squares = subject.upstreams**2  # (K, M)
        self.is_finite = bool(np.isfinite(subject.values).all())
        finite = np.where(np.isfinite(subject.values), subject.values, 0.0)
        self.outputs_size = np.sqrt(self.squares @ finite**2)  # (K,)

    def rounding(self, i: int, direction: Direction) -> Array:
        """Return what backward may make of a slope of zero (K,): what rounding leaves of larger numbers."""
        of_gradient = self.subject.rounding[i] * float(np.linalg.norm(np.ravel(direction.steps)))
        rounding: Array = 8 * EPS * self.outputs_size + of_gradient
        return rounding

    @property
    def resolution(self) -> float:
        """The relative noise of forward, never below float64's own."""
        return max(self.noise.relative, EPS)

    @property
    def is_single_precision(self) -> bool:
        """Whether forward returns less than float64 or computes in it, though its inputs are float64."""
        narrow = any(np.asarray(output).dtype.itemsize < 8 for output in self.subject.run.outputs)
        return narrow or self.noise.is_single_precision

    def change(self, values: Array, others: Array) -> Array:
        """Return values - others (M,); an output that is infinite and stays so does not move."""
        if self.is_finite:
            return values - others
        return np.where(values == others, 0.0, values - others)


class Line:
    """The outputs along one direction, each step taken once.

    Args:
        differences: the instrument.
        i: the input that moves.
        direction: which of its elements, and how far.
    """

    def __init__(self, differences: Differences, i: int, direction: Direction) -> None:
        self.differences = differences
        self.i = i
        self.direction = direction
        self._ends: dict[int, tuple[Array, Array]] = {}

    def ends(self, level: int) -> tuple[Array, Array]:
        """Return the outputs (M,) at h = 2**level ahead of the point and behind it."""
        if level not in self._ends:
            here = self.differences.subject.inputs[self.i]
            ends = []
            for h in (2.0**level, -(2.0**level)):
                moved = here.copy()
                moved[self.direction.index] += h * self.direction.steps
                ends.append(self.differences.values({self.i: moved}))
            self._ends[level] = (ends[0], ends[1])
        return self._ends[level]

    def central(self, level: int) -> Array:
        """Return the central differences (M,) at h = 2**level."""
        ahead, behind = self.ends(level)
        return self.differences.change(ahead, behind) * (0.5 / 2.0**level)

    def noise(self, level: int) -> Array:
        """Return the noise (K,) of upstream · central difference: that of the outputs that move at all."""
        noises = self.differences.noise.beside(*self.ends(level))
        if self.direction.is_element:
            noises *= np.logical_or.reduce([ahead != behind for ahead, behind in self._ends.values()])
        noise: Array = np.sqrt(self.differences.squares @ noises**2)
        return noise / 2.0**level

    def quick(self, level: int) -> Slope:
        """Return the slope from one step size: enough to agree with, too little to contradict."""
        value = self.differences.subject.upstreams @ self.central(level)
        noise = self.noise(level)
        return _slope(value, np.where(np.isfinite(value), noise, np.inf), noise)

    def extrapolated(self, level: int) -> Slope:
        """Return the slope from a pair of step sizes, its uncertainty no more than noise: to agree with."""
        pair = self.pair(level)
        return replace(pair, uncertainty=np.where(np.isfinite(pair.uncertainty), pair.noise, np.inf))

    def pair(self, level: int) -> Slope:
        """Return the slope extrapolated from h = 2**level and the next coarser size."""
        coarse, fine = self.central(level + STRIDE), self.central(level)
        upstreams = self.differences.subject.upstreams
        noise = self.noise(level)
        gap = fine - coarse
        value = upstreams @ (fine + gap / (EXTRAPOLATION - 1))
        # By luck of its signs |upstream · gap| may be small; the root mean square over all signs is not.
        spread = np.sqrt(self.differences.squares @ gap**2)
        uncertainty = np.maximum(np.maximum(np.abs(upstreams @ gap), spread), noise)
        return _slope(value, np.where(np.isfinite(uncertainty), uncertainty, np.inf), noise)

    def search(self, enough: Array) -> Search:
        """Try all step sizes, and larger or smaller ones while the uncertainty is more than enough (K,)."""
        # Coarse first: which outputs move at all, and so count for the noise, shows at coarse steps.
        search = Search({level: self.pair(level) for level in range(COARSEST - STRIDE, FINEST - 1, -STRIDE)})
        while search.wants_coarser(enough) and search.coarsest < COARSEST_OF_ALL:
            search = search.joined_by(search.coarsest + STRIDE, self.pair(search.coarsest + STRIDE))
        while search.wants_finer(enough) and search.finest > FINEST_OF_ALL:
            search = search.joined_by(search.finest - STRIDE, self.pair(search.finest - STRIDE))
        return search

    def with_kink(self, levels: Array, slope: Slope) -> Slope:
        """Widen a slope, measured at levels (K,), to all between its two sides where it is at a kink."""
        low, high = slope.low.copy(), slope.high.copy()
        for level in np.unique(levels):
            kinked, *bounds = self._range_at_kink(int(level))
            here = kinked & (levels == level)
            low[here], high[here] = (bound[here] for bound in bounds)
        return replace(slope, low=low, high=high)

    def _range_at_kink(self, level: int) -> tuple[Array, Array, Array]:
        """Return whether the sides stay apart (K,), and the least and largest slope that they leave open.

        Where the outputs are smooth the sides differ by curvature times h, eight times less at the finer
        step.
        """
        upstreams, squares = self.differences.subject.upstreams, self.differences.squares
        wide = np.subtract(*self._sides(level + STRIDE))
        ahead, behind = self._sides(level)
        size, wide_size = np.sqrt(squares @ (ahead - behind) ** 2), np.sqrt(squares @ wide**2)
        kinked = (size > 0.5 * wide_size) & (size > SAFETY * self.noise(level))
        sides = upstreams * ahead, upstreams * behind  # (K, M) each
        return kinked, np.minimum(*sides).sum(axis=1), np.maximum(*sides).sum(axis=1)

    def _sides(self, level: int) -> tuple[Array, Array]:
        """Return the slopes (M,) ahead of the point and behind it."""
        ahead, behind = self.ends(level)
        differences, base = self.differences, self.differences.subject.values
        return differences.change(ahead, base) / 2.0**level, differences.change(base, behind) / 2.0**level


def _slope(value: Array, uncertainty: Array, noise: Array) -> Slope:
    """Return a slope that is no kink's; one of infinite uncertainty admits every claim."""
    value = np.where(np.isfinite(value), value, 0.0)
    reach = np.where(np.isfinite(uncertainty), 0.0, np.inf)
    return Slope(value, uncertainty, noise, value - reach, value + reach)
