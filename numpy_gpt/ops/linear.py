"""Linear: the same weighted sums for every token vector, plus a bias.

Equation
    y_no = Σ_i x_ni W_oi + b_o             y = x Wᵀ + b;  n runs over all tokens of all sequences

Shapes
    x (..., in), weight W (out, in), bias b (out,) or None  ->  y (..., out)
    The leading axes are only "more rows": they are flattened to one axis n, and restored at the end.

Derivation
    Let d_y_no = ∂loss/∂y_no. Each input enters y in the places that the equation shows, and the chain rule
    sums over those places:
        x_ni is in y_no for every o:       d_x_ni = Σ_o d_y_no W_oi          d_x = d_y W
        W_oi is in y_no for every n:       d_W_oi = Σ_n d_y_no x_ni          d_W = d_yᵀ x
        b_o  is in y_no for every n:       d_b_o  = Σ_n d_y_no · 1           d_b = d_yᵀ 1
    The bias is a weight whose input is always 1, and its gradient is that weight's.
    No need to memorise transposes: only one arrangement of the factors has the right shape.

Saved
    x, because d_W needs it; W, because d_x needs it. The bias only shifts, so its value is not needed.

The bug that looks right
    `d_weight = x.T @ d_y`, the transpose of the truth. It fits whenever in equals out, as in every one of
    W_query, W_key, W_value and out_proj, and the loss still falls a little.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from numpy_gpt.arrays import Array, deliver


class LinearSaved(NamedTuple):
    """What linear_backward needs."""

    x: Array  # (..., in): the other factor of d_weight
    weight: Array  # (out, in): the other factor of d_x
    has_bias: bool  # an absent bias has no gradient


def linear_forward(x: Array, weight: Array, bias: Array | None) -> tuple[Array, LinearSaved]:
    """Return y = x Wᵀ + b.

    Args:
        x: (..., in) float.
        weight: (out, in) float, stored as torch stores it.
        bias: (out,) float, or None.

    Returns:
        y (..., out), and what backward needs.
    """
    rows = x.reshape(-1, x.shape[-1])  # (N, in)
    y = rows @ weight.T  # (N, out)
    if bias is not None:
        y += bias
    return y.reshape(*x.shape[:-1], len(weight)), LinearSaved(x, weight, bias is not None)


def linear_backward(
    d_y: Array, saved: LinearSaved, *, out: tuple[Array | None, ...] | None = None
) -> tuple[Array, Array, Array | None]:
    """Return (d_x (..., in), d_weight (out, in), d_bias (out,) or None)."""
    d_x, d_weight, d_bias = out or (None, None, None)
    x, weight, has_bias = saved
    rows = x.reshape(-1, x.shape[-1])  # (N, in)
    d_y = d_y.reshape(-1, d_y.shape[-1])  # (N, out), as forward's y before its axes were restored

    # y += bias: the sum over rows. As a product with ones it runs in BLAS, whose many partial sums round
    # half as much as np.sum down a column, which adds row after row.
    ones = np.ones(len(rows), d_y.dtype)  # (N,)
    d_bias = np.matmul(ones, d_y, out=d_bias) if has_bias else None  # (out,)
    # y = rows @ weight.T
    d_weight = np.matmul(d_y.T, rows, out=d_weight)  # (out, in)
    d_x = deliver((d_y @ weight).reshape(x.shape), d_x)  # (..., in)
    return d_x, d_weight, d_bias
