"""A line through five points.

Everything in this course is this exercise, made larger. A line has two numbers, its slope w and its height b,
and a loss says how badly it misses five points. Nudge w, and the loss moves. How far it moves, per unit of
the nudge, is the gradient of w, written d_w. Where d_w is positive, a smaller w is better. That is all that
training ever uses.

There are two ways to know d_w. Measure it: compute the loss with w a little larger and a little smaller, as
`nudge` below does. Or derive it, from the last line of forward to its first: how does the loss move with each
error, an error with its prediction, a prediction with w? Measuring needs two runs for each number there is.
Deriving gives all gradients in one run back, and that is why a model of millions of numbers can learn.

Two rules are enough, here and in every exercise to come:
  - A gradient has the shape of its value. Each number asks one question, "how does the loss move with me?",
    and gets one answer. Five predictions have five gradients; w is one number, and so is d_w.
  - What is used several times collects from every use. w stands in all five predictions: a nudge of it moves
    the loss in five ways at once, and the five gradients add.

Shapes
    w, b  one number each      X, TARGETS, predictions, errors  (5,)      loss  one number
    d_loss, one number, comes from above: how much whatever follows wants of this loss. Multiply by it.

Task
    1. d_errors (5,): the loss is the mean of five squares.
    2. d_predictions (5,): an error is its prediction minus a constant.
    3. d_w and d_b, one number each: how does each prediction move with w, and with b?
    Then run this file with Python. It nudges w and b, and shows what it measures beside what you derived.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.learn.exercises.exercise import Case, Exercise, paragraphs

X = np.array([-1.0, 0.0, 1.0, 2.0, 4.0])
TARGETS = np.array([-1.5, 0.5, 0.0, 2.5, 3.0])


class LineSaved(NamedTuple):
    """What line_backward needs."""

    errors: Array  # (5,)


def line_forward(w: float, b: float) -> tuple[float, LineSaved]:
    """Return how badly the line w x + b misses the points: the mean of the squared errors."""
    predictions = w * X + b  # (5,)
    errors = predictions - TARGETS  # (5,)
    loss = np.mean(errors * errors)  # one number
    return float(loss), LineSaved(errors)


def line_backward(d_loss: float, saved: LineSaved) -> tuple[float, float]:
    """Return (d_w, d_b), one number each."""
    (errors,) = saved
    d_errors = d_loss * 2 * errors / len(errors)  # (5,)
    d_predictions = d_errors  # (5,)
    d_w = np.sum(d_predictions * X)  # one number
    d_b = np.sum(d_predictions)  # one number
    return float(d_w), float(d_b)


def nudge(w: float = 0.5, b: float = 0.25, step: float = 1e-4) -> None:
    """Move w a little both ways, then b, and print how the loss moved beside what backward says."""
    in_w = (line_forward(w + step, b)[0] - line_forward(w - step, b)[0]) / (2 * step)
    in_b = (line_forward(w, b + step)[0] - line_forward(w, b - step)[0]) / (2 * step)
    print(f"measured: the loss moves by {in_w:.6f} per unit of w, by {in_b:.6f} per unit of b")
    loss, saved = line_forward(w, b)
    d_w, d_b = line_backward(1.0, saved)
    print(f"derived:  d_w is {d_w:.6f}, d_b is {d_b:.6f}")
    lower, _ = line_forward(w - 0.01 * d_w, b - 0.01 * d_b)
    print(f"one step against the gradient, and the loss goes from {loss:.4f} to {lower:.4f}")


def cases(random: np.random.Generator) -> list[Case]:
    """Two lines: nothing is right by chance twice."""
    return [Case((float(random.normal()), float(random.normal()))) for _ in range(2)]


HINTS = """
Take one error alone, call it e. What is the slope of its square at e? And how much of that reaches the loss,
when the loss is the mean of five squares?

A prediction moves its error one for one, so two of the three steps leave the numbers as they are. In `w * X +
b`, what does a prediction move by when w moves by 1? It is another number for each point.

d_w and d_b are sums over the five points. For d_b each point counts d_predictions as it is; for d_w each
counts it as many times as its own x says.
"""

EXERCISE = Exercise(
    name="line",
    statement=__doc__,
    solution=line_backward,
    forward=line_forward,
    cases=cases,
    main=nudge,
    hints=paragraphs(HINTS),
)
