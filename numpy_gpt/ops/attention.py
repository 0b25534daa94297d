"""Causal multi-head attention: every token gathers from itself and the tokens before it.

Equation
    For each sequence b and head h, with queries q, keys k, values v of width D:
        s_ij = Σ_d q_id k_jd               how well query i matches key j; -∞ where j is in i's future
        w_ij = softmax_j( s_ij / √D )
        z_id = Σ_j w_ij v_jd

Shapes
    queries (B, Tq, C), keys (B, Tk, C), values (B, Tk, C), C = H D, Tq <= Tk  ->  context (B, Tq, C)
    split: (B, T, C) -> (B, T, H, D) -> (B, H, T, D): each head of each sequence gets its own (Tq, Tk) scores,
    and batch items never meet. join is the same way back.
    The mask is one (Tq, Tk) table, broadcast over batch and heads. The last query stands at the last key, so
    query i sees the keys 0 .. i + Tk - Tq; with Tq = Tk that is itself and everything before.

Derivation
    Line by line from the end, each product as in linear.py:
        z = w v            d_w_ij = Σ_d d_z_id v_jd            d_v_jd = Σ_i w_ij d_z_id
        w = softmax(s/√D)  d_s = softmax_backward(d_w) / √D    zero where w is zero, so the future stays out
        s = q kᵀ           d_q_id = Σ_j d_s_ij k_jd            d_k_jd = Σ_i d_s_ij q_id
    A key or value is read by many queries, so its gradient is a sum over i; a query is read once.
    Adding one vector to all keys shifts each row of s by one number, which softmax ignores: the gradient of
    W_key's bias is therefore zero, and what a program computes for it is rounding noise.

Saved
    The three inputs split into heads, and softmax's own saved weights (B, H, Tq, Tk): larger than everything
    else when T is large, but they cost two products and an exp to make again.

The bug that looks right
    Joining heads with `reshape` alone, without undoing the transpose. All shapes fit; the numbers of
    different heads and tokens change places. With one head it is even right.

Source
    Vaswani et al. 2017, "Attention Is All You Need", section 3.2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from numpy_gpt.arrays import Array, deliver
from numpy_gpt.ops.softmax import SoftmaxSaved, softmax_backward, softmax_forward


class AttentionSaved(NamedTuple):
    """What attention_backward needs."""

    queries: Array  # (B, H, Tq, D): the other factor of d_keys
    keys: Array  # (B, H, Tk, D): the other factor of d_queries
    values: Array  # (B, H, Tk, D): the other factor of d_weights
    softmax: SoftmaxSaved  # the attention weights (B, H, Tq, Tk): the other factor of d_values


def split_heads(x: Array, num_heads: int) -> Array:
    """Return (B, T, C) as (B, H, T, D)."""
    B, T, C = x.shape
    return x.reshape(B, T, num_heads, C // num_heads).transpose(0, 2, 1, 3)


def join_heads(x: Array) -> Array:
    """Return (B, H, T, D) as (B, T, C): the exact reverse of split_heads, and so its backward."""
    B, H, T, D = x.shape
    return x.transpose(0, 2, 1, 3).reshape(B, T, H * D)


def causal_mask(num_queries: int, num_keys: int) -> Array:
    """Return (Tq, Tk) booleans, True where the key is in the query's future."""
    first_future_key = 1 + num_keys - num_queries  # for the first query
    return np.triu(np.ones((num_queries, num_keys), dtype=bool), k=first_future_key)


def attention_forward(
    queries: Array, keys: Array, values: Array, *, num_heads: int
) -> tuple[Array, AttentionSaved]:
    """Return, for every query, the values of its past, mixed by how well their keys match.

    Args:
        queries: (B, Tq, C) float; they stand at the last Tq of the Tk positions.
        keys: (B, Tk, C) float.
        values: (B, Tk, C) float.
        num_heads: H, a divisor of C.

    Returns:
        context (B, Tq, C), and what backward needs.

    Raises:
        ValueError: shapes that do not fit one another, or more queries than keys.
    """
    check_shapes(queries, keys, values, num_heads)
    q = split_heads(queries, num_heads)  # (B, H, Tq, D)
    k = split_heads(keys, num_heads)  # (B, H, Tk, D)
    v = split_heads(values, num_heads)  # (B, H, Tk, D)

    scores = q @ k.swapaxes(-2, -1)  # (B, H, Tq, Tk)
    mask = causal_mask(q.shape[2], k.shape[2])  # (Tq, Tk), broadcast over B and H
    scores = np.where(mask, -math.inf, scores)  # (B, H, Tq, Tk)
    weights, softmax_saved = softmax_forward(scores / math.sqrt(q.shape[-1]))  # (B, H, Tq, Tk)
    context = join_heads(weights @ v)  # (B, Tq, C)
    return context, AttentionSaved(q, k, v, softmax_saved)


def attention_backward(
    d_context: Array, saved: AttentionSaved, *, out: tuple[Array | None, ...] | None = None
) -> tuple[Array, Array, Array]:
    """Return (d_queries (B, Tq, C), d_keys (B, Tk, C), d_values (B, Tk, C))."""
    d_queries, d_keys, d_values = out or (None, None, None)
    q, k, v, softmax_saved = saved
    H, D = q.shape[1], q.shape[-1]

    # context = join_heads(weights @ v)
    d_heads = split_heads(d_context, H)  # (B, H, Tq, D)
    d_weights = d_heads @ v.swapaxes(-2, -1)  # (B, H, Tq, Tk)
    d_v = softmax_saved.y.swapaxes(-2, -1) @ d_heads  # (B, H, Tk, D)
    # weights = softmax(scores / √D); a masked weight is zero, and so is its d_score
    (d_scaled,) = softmax_backward(d_weights, softmax_saved)  # (B, H, Tq, Tk)
    d_scores = d_scaled / math.sqrt(D)  # (B, H, Tq, Tk)
    # scores = q @ kᵀ
    d_q = d_scores @ k  # (B, H, Tq, D)
    d_k = d_scores.swapaxes(-2, -1) @ q  # (B, H, Tk, D)
    # q, k, v = split_heads(queries, keys, values)
    return (
        deliver(join_heads(d_q), d_queries),  # (B, Tq, C)
        deliver(join_heads(d_k), d_keys),  # (B, Tk, C)
        deliver(join_heads(d_v), d_values),  # (B, Tk, C)
    )


def check_shapes(queries: Array, keys: Array, values: Array, num_heads: int) -> None:
    """Raise ValueError unless attention_forward can take these."""
    if queries.ndim != 3 or keys.shape != values.shape or queries.shape[::2] != keys.shape[::2]:
        raise ValueError(
            "attention takes queries (B, Tq, C) and keys and values (B, Tk, C), "
            f"not {queries.shape}, {keys.shape} and {values.shape}"
        )
    if queries.shape[1] > keys.shape[1]:
        raise ValueError(f"{queries.shape[1]} queries need at least as many keys, not {keys.shape[1]}")
    if num_heads < 1 or queries.shape[-1] % num_heads != 0:
        raise ValueError(f"num_heads must divide the width {queries.shape[-1]}, and {num_heads} does not")
