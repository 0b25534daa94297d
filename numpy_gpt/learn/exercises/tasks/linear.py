"""Linear: the same weighted sums for every token.

Most of a GPT's numbers are weights of this one operation. It is the line of exercise 1 with many inputs and
many outputs: y[n, o] is a sum over i of x[n, i] times weight[o, i], plus bias[o]. Rows n are tokens, and
every row uses the same weight and the same bias.

Think of one number at a time, and ask where forward uses it. One x[n, i] stands in y[n, o] for every output
o, so its gradient is a sum over o. One weight[o, i] stands in y[n, o] for every row n, so its gradient is a
sum over all tokens of all sequences. So does bias[o]. A matrix product is a sum, and each of these sums is
one.

You need not memorise which factor is transposed: only one arrangement has the right shape. But do not trust
the shape alone. Where in equals out, as in much of a GPT, a wrong arrangement fits too.

Shapes
    x (..., in)      weight (out, in)      bias (out,) or None      y, d_y (..., out)
    "..." is (B, T) here, but may be any axes: they are flattened to one axis of N rows, and restored.

Task
    1. Flatten d_y to rows (N, out), as forward flattens x.
    2. d_bias (out,), or None where there is no bias.
    3. d_weight (out, in).
    4. d_x (..., in), with its axes restored.
"""

from __future__ import annotations

import numpy as np

from numpy_gpt.learn.exercises.exercise import Case, Exercise, normal, paragraphs
from numpy_gpt.ops.linear import linear_backward, linear_forward


def cases(random: np.random.Generator) -> list[Case]:
    """With and without a bias; another number of inputs than outputs, then as many."""
    x, weight, bias = normal(random, 2, 3, 5), normal(random, 4, 5, fan_in=5), normal(random, 4)
    square = normal(random, 5, 5, fan_in=5)
    return [
        Case((x, weight, bias)),
        Case((x, square, normal(random, 5)), label="where in equals out"),
        Case((x, weight, None), label="where bias is None"),
        Case((normal(random, 7, 5), weight, bias), label="where x has two axes"),
    ]


HINTS = """
Write the shapes in two columns: rows (N, in), weight (out, in), and the upstream gradient as rows (N, out).
Each gradient you want has one of the first two shapes, and is made of the other two arrays.

The bias is used once for every row, so its gradient adds up all rows. The weight is used once for every row
too, each time multiplied by that row's input.

In the product that gives d_weight the axis N must be the one that is summed away; in the product that gives
d_x it is out. Look which of the two arrays has to be turned for that.
"""

EXERCISE = Exercise(
    name="linear",
    statement=__doc__,
    solution=linear_backward,
    forward=linear_forward,
    cases=cases,
    tools=("np",),
    op="linear",
    hints=paragraphs(HINTS),
)
