"""The causal mask: nobody reads the future.

A model that is asked for the next token must not see it. So before softmax, the score of every position that
lies in a reader's future becomes minus infinity, and its share is exactly zero.

Here the mask is looked at alone: how much position i reads of position j is a learned table, the same for
every sequence, instead of a product of queries and keys (Tay et al. 2021, "Synthesizer", section 3.1, call it
random attention). One (T, T) table serves the whole batch.

Forward, what stands at j is read by j and everything after it. Backward runs the other way along the same
lines: what stands at j hears from j and everything after it. So the table is needed transposed, and nothing
must flow where the mask was, because nothing flowed there.

Shapes
    scores, mask, masked, weights (T, T); row i belongs to reader i      values, y, d_y (B, T, C)

Task
    1. d_values (B, T, C): who reads values[b, j], and how much of it?
    2. d_weights (T, T): a table for all sequences, so what does its gradient do with the batch?
    3. d_masked (T, T), with softmax_backward, which you know from an earlier exercise.
    4. d_scores (T, T): what became of a score that the mask replaced?
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.learn.exercises.exercise import Case, Exercise, normal, paragraphs
from numpy_gpt.ops import causal_mask
from numpy_gpt.ops.softmax import SoftmaxSaved, softmax_backward, softmax_forward


class CausalMaskSaved(NamedTuple):
    """What masked_mix_backward needs."""

    values: Array  # (B, T, C)
    mask: Array  # (T, T)
    softmax_saved: SoftmaxSaved  # its y is weights (T, T)


def masked_mix_forward(scores: Array, values: Array) -> tuple[Array, CausalMaskSaved]:
    """Return for every position a mixture (B, T, C) of the values up to it."""
    T = len(scores)
    mask = causal_mask(T, T)  # (T, T), True where the column is in the row's future
    masked = np.where(mask, -math.inf, scores)  # (T, T)
    weights, softmax_saved = softmax_forward(masked)  # (T, T)
    y = weights @ values  # (B, T, C)
    return y, CausalMaskSaved(values, mask, softmax_saved)


def masked_mix_backward(d_y: Array, saved: CausalMaskSaved) -> tuple[Array, Array]:
    """Return (d_scores (T, T), d_values (B, T, C))."""
    values, mask, softmax_saved = saved
    # y = weights @ values
    d_values = softmax_saved.y.T @ d_y  # (B, T, C)
    d_weights = np.sum(d_y @ values.swapaxes(-2, -1), axis=0)  # (T, T)
    # weights = softmax(masked)
    (d_masked,) = softmax_backward(d_weights, softmax_saved)  # (T, T)
    # masked = where(mask, -inf, scores)
    d_scores = np.where(mask, 0, d_masked)  # (T, T)
    return d_scores, d_values


def cases(random: np.random.Generator) -> list[Case]:
    """Several sequences, then one token, which has nothing but itself to read."""
    return [
        Case((normal(random, 4, 4), normal(random, 3, 4, 5))),
        Case((normal(random, 1, 1), normal(random, 2, 1, 5)), label="where there is one token"),
    ]


HINTS = """
softmax_saved.y is the table of weights. y[b, i] is a sum over j of weights[i, j] times values[b, j]: ask
where values[b, j] is used, and where weights[i, j] is.

values[b, j] is used in y[b, i] for every reader i, so the sum is over the rows of the table. weights[i, j] is
used in every sequence and every channel: two sums, and a product does one of them.

softmax_backward returns a tuple of one. Its answer is zero already where a weight is zero; a score that was
replaced by a constant has no gradient, and it is good to say so with the mask itself.
"""

EXERCISE = Exercise(
    name="causal_mask",
    statement=__doc__,
    solution=masked_mix_backward,
    forward=masked_mix_forward,
    cases=cases,
    tools=("np", "softmax_backward"),
    hints=paragraphs(HINTS),
)
