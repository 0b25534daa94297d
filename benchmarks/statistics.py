"""What a series of pairs says about a ratio, and whether it can be trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 10_000
"""So many that the ends of the interval change by less than a tenth of its width from seed to seed."""

CONFIDENCE = 0.95

SPREAD_LIMIT = 0.10
"""The middle half of a quiet machine's times lies within a few percent; past a tenth something interferes."""

LOAD_LIMIT = 0.10
"""Other programs may take this share of the processors in use before they are in the way."""


class Ratio(NamedTuple):
    """A over B, with the interval that holds it at 95% confidence."""

    value: float
    low: float
    high: float

    @property
    def spans_one(self) -> bool:
        """Whether A and B may well be equal."""
        return self.low <= 1 <= self.high

    def __str__(self) -> str:
        text = f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"
        return f"{text} no difference" if self.spans_one else text


def ratio_of_medians(
    first: Sequence[float], second: Sequence[float], *, paired: bool = True, seed: int = 0
) -> Ratio | None:
    """Return median(first) / median(second) with its bootstrap interval.

    The value is the ratio of the two medians, not the median of the pairs' ratios, so what slowed one pair as
    a whole does not cancel in it: the halves that happen to be the medians may be of different pairs. Pairs
    are drawn with replacement, both halves together, and the interval runs between percentiles of the ratios
    of those draws: it keeps that the halves of a pair had the same machine, and is the narrower for it.

    Args:
        first, second: one number from each pair, in order.
        paired: False for numbers that were not measured in pairs; then each side is drawn on its own.
        seed: of the draws; equal samples give equal intervals.

    Returns:
        The ratio, or None where a number is not positive, for then a ratio means nothing.

    Raises:
        ValueError: for an empty series, or pairs of unequal length.

    Source:
        Efron and Tibshirani 1993, "An Introduction to the Bootstrap", section 13.3.
    """
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)  # (n,) and (m,)
    if not (a.size and b.size) or (paired and a.size != b.size):
        raise ValueError(f"a ratio needs samples on both sides, in pairs where paired: {a.size} and {b.size}")
    if not (np.all(a > 0) and np.all(b > 0)):
        return None
    random = np.random.default_rng(seed)
    of_a = random.integers(0, a.size, (RESAMPLES, a.size))  # (RESAMPLES, n)
    of_b = of_a if paired else random.integers(0, b.size, (RESAMPLES, b.size))  # (RESAMPLES, m)
    ratios = np.median(a[of_a], axis=1) / np.median(b[of_b], axis=1)  # (RESAMPLES,)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    return Ratio(median(first) / median(second), float(low), float(high))


def median(samples: Sequence[float]) -> float:
    """Return the median, as a Python float."""
    return float(np.median(np.asarray(samples, np.float64)))


def spread(samples: Sequence[float]) -> float:
    """Return the distance between the quartiles, as a share of the median."""
    low, middle, high = np.quantile(np.asarray(samples, np.float64), [0.25, 0.5, 0.75])
    return float((high - low) / middle)


def reasons_to_doubt(
    judged: Mapping[str, tuple[Sequence[float], Sequence[float]]], load: float
) -> tuple[str, ...]:
    """Return why a comparison is UNSTABLE, in words; nothing when it is not.

    Args:
        judged: A's and B's positive samples of everything that a ratio is shown of, by what it is called.
        load: the share of the processors in use that other programs took meanwhile.
    """
    reasons = [
        f"the {what} of {side} spread by {spread(samples):.0%}"
        for what, sides in judged.items()
        for side, samples in zip(("A", "B"), sides, strict=True)
        if spread(samples) > SPREAD_LIMIT
    ]
    if load > LOAD_LIMIT:
        reasons.append(f"other programs took {load:.0%} of the processors")
    return tuple(reasons)
