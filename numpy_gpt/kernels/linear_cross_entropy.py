"""linear_cross_entropy, tuned: large (B, T, V) logits never exist, only pieces of some columns of them.

How it differs from the book: the vocabulary is taken piece by piece. Forward keeps a running maximum and a
running sum of exponentials for each row, so that one pass over the pieces gives the loss:

    after the columns of one more piece:   m' = max(m, max_v l_v)     s' = s exp(m - m') + Σ_v exp(l_v - m')
    at the end:                            log Σ_v exp(l_v) = m + log s         p_v = exp(l_v - m) / s

Backward turns each piece into d_logits, which give their rows of d_weight whole and their part of d_x. It has
the exponentials of as many pieces as KEPT_BYTES can hold, exp(l_v - m') with the maximum of that time, which
one more factor a row mends. The logits of the others it makes again, one product more than the three.

Source
    Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", algorithm 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
"""Of a piece, however many rows there are: products with fewer are poor."""

KEPT_BYTES = 48 * 1024 * 1024
"""What the exponentials that forward keeps for backward may take: 250 tokens of GPT-2's vocabulary do."""


class Piece(NamedTuple):
    """Some columns of the logits."""

    columns: slice  # v of the V
    exponentials: Array | None  # (N, v): exp(l - m'), where they are kept
    largest: Array  # (N, 1): m', the running maximum with this piece


class LinearCrossEntropySaved(NamedTuple):
    """What linear_cross_entropy_backward needs."""

    x: Array  # (B, T, C): one factor of d_weight
    weight: Array  # (V, C): makes the logits again, and is a factor of d_x
    targets: Array  # (N,): where the 1 of each row stands, and which rows are ignored
    largest: Array  # (N, 1): m
    sums: Array  # (N, 1): s; with m, what turns logits into probabilities
    pieces: list[Piece]
    divisor: float  # what the loss was divided by


def linear_cross_entropy_forward(
    x: Array, weight: Array, targets: ArrayLike, *, divisor: float | None = None
) -> tuple[float, LinearCrossEntropySaved]:
    """Return the loss of predicting each target; see `numpy_gpt.ops.linear_cross_entropy_forward`."""
    V, C = weight.shape
    rows = x.reshape(-1, C)  # (N, C)
    targets = check_target_ids(targets, x.shape[:-1], V).reshape(-1)  # (N,)
    counted = targets != IGNORED_TARGET  # (N,)
    divisor = check_divisor(divisor, int(counted.sum()))
    target_logits = np.zeros((len(rows), 1), x.dtype)
    lowest = np.finfo(x.dtype).min
    pieces = _pieces(len(rows), V, x.dtype)
    found: dict[int, tuple[Array, Array]] = {}  # (m, s) of each span of pieces

    def scan(start: int, stop: int) -> None:
        largest, sums = np.full((len(rows), 1), -math.inf, x.dtype), np.zeros((len(rows), 1), x.dtype)
        for columns, exponentials, higher in pieces[start:stop]:
            logits = np.matmul(rows, weight[columns].T, out=exponentials)  # (N, v)
            hits, at = _targets_within(targets, columns)
            target_logits[hits, 0] = logits[hits, at]
            np.maximum(largest, logits.max(axis=-1, keepdims=True), out=higher)
            np.maximum(higher, lowest, out=higher)  # of minus infinity, the difference would be none
            logits -= higher
            np.exp(logits, out=logits)
            sums *= np.exp(largest - higher)
            sums += logits @ np.ones((logits.shape[1], 1), x.dtype)
            largest = higher
        found[start] = largest, sums

    _share_pieces(scan, pieces, rows)
    largest, sums = found.pop(0)
    for other_largest, other_sums in (found[start] for start in sorted(found)):
        higher = np.maximum(largest, other_largest)
        sums = sums * np.exp(largest - higher) + other_sums * np.exp(other_largest - higher)
        largest = higher

    log_probability = target_logits - largest - np.log(sums)  # (N, 1)
    loss = -float(np.sum(log_probability[:, 0], where=counted, dtype=np.float64)) / divisor
    return loss, LinearCrossEntropySaved(x, weight, targets, largest, sums, pieces, divisor)


