"""The learning rate over a run: a climb, half a cosine, and the edges where one of them is missing."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from numpy_gpt.training.schedule import learning_rate_at


class Run(NamedTuple):
    """The settings that shape a schedule."""

    peak: float
    minimum: float
    warmup_steps: int
    total_steps: int

    def rates(self) -> list[float]:
        """Return the learning rate of every step."""
        return [learning_rate_at(step, **self._asdict()) for step in range(self.total_steps)]


@st.composite
def runs(draw: st.DrawFn) -> Run:
    peak = draw(st.floats(1e-6, 10))
    minimum = peak * draw(st.floats(0, 1))
    return Run(peak, minimum, draw(st.integers(0, 60)), draw(st.integers(1, 60)))


@given(run=runs())
@example(run=Run(1.0, 0.0, warmup_steps=0, total_steps=1))
@example(run=Run(1.0, 0.0, warmup_steps=1, total_steps=1))
@example(run=Run(1.0, 0.0, warmup_steps=5, total_steps=5))
@example(run=Run(1.0, 0.0, warmup_steps=5, total_steps=6))
@example(run=Run(1.0, 0.0, warmup_steps=5, total_steps=7))
@example(run=Run(1.0, 1.0, warmup_steps=0, total_steps=9))
def test_the_rate_climbs_to_the_peak_and_falls_to_the_minimum(run: Run) -> None:
    rates = run.rates()
    roof = run.peak * (1 + 1e-15)
    assert rates[0] > 0
    assert max(rates) <= roof

    climb, fall = rates[: run.warmup_steps], rates[run.warmup_steps :]
    assert all(a < b for a, b in pairwise(climb)), "the warm-up does not climb"
    assert all(rate < run.peak for rate in climb)
    if fall:
        assert math.isclose(fall[0], run.peak, rel_tol=1e-15), (
            "the first step after the warm-up is not the peak"
        )
    assert all(a >= b for a, b in pairwise(fall)), "the cosine does not fall"
    if len(fall) > 1:
        assert fall[-1] == run.minimum


@given(run=runs())
def test_the_warm_up_is_straight(run: Run) -> None:
    climb = run.rates()[: run.warmup_steps]
    for step, rate in enumerate(climb):
        assert math.isclose(rate, climb[0] * (step + 1), rel_tol=1e-12)


@given(run=runs())
def test_the_fall_is_as_far_from_the_peak_as_its_mirror_is_from_the_minimum(run: Run) -> None:
    fall = run.rates()[run.warmup_steps :]
    for early, late in zip(fall, reversed(fall), strict=True):
        if len(fall) > 1:
            assert math.isclose(early + late, run.peak + run.minimum, rel_tol=1e-12)


def test_a_quarter_of_the_way_down_stands_where_the_cosine_says() -> None:
    rates = Run(peak=3.0, minimum=1.0, warmup_steps=10, total_steps=51).rates()
    assert rates[20] == pytest.approx(2 + math.cos(math.pi / 4), rel=1e-14)
    assert rates[30] == pytest.approx(2, rel=1e-14)


def test_without_warm_up_the_first_step_runs_at_the_peak() -> None:
    assert Run(peak=2.0, minimum=0.5, warmup_steps=0, total_steps=4).rates()[0] == 2.0


def test_a_warm_up_longer_than_the_run_never_reaches_the_peak() -> None:
    assert Run(peak=8.0, minimum=1.0, warmup_steps=7, total_steps=4).rates() == [1.0, 2.0, 3.0, 4.0]
