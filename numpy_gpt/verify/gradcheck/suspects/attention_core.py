"""Attention between split heads, right and with each usual mistake in its backward pass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.kinds import Kind


class Gradients(NamedTuple):
    """Of queries, keys and values, each (..., T, D)."""

    queries: Array
    keys: Array
    values: Array


@dataclass(frozen=True)
class Core:
    """softmax(scale q kᵀ, hidden where masked) v.

    Args:
        q: (..., Tq, D).
        k: (..., Tk, D).
        v: (..., Tk, D).
        scale: what the scores are multiplied by.
        mask: True where a key is hidden from a query, (Tq, Tk) or to be broadcast to the scores.
    """

    q: Array
    k: Array
    v: Array
    scale: float
    mask: Array

    def weights(self, mask: Array) -> Array:
        """Return softmax over the keys that are not hidden (..., Tq, Tk)."""
        scores = np.where(mask, -math.inf, self.q @ self.k.swapaxes(-1, -2) * self.scale)
        with np.errstate(all="ignore"):
            exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
            result: Array = exponentials / exponentials.sum(axis=-1, keepdims=True)
        return result

    def forward(self) -> Array:
        """Return the context (..., Tq, D)."""
        context: Array = self.weights(self.mask) @ self.v
        return context

    def backward(self, d_context: Array, mistake: str = "") -> Gradients:
        """Return the gradients, with one mistake of `MISTAKES` in them or none."""
        weights = self._weights_of_backward(mistake)
        d_weights = d_context @ self.v.swapaxes(-1, -2)  # (..., Tq, Tk)
        row_term = np.sum(d_weights * weights, axis=-1, keepdims=True)  # (..., Tq, 1)
        if mistake == "no row term":
            row_term = np.zeros_like(row_term)
        elif mistake == "sigmoid":
            row_term = d_weights * weights
        elif mistake == "row term over queries":
            row_term = np.sum(d_weights * weights, axis=-2, keepdims=True)
        d_scores = weights * (d_weights - row_term) * self.scale  # (..., Tq, Tk)
        read, scored = weights.swapaxes(-1, -2), d_scores.swapaxes(-1, -2)
        if mistake == "weights untransposed":
            read = weights
        elif mistake == "scores untransposed":
            scored = d_scores
        return Gradients(d_scores @ self.k, scored @ self.q, read @ d_context)

    def _weights_of_backward(self, mistake: str) -> Array:
        if mistake == "mask after softmax":
            return np.where(self.mask, 0.0, self.weights(np.zeros_like(self.mask)))
        return self.weights(self._mask_of_backward(mistake))

    def _mask_of_backward(self, mistake: str) -> Array:
        if mistake == "no mask":
            return np.zeros_like(self.mask)
        if mistake == "mask one early":
            return _shifted(self.mask, -1)
        if mistake == "mask one late":
            return _shifted(self.mask, 1)
        if mistake == "no window":
            return np.triu(self.mask)
        if mistake == "window one wider":
            past = np.roll(np.tril(self.mask), 1, axis=-2)
            past[..., 0, :] = False
            return np.triu(self.mask) | past
        return self.mask

    def possible(self) -> list[str]:
        """Return the mistakes that can be made here: some need as many queries as keys, some a mask."""
        is_square = self.mask.shape[-1] == self.mask.shape[-2]
        has_window = is_square and bool(np.tril(self.mask).any())
        return [
            mistake
            for mistake in MISTAKES
            if (is_square or not mistake.endswith("untransposed"))
            and (self.mask.any() or "mask" not in mistake)
            and (has_window or "window" not in mistake)
        ]


MISTAKES = {
    "no row term": (Kind.SOFTMAX_ROW_TERM, "softmax's gradient lacks the sum over the row"),
    "sigmoid": (Kind.SOFTMAX_ROW_TERM, "the sigmoid's slope stands for softmax's sum over the row"),
    "row term over queries": (Kind.SOFTMAX_ROW_TERM, "softmax's row term is summed over the queries"),
    "no mask": (Kind.MASK, "the attention weights of backward are computed without the mask"),
    "mask one early": (Kind.MASK, "the mask of backward hides one key too many"),
    "mask one late": (Kind.MASK, "the mask of backward hides one key too few"),
    "no window": (Kind.MASK, "the mask of backward hides the future, but not what lies before the window"),
    "window one wider": (Kind.MASK, "the window of backward is one key too wide"),
    "mask after softmax": (Kind.MASK, "the mask of backward is applied after the softmax"),
    "weights untransposed": (Kind.TRANSPOSED, "the attention weights are used without transposing them"),
    "scores untransposed": (Kind.TRANSPOSED, "the gradient of the scores is used without transposing it"),
}
"""What each mistake is, and how it is told."""


def _shifted(mask: Array, places: int) -> Array:
    """Move the edge of a mask along the keys; a query keeps at least its first key."""
    moved = np.roll(mask, places, axis=-1)
    if places > 0:
        moved[..., :places] = False
    else:
        moved[..., places:] = mask[..., -1:]
        moved[..., 0] = False
    return moved
