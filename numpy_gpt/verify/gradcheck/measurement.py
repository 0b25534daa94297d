"""What was measured of one input's gradient, and how a claim compares with it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.finite_differences import Differences
from numpy_gpt.verify.gradcheck.slope import SAFETY, Direction, Slope

RELATIVE_TOLERANCE = 3e-6
"""Half a decade below the error of 1e-5 that must fail; approximations of erf and rounded constants pass."""

NEGLIGIBLE = 1e-3
"""A gradient of zero is held against this part of what moving an output by its own size would give."""


@dataclass(frozen=True)
class Probe:
    """One measured slope beside what backward claims for it.

    Args:
        direction: what moved.
        slope: what was measured.
        claim: what backward says, per upstream gradient (K,).
        size: the size of what is claimed (K,): for one element that of a typical one, for a sum of many what
            it would be if its terms had random signs.
        rounding: what a true zero may be computed as (K,).
    """

    direction: Direction
    slope: Slope
    claim: Array
    size: Array
    rounding: Array

    @property
    def blur(self) -> Array:
        """How far the measurement may be off (K,)."""
        blur: Array = SAFETY * self.slope.uncertainty
        return blur

    @property
    def is_zero(self) -> Array:
        """Per upstream gradient (K,), whether nothing but rounding was measured."""
        size = np.maximum(np.abs(self.slope.value), np.maximum(-self.slope.low, self.slope.high))
        zero: Array = size <= self.blur + self.rounding
        return zero

    @property
    def scale(self) -> Array:
        """What an error is relative to (K,): the slope itself, but no less than the claimed size."""
        scale: Array = np.maximum(np.abs(self.slope.value), self.size)
        return scale

    @property
    def is_wrong(self) -> bool:
        """Whether the claim is off by more than the tolerance and all that the measurement leaves open."""
        return self._exceeds(self.scale)

    @property
    def is_off(self) -> bool:
        """Whether the claim is off by more than a tenth of that, which counts only beside others like it."""
        return self._exceeds(0.1 * self.scale)

    @property
    def error(self) -> float:
        """How far the claim is off, relative to the scale."""
        distance = self.slope.distance(self.claim)
        return float(np.max(np.where(distance == 0.0, 0.0, distance / self.scale), initial=0.0))

    def _exceeds(self, scale: Array) -> bool:
        return not bool((self.slope.distance(self.claim) <= self._allowed(scale) + self.blur).all())

    def is_open(self, scale: Array) -> bool:
        """Whether the measurement is too coarse to vouch for the claim."""
        blur = self.blur
        if not self.direction.is_element:
            # On one element any slope between the two sides is right; on many at once that proves little.
            blur = blur + (self.slope.high - self.slope.low)
        return bool((blur > self._allowed(scale)).any())

    def _allowed(self, scale: Array) -> Array:
        allowed: Array = RELATIVE_TOLERANCE * scale + np.where(self.is_zero, self.rounding, 0.0)
        return allowed


@dataclass(frozen=True)
class Measurement:
    """All probes of one input.

    Args:
        differences: the instrument they were taken with.
        i: the input's position.
        claims: backward's gradients (K, ...), NaN where it gave none of the right shape.
        elements: probes of single elements, by index.
        directions: probes of the whole input.
        slices: per axis, probes of ranges of indices.
    """

    differences: Differences
    i: int
    claims: Array
    elements: dict[tuple[int, ...], Probe]
    directions: list[Probe]
    slices: dict[int, dict[range, Probe]]

    @property
    def is_dense(self) -> bool:
        """Whether every element that can move was measured: all but infinite ones."""
        return len(self.elements) == np.count_nonzero(self.differences.unit_steps[self.i])

    @cached_property
    def probes(self) -> list[Probe]:
        """Every probe taken."""
        sliced = [probe for probes in self.slices.values() for probe in probes.values()]
        return [*self.elements.values(), *self.directions, *sliced]

    @cached_property
    def is_zero(self) -> Array:
        """Per upstream gradient (K,), whether the true gradient is zero as far as can be seen."""
        zero: Array = np.all([probe.is_zero for probe in self.probes], axis=0)
        return zero

    @cached_property
    def largest(self) -> Array:
        """Per upstream gradient (K,), the largest element; by the sums, if all elements seen are zero."""
        seen: Array = np.zeros(len(self.claims))
        for probe in self.elements.values():
            seen = np.maximum(seen, np.abs(probe.slope.value / probe.direction.steps))
        sums = [
            np.abs(probe.slope.value) / np.linalg.norm(probe.direction.steps) for probe in self.directions
        ]
        largest: Array = np.where(seen > 0.0, seen, np.max([seen, *sums], axis=0))
        return largest

    def is_open(self, probe: Probe) -> bool:
        """Whether a probe cannot vouch for backward's claim."""
        return probe.is_open(self._reference(probe))

    def error(self, claims: Array) -> float:
        """Return the largest relative error of gradients (K, ...) over all probes.

        Args:
            claims: what is claimed, or what would be after a correction.
        """
        return max((self.error_in(probe, _along(probe, claims)) for probe in self.probes), default=0.0)

    def error_in(self, probe: Probe, claim: Array) -> float:
        """Return how far a claim (K,) is off in one probe, relative to the largest element."""
        distance = probe.slope.distance(claim)
        if np.isnan(distance).any():
            return float("inf")
        ratios = np.where(distance == 0.0, 0.0, distance / self._reference(probe))
        return float(np.max(ratios, initial=0.0))

    def _reference(self, probe: Probe) -> Array:
        is_element = probe.direction.is_element
        scale = self.largest * np.abs(probe.direction.steps) if is_element else probe.scale
        of_zero = np.maximum(NEGLIGIBLE * self.differences.outputs_size, probe.rounding / RELATIVE_TOLERANCE)
        return np.where(self.is_zero, np.maximum(scale, of_zero), scale)


def typical_elements(gradients: Array) -> Array:
    """Return per gradient (K, ...) the ninth decile of its non-zero sizes.

    It is no outlier's size, yet not that of the many small ones.
    """
    deciles = []
    for gradient in gradients:
        sizes = np.abs(gradient[np.isfinite(gradient) & (gradient != 0.0)])
        deciles.append(float(np.quantile(sizes, 0.9)) if sizes.size else 0.0)
    return np.array(deciles)


def _along(probe: Probe, claims: Array) -> Array:
    return np.array([probe.direction.along(claim) for claim in claims])
