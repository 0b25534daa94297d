"""attention, tuned: the (Tq, Tk) weights never exist whole, only tiles of them that stay in cache.

How it differs from the book: queries are taken in blocks, and a block sees only the keys of its own past, so
that what lies above the diagonal is skipped but for the block's own corner. Heads are split and joined by
views: BLAS reads and writes rows that lie apart. A tile has its keys down and its queries across, for NumPy
is quick to find the largest of each column and slow to find that of a short row, and BLAS is quickest without
a transposed right factor. Saved are two numbers a query, m and z, from which backward makes the weights
again; so what training keeps grows as T and not as T². What the book does to Tk numbers a query happens to D
numbers where it can, here with e for the exponentials:

    weights_tu = e_tu / z_t        e_tu = exp(s_tu - m_t)      m_t = max_u s_tu      z_t = Σ_u e_tu
    context_t = (Σ_u e_tu v_u) / z_t                           the division after the sum
    d_v_u = Σ_t e_tu (d_context_t / z_t)                       one division of d_context serves d_scores too

Source
    Dao et al. 2022, "FlashAttention", section 3.1, for the tiles.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.kernels.workspace import empty
from numpy_gpt.ops.attention import causal_mask, check_shapes
from numpy_gpt.parallel import current_team, share

QUERY_BLOCK = 128
"""Queries in a tile: smaller ones skip more of the future, larger ones make better products."""


class AttentionSaved(NamedTuple):
    """What attention_backward needs."""

    queries: Array  # (B, H, Tq, D): views of forward's arrays
    keys: Array  # (B, H, Tk, D)
    values: Array  # (B, H, Tk, D)
    largest: Array  # (B, H, 1, Tq): m
    sums: Array  # (B, H, 1, Tq): z; with m, what makes the weights again


def attention_forward(
    queries: Array, keys: Array, values: Array, *, num_heads: int
) -> tuple[Array, AttentionSaved]:
    """Return the values of each query's past, mixed; see `numpy_gpt.ops.attention_forward`."""
    check_shapes(queries, keys, values, num_heads)
    context = empty(queries.shape, queries.dtype)  # (B, Tq, C)
    q, k, v, mixed = (_heads(array, num_heads) for array in (queries, keys, values, context))
    largest, sums = (empty((*q.shape[:2], 1, q.shape[2]), q.dtype) for _ in range(2))  # (B, H, 1, Tq)

    def attend(part: tuple[slice, slice]) -> None:
        for rows, num_keys in _query_blocks(q.shape[2], k.shape[2]):
            tile = _scores(q[part][..., rows, :], k[part][..., :num_keys, :])  # (b, h, u, n)
            m, z = largest[part][..., rows], sums[part][..., rows]  # (b, h, 1, n)
            np.max(tile, axis=-2, keepdims=True, out=m)
            tile -= m
            np.exp(tile, out=tile)
            z[...] = _column_sums(tile)
            block = mixed[part][..., rows, :]  # (b, h, n, D)
            np.matmul(tile.swapaxes(-2, -1), v[part][..., :num_keys, :], out=block)
            block /= z.swapaxes(-2, -1)

    _for_each_part(attend, q, k)
    return context, AttentionSaved(q, k, v, largest, sums)


def attention_backward(
    d_context: Array, saved: AttentionSaved, *, out: tuple[Array | None, ...] | None = None
) -> tuple[Array, Array, Array]:
    """Return (d_queries (B, Tq, C), d_keys (B, Tk, C), d_values (B, Tk, C))."""
    q, k, v, largest, sums = saved
    B, H, _, D = q.shape
    d_queries, d_keys, d_values = (
        empty((B, array.shape[2], H * D), array.dtype) if place is None else place
        for array, place in zip((q, k, v), out or (None, None, None), strict=True)
    )
    d_mixed, d_q, d_k, d_v = (_heads(array, H) for array in (d_context, d_queries, d_keys, d_values))

    scale = 1 / math.sqrt(D)

    def backward(part: tuple[slice, slice]) -> None:
        q_part, k_part, v_part = q[part], k[part], v[part]
        # From the last block, which sees every key, back to the first: the later ones add to a part.
        for rows, num_keys in reversed(list(_query_blocks(q.shape[2], k.shape[2]))):
            q_block, past_k = q_part[..., rows, :], k_part[..., :num_keys, :]  # (b, h, n, D), (b, h, u, D)
            m, z = largest[part][..., rows], sums[part][..., rows]  # (b, h, 1, n)
            e = _scores(q_block, past_k)  # (b, h, u, n)
            e -= m
            np.exp(e, out=e)
            # context = (e / z)ᵀ @ v
            d_block = d_mixed[part][..., rows, :] / z.swapaxes(-2, -1)  # (b, h, n, D)
            _write_or_add(e, d_block, d_v[part])
            # e / z = softmax(scores); scores = k @ (q / √D)ᵀ, whose √D is divided by here already
            d_scores = _tile(v_part[..., :num_keys, :], _columns(d_block, scale))  # (b, h, u, n)
            d_scores *= e
            e *= _column_sums(d_scores) / z  # the row term
            d_scores -= e
            np.matmul(d_scores.swapaxes(-2, -1), past_k, out=d_q[part][..., rows, :])
            _write_or_add(d_scores, q_block, d_k[part])

    _for_each_part(backward, q, k)
    return d_queries, d_keys, d_values


