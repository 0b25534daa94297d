"""embedding, tuned: repeated ids are brought together by sorting, and each row is then summed once.

How it differs from the book: `np.add.at` adds number by number; here the gradient's rows are put in the
order of their ids, so that all uses of one row of the table lie side by side, and `np.add.reduceat` adds
whole rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from numpy_gpt.arrays import Array
from numpy_gpt.kernels.workspace import empty
from numpy_gpt.ops.embedding import EmbeddingSaved
from numpy_gpt.ops.ids import check_token_ids


def embedding_forward(
    token_ids: ArrayLike, token_weight: Array, position_weight: Array
) -> tuple[Array, EmbeddingSaved]:
    """Return token vectors plus position vectors; see `numpy_gpt.ops.embedding_forward`."""
    ids = check_token_ids(token_ids, len(token_weight), len(position_weight))  # (B, T)
    x = empty((*ids.shape, token_weight.shape[1]), token_weight.dtype)  # (B, T, C)
    np.take(token_weight, ids, axis=0, out=x, mode="clip")  # all ids fit; "raise" would copy x first
    x += position_weight[: ids.shape[1]]  # (T, C), the same for every sequence
    return x, EmbeddingSaved(ids, token_weight.shape, position_weight.shape)


def embedding_backward(
    d_x: Array, saved: EmbeddingSaved, *, out: tuple[Array | None, ...] | None = None
) -> tuple[None, Array, Array]:
    """Return (None, d_token_weight (V, C), d_position_weight (max_sequence_length, C))."""
    _, d_token_weight, d_position_weight = out or (None, None, None)
    token_ids, token_shape, position_shape = saved
    T = token_ids.shape[1]

    # x += position_weight[:T]
    if d_position_weight is None:
        d_position_weight = empty(position_shape, d_x.dtype)
    np.sum(d_x, axis=0, out=d_position_weight[:T])  # (T, C)
    d_position_weight[T:] = 0

    # x = token_weight[ids]
    if d_token_weight is None:
        d_token_weight = empty(token_shape, d_x.dtype)
    d_token_weight[...] = 0
    order = np.argsort(token_ids, axis=None, kind="stable")  # (N,)
    sorted_ids = token_ids.reshape(-1)[order]  # (N,)
    first_uses = np.flatnonzero(np.diff(sorted_ids, prepend=-1))  # (U,): where an id differs from the last
    sorted_rows = d_x.reshape(-1, d_x.shape[-1])[order]  # (N, C)
    d_token_weight[sorted_ids[first_uses]] = np.add.reduceat(sorted_rows, first_uses, axis=0)  # (U, C)
    return None, d_token_weight, d_position_weight
