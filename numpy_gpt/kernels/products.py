"""Matrix products, shared by the team's threads."""

from __future__ import annotations

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.parallel import share

MULTIPLY_ADDS = 16
"""That BLAS does in the time in which an element-wise operation touches a number."""


def product(a: Array, b: Array, out: Array) -> Array:
    """Write a @ b into `out` and return it, the longer of its axes cut among the team's threads.

    Args:
        a: (m, k) float.
        b: (k, n) float.
        out: (m, n) float; rows may lie apart, as in a slice of columns.
    """
    m, n = out.shape
    k = a.shape[1]
    cost = k * (1 + min(m, n) / MULTIPLY_ADDS)  # of a row or a column: to read it, and to use it
    if m >= n:
        share(lambda i, j: np.matmul(a[i:j], b, out=out[i:j]), m, cost=cost)
    else:
        share(lambda i, j: np.matmul(a, b[:, i:j], out=out[:, i:j]), n, cost=cost)
    return out


def column_sums(rows: Array, out: Array | None) -> Array:
    """Return the sum over rows (N, C) -> (C,), as a product with ones: in BLAS, and rounding half as much."""
    return np.matmul(np.ones(len(rows), rows.dtype), rows, out=out)
