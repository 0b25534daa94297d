"""layer_norm, tuned: chunks of rows that stay in cache, with every sum over a row or a column in BLAS.

How it differs from the book: a row's mean and the two means of its backward are products with vectors, its
variance is `np.vecdot`, and all intermediate results live in one chunk's memory. The maths is the same; only
d_normalized is never written down, since both of its means can be had from d_y and its product with n:

    mean_c(d_n) = (d_y · w) / C            mean_c(d_n ∘ n) = ((d_y ∘ n) · w) / C
"""

from __future__ import annotations

import numpy as np

from numpy_gpt.arrays import Array, deliver
from numpy_gpt.kernels.products import column_sums
from numpy_gpt.kernels.workspace import empty
from numpy_gpt.ops.layer_norm import LayerNormSaved
from numpy_gpt.parallel import share_chunks


def layer_norm_forward(
    x: Array, weight: Array, bias: Array, *, eps: float = 1e-5
) -> tuple[Array, LayerNormSaved]:
    """Return each token vector normalised, scaled and shifted; see `numpy_gpt.ops.layer_norm_forward`."""
    C = x.shape[-1]
    rows = x.reshape(-1, C)  # (N, C)
    y = empty(rows.shape, x.dtype)  # (N, C)
    normalized = empty(rows.shape, x.dtype)  # (N, C)
    inverse_std = empty((len(rows), 1), x.dtype)  # (N, 1)
    ones = np.ones((C, 1), x.dtype)

    def normalize(part: slice) -> None:
        n, r = normalized[part], inverse_std[part]  # (n, C), (n, 1)
        np.subtract(rows[part], (rows[part] @ ones) / C, out=n)
        np.vecdot(n, n, out=r[:, 0])
        r /= C
        r += eps
        np.sqrt(r, out=r)
        np.reciprocal(r, out=r)
        n *= r
        np.multiply(n, weight, out=y[part])
        y[part] += bias

    share_chunks(normalize, len(rows), x.itemsize * C)
    saved = LayerNormSaved(normalized.reshape(x.shape), inverse_std.reshape(*x.shape[:-1], 1), weight)
    return y.reshape(x.shape), saved


def layer_norm_backward(
    d_y: Array, saved: LayerNormSaved, *, out: tuple[Array | None, ...] | None = None
) -> tuple[Array, Array, Array]:
    """Return (d_x (..., C), d_weight (C,), d_bias (C,))."""
    d_x, d_weight, d_bias = out or (None, None, None)
    normalized, inverse_std, weight = saved
    C = d_y.shape[-1]
    d_rows, n_rows, r_rows = d_y.reshape(-1, C), normalized.reshape(-1, C), inverse_std.reshape(-1, 1)
    d_x_rows = empty(d_rows.shape, d_y.dtype)  # (N, C)
    d_times_n = empty(d_rows.shape, d_y.dtype)  # (N, C): d_y ∘ n
    averaging = (weight / C)[:, None]  # (C, 1)

    def backward(part: slice) -> None:
        d, n, dn, d_x_part = d_rows[part], n_rows[part], d_times_n[part], d_x_rows[part]  # (n, C) each
        np.multiply(d, n, out=dn)
        mean_of_d = d @ averaging  # (n, 1)
        mean_along_n = dn @ averaging  # (n, 1)
        np.multiply(d, weight, out=d_x_part)  # d_normalized
        d_x_part -= mean_of_d
        d_x_part -= n * mean_along_n
        d_x_part *= r_rows[part]

    share_chunks(backward, len(d_rows), d_y.itemsize * C)
    d_bias = column_sums(d_rows, d_bias)  # (C,)
    d_weight = column_sums(d_times_n, d_weight)  # (C,)
    return deliver(d_x_rows.reshape(d_y.shape), d_x), d_weight, d_bias
