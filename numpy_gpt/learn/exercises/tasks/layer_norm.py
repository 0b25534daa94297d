"""Layer norm: every token to mean 0 and variance 1.

Before each branch of a block, every token's vector is centred, divided by its own standard deviation, and
then scaled and shifted by a weight and a bias per channel that all tokens share.

Two things make this the exercise that everybody gets wrong once. The weight and the bias are shared, so their
gradients add up over every token of every sequence: whatever forward broadcasts, backward sums. And x is used
more than once. It is the number that is normalised, but mean and variance are made of it as well: nudge one
channel of a token, and the mean moves, and with it all channels; the variance moves, and all channels are
scaled. Three roads lead from x to normalized, and d_x collects from all three.

There are checks that need no formula. Add a constant to all channels of a token, or scale them: normalized
stays as it is (but for eps). So the d_x of a token sum to zero, and so do d_x times normalized.

Shapes
    x, y, normalized, d_y, d_x (..., C)      weight, bias (C,)      inverse_std (..., 1)

Task
    1. d_bias (C,) and d_weight (C,).
    2. d_normalized (..., C).
    3. d_x (..., C), by the three roads. Go line by line with d_inverse_std, d_variance, d_centered, d_mean
       (each the whole gradient of forward's variable), or derive one formula: both are right.
    x is not saved. What you need of it can be made from normalized and inverse_std.
"""

from __future__ import annotations

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.learn.exercises.exercise import Case, Exercise, normal, paragraphs
from numpy_gpt.ops.layer_norm import LayerNormSaved, layer_norm_backward, layer_norm_forward


def layer_norm_steps(d_y: Array, saved: LayerNormSaved) -> dict[str, Array]:
    """Undo forward line by line, and return the gradients of its other variables."""
    normalized, inverse_std, weight = saved
    centered = normalized / inverse_std  # (..., C)
    d_normalized = d_y * weight  # (..., C)
    d_inverse_std = np.sum(d_normalized * centered, axis=-1, keepdims=True)  # (..., 1)
    d_variance = d_inverse_std * -0.5 * inverse_std**3  # (..., 1)
    d_centered = d_normalized * inverse_std + d_variance * 2 * centered / d_y.shape[-1]  # (..., C)
    return {
        "d_normalized": d_normalized,
        "d_inverse_std": d_inverse_std,
        "d_variance": d_variance,
        "d_centered": d_centered,
        "d_mean": -np.sum(d_centered, axis=-1, keepdims=True),  # (..., 1)
    }


def cases(random: np.random.Generator) -> list[Case]:
    """Three axes, as in a model, then two, with another eps."""
    weight, bias = normal(random, 5), normal(random, 5)
    return [
        Case((normal(random, 2, 3, 5), weight, bias)),
        Case((normal(random, 7, 5), weight, bias), {"eps": 0.1}, label="where x has two axes and eps is 0.1"),
    ]


HINTS = """
Write down which of forward's lines use x, centered, variance and so on, and how often. centered is used in
two lines and x in two: each of them collects twice.

Undo the lines in this order: normalized (which gives a part of d_centered, and d_inverse_std), inverse_std,
variance (which gives the other part of d_centered), centered, mean. Where a variable is (..., 1) and was
broadcast over the channels, its gradient is a sum over the channels.

All of it can be gathered into one formula: d_normalized with two things taken away, the first the mean over
the channels of something, the second along normalized itself; and all of that scaled. The two checks in the
text say what has to be taken away so that the two sums are zero.
"""

EXERCISE = Exercise(
    name="layer_norm",
    statement=__doc__,
    solution=layer_norm_backward,
    forward=layer_norm_forward,
    cases=cases,
    steps=layer_norm_steps,
    tools=("np",),
    op="layer_norm",
    hints=paragraphs(HINTS),
)
