"""Bugs of the softmax operation."""

from __future__ import annotations

import numpy as np

from numpy_gpt.arrays import Array, deliver
from numpy_gpt.ops.softmax import SoftmaxSaved
from numpy_gpt.verify.bugs.bug import Bug, Out
from numpy_gpt.verify.bugs.subject import with_op
from numpy_gpt.verify.kinds import Kind


def row_term_forgotten(d_y: Array, saved: SoftmaxSaved, *, out: Out = None) -> tuple[Array]:
    """Wrong: each output as a function of its own input alone, but for the sum."""
    (d_x,) = out or (None,)
    (y,) = saved
    return (deliver(y * d_y, d_x),)


def sigmoid_rule(d_y: Array, saved: SoftmaxSaved, *, out: Out = None) -> tuple[Array]:
    """Wrong: the diagonal of the Jacobian."""
    (d_x,) = out or (None,)
    (y,) = saved
    return (deliver(y * (1 - y) * d_y, d_x),)


def overflowing_forward(x: Array) -> tuple[Array, SoftmaxSaved]:
    """Wrong for large scores: exp overflows."""
    exponentials = np.exp(x)  # (..., n)
    y = exponentials / exponentials.sum(axis=-1, keepdims=True)  # (..., n)
    return y, SoftmaxSaved(y)


def in_place_forward(x: Array) -> tuple[Array, SoftmaxSaved]:
    """Wrong: writes into its input."""
    x -= x.max(axis=-1, keepdims=True)
    exponentials = np.exp(x)  # (..., n)
    y = exponentials / exponentials.sum(axis=-1, keepdims=True)  # (..., n)
    return y, SoftmaxSaved(y)


BUGS = (
    Bug(
        name="softmax-row-term-forgotten",
        where="softmax",
        title="The sum over the row is missing in softmax's gradient",
        line="return (deliver(y * d_y, d_x),)",
        lesson="The derivative of exp(x) is exp(x) again, so y d_y comes to mind. But every output also "
        "depends on every input through the sum it is divided by, and that path takes Σ d_y y away from "
        "each entry: d_x = y (d_y - Σ d_y y). A sign that it is there: the d_x of a row sum to zero.",
        in_practice="With it inside attention the loss falls as with right code. A fresh model's check "
        "passes too: there the weights are nearly uniform, and the gradients of queries and keys smaller "
        "than the tolerance.",
        fools=("loss_falls", "fresh_weights"),
        subject=with_op("softmax", backward=row_term_forgotten),
        kind=Kind.SOFTMAX_ROW_TERM,
    ),
    Bug(
        name="softmax-sigmoid-rule",
        where="softmax",
        title="The sigmoid's derivative used for softmax",
        line="return (deliver(y * (1 - y) * d_y, d_x),)",
        lesson="y (1 - y) is the derivative of the sigmoid, and of softmax's output i with respect to its "
        "own input i. The outputs of the other inputs, -y_i y_j, are left out: the Jacobian is a full "
        "matrix and this is its diagonal. In place of the sum Σ d_y y over the row stands the one term "
        "d_y_i y_i.",
        in_practice="With it inside attention the loss falls as with right code, and a fresh model's check "
        "passes. The gradient of W_key's bias, which must be zero, is not: a check that needs no second "
        "opinion.",
        fools=("loss_falls", "fresh_weights"),
        subject=with_op("softmax", backward=sigmoid_rule),
        kind=Kind.SOFTMAX_ROW_TERM,
    ),
    Bug(
        name="softmax-overflows",
        where="softmax",
        title="The largest score is not taken away before exp",
        line="exponentials = np.exp(x)  # (..., n)",
        lesson="As mathematics the line is right. As arithmetic it is infinite from a score of 89 in "
        "float32 and of 710 in float64, and infinity over infinity is NaN. Softmax ignores a number added "
        "to all scores of a row, so the largest can be taken away first: then no exp exceeds 1.",
        in_practice="Nothing shows while scores are small, in training or in any check at ordinary values. "
        "A row of scores around 800 is NaN, and so is everything computed from it.",
        fools=("loss_falls", "one_of_everything", "fresh_weights"),
        subject=with_op("softmax", forward=overflowing_forward),
    ),
    Bug(
        name="softmax-writes-into-its-input",
        where="softmax",
        title="Softmax shifts its caller's scores",
        line="x -= x.max(axis=-1, keepdims=True)",
        lesson="`x -= m` saves an array of the size of all attention scores, and looks like `x = x - m`. "
        "But x is the caller's array, and NumPy passes no copies: whoever still needs the scores, to print "
        "them or for another head, now has other numbers. To write in place is right only for what you "
        "made yourself.",
        in_practice="Every output and every gradient is right, and training is the same to the last bit. "
        "What gives it away is to compare the input before and after the call, or to hand in a read-only "
        "array.",
        fools=("loss_falls", "gradient_check", "ones_upstream", "one_of_everything", "fresh_weights"),
        subject=with_op("softmax", forward=in_place_forward),
    ),
)