def _heads(x: Array, num_heads: int) -> Array:
    """Return (B, T, C) seen as (B, H, T, D): always a view, however x lies in memory."""
    B, T, C = x.shape
    return x.reshape(B, T, num_heads, C // num_heads).transpose(0, 2, 1, 3)


def _query_blocks(num_queries: int, num_keys: int) -> Iterator[tuple[slice, int]]:
    """Yield blocks of queries, one at least, and how many keys the last of each may see."""
    for first in range(0, max(num_queries, 1), QUERY_BLOCK):
        rows = slice(first, min(first + QUERY_BLOCK, num_queries))
        yield rows, num_keys - num_queries + rows.stop


def _scores(q: Array, k: Array) -> Array:
    """Return the scaled scores (b, h, u, n) of a block of queries, minus infinity for future keys."""
    scores = _tile(k, _columns(q, 1 / math.sqrt(q.shape[-1])))  # (b, h, u, n)
    num_past = scores.shape[2] - q.shape[2]  # keys that every query sees
    corner = scores[..., num_past:, :]  # (b, h, n, n)
    # fmin and not a sum: of a score that is infinite, or no number, nothing may be left in the past.
    np.fmin(corner, _upper_bounds(q.shape[2], corner.dtype.char), out=corner)
    return scores


def _tile(rows: Array, columns: Array) -> Array:
    """Return rows (b, h, u, D) @ columns (b, h, D, n) in memory that is used again."""
    tile = empty((*rows.shape[:-1], columns.shape[-1]), rows.dtype)  # (b, h, u, n)
    return np.matmul(rows, columns, out=tile)


def _column_sums(tile: Array) -> Array:
    """Return the sums over the keys (b, h, 1, n), as a product with ones, which runs in BLAS."""
    sums: Array = np.matmul(np.ones((1, tile.shape[-2]), tile.dtype), tile)  # (b, h, 1, n)
    return sums


def _columns(rows: Array, scale: float) -> Array:
    """Return rows (b, h, n, D), scaled, as columns (b, h, D, n) that lie as a product reads them fastest."""
    return np.multiply(rows.swapaxes(-2, -1), scale, order="C")


@functools.lru_cache(maxsize=8)
def _upper_bounds(n: int, dtype: str) -> Array:
    """Return (n, n): minus infinity where the key, down, is in the future of the query, across; else plus."""
    return np.where(causal_mask(n, n).T, -math.inf, math.inf).astype(dtype)


def _write_or_add(left: Array, right: Array, whole: Array) -> None:
    """Put left @ right (b, h, u, D) where it belongs: the last block writes, and those before it add."""
    num_keys = left.shape[2]
    if num_keys == whole.shape[2]:
        np.matmul(left, right, out=whole)
    else:
        whole[..., :num_keys, :] += left @ right


def _for_each_part(function: Callable[[tuple[slice, slice]], None], q: Array, k: Array) -> None:
    """Call function on slices of sequences and heads whose tiles fit in cache, shared among the team."""
    B, H, num_queries, _ = q.shape
    num_keys = k.shape[2]
    tile_bytes = min(num_queries, QUERY_BLOCK) * num_keys * q.dtype.itemsize
    fitting = max(1, current_team().cache_bytes // max(2 * tile_bytes, 1))  # backward has two tiles at once
    num_heads = min(H, fitting)
    num_sequences = max(1, fitting // H)

    def over_heads(start: int, stop: int) -> None:
        for b in range(0, B, num_sequences):
            for h in range(start, stop, num_heads):
                function((slice(b, b + num_sequences), slice(h, min(h + num_heads, stop))))

    share(over_heads, H, cost=B * num_queries * num_keys)
