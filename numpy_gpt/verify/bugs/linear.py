"""Bugs of the linear operation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from numpy_gpt.arrays import Array, deliver
from numpy_gpt.ops.linear import LinearSaved, linear_forward
from numpy_gpt.verify.bugs.bug import Bug, Out
from numpy_gpt.verify.bugs.subject import with_op
from numpy_gpt.verify.kinds import Kind


def transposed_backward(d_y: Array, saved: LinearSaved, *, out: Out = None) -> tuple[Array | None, ...]:
    """Wrong: d_weight is (in, out)."""
    d_x, d_weight, d_bias = out or (None, None, None)
    x, weight, has_bias = saved
    rows = x.reshape(-1, x.shape[-1])  # (N, in)
    d_rows = d_y.reshape(-1, d_y.shape[-1])  # (N, out)

    d_bias = deliver(d_rows.sum(axis=0), d_bias) if has_bias else None  # (out,)
    d_weight = deliver(rows.T @ d_rows, d_weight)
    d_x = deliver((d_rows @ weight).reshape(x.shape), d_x)  # (..., in)
    return d_x, d_weight, d_bias


def reshaped_backward(d_y: Array, saved: LinearSaved, *, out: Out = None) -> tuple[Array | None, ...]:
    """Wrong: d_weight has the right shape and the wrong order."""
    d_x, d_weight, d_bias = out or (None, None, None)
    x, weight, has_bias = saved
    rows = x.reshape(-1, x.shape[-1])  # (N, in)
    d_rows = d_y.reshape(-1, d_y.shape[-1])  # (N, out)

    d_bias = deliver(d_rows.sum(axis=0), d_bias) if has_bias else None  # (out,)
    d_weight = deliver((rows.T @ d_rows).reshape(weight.shape), d_weight)
    d_x = deliver((d_rows @ weight).reshape(x.shape), d_x)  # (..., in)
    return d_x, d_weight, d_bias


def averaged_bias_backward(d_y: Array, saved: LinearSaved, *, out: Out = None) -> tuple[Array | None, ...]:
    """Wrong: d_bias is a mean."""
    d_x, d_weight, d_bias = out or (None, None, None)
    x, weight, has_bias = saved
    rows = x.reshape(-1, x.shape[-1])  # (N, in)
    d_rows = d_y.reshape(-1, d_y.shape[-1])  # (N, out)

    d_bias = deliver(d_rows.mean(axis=0), d_bias) if has_bias else None
    d_weight = deliver(d_rows.T @ rows, d_weight)  # (out, in)
    d_x = deliver((d_rows @ weight).reshape(x.shape), d_x)  # (..., in)
    return d_x, d_weight, d_bias


class AccumulatingSaved(NamedTuple):
    """What forward keeps, and a place in which backward sums."""

    x: Array  # (..., in)
    weight: Array  # (out, in)
    has_bias: bool
    d_weight: Array  # (out, in), zero at first


def accumulating_forward(x: Array, weight: Array, bias: Array | None) -> tuple[Array, AccumulatingSaved]:
    """Right, but for the place that it prepares."""
    y, saved = linear_forward(x, weight, bias)
    return y, AccumulatingSaved(*saved, np.zeros_like(weight))


def accumulating_backward(
    d_y: Array, saved: AccumulatingSaved, *, out: Out = None
) -> tuple[Array | None, ...]:
    """Wrong: a second call adds to the first."""
    d_x, d_weight, d_bias = out or (None, None, None)
    x, weight, has_bias, sums = saved
    rows = x.reshape(-1, x.shape[-1])  # (N, in)
    d_rows = d_y.reshape(-1, d_y.shape[-1])  # (N, out)

    d_bias = deliver(d_rows.sum(axis=0), d_bias) if has_bias else None  # (out,)
    sums += d_rows.T @ rows
    d_weight = deliver(sums, d_weight)
    d_x = deliver((d_rows @ weight).reshape(x.shape), d_x)  # (..., in)
    return d_x, d_weight, d_bias


BUGS = (
    Bug(
        name="linear-weight-gradient-transposed",
        where="linear",
        title="The weight's gradient is its transpose",
        line="d_weight = deliver(rows.T @ d_rows, d_weight)",
        lesson="Textbooks write y = x W with W (in, out), and there d_W = xᵀ d_y is right. Here, as in "
        "torch, weights are (out, in) and y = x Wᵀ: entry W_oi collects d_y_no x_ni, so d_W = d_yᵀ x. The "
        "shapes betray the mistake wherever in and out differ. Where they are equal, as in a block's "
        "out_proj, everything fits and every number stands in another's place.",
        in_practice="A model does not get through its first step: the (3C, C) matrix of queries, keys and "
        "values raises. An operation tried on square matrices alone looks right as long as only shapes are "
        "looked at; every comparison of numbers fails.",
        fools=(),
        subject=with_op("linear", backward=transposed_backward),
        kind=Kind.TRANSPOSED,
    ),
    Bug(
        name="linear-weight-gradient-reshaped",
        where="linear",
        title="A reshape where a transpose belongs",
        line="d_weight = deliver((rows.T @ d_rows).reshape(weight.shape), d_weight)",
        lesson="Somebody had the transposed gradient, saw `cannot broadcast (5, 3) into (3, 5)`, and made "
        "the error go away. A reshape keeps the numbers in their order in memory and only counts them off "
        "differently; a transpose moves them. An error about shapes is a question about the mathematics, "
        "and `reshape` is never the answer to it.",
        in_practice="The loss falls, slower, and ends far above that of right code: each matrix moves at "
        "random where it should move with purpose, and biases, norms and embeddings learn around it. Any "
        "comparison with finite differences fails.",
        fools=("loss_falls",),
        subject=with_op("linear", backward=reshaped_backward),
        kind=Kind.PERMUTED_AXES,
    ),
    Bug(
        name="linear-bias-gradient-averaged",
        where="linear",
        title="The bias's gradient is a mean over tokens instead of a sum",
        line="d_bias = deliver(d_rows.mean(axis=0), d_bias) if has_bias else None",
        lesson="Forward adds the same bias to every row, so backward adds up the gradients of all rows. "
        "The mean feels natural because the loss is one, but that division was done in the loss already "
        "and stands in d_y: dividing again makes the gradient too small by the number of rows.",
        in_practice="The loss falls as with right code. AdamW divides every gradient by its own running "
        "size, so a constant factor has nearly no effect, in this and in every other bug of its kind.",
        fools=("loss_falls",),
        subject=with_op("linear", backward=averaged_bias_backward),
        kind=Kind.CONSTANT_FACTOR,
    ),
    Bug(
        name="linear-gradient-accumulates",
        where="linear",
        title="Backward adds to what an earlier backward left",
        line="sums += d_rows.T @ rows",
        lesson="`+=` is the right habit where several paths meet in one gradient, and it is tempting to "
        "have it everywhere and to set the sum to zero somewhere else. Here somewhere else is forward, so "
        "two backward passes after one forward, as for two losses on one set of logits, give the second of "
        "them both gradients. A backward pass that overwrites has no memory and cannot go wrong like this.",
        in_practice="Nothing shows. Training calls backward once per forward, and so does every gradient "
        "check. Only a second backward with the same `saved` gives another answer than the first.",
        fools=("loss_falls", "gradient_check", "ones_upstream", "one_of_everything", "fresh_weights"),
        subject=with_op("linear", forward=accumulating_forward, backward=accumulating_backward),
        kind=Kind.STALE_ACCUMULATION,
    ),
)
