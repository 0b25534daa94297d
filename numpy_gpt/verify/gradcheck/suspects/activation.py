"""Slopes of another function than the one that forward computed."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.suspects.fault import Fault
from numpy_gpt.verify.gradcheck.suspects.suspicion import Suspicion
from numpy_gpt.verify.kinds import Kind

_erf = np.vectorize(math.erf, otypes=[np.float64])  # NumPy has none

MAX_SIZE = 200_000
"""More numbers than this take Python's erf too long."""


def activation_slope(fault: Fault) -> Iterator[Suspicion]:
    """One form's slope stands behind another form, or a gate is taken for a constant.

    d_x is a product with the slope, whatever comes after: exchanging slopes sets it right.
    """
    claims, x = fault.fitting, fault.value
    if claims is None or x.size > MAX_SIZE:
        return
    for kind, text, right, wrong in mistaken_slopes(x):
        words = f"{fault.gradient} has {text} of {fault.subject.names[fault.i]}; with the right slope"
        yield Suspicion(kind, fault.i, words, 1.1, claims * _quotient(right, wrong))


def mistaken_slopes(x: Array) -> Iterator[tuple[Kind, str, Array, Array]]:
    """Yield kind, description, right slope and wrong slope of each mistake in an activation of x."""
    forms = {"tanh": _tanh(x), "erf": _exact(x), "sigmoid(1.702 x)": _gated(x, 1.702)}
    for right in forms:
        for wrong in forms:
            if right != wrong:
                text = f"the slope of GELU's {wrong} form behind its {right} form"
                yield Kind.GELU_FORM, text, forms[right][1], forms[wrong][1]
    gated = {"GELU": forms["tanh"], "exact GELU": forms["erf"], "SiLU": _gated(x, 1.0)}
    for name, (gate, slope) in gated.items():
        yield Kind.MISSING_PATH, f"the gate of {name} taken for a constant, in the {name}", slope, gate
    gate, slope = gated["SiLU"]
    yield Kind.MISSING_PATH, "the sigmoid's slope alone, in the SiLU", slope, gate * (1 - gate)


def activations(x: Array) -> Iterator[tuple[str, Array]]:
    """Yield the gates and the slopes of the usual activations of x."""
    for name, form in (("SiLU", _gated(x, 1.0)), ("tanh's GELU", _tanh(x)), ("the exact GELU", _exact(x))):
        gate, slope = form
        yield f"the gate of {name}", gate
        yield f"the slope of {name}", slope


def _quotient(slope: Array, other: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.where(np.abs(other) > 1e-300, slope / other, 1.0)


def _tanh(x: Array) -> tuple[Array, Array]:
    """Return gate and slope of ½ x (1 + tanh u)."""
    bounded = np.clip(x, -50.0, 50.0)
    root = math.sqrt(2 / math.pi)
    gate = 0.5 * (1 + np.tanh(root * (bounded + 0.044715 * bounded**3)))
    return gate, gate + bounded * 2 * gate * (1 - gate) * root * (1 + 3 * 0.044715 * bounded**2)


def _exact(x: Array) -> tuple[Array, Array]:
    """Return gate and slope of x Φ(x)."""
    gate = 0.5 * (1 + _erf(x / math.sqrt(2)))
    return gate, gate + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _gated(x: Array, scale: float) -> tuple[Array, Array]:
    """Return gate and slope of x sigmoid(scale x)."""
    gate = 0.5 * (1 + np.tanh(0.5 * scale * x))
    return gate, gate + scale * x * gate * (1 - gate)
