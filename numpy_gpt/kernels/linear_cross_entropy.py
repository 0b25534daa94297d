"""linear_cross_entropy, tuned: the (B, T, V) logits never exist, only pieces of some columns of them.

How it differs from the book: the vocabulary is taken piece by piece. Forward keeps a running maximum and a
running sum of exponentials for each row, so that one pass over the pieces gives the loss. Backward makes each
piece's logits again, one more product of the four, and turns them into d_logits, which give their rows of
d_weight whole and their part of d_x:

    after the columns of one more piece:   m' = max(m, max_v l_v)     s' = s exp(m - m') + Σ_v exp(l_v - m')
    at the end:                            log Σ_v exp(l_v) = m + log s         p_v = exp(l_v - m) / s

A vocabulary so small that all logits are one piece keeps its exponentials, and makes nothing again.

Source
    Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", algorithm 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from numpy_gpt.arrays import Array, deliver
from numpy_gpt.kernels.products import MULTIPLY_ADDS
from numpy_gpt.kernels.workspace import empty
from numpy_gpt.ops.cross_entropy import check_divisor
from numpy_gpt.ops.ids import IGNORED_TARGET, check_target_ids
from numpy_gpt.parallel import current_team, share

MINIMUM_COLUMNS = 256
"""Of a piece, however many rows there are."""


class LinearCrossEntropySaved(NamedTuple):
    """What linear_cross_entropy_backward needs."""

    x: Array  # (B, T, C): one factor of d_weight
    weight: Array  # (V, C): makes the logits again, and is a factor of d_x
    targets: Array  # (N,): where the 1 of each row stands, and which rows are ignored
    largest: Array  # (N, 1): m
    sums: Array  # (N, 1): s; with m, what turns logits into probabilities
    exponentials: Array | None  # (N, V): where they are so few that making them again saves nothing
    divisor: float  # what the loss was divided by


def linear_cross_entropy_forward(
    x: Array, weight: Array, targets: ArrayLike, *, divisor: float | None = None
) -> tuple[float, LinearCrossEntropySaved]:
    """Return the loss of predicting each target; see `numpy_gpt.ops.linear_cross_entropy_forward`."""
    V, C = weight.shape
    rows = x.reshape(-1, C)  # (N, C)
    N = len(rows)
    targets = check_target_ids(targets, x.shape[:-1], V).reshape(-1)  # (N,)
    counted = targets != IGNORED_TARGET  # (N,)
    divisor = check_divisor(divisor, int(counted.sum()))
    target_logits = np.zeros((N, 1), x.dtype)
    is_one_piece = N * V * x.itemsize <= _piece_bytes()
    exponentials = empty((N, V), x.dtype) if is_one_piece else None
    found: dict[int, tuple[Array, Array]] = {}  # (m, s) of each span's columns

    def scan(start: int, stop: int) -> None:
        largest, sums = np.full((N, 1), -math.inf, x.dtype), np.zeros((N, 1), x.dtype)
        for columns in _pieces(start, stop, x.dtype.itemsize * N):
            logits = np.matmul(rows, weight[columns].T, out=exponentials)  # (N, v)
            hits, at = _targets_within(targets, columns)
            target_logits[hits, 0] = logits[hits, at]
            higher = np.maximum(largest, logits.max(axis=-1, keepdims=True))
            logits -= higher
            np.exp(logits, out=logits)
            sums *= np.exp(largest - higher)
            sums += logits @ np.ones((logits.shape[1], 1), x.dtype)
            largest = higher
        found[start] = largest, sums

    _share_columns(scan, rows, V, exponentials)
    largest, sums = found.pop(0)
    for other_largest, other_sums in (found[start] for start in sorted(found)):
        higher = np.maximum(largest, other_largest)
        sums = sums * np.exp(largest - higher) + other_sums * np.exp(other_largest - higher)
        largest = higher

    log_probability = target_logits - largest - np.log(sums)  # (N, 1)
    loss = -float(np.sum(log_probability[:, 0], where=counted, dtype=np.float64)) / divisor
    return loss, LinearCrossEntropySaved(x, weight, targets, largest, sums, exponentials, divisor)


def linear_cross_entropy_backward(
    d_loss: float, saved: LinearCrossEntropySaved, *, out: tuple[Array | None, ...] | None = None
) -> tuple[Array, Array, None]:
    """Return (d_x (B, T, C), d_weight (V, C), None); targets have no gradient."""
    d_x, d_weight, _ = out or (None, None, None)
    x, weight, targets, largest, sums, exponentials, divisor = saved
    rows = x.reshape(-1, x.shape[-1])  # (N, C)
    N = len(rows)
    if d_weight is None:
        d_weight = empty(weight.shape, weight.dtype)
    counted = (targets != IGNORED_TARGET)[:, None]  # (N, 1)
    scale = (counted * (float(d_loss) / divisor)).astype(x.dtype)  # (N, 1)
    found: dict[int, Array] = {}  # d_x of each span's columns

    def backward(start: int, stop: int) -> None:
        d_rows = np.zeros(rows.shape, x.dtype)  # (N, C)
        for columns in _pieces(start, stop, x.dtype.itemsize * N):
            if exponentials is None:
                d_logits = rows @ weight[columns].T  # (N, v)
                d_logits -= largest
                np.exp(d_logits, out=d_logits)
                d_logits *= scale / sums
            else:
                d_logits = exponentials * (scale / sums)
            hits, at = _targets_within(targets, columns)
            d_logits[hits, at] -= scale[hits, 0]
            np.matmul(d_logits.T, rows, out=d_weight[columns])
            d_rows += d_logits @ weight[columns]
        found[start] = d_rows

    _share_columns(backward, rows, len(weight), exponentials)
    d_rows = found.pop(0)
    for start in sorted(found):
        d_rows += found[start]
    return deliver(d_rows.reshape(x.shape), d_x), d_weight, None


def _piece_bytes() -> int:
    """Return how large a piece's logits may be: three passes and two products go over them."""
    return 2 * current_team().cache_bytes


def _pieces(start: int, stop: int, column_bytes: int) -> Iterator[slice]:
    """Yield slices of columns that cover start..stop; not too narrow, for that makes poor products."""
    step = max(MINIMUM_COLUMNS, _piece_bytes() // max(column_bytes, 1))
    for first in range(start, stop, step):
        yield slice(first, min(first + step, stop))


def _share_columns(
    function: Callable[[int, int], None], rows: Array, num_columns: int, exponentials: Array | None
) -> None:
    """Call function(start, stop) on spans of columns, shared among the team unless they are one piece."""
    if exponentials is not None:
        function(0, num_columns)
    else:
        share(function, num_columns, cost=rows.size / MULTIPLY_ADDS)


def _targets_within(targets: Array, columns: slice) -> tuple[Array, Array]:
    """Return the rows whose target is among these columns, and which of the columns it is."""
    hits = np.flatnonzero((targets >= columns.start) & (targets < columns.stop))
    return hits, targets[hits] - columns.start
