"""Softmax without the sum over its row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.suspects.fault import Fault
from numpy_gpt.verify.gradcheck.suspects.suspicion import Suspicion
from numpy_gpt.verify.kinds import Kind


def softmax_row_term(fault: Fault) -> Iterator[Suspicion]:
    """Claimed are y d_y, or the sigmoid's y (1 - y) d_y, or y times whatever is shared by a row.

    The gradient of each row's scores sums to zero, and what makes it so is a multiple of y: from a claim c,
    c - y Σ c is the right gradient, whatever number per row is wrong or missing. It holds for log-softmax
    too, where the claim is d_y alone.
    """
    claims = fault.fitting
    if claims is None:
        return
    for name, y, axis in _weights(fault):
        with np.errstate(all="ignore"):
            factors = {
                "the sum over the row is missing in its gradient; put in": 1.0,
                "the sigmoid's slope y (1 - y) stands for the sum over the row; put in": np.where(
                    y < 1.0, 1.0 / (1.0 - y), 0.0
                ),
            }
        for text, factor in factors.items():
            alone = claims * factor
            corrected = alone - y * alone.sum(axis=axis, keepdims=True)
            if not changes_all_rows(claims[0], corrected[0], axis):
                continue
            words = f"{name} is a softmax over axis {axis} of {fault.subject.names[fault.i]}, and {text}"
            yield Suspicion(Kind.SOFTMAX_ROW_TERM, fault.i, words, 1.1, corrected)


def row_term_over_other_axes(fault: Fault) -> Iterator[Suspicion]:
    """The sum that belongs to a row is taken over other axes, where the softmax is the output itself."""
    if fault.fitting is None or fault.value.ndim < 2:
        return
    for output, value in enumerate(fault.subject.run.outputs):
        y = np.asarray(value)
        if y.shape != fault.shape:
            continue
        upstream = np.stack([parts[output] for parts in fault.upstreams])  # (K, ...)
        axes = range(1, upstream.ndim)
        for row in axes:
            right = y * (upstream - np.sum(upstream * y, axis=row, keepdims=True))
            if fault.misfit(right) > 1e-6:
                continue
            for other in (axis for axis in axes if axis != row):
                wrong = y * (upstream - np.sum(upstream * y, axis=other, keepdims=True))
                words = (
                    f"softmax's sum over axis {row - 1} is taken over axis {other - 1} in {fault.gradient}; "
                    f"over axis {row - 1}"
                )
                corrected = fault.fitting + right - wrong
                yield Suspicion(Kind.SOFTMAX_ROW_TERM, fault.i, words, 1.2, corrected)


def half_of_cross_entropy(fault: Fault) -> Iterator[Suspicion]:
    """Logits act through the target's logit and through the sum over all: the 1 and the p in p - 1.

    What is missing is one number, the same for all rows, times either of the two.
    """
    claims, truth = fault.fitting, fault.truth
    if claims is None or truth is None or fault.value.ndim < 1:
        return
    exponentials = np.exp(fault.value - fault.value.max(axis=-1, keepdims=True))
    p = exponentials / exponentials.sum(axis=-1, keepdims=True)
    for name, ids in fault.integers.items():
        if ids.shape != fault.shape[:-1]:
            continue
        one_hot = np.arange(fault.shape[-1]) == ids[..., None]
        counted = one_hot.any(axis=-1, keepdims=True)  # a target outside the classes is an ignored one
        for part, text in ((one_hot, f"the 1 at each of the {name}"), (p * counted, "softmax's p")):
            shares = ((truth - claims) * part).reshape(len(claims), -1).sum(axis=1) / np.sum(part * part)
            missing = shares.reshape(-1, *(1,) * fault.value.ndim) * part
            words = f"{fault.gradient} lacks {text}; with that"
            yield Suspicion(Kind.MISSING_PATH, fault.i, words, 1.4, claims + missing)


def _weights(fault: Fault) -> Iterator[tuple[str, Array, int]]:
    """Yield arrays of the input's shape that are positive and sum to one along an axis, from the end."""
    candidates = [(name, array) for name, array in fault.known.items() if array.shape == fault.shape]
    with np.errstate(all="ignore"):
        logarithms = [(f"exp of {name}", np.exp(array)) for name, array in candidates]
    for name, array in [*candidates, *logarithms]:
        for axis in range(-array.ndim, 0):
            if array.shape[axis] > 1 and (array >= 0.0).all() and _is_one(array.sum(axis=axis)):
                yield name, array, axis
    for axis in range(-len(fault.shape), 0):
        shifted = fault.value - np.max(fault.value, axis=axis, keepdims=True)
        exponentials = np.exp(shifted)
        y = exponentials / exponentials.sum(axis=axis, keepdims=True)
        yield "exp(x) / Σ exp(x)", y, axis


def changes_all_rows(claim: Array, corrected: Array, axis: int | tuple[int, ...]) -> bool:
    """Whether a correction changes every row that has a gradient: what is forgotten is so everywhere."""
    size = np.max(np.abs(claim), axis=axis)
    change = np.max(np.abs(corrected - claim), axis=axis)
    return bool((change > 1e-9 * size)[size > 0.0].all())


def _is_one(sums: Array) -> bool:
    return bool(np.max(np.abs(sums - 1.0), initial=0.0) < 1e-9)
