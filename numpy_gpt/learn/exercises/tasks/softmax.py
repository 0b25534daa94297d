"""Softmax: scores become shares.

Softmax makes of any row of scores positive numbers that sum to 1. Attention uses it to say how much of each
earlier token to read; the loss uses it to say how likely each next token is.

It is the first operation in which every output depends on every input of its row. Raise one score, and its
own share grows while all others shrink, because all are divided by the same sum. So a d_x has two parts: what
comes through its own exponential, and what comes through the shared sum. The second is easily forgotten, and
the loss still falls without it.

There is a check that needs no formula. Add the same number to all scores of a row: y stays as it is. So along
that direction there is no gradient, which means that the d_x of a row sum to zero.

Shapes
    x, y, d_y, d_x (..., n); every row over the last axis is on its own.

Task
    d_x (..., n), from y and d_y alone: x is not saved, and not needed.
"""

from __future__ import annotations

import numpy as np

from numpy_gpt.learn.exercises.exercise import Case, Exercise, normal, paragraphs
from numpy_gpt.ops.softmax import softmax_backward, softmax_forward


def cases(random: np.random.Generator) -> list[Case]:
    """Rows in two and in four dimensions."""
    return [
        Case((normal(random, 3, 5),)),
        Case((normal(random, 2, 3, 4, 5),), label="where x has four axes, as attention's scores"),
    ]


HINTS = """
Take one row, and one pair of an output i and an input j. How does output i move when input j is nudged? The
case i = j differs from all others.

If i is not j, input j reaches output i through the sum alone: a larger sum makes output i smaller, in
proportion to both shares. If i is j, there is the exponential's own slope in addition.

Sum over all outputs i, each weighted with its d_y. What comes through the shared sum is one number for the
whole row: the average of d_y, with the shares as weights.
"""

EXERCISE = Exercise(
    name="softmax",
    statement=__doc__,
    solution=softmax_backward,
    forward=softmax_forward,
    cases=cases,
    tools=("np",),
    op="softmax",
    hints=paragraphs(HINTS),
)
