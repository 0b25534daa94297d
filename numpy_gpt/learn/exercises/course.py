"""The exercises in their order."""

from __future__ import annotations

from numpy_gpt.learn.exercises.exercise import Exercise
from numpy_gpt.learn.exercises.tasks import (
    adamw,
    attention_core,
    cached_step,
    causal_mask,
    cross_entropy,
    embedding,
    gelu,
    heads,
    layer_norm,
    line,
    linear,
    residual_block,
    softmax,
    tied_projection,
)

COURSE: tuple[Exercise, ...] = tuple(
    task.EXERCISE
    for task in (
        line,
        linear,
        softmax,
        cross_entropy,
        gelu,
        layer_norm,
        embedding,
        causal_mask,
        attention_core,
        heads,
        residual_block,
        tied_projection,
        adamw,
        cached_step,
    )
)
"""From a line through five points to a whole block; each needs only what came before."""


class UnknownExerciseError(ValueError):
    """A name that no exercise has."""


def find(name: str) -> Exercise:
    """Return an exercise by its name, which may be written with hyphens, or by its number, from 1.

    Raises:
        UnknownExerciseError: for a name that is none, with all that there are.
    """
    wanted = name.strip().lower().replace("-", "_")
    for number, exercise in enumerate(COURSE, start=1):
        if wanted in (exercise.name, str(number)):
            return exercise
    names = ", ".join(exercise.name for exercise in COURSE)
    raise UnknownExerciseError(f"there is no exercise {name!r:.60}; there are {names}")


def position(exercise: Exercise) -> str:
    """Return an exercise's place in the course, for people."""
    return f"Exercise {COURSE.index(exercise) + 1} of {len(COURSE)}"
