"""Which directions of an input are measured, and how many calls of forward each is worth."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.finite_differences import Differences, Line
from numpy_gpt.verify.gradcheck.measurement import (
    NEGLIGIBLE,
    RELATIVE_TOLERANCE,
    Measurement,
    Probe,
    typical_elements,
)
from numpy_gpt.verify.gradcheck.slope import SAFETY, Direction, Slope
from numpy_gpt.verify.gradcheck.step_search import Search

MAX_CALLS = 10_000
SECONDS = 2.0
"""What measuring all inputs may cost when all is well: so many calls of forward, or so long, if that is less.
Time is the processor's own, so that a busy machine measures no less."""

PATIENCE = 15.0
"""Seconds after which a measurement ends, whatever there is left to find out about a fault."""

SINGLES = 160
"""How many single indices wrong slices of an axis may be split into."""


@dataclass(frozen=True)
class Plan:
    """How many probes an input gets.

    Args:
        is_dense: whether every element is measured; the other numbers are for samples.
        directions: of the whole input.
        slices: across each axis.
        elements: measured one by one, a quarter of them if they contradict.
        searches: how often the best step is looked for anew, at some twenty calls.
    """

    is_dense: bool
    directions: int
    slices: int
    elements: int
    searches: int

    @classmethod
    def within(cls, calls: int, shape: tuple[int, ...]) -> Plan:
        """Return the plan for an input of this shape and about so many calls of forward, two per probe."""
        return cls(
            is_dense=2 * math.prod(shape) <= calls,
            directions=_between(4, calls // 16, 8),
            slices=_between(4, calls // (16 * max(1, len(shape))), 16),
            elements=_between(8, calls // 8, 64),
            searches=_between(4, calls // 40, 64),
        )


def _between(least: int, wanted: int, most: int) -> int:
    return max(least, min(wanted, most))


def measure_all(differences: Differences, deadline: float) -> dict[int, Measurement]:
    """Measure every input within the budget, small ones first so that what they leave goes to the large ones.

    Args:
        differences: the instrument; it has been used before, so it knows what a call costs.
        deadline: `time.process_time()` after which whatever is left to measure is left out.
    """
    calls_of_forward_alone = int(SECONDS / differences.seconds_per_call)
    calls = min(MAX_CALLS, calls_of_forward_alone // 2)  # as long again goes into comparing
    order = sorted(differences.subject.tensors, key=lambda i: differences.subject.inputs[i].size)
    measurements = {}
    for done, i in enumerate(order):
        left = len(order) - done
        before, now = differences.calls, time.process_time()
        measurements[i] = measure(differences, i, calls // left, now + (deadline - now) / left)
        calls = max(0, calls - (differences.calls - before))
    return measurements


def measure(differences: Differences, i: int, calls: int, deadline: float) -> Measurement:
    """Measure one input: every element if the calls of forward suffice, otherwise samples.

    A fault among samples is followed to its place: wrong slices across each axis, then elements where they
    cross.
    """
    prober = Prober(differences, i, Plan.within(calls, differences.subject.inputs[i].shape), deadline)
    if prober.plan.is_dense:
        prober.probe_elements(range(prober.size))
    else:
        prober.probe_directions()
        for axis in range(len(prober.shape)):
            prober.probe_slices(axis)
        prober.probe_elements(prober.sample(), enough=prober.plan.elements // 4)
        prober.localise()
    return Measurement(differences, i, prober.claims, prober.elements, prober.directions, prober.slices)


class Prober:
    """Takes the probes of one input.

    Args:
        differences: the instrument.
        i: the input's position.
        plan: how many of each kind.
        deadline: `time.process_time()` after which no further kind is begun.
    """

    def __init__(self, differences: Differences, i: int, plan: Plan, deadline: float) -> None:
        self.differences = differences
        self.i = i
        self.plan = plan
        self.deadline = deadline
        self.shape: tuple[int, ...] = differences.subject.inputs[i].shape
        self.size = int(np.prod(self.shape, dtype=int))
        self.claims = np.stack(
            [_claimed(claims[i], self.shape) for claims in differences.subject.claims]
        )  # (K, ...)
        self.typical = typical_elements(self.claims)
        self.steps = differences.unit_steps[i]
        self.elements: dict[tuple[int, ...], Probe] = {}
        self.directions: list[Probe] = []
        self.slices: dict[int, dict[range, Probe]] = {}
        self.searches = 0

    @cached_property
    def element_level(self) -> int:
        """The step that suits single elements: the median of the best ones of a few."""
        if not self.plan.is_dense:
            return self.direction_level
        picks = self.differences.random.choice(self.size, size=min(3, self.size), replace=False)
        levels = sorted(self._search(self._element(int(flat))).common_level for flat in picks)
        return levels[len(levels) // 2]

    @cached_property
    def direction_level(self) -> int:
        """The step that suits directions in which many elements move."""
        return self._search(self._signs()).common_level

    def probe(self, direction: Direction) -> Probe:
        """Measure one direction with no more calls of forward than it takes to be sure.

        Two independent computations that agree need no estimate of their errors; a contradiction does, and
        the best step there is, and a look at both sides of the point.
        """
        line = Line(self.differences, self.i, direction)
        level = self.element_level if direction.is_element else self.direction_level
        for measured in (line.quick, line.extrapolated):
            probe = self._compare(direction, measured(level))
            if self._is_settled(probe) and not probe.is_wrong:
                return probe
        levels, slope = np.full(len(self.claims), level), line.pair(level)
        if self.searches < self.plan.searches:
            self.searches += 1
            levels, slope = line.search(self._enough(direction)).best
        probe = self._compare(direction, slope)
        return self._compare(direction, line.with_kink(levels, slope)) if probe.is_wrong else probe

    def probe_elements(self, places: Iterable[int], enough: int | None = None) -> None:
        """Measure single elements, given by their places in the flattened input, until enough contradict."""
        contradictions = 0
        for flat in places:
            direction = self._element(int(flat))
            moves = direction.steps != 0.0  # infinite elements do not
            if self._is_late() or contradictions == enough:
                return
            if moves and direction.index not in self.elements:
                probe = self.probe(direction)
                self.elements[direction.index] = probe
                contradictions += probe.is_wrong

    def probe_directions(self) -> None:
        """Measure sums over the whole input, with random signs.

        Kinks mostly lie at zero, and a sum over elements at kinks proves nothing: then zeros are left out of
        all sums, and tried one by one.
        """
        if self.probe(self._signs()).slope.at_kink:
            zeros = self.differences.subject.inputs[self.i] == 0.0
            self.steps = np.where(zeros & ~zeros.all(), 0.0, self.steps)
        self.directions = [self.probe(self._signs()) for _ in range(self.plan.directions)]

    def probe_slices(self, axis: int) -> None:
        """Measure slices across one axis, each of a range of indices, together all of them."""
        if not self._is_late():
            edges = np.linspace(0, self.shape[axis], min(self.shape[axis], self.plan.slices) + 1).astype(int)
            blocks = [range(int(start), int(stop)) for start, stop in pairwise(edges)]
            self.slices[axis] = {indices: self._probe_slice(axis, indices) for indices in blocks}

    def sample(self) -> Array:
        """Choose elements: the largest by backward's own account, and random ones."""
        claim = np.abs(self.claims[0]).ravel()
        largest = np.argsort(np.where(np.isfinite(claim), claim, 0.0))[-self.plan.elements // 4 :]
        random = self.differences.random.choice(
            self.size, size=min(self.plan.elements, self.size), replace=False
        )
        return np.unique(np.concatenate([largest, random]))

    def localise(self) -> None:
        """Split wrong slices into single indices if these are few, and measure elements where they cross."""
        wrong = []
        for axis in range(len(self.shape)):
            self._split(axis, self._wrong_slices(axis))
            wrong.append([at for indices in self._wrong_slices(axis) for at in indices])
        if all(wrong):
            random = self.differences.random
            crossings = tuple(random.choice(places, size=self.plan.elements) for places in wrong)
            self.probe_elements(np.unique(np.ravel_multi_index(crossings, self.shape)))

    def _split(self, axis: int, suspects: list[range]) -> None:
        """Replace wrong slices by their single indices, unless these are many, or by a sample all wrong."""
        singles = [range(at, at + 1) for indices in suspects for at in indices]
        if len(singles) > SINGLES or len(singles) == len(suspects):
            return
        if len(singles) == self.shape[axis]:
            picks = self.differences.random.choice(len(singles), size=min(8, len(singles)), replace=False)
            if all(self._probe_slice(axis, singles[pick]).is_wrong for pick in picks):
                return
        for indices in suspects:
            if self._is_late():
                return
            del self.slices[axis][indices]
            for at in indices:
                self.slices[axis][range(at, at + 1)] = self._probe_slice(axis, range(at, at + 1))

    def _probe_slice(self, axis: int, indices: range) -> Probe:
        index = (slice(None),) * axis + (slice(indices.start, indices.stop),)
        return self.probe(self._signs(index))

    def _wrong_slices(self, axis: int) -> list[range]:
        probes = self.slices.get(axis, {})
        wrong = [indices for indices, probe in probes.items() if probe.is_wrong]
        return sorted(wrong, key=lambda indices: indices.start)

    def _compare(self, direction: Direction, slope: Slope) -> Probe:
        return Probe(
            direction,
            slope,
            claim=np.array([direction.along(claim) for claim in self.claims]),
            size=self._claimed_size(direction),
            rounding=self.differences.rounding(self.i, direction),
        )

    def _is_settled(self, probe: Probe) -> bool:
        """Whether the measurement is fine enough; claims of zero are held against the outputs' own size."""
        negligible = NEGLIGIBLE * self.differences.outputs_size
        return not probe.is_open(np.where(probe.size <= probe.rounding, negligible, probe.scale))

    def _signs(self, index: tuple[slice, ...] = ()) -> Direction:
        return self.differences.signs(self.steps, index)

    def _search(self, direction: Direction) -> Search:
        return Line(self.differences, self.i, direction).search(self._enough(direction))

    def _enough(self, direction: Direction) -> Array:
        """Return the uncertainty (K,) a hundred times better than needed."""
        return 0.01 * RELATIVE_TOLERANCE / SAFETY * self._claimed_size(direction)

    def _claimed_size(self, direction: Direction) -> Array:
        if direction.is_element:
            return self.typical * np.abs(direction.steps)
        return np.array([direction.size(claim) for claim in self.claims])

    def _element(self, flat: int) -> Direction:
        return self.differences.element(self.i, tuple(int(at) for at in np.unravel_index(flat, self.shape)))

    def _is_late(self) -> bool:
        return time.process_time() > self.deadline


def _claimed(answer: Array | None, shape: tuple[int, ...]) -> Array:
    """None claims that the input does not matter; a gradient of another shape claims nothing."""
    if answer is None:
        return np.zeros(shape)
    return answer if answer.shape == shape else np.full(shape, np.nan)
