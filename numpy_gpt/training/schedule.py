"""The learning rate of each step: a straight warm-up, then half a cosine down to the minimum."""

from __future__ import annotations

import math


def learning_rate_at(step: int, *, peak: float, minimum: float, warmup_steps: int, total_steps: int) -> float:
    """Return the learning rate of step 0, 1, ..., total_steps - 1.

    The first warmup_steps steps climb: step 0 already learns, and step warmup_steps is the first at the peak.
    From there half a cosine falls, and the last step runs at the minimum exactly (unless it is the one at
    the peak, when nothing is left for the fall).

    Args:
        step: how many steps have been completed before this one.
        peak: the highest learning rate.
        minimum: the learning rate of the last step.
        warmup_steps: how many steps lie below the peak; 0 starts at it.
        total_steps: the length of training.

    Source:
        Loshchilov and Hutter 2017, "SGDR", equation 5, without restarts.
    """
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    steps_of_decay = total_steps - 1 - warmup_steps
    progress = (step - warmup_steps) / steps_of_decay if steps_of_decay > 0 else 0.0
    return minimum + (peak - minimum) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
