"""linear, tuned: the three products in memory that is used again, shared by the team's threads.

How it differs from the book: outputs come from the workspace, and every product is cut among threads along
its longer axis (`products.product`).
"""

from __future__ import annotations

import numpy as np

from numpy_gpt.arrays import Array, deliver
from numpy_gpt.kernels.products import column_sums, product
from numpy_gpt.kernels.workspace import empty
from numpy_gpt.ops.linear import LinearSaved
from numpy_gpt.parallel import share


def linear_forward(x: Array, weight: Array, bias: Array | None) -> tuple[Array, LinearSaved]:
    """Return y = x Wᵀ + b; see `numpy_gpt.ops.linear_forward`."""
    rows = x.reshape(-1, x.shape[-1])  # (N, in)
    y = empty((len(rows), len(weight)), np.result_type(x, weight))  # (N, out)
    product(rows, weight.T, out=y)
    if bias is not None:
        share(lambda i, j: np.add(y[i:j], bias, out=y[i:j]), len(y), cost=len(bias))
    return y.reshape(*x.shape[:-1], len(weight)), LinearSaved(x, weight, bias is not None)


def linear_backward(
    d_y: Array, saved: LinearSaved, *, out: tuple[Array | None, ...] | None = None
) -> tuple[Array, Array, Array | None]:
    """Return (d_x (..., in), d_weight (out, in), d_bias (out,) or None)."""
    d_x, d_weight, d_bias = out or (None, None, None)
    x, weight, has_bias = saved
    rows = x.reshape(-1, x.shape[-1])  # (N, in)
    d_rows = d_y.reshape(-1, d_y.shape[-1])  # (N, out)

    # y += bias
    d_bias = column_sums(d_rows, d_bias) if has_bias else None  # (out,)
    # y = rows @ weight.T
    if d_weight is None:
        d_weight = empty(weight.shape, np.result_type(d_rows, rows))
    product(d_rows.T, rows, out=d_weight)  # (out, in)
    d_x_rows = product(d_rows, weight, out=empty(rows.shape, np.result_type(d_rows, weight)))  # (N, in)
    return deliver(d_x_rows.reshape(x.shape), d_x), d_weight, d_bias
