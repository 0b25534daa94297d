"""Layer norm: give each token vector mean 0 and variance 1, then a learned scale and shift per channel.

Equation
    μ = (1/C) Σ_c x_c      σ² = (1/C) Σ_c (x_c - μ)²       over the channels of one token, biased variance
    n_c = (x_c - μ) r      r = 1 / √(σ² + ε)
    y_c = n_c w_c + b_c

Shapes
    x (..., C), weight w (C,), bias b (C,)  ->  y (..., C)
    Every token is normalised on its own; w and b are shared by all.

Derivation
    Scale and shift are shared, so they sum over all tokens:  d_w_c = Σ d_y_c n_c,  d_b_c = Σ d_y_c.
    For x, write m = d_n = d_y w and follow n_c = (x_c - μ) r, where μ and r depend on every x_k:
        ∂μ/∂x_k = 1/C
        ∂r/∂x_k = -½ (σ² + ε)^(-3/2) · (2/C)(x_k - μ) = -(r²/C) n_k
        ∂n_c/∂x_k = r [c = k] - r/C + (x_c - μ) ∂r/∂x_k = r ([c = k] - 1/C - n_c n_k / C)
    Summed over c with m_c in front:
        d_x_k = r ( m_k - mean(m) - n_k mean(m n) )
    Two means are taken away because two freedoms of x were removed: adding a constant to x or scaling it
    does not change n (but for ε), so d_x must have no component along either.

Saved
    n and r, from which everything follows without x; and w.

The bug that looks right
    Using d_y where m = d_y w belongs. With w = 1, as every fresh model has it, both are the same.

Source
    Ba, Kiros and Hinton 2016, "Layer Normalization", equation 4.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from numpy_gpt.arrays import Array, deliver


class LayerNormSaved(NamedTuple):
    """What layer_norm_backward needs."""

    normalized: Array  # (..., C): n, so that x need not be kept
    inverse_std: Array  # (..., 1): r, the slope of the normalisation
    weight: Array  # (C,): turns d_y into d_normalized


def layer_norm_forward(
    x: Array, weight: Array, bias: Array, *, eps: float = 1e-5
) -> tuple[Array, LayerNormSaved]:
    """Return each token vector normalised, scaled and shifted.

    Args:
        x: (..., C) float.
        weight: (C,) float.
        bias: (C,) float.
        eps: added to the variance inside the square root.

    Returns:
        y (..., C), and what backward needs.
    """
    mean = x.mean(axis=-1, keepdims=True)  # (..., 1)
    centered = x - mean  # (..., C)
    variance = np.mean(centered * centered, axis=-1, keepdims=True)  # (..., 1)
    inverse_std = 1 / np.sqrt(variance + eps)  # (..., 1)
    normalized = centered * inverse_std  # (..., C)
    y = normalized * weight + bias  # (..., C)
    return y, LayerNormSaved(normalized, inverse_std, weight)


def layer_norm_backward(
    d_y: Array, saved: LayerNormSaved, *, out: tuple[Array | None, ...] | None = None
) -> tuple[Array, Array, Array]:
    """Return (d_x (..., C), d_weight (C,), d_bias (C,))."""
    d_x, d_weight, d_bias = out or (None, None, None)
    normalized, inverse_std, weight = saved
    all_tokens = tuple(range(d_y.ndim - 1))  # every axis but the channels

    # y = normalized * weight + bias
    d_bias = np.sum(d_y, axis=all_tokens, out=d_bias)  # (C,)
    d_weight = np.sum(d_y * normalized, axis=all_tokens, out=d_weight)  # (C,)
    d_normalized = d_y * weight  # (..., C)

    # normalized = (x - mean) * inverse_std, with mean and inverse_std both made from x (derivation above)
    mean_of_d = d_normalized.mean(axis=-1, keepdims=True)  # (..., 1)
    mean_along_n = np.mean(d_normalized * normalized, axis=-1, keepdims=True)  # (..., 1)
    d_x = deliver((d_normalized - mean_of_d - normalized * mean_along_n) * inverse_std, d_x)  # (..., C)
    return d_x, d_weight, d_bias
