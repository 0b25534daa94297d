"""What each operation sums, with nothing allowed to cancel: the floors that errors are measured against.

A gradient may be tiny because large terms cancel in it (softmax ignores a shift, layer norm a shift and a
scale); its rounding error then has the size of the terms, not of their sum. Each function below follows its
operation's equations with absolute values for terms and plus for minus, in float64, and returns the magnitude
of the output and of every gradient, aligned with the forward's arrays.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from numpy_gpt.arrays import Array
from tests.strategies import IGNORED

Magnitudes: TypeAlias = tuple[Any, tuple[Array | None, ...]]


def embedding(token_ids: Array, token_weight: Array, position_weight: Array, *, d_out: Array) -> Magnitudes:
    T = token_ids.shape[1]
    d_token, d_position = np.zeros_like(token_weight), np.zeros_like(position_weight)
    np.add.at(d_token, token_ids, abs(d_out))
    d_position[:T] = abs(d_out).sum(axis=0)
    return abs(token_weight)[token_ids] + abs(position_weight)[:T], (None, d_token, d_position)


def linear(x: Array, weight: Array, bias: Array | None, *, d_out: Array) -> Magnitudes:
    out = abs(x) @ abs(weight).T + (0 if bias is None else abs(bias))
    rows, d_rows = abs(x).reshape(-1, x.shape[-1]), abs(d_out).reshape(-1, d_out.shape[-1])
    d_bias = None if bias is None else d_rows.sum(axis=0)
    return out, (abs(d_out) @ abs(weight), d_rows.T @ rows, d_bias)


def layer_norm(x: Array, weight: Array, bias: Array, *, eps: float, d_out: Array) -> Magnitudes:
    inverse_std = 1 / np.sqrt(x.var(axis=-1, keepdims=True) + eps)
    normalized = (abs(x) + _mean(abs(x))) * inverse_std
    d_normalized = abs(d_out * weight)
    d_x = inverse_std * (d_normalized + _mean(d_normalized) + normalized * _mean(d_normalized * normalized))
    axes = tuple(range(x.ndim - 1))
    d_weight, d_bias = (abs(d_out) * normalized).sum(axis=axes), abs(d_out).sum(axis=axes)
    return normalized * abs(weight) + abs(bias), (d_x, d_weight, d_bias)


def gelu(x: Array, *, approximate: str, d_out: Array) -> Magnitudes:
    # 1 + tanh and 1 − tanh² are taken as 1; the rest is the derivative of tanh's argument times x.
    inner_slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2) if approximate == "tanh" else 1
    return abs(x), (abs(d_out) * (1 + abs(x) * inner_slope),)


def softmax(x: Array, *, d_out: Array) -> Magnitudes:
    probabilities = _softmax(x)
    return probabilities, (_d_softmax(probabilities, abs(d_out)),)


def attention(queries: Array, keys: Array, values: Array, *, num_heads: int, d_out: Array) -> Magnitudes:
    q, k, v, d_heads = (_split(array, num_heads) for array in (queries, keys, values, d_out))  # (B, H, T, D)
    scale = 1 / math.sqrt(q.shape[-1])
    Tq, Tk = q.shape[2], k.shape[2]
    future = np.triu(np.ones((Tq, Tk), bool), k=Tk - Tq + 1)
    weights = _softmax(np.where(future, -np.inf, q @ k.mT * scale))  # (B, H, Tq, Tk)
    d_scores = _d_softmax(weights, abs(d_heads) @ abs(v).mT) * scale
    gradients = (d_scores @ abs(k), d_scores.mT @ abs(q), weights.mT @ abs(d_heads))
    return _join(weights @ abs(v)), tuple(_join(gradient) for gradient in gradients)


def cross_entropy(logits: Array, targets: Array, *, divisor: float | None, d_out: float) -> Magnitudes:
    return _cross_entropy(logits, abs(logits), targets, divisor, d_out)


def linear_cross_entropy(
    x: Array, weight: Array, targets: Array, *, divisor: float | None, d_out: float
) -> Magnitudes:
    size = abs(x) @ abs(weight).T
    loss, (d_logits, _) = _cross_entropy(x @ weight.T, size, targets, divisor, d_out)
    d_rows, rows = d_logits.reshape(-1, len(weight)), abs(x).reshape(-1, x.shape[-1])
    return loss, (d_logits @ abs(weight), d_rows.T @ rows, None)


def _cross_entropy(
    logits: Array, size: Array, targets: Array, divisor: float | None, d_out: float
) -> tuple[Any, tuple[Array, None]]:
    """The magnitudes of a loss whose logits were summed from terms of the given size."""
    valid = targets != IGNORED
    divisor = max(valid.sum(), 1) if divisor is None else divisor
    V = logits.shape[-1]
    loss = (valid * (2 * size.max(axis=-1) + math.log(V))).sum() / divisor
    one_hot = np.arange(V) == targets[..., None]
    d_logits = abs(d_out) / divisor * valid[..., None] * (_softmax(logits) * (1 + size) + one_hot)
    return loss, (d_logits, None)


def _mean(x: Array) -> Array:
    return x.mean(axis=-1, keepdims=True)


def _softmax(x: Array) -> Array:
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def _d_softmax(probabilities: Array, d_out: Array) -> Array:
    return probabilities * (d_out + (probabilities * d_out).sum(axis=-1, keepdims=True))


def _split(x: Array, num_heads: int) -> Array:
    B, T, C = x.shape
    return x.reshape(B, T, num_heads, C // num_heads).swapaxes(1, 2)


def _join(x: Array) -> Array:
    B, H, T, D = x.shape
    return x.swapaxes(1, 2).reshape(B, T, H * D)
