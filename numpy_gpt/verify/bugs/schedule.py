"""Bugs of the learning rate's schedule."""

from __future__ import annotations

import math

from numpy_gpt.verify.bugs.bug import Bug
from numpy_gpt.verify.bugs.subject import RIGHT


def idle_first_step(step: int, *, peak: float, minimum: float, warmup_steps: int, total_steps: int) -> float:
    """Wrong: step 0 has a rate of zero."""
    if step < warmup_steps:
        return peak * step / warmup_steps
    steps_of_decay = total_steps - 1 - warmup_steps
    progress = (step - warmup_steps) / steps_of_decay if steps_of_decay > 0 else 0.0
    return minimum + (peak - minimum) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def minimum_not_reached(
    step: int, *, peak: float, minimum: float, warmup_steps: int, total_steps: int
) -> float:
    """Wrong: the minimum would belong to the step after the last."""
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    progress = (step - warmup_steps) / (total_steps - warmup_steps)
    return minimum + (peak - minimum) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def decay_from_step_zero(
    step: int, *, peak: float, minimum: float, warmup_steps: int, total_steps: int
) -> float:
    """Wrong: the cosine has begun before the warm-up ends."""
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    progress = step / (total_steps - 1)
    return minimum + (peak - minimum) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


BUGS = (
    Bug(
        name="schedule-idle-first-step",
        where="schedule",
        title="The first step has a learning rate of zero",
        line="return peak * step / warmup_steps",
        lesson="Steps count from 0, and 0 / warmup_steps is 0: a batch is read, a gradient computed, and "
        "nothing learned, while AdamW's moments and their step count move on as if it had been. n steps "
        "below the peak are n + 1 equal rises, and the first is taken at once.",
        in_practice="The loss is that of right code, a step late. Warm-up 0 divides nothing by zero only "
        "because the branch is not taken.",
        fools=("loss_falls",),
        subject=RIGHT._replace(learning_rate_at=idle_first_step),
    ),
    Bug(
        name="schedule-minimum-not-reached",
        where="schedule",
        title="The last step comes before the minimum",
        line="progress = (step - warmup_steps) / (total_steps - warmup_steps)",
        lesson="The last step has number total_steps - 1, so from the end of the warm-up it is one less "
        "than total_steps - warmup_steps to the end: fence posts and fences. The curve looks the same. "
        "What is promised for the end, the minimum, is the rate of a step that is never made.",
        in_practice="The loss is that of right code. The last rate is a little above the minimum, the more "
        "so the shorter the training.",
        fools=("loss_falls",),
        subject=RIGHT._replace(learning_rate_at=minimum_not_reached),
    ),
    Bug(
        name="schedule-decay-from-step-zero",
        where="schedule",
        title="The rate drops when the warm-up ends",
        line="progress = step / (total_steps - 1)",
        lesson="The cosine is meant to begin where the warm-up ends, and counts from there. Counted from "
        "the start it has already fallen by then: the peak is never reached, and after a long warm-up the "
        "rate jumps down. With warmup_steps = 0 it is right.",
        in_practice="The loss falls as with right code, a trifle slower in a short run. A plot of the rate "
        "shows a step down after the last step of the warm-up.",
        fools=("loss_falls",),
        subject=RIGHT._replace(learning_rate_at=decay_from_step_zero),
    ),
)
