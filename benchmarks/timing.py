"""Timing a call, inside a fresh process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

MOST_REPEATS = 1000


def median_seconds(call: Callable[[], object], *, seconds: float, at_least: int = 5) -> float:
    """Return the median time of a call, after a warm-up that is not counted.

    Args:
        call: what to time.
        seconds: go on until so much time is spent in it; half as much goes to the warm-up.
        at_least: how many calls to time however long they take: a median of fewer is no better than one.
    """
    _repeat(call, seconds / 2, at_least=1)  # first touch of memory, threads started, programs compiled
    return statistics.median(_repeat(call, seconds, at_least))


def _repeat(call: Callable[[], object], seconds: float, at_least: int) -> list[float]:
    times: list[float] = []
    while len(times) < at_least or (sum(times) < seconds and len(times) < MOST_REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times
