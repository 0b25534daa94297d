"""Matrix products, shared by the team's threads."""

from __future__ import annotations

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.parallel import WORTH_A_THREAD, share

MULTIPLY_ADDS = 16
"""That BLAS does in the time of one number's share of an element-wise operation."""


def product(a: Array, b: Array, out: Array) -> Array:
    """Write a @ b into `out` and return it, the longer of its axes cut among the team's threads.

    Args:
        a: (m, k) float.
        b: (k, n) float.
        out: (m, n) float; rows may lie apart, as in a slice of columns.
    """
    m, n = out.shape
    k = a.shape[1]
    smallest_share = MULTIPLY_ADDS * WORTH_A_THREAD // max(k * min(m, n), 1)  # rows or columns
    if m >= n:
        share(lambda i, j: np.matmul(a[i:j], b, out=out[i:j]), m, at_least=smallest_share)
    else:
        share(lambda i, j: np.matmul(a, b[:, i:j], out=out[:, i:j]), n, at_least=smallest_share)
    return out


def column_sums(rows: Array, out: Array | None) -> Array:
    """Return the sum over rows (N, C) -> (C,), as a product with ones: in BLAS, and rounding half as much."""
    return np.matmul(np.ones(len(rows), rows.dtype), rows, out=out)
