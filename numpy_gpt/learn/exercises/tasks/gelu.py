"""GELU: a gate for every number.

Between its two large matrices a block lets every number through in proportion to how large it is: y = x g(x),
where the gate g goes smoothly from 0 to 1. It is the one place of the feed-forward part that is not linear;
without it the two matrices would be one.

x is used twice, as the number that wants through and inside the gate that decides, and what is used twice
collects from both uses. That is all the product rule says.

The gate comes in two forms, the exact one and the one that GPT-2 uses, which replaces an integral by tanh.
They differ by less than a thousandth, so the slope of one behind the other's forward is a mistake that hardly
shows. Backward has to ask which form it is.

Shapes
    x, y, gate, d_y, d_x: all alike, any shape. Every number is on its own.

Task
    d_x, for approximate == "tanh" and for approximate == "none":
    1. what x gets as the number that is let through,
    2. what it gets through the gate: the slope of tanh(u) in u is 1 - tanh(u)², and the slope of
       the normal distribution function, which the exact gate is, is the normal density.
"""

from __future__ import annotations

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.learn.exercises.exercise import Case, Exercise, normal, paragraphs
from numpy_gpt.ops.gelu import GeluSaved, gelu_backward, gelu_forward


def gelu_steps(d_y: Array, saved: GeluSaved) -> dict[str, Array]:
    """Return the gradients of forward's other variables, which a learner may want on the way."""
    x, gate, approximate = saved
    d_gate = d_y * x  # (...)
    if approximate == "none":
        return {"d_gate": d_gate}
    return {"d_gate": d_gate, "d_u": d_gate * 2 * gate * (1 - gate)}


def cases(random: np.random.Generator) -> list[Case]:
    """Both forms."""
    x = normal(random, 3, 5)
    return [
        Case((x,), {"approximate": "tanh"}),
        Case((x,), {"approximate": "none"}, label='where approximate is "none"'),
    ]


HINTS = """
y is a product of two factors, and both are functions of x. Write down the product rule with g for the gate
before you look at what the gate is.

One half of the product rule needs only what is saved. The other needs the slope of the gate: for tanh a chain
of two steps, from x to u and from u to the gate.

forward's gate is half of one plus tanh(u). So tanh(u) is known from the gate without computing it again, and
so is its slope, a product of the gate and one minus the gate. u is a polynomial of x.
"""

EXERCISE = Exercise(
    name="gelu",
    statement=__doc__,
    solution=gelu_backward,
    forward=gelu_forward,
    cases=cases,
    steps=gelu_steps,
    tools=("np", "math", "SQRT_2_OVER_PI", "CUBIC"),
    op="gelu",
    hints=paragraphs(HINTS),
)
