"""What is known of a wrong gradient before anything further is tried."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.measurement import NEGLIGIBLE, Measurement, Probe
from numpy_gpt.verify.gradcheck.subject import Subject
from numpy_gpt.verify.gradcheck.suspects.saved import leaves

VISIBLE = 1e-3
"""The part of the largest error that an error must have to count when wrong places are told from right."""

MAX_ENTRIES = 2_000_000
"""Numbers in the largest array that is made."""

MAX_SAVED = 32
"""How many arrays and numbers of `saved` are looked at."""


class Profile(NamedTuple):
    """Where along an axis a gradient is wrong."""

    wrong: list[int]  # the wrong indices, in order
    error: float  # the largest at all other indices
    is_telling: bool  # whether the gradient there is not just zero


@dataclass(frozen=True)
class Observed:
    """One input whose gradient is wrong.

    Args:
        subject: the operation, to be called again.
        measurement: what was measured of this input's gradient.
        i: the input's position.
        deadline: `time.process_time()` after which nothing further is tried.
    """

    subject: Subject
    measurement: Measurement
    i: int
    deadline: float

    @property
    def gradient(self) -> str:
        """The gradient's name."""
        return f"d_{self.subject.names[self.i]}"

    @property
    def value(self) -> Array:
        """The input (...)."""
        value: Array = self.subject.inputs[self.i]
        return value

    @property
    def shape(self) -> tuple[int, ...]:
        """The input's shape."""
        return self.value.shape

    @property
    def is_late(self) -> bool:
        """Whether the time is over."""
        return time.process_time() > self.deadline

    @cached_property
    def claims(self) -> Array | None:
        """What backward gave (K, ...), of whatever shape; zeros for None, and None for unequal shapes."""
        return self.claims_of(self.i)

    def claims_of(self, j: int) -> Array | None:
        """Return what backward gave for an input, as `claims`."""
        zeros = np.zeros(self.subject.inputs[j].shape)
        filled = [zeros if claim[j] is None else np.asarray(claim[j]) for claim in self.subject.claims]
        return np.stack(filled) if len({claim.shape for claim in filled}) == 1 else None

    @cached_property
    def fitting(self) -> Array | None:
        """The claims (K, ...) if they are finite and of the input's shape."""
        if self.claims is None or self.claims.shape[1:] != self.shape or not np.isfinite(self.claims).all():
            return None
        return self.claims

    @cached_property
    def error(self) -> float:
        """How wrong the claims are; infinite if they have another shape."""
        return self.measurement.error(self.measurement.claims)

    @cached_property
    def _seen(self) -> tuple[Array, Array, Array]:
        """Where in the flattened input elements were measured (n,), and the bounds of right values (K, n)."""
        elements = self.measurement.elements
        indices = np.array(list(elements), dtype=int).reshape(len(elements), len(self.shape))
        places = np.ravel_multi_index(tuple(indices.T), self.shape) if self.shape else np.zeros(1, dtype=int)
        steps = np.array([probe.direction.steps for probe in elements.values()])
        low = np.array([probe.slope.low for probe in elements.values()]).T / steps
        high = np.array([probe.slope.high for probe in elements.values()]).T / steps
        return places, np.minimum(low, high), np.maximum(low, high)

    @cached_property
    def truth(self) -> Array | None:
        """The measured gradients (K, ...), None unless every element was measured."""
        if not self.measurement.is_dense or len(self.measurement.elements) != self.value.size:
            return None
        places, low, high = self._seen
        truth = np.empty((len(low), self.value.size))
        truth[:, places] = 0.5 * (low + high)
        return truth.reshape(-1, *self.shape)

    def misfit(self, gradients: Array) -> float:
        """Return the largest relative error of gradients (K, ...) on the elements measured: a quick look."""
        if not self.measurement.elements or self.measurement.is_zero.all():
            return 0.0
        places, low, high = self._seen
        there = gradients.reshape(len(gradients), -1)[:, places]  # (K, n)
        distance = np.maximum(np.maximum(low - there, there - high), 0.0)
        sizes = np.max(np.abs(low), axis=1, keepdims=True)  # (K, 1)
        with np.errstate(all="ignore"):
            ratios = distance / np.maximum(sizes, NEGLIGIBLE * np.max(sizes))
        return float(np.max(np.where(np.isnan(ratios), np.inf, ratios)))

    def profile(self, axis: int) -> Profile:
        """Tell wrong indices along an axis from right ones."""
        measurement = self.measurement
        if measurement.is_dense:
            return self._profile([((index[axis],), probe) for index, probe in measurement.elements.items()])
        placed = measurement.slices.get(axis, {})
        return self._profile([(tuple(indices), probe) for indices, probe in placed.items()])

    def profile_of_rows(self) -> Profile:
        """Tell wrong rows, over all axes but the last, from right ones, if every element was measured."""
        elements = self.measurement.elements if self.measurement.is_dense else {}
        return self._profile(
            [
                ((int(np.ravel_multi_index(index[:-1], self.shape[:-1])),), probe)
                for index, probe in elements.items()
            ]
        )

    def _profile(self, placed: list[tuple[tuple[int, ...], Probe]]) -> Profile:
        errors = [self.measurement.error_in(probe, probe.claim) for _, probe in placed]
        wrong = {
            at
            for (indices, probe), error in zip(placed, errors, strict=True)
            if probe.is_off and error > VISIBLE * max(errors)
            for at in indices
        }
        right = [probe for indices, probe in placed if not wrong.intersection(indices)]
        return Profile(
            wrong=sorted(wrong),
            error=max((self.measurement.error_in(probe, probe.claim) for probe in right), default=math.inf),
            is_telling=any(not probe.is_zero.all() for probe in right),
        )

    @cached_property
    def upstreams(self) -> list[tuple[Array, ...]]:
        """Per upstream gradient, its part for each output, of the output's shape."""
        return [
            tuple(np.asarray(part) for part in self.subject.run.shaped(row)) for row in self.subject.upstreams
        ]

    @cached_property
    def known(self) -> dict[str, Array]:
        """Every array of floats that a backward pass can be made of, by name: inputs, outputs and saved."""
        subject = self.subject
        named = dict(zip(subject.names, subject.inputs, strict=True))
        for position, output in enumerate(subject.run.outputs):
            named["output" if subject.run.single else f"output {position}"] = output
        saved = dict(islice(leaves("saved", subject.run.saved), MAX_SAVED))
        found = {name: value for name, value in (named | saved).items() if isinstance(value, np.ndarray)}
        floats = {
            name: array.astype(np.float64)
            for name, array in found.items()
            if array.dtype.kind == "f" and 0 < array.size <= MAX_ENTRIES and np.isfinite(array).all()
        }
        return _without_twins(floats)

    @cached_property
    def integers(self) -> dict[str, Array]:
        """The inputs of integers, by name."""
        return {
            name: value
            for name, value in zip(self.subject.names, self.subject.inputs, strict=True)
            if isinstance(value, np.ndarray) and value.dtype.kind in "iu"
        }


def _without_twins(arrays: dict[str, Array]) -> dict[str, Array]:
    """Drop arrays equal to an earlier one: forward often saves its inputs."""
    kept: dict[str, Array] = {}
    for name, array in arrays.items():
        if not any(array.shape == other.shape and np.array_equal(array, other) for other in kept.values()):
            kept[name] = array
    return kept
