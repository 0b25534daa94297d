"""The tied projection: one matrix, used at both ends.

A GPT's largest matrix is its vocabulary. GPT-2 uses it twice: at the beginning a token's row is what is
looked up, at the end the same row is what the last vector is compared with (Press and Wolf 2017, "Using the
Output Embedding to Improve Language Models").

It is a single array with two jobs, so its gradient is a sum of two: what it gets as a lookup, which concerns
only the rows that occur, and what it gets as a projection, which concerns every row, because every token
competes in the softmax. Whoever overwrites one with the other has a model that still learns, only worse.

Between the two ends stands a whole model; here it is a tanh, so that you can see both ends.

Shapes
    token_weight (V, C)      token_ids, targets (B, T)      x, body (B, T, C)      logits (B, T, V)

Task
    1. d_logits (B, T, V), with cross_entropy_backward.
    2. d_head (V, C), what token_weight gets as a projection, and d_body (B, T, C).
    3. d_x (B, T, C): the slope of tanh is one minus its square.
    4. d_lookup (V, C), what token_weight gets as a lookup, and then d_token_weight (V, C).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.learn.exercises.exercise import Case, Exercise, normal, paragraphs
from numpy_gpt.ops.cross_entropy import CrossEntropySaved, cross_entropy_backward, cross_entropy_forward


class TiedProjectionSaved(NamedTuple):
    """What tied_projection_backward needs."""

    token_weight: Array  # (V, C)
    token_ids: Array  # (B, T)
    body: Array  # (B, T, C)
    loss_saved: CrossEntropySaved


def tied_projection_forward(
    token_weight: Array, token_ids: Array, targets: Array
) -> tuple[float, TiedProjectionSaved]:
    """Return the loss of predicting each target from its token, with one matrix at both ends."""
    x = token_weight[token_ids]  # (B, T, C)
    body = np.tanh(x)  # (B, T, C)
    logits = body @ token_weight.T  # (B, T, V)
    loss, loss_saved = cross_entropy_forward(logits, targets)
    return loss, TiedProjectionSaved(token_weight, token_ids, body, loss_saved)


def tied_projection_backward(d_loss: float, saved: TiedProjectionSaved) -> tuple[Array, None, None]:
    """Return (d_token_weight (V, C), None, None); ids and targets have no gradient."""
    token_weight, token_ids, body, loss_saved = saved
    V, C = token_weight.shape
    # loss = cross_entropy(logits, targets)
    d_logits, _ = cross_entropy_backward(d_loss, loss_saved)  # (B, T, V)
    # logits = body @ token_weight.T
    d_head = d_logits.reshape(-1, V).T @ body.reshape(-1, C)  # (V, C)
    d_body = d_logits @ token_weight  # (B, T, C)
    # body = tanh(x)
    d_x = d_body * (1 - body * body)  # (B, T, C)
    # x = token_weight[token_ids]
    d_lookup = np.zeros_like(token_weight)  # (V, C)
    np.add.at(d_lookup, token_ids, d_x)
    # token_weight is used twice
    d_token_weight = d_head + d_lookup  # (V, C)
    return d_token_weight, None, None


def cases(random: np.random.Generator) -> list[Case]:
    """Tokens that repeat, tokens that never occur, and a target that does not count."""
    token_ids, targets = np.array([[3, 1, 3], [3, 5, 0]]), np.array([[1, 3, 4], [5, -100, 6]])
    return [Case((normal(random, 7, 4), token_ids, targets))]


HINTS = """
You have written every step before: cross_entropy, linear without a bias, and the lookup of embedding. New is
only what becomes of the two gradients of one array.

Give the two parts names of their own, d_head and d_lookup, and compute both as if the matrices were two.
Flatten (B, T) to rows for the first, and count repeated ids for the second.

One array, two uses: their gradients have the same shape and meet by the rule of exercise 1.
"""

EXERCISE = Exercise(
    name="tied_projection",
    statement=__doc__,
    solution=tied_projection_backward,
    forward=tied_projection_forward,
    cases=cases,
    tools=("np", "cross_entropy_backward"),
    hints=paragraphs(HINTS),
)
