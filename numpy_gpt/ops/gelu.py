"""GELU: let each number through in proportion to how large it is.

Equation
    y = x g(x)                             g is a gate between 0 and 1
    approximate="none":  g(x) = Φ(x) = ½ erfc(-x/√2)               the normal distribution function
    approximate="tanh":  g(x) = ½ (1 + tanh u),  u = √(2/π) (x + 0.044715 x³)       what GPT-2 uses

Shapes
    x (any shape)  ->  y (like x); every number on its own.

Derivation
    Product rule:  d_x = d_y ( g(x) + x g'(x) ).
    "none":  g'(x) = φ(x) = exp(-x²/2) / √(2π), the density of the normal distribution.
    "tanh":  d tanh(u)/du = 1 - tanh² u, and with tanh u = 2g - 1 that is 4g(1 - g), so
             g'(x) = ½ · 4g(1 - g) · u'(x) = 2g(1 - g) √(2/π) (1 + 3 · 0.044715 x²).

Saved
    x, and the gate, because tanh and erfc are the costly part.

The bug that looks right
    The slope of one form behind the other form's forward. They differ by less than 0.001 at any x, which a
    loose tolerance lets pass, and training hardly notices.

Source
    Hendrycks and Gimpel 2016, "Gaussian Error Linear Units (GELUs)", section 2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from numpy_gpt.arrays import Array, deliver

SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
CUBIC = 0.044715
SATURATED = 50.0
"""Beyond ±SATURATED both gates are exactly 0 or 1 and flat, in float64 too; only x³ and x² could overflow."""

_erfc = np.vectorize(math.erfc, otypes=[np.float64])  # NumPy has no erf; math's is exact, if slow


class GeluSaved(NamedTuple):
    """What gelu_backward needs."""

    x: Array  # (...): the gate's slope is a function of it
    gate: Array  # (...): g(x), the costly part of forward
    approximate: str  # which gate


def gelu_forward(x: Array, *, approximate: str = "tanh") -> tuple[Array, GeluSaved]:
    """Return x times its gate.

    Args:
        x: float, any shape.
        approximate: "tanh" (what GPT-2 uses) or "none" (exact).

    Returns:
        y like x, and what backward needs.

    Raises:
        ValueError: for another `approximate`.
    """
    bounded = np.clip(x, -SATURATED, SATURATED)  # (...)
    if approximate == "tanh":
        u = SQRT_2_OVER_PI * (bounded + CUBIC * bounded * bounded * bounded)  # (...)
        gate = 0.5 * (1 + np.tanh(u))  # (...)
    elif approximate == "none":
        gate = 0.5 * _erfc(-bounded / math.sqrt(2)).astype(x.dtype)  # (...)
    else:
        raise ValueError(f'approximate must be "tanh" or "none", not {approximate!r}')
    y = x * gate  # (...)
    return y, GeluSaved(x, gate, approximate)


def gelu_backward(
    d_y: Array, saved: GeluSaved, *, out: tuple[Array | None, ...] | None = None
) -> tuple[Array]:
    """Return (d_x,), like x."""
    (d_x,) = out or (None,)
    x, gate, approximate = saved
    bounded = np.clip(x, -SATURATED, SATURATED)  # (...)
    # gate = g(x): what it changes by when x moves
    if approximate == "tanh":
        slope = 2 * gate * (1 - gate) * SQRT_2_OVER_PI * (1 + 3 * CUBIC * bounded * bounded)  # (...)
    else:
        slope = np.exp(-0.5 * bounded * bounded) / math.sqrt(2 * math.pi)  # (...)
    # y = x * gate, and gate is made from x too: the product rule
    d_x = deliver(d_y * (gate + bounded * slope), d_x)  # (...)
    return (d_x,)
