"""Softmax: turn scores into weights that are positive and sum to 1.

Equation
    y_i = exp(x_i) / Σ_k exp(x_k)          over the last axis

Shapes
    x (..., n)  ->  y (..., n); every row on its own.

Derivation
    Every output depends on every input of its row, through the shared sum:
        ∂y_i/∂x_j = y_i ([i = j] - y_j)
    Summed over i with d_y_i in front:
        d_x_j = y_j ( d_y_j - Σ_i d_y_i y_i )
    The second term is one number per row. It takes care that the d_x of a row sum to zero: adding the same
    number to all scores changes nothing, so there is no gradient in that direction.

Saved
    The output: the gradient is a function of y alone.

The bug that looks right
    d_x = y (1 - y) d_y, the sigmoid's rule. It is the diagonal of the true Jacobian, and points roughly the
    right way, so the loss falls.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from numpy_gpt.arrays import Array, deliver


class SoftmaxSaved(NamedTuple):
    """What softmax_backward needs."""

    y: Array  # (..., n): the whole Jacobian is made of it


def softmax_forward(x: Array) -> tuple[Array, SoftmaxSaved]:
    """Return weights over the last axis.

    The largest score of each row is taken away first: it changes nothing in the quotient, and no exp can
    overflow. A score of minus infinity gets the weight zero exactly.

    Args:
        x: (..., n) float; every row needs one score above minus infinity.

    Returns:
        y (..., n), and what backward needs.
    """
    shifted = x - x.max(axis=-1, keepdims=True)  # (..., n)
    exponentials = np.exp(shifted)  # (..., n)
    y = exponentials / exponentials.sum(axis=-1, keepdims=True)  # (..., n)
    return y, SoftmaxSaved(y)


def softmax_backward(
    d_y: Array, saved: SoftmaxSaved, *, out: tuple[Array | None, ...] | None = None
) -> tuple[Array]:
    """Return (d_x (..., n),)."""
    (d_x,) = out or (None,)
    (y,) = saved
    # y = exponentials / their sum over the row, in which every x of the row has a part (derivation above)
    row_term = np.sum(d_y * y, axis=-1, keepdims=True)  # (..., 1)
    d_x = deliver(y * (d_y - row_term), d_x)  # (..., n)
    return (d_x,)
