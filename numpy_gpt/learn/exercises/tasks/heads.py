"""Heads: split and join.

The whole operation as the model calls it. Each token's vector of width C is cut into H heads of width D = C /
H; every head attends on its own, as in the last exercise; and the results are joined to width C again.

split and join compute nothing. They only move numbers: (B, T, C) -> (B, T, H, D) by a reshape, which leaves
every number where it lies in memory and counts it differently, and then (B, H, T, D) by a transpose, which
moves it. The way back has to undo both, in reverse order. A reshape alone gives an array of the right shape
in which numbers of different heads and tokens have changed places, and with one head it is even right.

What only moves numbers moves gradients back the same way. So the gradient of a split is a join, and that of a
join is a split.

Shapes
    queries, context, d_context (B, Tq, C)      keys, values (B, Tk, C)
    q (B, H, Tq, D)      k, v (B, H, Tk, D)      scores, weights (B, H, Tq, Tk)

Task
    1. Undo join_heads.
    2. The middle as in the last exercise: you may copy your own lines. Here the gradients of q, k and v are
       d_q, d_k and d_v, with their heads apart.
    3. d_queries (B, Tq, C), d_keys and d_values (B, Tk, C).
    This is the book's attention. Solved, it trains your model: numpy-gpt train --ops with this folder.
"""

from __future__ import annotations

import numpy as np

from numpy_gpt.learn.exercises.exercise import Case, Exercise, normal, paragraphs
from numpy_gpt.ops.attention import attention_backward, attention_forward


def cases(random: np.random.Generator) -> list[Case]:
    """Two heads, one head, and fewer queries than keys."""
    whole = tuple(normal(random, 2, 4, 6) for _ in range(3))
    keys, values = (normal(random, 2, 5, 6) for _ in range(2))
    return [
        Case(whole, {"num_heads": 2}),
        Case(whole, {"num_heads": 1}, label="where there is one head"),
        Case(
            (normal(random, 2, 2, 6), keys, values),
            {"num_heads": 3},
            label="where there are fewer queries than keys",
        ),
    ]


HINTS = """
Forward does three splits, a core, and one join. Backward does one of something, the core's backward, and
three of something.

split_heads needs the number of heads, which is not saved by itself but is one of q's axes. The gradient that
comes in has the shape of context.

Take the gradient of context apart into heads; compute the gradients of the weights, v, the scores, q and k
with heads apart; put the last three together. No reshape of your own is needed anywhere.
"""

EXERCISE = Exercise(
    name="heads",
    statement=__doc__,
    solution=attention_backward,
    forward=attention_forward,
    cases=cases,
    tools=("np", "math", "split_heads", "join_heads", "softmax_backward"),
    op="attention",
    hints=paragraphs(HINTS),
)
