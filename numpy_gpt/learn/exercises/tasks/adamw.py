"""AdamW: what to do with a gradient.

A gradient says which way is down, not how far to go. Plain descent, given below, takes a step in proportion
to the gradient: too long where slopes are steep, too short where they are flat. Adam gives every weight a
step of its own. It keeps two running means, m of the gradient and v of its square, and divides the first by
the root of the second: a weight whose gradient keeps its sign moves at full rate, however small the gradient
is, and one whose gradient only jitters hardly moves.

Both means begin at zero, so at first they are too small, by a factor that is known: after `step` steps of
which this is one, 1 - beta**step. Dividing by it is the correction that makes m_hat and v_hat.

The W is for weight decay: every weight shrinks a little in each step, in proportion to itself and to the
learning rate. It does so apart from the gradient; put into the gradient it would be divided by the root of v
too, and then decay least where gradients are large.

Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2; what
torch.optim.AdamW does.

Shapes
    theta (any shape): the weights.  gradient, m, v, m_hat, v_hat: like theta.  All else one number each.

Task
    1. m and v: the running means with this gradient counted in, the new one with weight 1 - beta.
    2. m_hat and v_hat: corrected.
    3. theta: decayed, then moved by learning_rate times m_hat over (the root of v_hat, plus eps).
    Return new arrays; leave the ones you were given as they are. Then run the file: it races the two.
    (`numpy-gpt train --ops` takes operations only: a model's own AdamW has all weights in one flat vector.)
"""

from __future__ import annotations

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.learn.exercises.exercise import Case, Exercise, normal, paragraphs


def descent_step(theta: Array, gradient: Array, *, learning_rate: float) -> Array:
    """Return the weights after one step of plain gradient descent."""
    return theta - learning_rate * gradient


def adamw_step(
    theta: Array,
    gradient: Array,
    m: Array,
    v: Array,
    *,
    step: int,
    learning_rate: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> tuple[Array, Array, Array]:
    """Return (theta, m, v) after one step; `step` is 1 in the first."""
    m = beta1 * m + (1 - beta1) * gradient  # like theta
    v = beta2 * v + (1 - beta2) * gradient * gradient  # like theta
    m_hat = m / (1 - beta1**step)  # like theta
    v_hat = v / (1 - beta2**step)  # like theta
    theta = theta * (1 - learning_rate * weight_decay)  # like theta
    theta = theta - learning_rate * m_hat / (np.sqrt(v_hat) + eps)  # like theta
    return theta, m, v


def race(steps: int = 50) -> None:
    """Send both optimizers down a valley that is a hundred times steeper one way than the other."""
    steepness = np.array([100.0, 1.0])
    settings = {"learning_rate": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.0}
    plain = theta = np.array([1.0, 1.0])
    m = v = np.zeros(2)
    for step in range(1, steps + 1):
        plain = descent_step(plain, steepness * plain, learning_rate=0.019)  # 0.02 would never settle
        theta, m, v = adamw_step(theta, steepness * theta, m, v, step=step, **settings)
    print(f"after {steps} steps: plain descent at {plain}, AdamW at {theta}; the bottom is at [0, 0]")


def cases(random: np.random.Generator) -> list[Case]:
    """Early and late, with everything on, and with one thing at a time switched off."""
    theta, gradient, m = (normal(random, 2, 3) for _ in range(3))
    v = normal(random, 2, 3) ** 2
    settings = {"learning_rate": 0.3, "beta1": 0.8, "beta2": 0.95, "eps": 0.2, "weight_decay": 0.7}
    arrays = (theta, gradient, m, v)
    return [
        Case(arrays, settings | {"step": 3}),
        Case(arrays, settings | {"step": 3, "weight_decay": 0.0}, "without weight decay"),
        Case(arrays, settings | {"step": 3, "eps": 0.0}, "where eps is 0"),
        Case(arrays, settings | {"step": 10**6}, "a million steps later"),
    ]


HINTS = """
A running mean with beta 0.9 keeps nine tenths of what it was and takes one tenth of what is new.

step counts from 1, and the correction divides by one minus beta to that power: in the first step m_hat is the
gradient itself. Try it with m = 0.

Compute m, v, m_hat, v_hat in this order, each from the one before. Shrink theta by the share learning rate
times decay, and then subtract. eps stands beside the root, not under it.
"""

EXERCISE = Exercise(
    name="adamw",
    statement=__doc__,
    solution=adamw_step,
    cases=cases,
    given=(descent_step,),
    tools=("np",),
    names=("m", "v", "m_hat", "v_hat", "theta"),
    main=race,
    look={
        "m": "the running mean: how much of the old one stays, and how much the new gradient counts; the two "
        "shares make 1",
        "v": "the running mean of the square: the square of what, and which of the two betas",
        "m_hat": "the correction of m: which beta, to which power, and is m divided by it or multiplied",
        "v_hat": "the correction of v: which beta, to which power, and is v divided by it or multiplied",
        "theta": "the last lines: what is decayed, what is subtracted, and what the learning rate multiplies",
        "without weight decay": "the decay: what shrinks, by which factor, and who knows of it",
        "where eps is 0": "eps: what it is added to, inside the root or outside, and before what",
        "a million steps later": "the correction, which then no longer matters",
    },
    hints=paragraphs(HINTS),
)
