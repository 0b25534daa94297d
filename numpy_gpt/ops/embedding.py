"""Embedding: look up a vector for each token and add a vector for its position.

Equation
    x_btc = E_{i(b,t),c} + P_tc            i(b,t) is the token id at position t of sequence b

Shapes
    token_ids (B, T), token_weight E (V, C), position_weight P (max_sequence_length, C)  ->  x (B, T, C)
    P's first T rows are broadcast over the batch: position t gets the same vector in every sequence.

Derivation
    Row v of E stands in x wherever the id is v, so its gradient collects from all those places:
        d_E_vc = Σ_bt [i(b,t) = v] d_x_btc
    Row t of P stands in every sequence of the batch:
        d_P_tc = Σ_b d_x_btc               and zero for the rows that no position used
    A sum over uses is the rule for anything used more than once; forward copies, so backward adds.

Saved
    The ids, because they say where each gradient goes, and the weights' shapes. The weights themselves are
    not needed: a lookup is linear in them.

The bug that looks right
    `d_token_weight[token_ids] += d_x`. With a repeated id NumPy reads, adds and writes the row once per
    distinct index, so all but one of the repeats are lost. It passes every test whose ids are distinct.
    `np.add.at` adds every time.

Source
    Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training", section 3.1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from numpy_gpt.arrays import Array
from numpy_gpt.ops.ids import check_token_ids


class EmbeddingSaved(NamedTuple):
    """What embedding_backward needs."""

    token_ids: Array  # (B, T): where each gradient row goes
    token_shape: tuple[int, ...]  # (V, C)
    position_shape: tuple[int, ...]  # (max_sequence_length, C)


def embedding_forward(
    token_ids: ArrayLike, token_weight: Array, position_weight: Array
) -> tuple[Array, EmbeddingSaved]:
    """Return token vectors plus position vectors.

    Args:
        token_ids: (B, T) integers, each in 0..V-1.
        token_weight: (V, C) float.
        position_weight: (max_sequence_length, C) float.

    Returns:
        x (B, T, C) float, and what backward needs.

    Raises:
        ValueError: ids of a wrong shape, too many tokens, an id outside the vocabulary.
        TypeError: ids that are not integers.
    """
    ids = check_token_ids(token_ids, len(token_weight), len(position_weight))  # (B, T)
    T = ids.shape[1]
    token_vectors = token_weight[ids]  # (B, T, C)
    position_vectors = position_weight[:T]  # (T, C)
    x = token_vectors + position_vectors  # (B, T, C)
    return x, EmbeddingSaved(ids, token_weight.shape, position_weight.shape)


def embedding_backward(
    d_x: Array, saved: EmbeddingSaved, *, out: tuple[Array | None, ...] | None = None
) -> tuple[None, Array, Array]:
    """Return (None, d_token_weight (V, C), d_position_weight (max_sequence_length, C)).

    The first is None because integers have no gradient.
    """
    _, d_token_weight, d_position_weight = out or (None, None, None)
    token_ids, token_shape, position_shape = saved
    T = token_ids.shape[1]

    # x = token_vectors + position_vectors[None]: the broadcast over B becomes a sum over B.
    if d_position_weight is None:
        d_position_weight = np.empty(position_shape, d_x.dtype)
    d_position_weight[:T] = d_x.sum(axis=0)  # (T, C)
    d_position_weight[T:] = 0

    # token_vectors = token_weight[ids]: each use of a row adds its gradient to that row.
    if d_token_weight is None:
        d_token_weight = np.empty(token_shape, d_x.dtype)
    d_token_weight[...] = 0
    np.add.at(d_token_weight, token_ids, d_x)  # (V, C)
    return None, d_token_weight, d_position_weight