def linear_cross_entropy_backward(
    d_loss: float, saved: LinearCrossEntropySaved, *, out: tuple[Array | None, ...] | None = None
) -> tuple[Array, Array, None]:
    """Return (d_x (B, T, C), d_weight (V, C), None); targets have no gradient."""
    d_x, d_weight, _ = out or (None, None, None)
    x, weight, targets, largest, sums, pieces, divisor = saved
    rows = x.reshape(-1, x.shape[-1])  # (N, C)
    if d_weight is None:
        d_weight = empty(weight.shape, weight.dtype)
    ignored = np.flatnonzero(targets == IGNORED_TARGET)
    scale = x.dtype.type(float(d_loss) / divisor)
    found: dict[int, Array] = {}  # d_x of each span of pieces

    def backward(start: int, stop: int) -> None:
        d_rows = np.zeros(rows.shape, x.dtype)  # (N, C)
        for columns, exponentials, largest_then in pieces[start:stop]:
            if exponentials is None:
                d_logits = rows @ weight[columns].T  # (N, v)
                d_logits -= largest
                np.exp(d_logits, out=d_logits)
                d_logits *= scale / sums
            else:
                d_logits = exponentials * (np.exp(largest_then - largest) * (scale / sums))
            hits, at = _targets_within(targets, columns)
            d_logits[hits, at] -= scale
            d_logits[ignored] = 0  # whatever stands there, and be it no number
            np.matmul(d_logits.T, rows, out=d_weight[columns])
            d_rows += d_logits @ weight[columns]
        found[start] = d_rows

    _share_pieces(backward, pieces, rows)
    d_rows = found.pop(0)
    for start in sorted(found):
        d_rows += found[start]
    return deliver(d_rows.reshape(x.shape), d_x), d_weight, None


def _pieces(num_rows: int, num_columns: int, dtype: np.dtype) -> list[Piece]:
    """Return pieces, equal in width, whose logits stay in cache; and memory for those that are kept."""
    column_bytes = max(1, num_rows * dtype.itemsize)
    # Three passes and two products go over a piece, and longer rows make better products.
    width = max(MINIMUM_COLUMNS, 2 * current_team().cache_bytes // column_bytes)
    count = -(-num_columns // width)
    if count > 1:
        as_many_for_each = -(-count // current_team().size) * current_team().size
        count = min(as_many_for_each, num_columns)
    edges = [num_columns * number // count for number in range(count + 1)]
    num_kept = min(count, KEPT_BYTES // (column_bytes * (edges[1] + 1)))

    def piece(number: int) -> Piece:
        columns = slice(edges[number], edges[number + 1])
        # The kept lie evenly among the others, so that every thread has its share of both.
        is_kept = (number + 1) * num_kept // count > number * num_kept // count
        kept = empty((num_rows, columns.stop - columns.start), dtype) if is_kept else None
        return Piece(columns, kept, empty((num_rows, 1), dtype))

    return [piece(number) for number in range(count)]


def _share_pieces(function: Callable[[int, int], None], pieces: list[Piece], rows: Array) -> None:
    """Call function(start, stop) on spans of pieces, shared among the team."""
    columns = pieces[0].columns
    share(function, len(pieces), cost=rows.size * (columns.stop - columns.start) / MULTIPLY_ADDS)


def _targets_within(targets: Array, columns: slice) -> tuple[Array, Array]:
    """Return the rows whose target is among these columns, and which of the columns it is."""
    hits = np.flatnonzero((targets >= columns.start) & (targets < columns.stop))
    return hits, targets[hits] - columns.start
