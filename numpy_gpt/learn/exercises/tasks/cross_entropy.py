"""Cross-entropy: how surprised the model is.

For every position the model gives a score to each token of the vocabulary. The loss is minus the logarithm of
the probability that it gave to the token that really came, on average over the positions. A target of -100
means that nobody minds what the model says there: that position adds nothing to the loss, and is not counted.

Softmax and logarithm could be undone one after the other. But the logarithm divides by a probability that may
be nearly zero, and softmax multiplies by it again. Differentiate both together, and the two cancel: what is
left is the plainest gradient of the whole model, "what was predicted" against "what came". Every gradient in
a GPT starts from this one.

Shapes
    logits (..., V)      targets (...)      loss and d_loss one number      probabilities (..., V)
    divisor: what the summed surprise was divided by, usually the number of targets that count.

Task
    d_logits (..., V): mind the targets of -100, the divisor, and d_loss, which is not always 1.
    The second gradient is None: a target is a choice among tokens, and cannot be nudged.
"""

from __future__ import annotations

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.learn.exercises.exercise import Case, Exercise, normal, paragraphs
from numpy_gpt.ops.cross_entropy import CrossEntropySaved, cross_entropy_backward, cross_entropy_forward
from numpy_gpt.ops.ids import IGNORED_TARGET


def cross_entropy_steps(d_loss: float, saved: CrossEntropySaved) -> dict[str, Array]:
    """Return the gradients of forward's other variables, which a learner may want on the way."""
    probabilities, targets, divisor = saved
    counted = targets != IGNORED_TARGET  # (...)
    d_log_probability = -(d_loss / divisor) * counted[..., None]  # (..., 1)
    one_hot: Array = np.arange(probabilities.shape[-1]) == targets[..., None]  # (..., V)
    return {
        "d_log_probability": d_log_probability,
        "d_shifted": d_log_probability * (one_hot - probabilities),  # (..., V)
    }


def cases(random: np.random.Generator) -> list[Case]:
    """With an ignored target, with a divisor of its own, and with nothing to learn from."""
    logits, targets = normal(random, 2, 3, 5), random.integers(0, 5, (2, 3))
    ignored = targets.copy()
    ignored[1, 0] = IGNORED_TARGET
    return [
        Case((logits, targets)),
        Case((logits, ignored), label="where a target is -100"),
        Case((logits, ignored), {"divisor": 11}, label="where the divisor is given"),
    ]


HINTS = """
Minus the logarithm of a quotient is a difference: the logarithm of the sum of exponentials, minus the score
of the target. Differentiate these two.

The slope of the logarithm of a sum of exponentials, with respect to one score, is something that forward has
already computed and saved. The other part is a score itself, and only the target's.

So each counted row is the prediction with 1 taken away in one place, a row that sums to zero. Then comes what
the loss was divided by, and d_loss, and nothing at all for the rows that do not count.
"""

EXERCISE = Exercise(
    name="cross_entropy",
    statement=__doc__,
    solution=cross_entropy_backward,
    forward=cross_entropy_forward,
    cases=cases,
    steps=cross_entropy_steps,
    tools=("np", "IGNORED_TARGET"),
    op="cross_entropy",
    hints=paragraphs(HINTS),
)
