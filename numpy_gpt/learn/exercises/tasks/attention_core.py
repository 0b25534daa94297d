"""Attention's core: who reads whom, decided by what they are.

In the last exercise a table said how much position i reads of position j. Now each position asks a question,
its query, and offers an answer to questions of a certain kind, its key; the score is how well the two match,
a dot product. What is read are the values. This is one head; the shapes have room for all heads of all
sequences at once, and none of them meet: the products run over the last two axes, and B and H are only
carried along.

The scores are divided by the root of D before softmax. A dot product of D random numbers is about as large as
the root of D, and without the division softmax would put all on one key and hear nothing of the others. A
constant factor in forward is the same factor in backward; no test of the loss will ever tell you that you
forgot it.

queries, keys and values are each used once. But a key is read by every query after it, so its gradient is a
sum over queries, and that is what the transposed table does.

Shapes
    queries (B, H, Tq, D)      keys, values (B, H, Tk, D)      context, d_context (B, H, Tq, D)
    scores, scaled, weights (B, H, Tq, Tk). With Tq < Tk the queries stand at the end, as with a cache.

Task
    1. d_weights (B, H, Tq, Tk) and d_values (B, H, Tk, D): context is a product of two arrays.
    2. d_scaled (B, H, Tq, Tk), with softmax_backward.
    3. d_scores (B, H, Tq, Tk).
    4. d_queries (B, H, Tq, D) and d_keys (B, H, Tk, D).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.learn.exercises.exercise import Case, Exercise, normal, paragraphs
from numpy_gpt.ops import causal_mask
from numpy_gpt.ops.softmax import SoftmaxSaved, softmax_backward, softmax_forward


class AttentionCoreSaved(NamedTuple):
    """What attention_core_backward needs."""

    queries: Array  # (B, H, Tq, D)
    keys: Array  # (B, H, Tk, D)
    values: Array  # (B, H, Tk, D)
    softmax_saved: SoftmaxSaved  # its y is weights (B, H, Tq, Tk)


def attention_core_forward(queries: Array, keys: Array, values: Array) -> tuple[Array, AttentionCoreSaved]:
    """Return for every query the values of its past (B, H, Tq, D), mixed by how well their keys match."""
    D = queries.shape[-1]
    scores = queries @ keys.swapaxes(-2, -1)  # (B, H, Tq, Tk)
    scaled = scores / math.sqrt(D)  # (B, H, Tq, Tk)
    mask = causal_mask(queries.shape[-2], keys.shape[-2])  # (Tq, Tk), broadcast over B and H
    weights, softmax_saved = softmax_forward(np.where(mask, -math.inf, scaled))  # (B, H, Tq, Tk)
    context = weights @ values  # (B, H, Tq, D)
    return context, AttentionCoreSaved(queries, keys, values, softmax_saved)


def attention_core_backward(d_context: Array, saved: AttentionCoreSaved) -> tuple[Array, Array, Array]:
    """Return (d_queries (B, H, Tq, D), d_keys (B, H, Tk, D), d_values (B, H, Tk, D))."""
    queries, keys, values, softmax_saved = saved
    # context = weights @ values
    d_weights = d_context @ values.swapaxes(-2, -1)  # (B, H, Tq, Tk)
    d_values = softmax_saved.y.swapaxes(-2, -1) @ d_context  # (B, H, Tk, D)
    # weights = softmax(scaled, masked); a masked weight is zero, and so is its gradient
    (d_scaled,) = softmax_backward(d_weights, softmax_saved)  # (B, H, Tq, Tk)
    # scaled = scores / √D
    d_scores = d_scaled / math.sqrt(queries.shape[-1])  # (B, H, Tq, Tk)
    # scores = queries @ keysᵀ
    d_queries = d_scores @ keys  # (B, H, Tq, D)
    d_keys = d_scores.swapaxes(-2, -1) @ queries  # (B, H, Tk, D)
    return d_queries, d_keys, d_values


def cases(random: np.random.Generator) -> list[Case]:
    """A whole text, and its last two tokens."""
    whole = tuple(normal(random, 2, 2, 4, 3) for _ in range(3))
    keys, values = (normal(random, 2, 2, 5, 3) for _ in range(2))
    return [
        Case(whole),
        Case((normal(random, 2, 2, 2, 3), keys, values), label="where there are fewer queries than keys"),
    ]


HINTS = """
Two matrix products with a softmax between them. For a product of two arrays each factor's gradient is the
upstream gradient times the other factor, one of the two turned; write the shapes to see which.

To turn a matrix in an array with four axes, exchange its last two axes and leave B and H where they are.
Backward meets the same steps as forward in reverse: product, softmax, division, product.

Keys entered the scores turned already, so d_keys needs the gradient of the scores turned, and d_queries does
not. The division by the root of D belongs between softmax and that product.
"""

EXERCISE = Exercise(
    name="attention_core",
    statement=__doc__,
    solution=attention_core_backward,
    forward=attention_core_forward,
    cases=cases,
    tools=("np", "math", "softmax_backward"),
    hints=paragraphs(HINTS),
)
