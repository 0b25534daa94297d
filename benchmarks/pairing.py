"""A and B in turn, each time in fresh processes, never at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchmarks.machine import LoadMeter
from benchmarks.results import Series

Measured = Mapping[str, float | None]
"""What one process measured; None where the system does not tell."""

Samples = dict[str, tuple[Series, Series]]


def measure_pairs(
    first: Callable[[], Measured],
    second: Callable[[], Measured],
    pairs: int,
    *,
    on_pair: Callable[[int], None] = lambda _: None,
) -> tuple[Samples, float]:
    """Return A's and B's samples of every quantity, and the load by others meanwhile.

    Every other pair begins with B, so that a machine that slows down or speeds up favours neither.

    Args:
        first, second: start a process and return what it measured, the same quantities every time.
        pairs: how many.
        on_pair: is told how many are done.
    """
    meter = LoadMeter()
    rounds: list[tuple[Measured, Measured]] = []
    for number in range(pairs):
        if number % 2 == 0:
            a = first()
            b = second()
        else:
            b = second()
            a = first()
        rounds.append((a, b))
        on_pair(number + 1)
    load = meter.share_of_others()

    return gather(rounds), load


def gather(rounds: Sequence[tuple[Measured, Measured]]) -> Samples:
    """Return A's and B's series of every quantity that was known every time."""
    samples: Samples = {}
    for quantity in rounds[0][0]:
        sides = [[round_[side].get(quantity) for round_ in rounds] for side in (0, 1)]
        known = [[value for value in side if value is not None] for side in sides]
        if all(len(side) == len(rounds) for side in known):
            samples[quantity] = (tuple(known[0]), tuple(known[1]))
    return samples
