"""Layer norm and its relatives: a term of the gradient is forgotten, or the weight."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.suspects.fault import NOTICEABLE, RIGHT, Fault
from numpy_gpt.verify.gradcheck.suspects.softmax import changes_all_rows
from numpy_gpt.verify.gradcheck.suspects.suspicion import Suspicion
from numpy_gpt.verify.kinds import Kind

EPSILONS = (1e-5, 0.0, 1e-6, 1e-8, 1e-12, 1e-3, 1e-2, 1e-4, 1e-7)
"""What is commonly added to the variance, the usual ones first."""

LARGE = 20_000
"""Of inputs with more elements only the last axis and the three usual ones are tried, to save time."""


def norm_terms(fault: Fault) -> Iterator[Suspicion]:
    """A gradient of layer norm has no mean and no part along n, since adding and scaling change nothing.

    With n = (x - μ) r and m = d_n:  d_x = r (m - mean(m) - n mean(m n)). What is claimed without a term gives
    the term away:  mean(claim) = r mean(m), and mean(claim n) = r mean(m n), since the mean of n is zero.
    """
    claims = fault.fitting
    if claims is None or not fault.shape:
        return
    for skipped, beside in _skipped(fault):
        inner = claims - skipped
        for axes in _axes(fault.shape):
            behind = tuple(axis + 1 for axis in axes)
            centred = inner - inner.mean(axis=behind, keepdims=True)
            over = f"over axis {_listed(axes)}{beside}"
            words = f"{fault.gradient} lacks the term of the mean {over}; with that"
            if changes_all_rows(inner[0], centred[0], axes):
                yield Suspicion(Kind.LAYER_NORM_MEAN_TERM, fault.i, words, 1.2, skipped + centred)
            for name, n in _normalised(fault, axes):
                for start, also in ((inner, ""), (centred, ", and that of the mean")):
                    along = np.mean(start * n, axis=behind, keepdims=True)
                    words = (
                        f"{fault.gradient} lacks the term n mean(d_n n){also}, for {name} {over}; with that"
                    )
                    cost = 1.25 if not also else 1.5
                    corrected = skipped + start - n * along
                    yield Suspicion(Kind.LAYER_NORM_PROJECTION_TERM, fault.i, words, cost, corrected)
                    # With a sum for the mean,  mean(claim n) = r mean(m n) (1 - N mean(n²)).
                    N = math.prod(fault.shape[axis] for axis in axes)
                    square = np.mean(n * n, axis=axes, keepdims=True)
                    words = (
                        f"{fault.gradient} has Σ d_n n where mean(d_n n) belongs"
                        f"{also and ', likewise Σ d_n'}, for {name} {over}; with means"
                    )
                    corrected = skipped + start + n * along * (N - 1) / (1 - N * square)
                    yield Suspicion(Kind.LAYER_NORM_PROJECTION_TERM, fault.i, words, cost + 0.01, corrected)


def _skipped(fault: Fault) -> Iterator[tuple[Array | float, str]]:
    """Yield what reaches the input beside the norm: nothing, or the upstream gradient of a residual."""
    yield 0.0, ""
    if len(fault.subject.run.outputs) == 1 and np.shape(fault.subject.run.outputs[0]) == fault.shape:
        yield np.stack([parts[0] for parts in fault.upstreams]), ", beside a residual"


def norm_weight(fault: Fault) -> Iterator[Suspicion]:
    """The upstream gradient stands where its product with the weight belongs."""
    claims = fault.fitting
    if claims is None:
        return
    for j in fault.subject.tensors:
        name, weight = fault.subject.names[j], fault.subject.inputs[j]
        if j == fault.i or weight.shape == fault.shape or not _scales(weight.shape, fault.shape):
            continue
        words = f"{fault.gradient} lacks the factor {name}; times {name}"
        yield Suspicion(Kind.LAYER_NORM_WEIGHT, fault.i, words, 1.3, claims * weight)
        with np.errstate(all="ignore"):
            words = f"{fault.gradient} has the factor {name} once too often; divided by {name}"
            yield Suspicion(Kind.LAYER_NORM_WEIGHT, fault.i, words, 1.8, claims / weight)
        yield from _norms_with(fault, name, weight)


def _norms_with(fault: Fault, name: str, weight: Array) -> Iterator[Suspicion]:
    """Build the whole gradient, without the weight and with it, and with means over other axes."""
    assert fault.fitting is not None  # its caller has looked
    for upstream, norm in fault.remembered(f"norms with {name}", lambda: list(_recognised(fault, weight))):
        axes, centres, n, r = norm
        d_n = upstream * weight
        right = r * _less_terms(d_n, n, axes, centres)
        words = (
            f"{fault.gradient} is the gradient for a weight of ones: the upstream gradient stands where its "
            f"product with {name} belongs; with {name}"
        )
        corrected = fault.fitting + right - r * _less_terms(upstream, n, axes, centres)
        yield Suspicion(Kind.LAYER_NORM_WEIGHT, fault.i, words, 1.1, corrected)
        for others in _axes(fault.shape):
            words = (
                f"the means in {fault.gradient} are taken over axis {_listed(others)}, but the norm is over "
                f"axis {_listed(axes)}; over that"
            )
            corrected = fault.fitting + right - r * _less_terms(d_n, n, others, centres)
            yield Suspicion(Kind.LAYER_NORM_MEAN_TERM, fault.i, words, 1.2, corrected)


class Norm(NamedTuple):
    """A norm that forward computes."""

    axes: tuple[int, ...]
    centres: bool
    n: Array
    r: Array


def _recognised(fault: Fault, weight: Array) -> Iterator[tuple[Array, Norm]]:
    """Yield the norms with this weight that an output may be, and its upstream gradients (K, ...)."""
    for output, value in enumerate(fault.subject.run.outputs):
        if np.shape(value) != fault.shape:
            continue
        upstream = np.stack([parts[output] for parts in fault.upstreams])
        for axes in _axes(fault.shape):
            for centres in (True, False):
                for eps in _epsilons(fault.shape):
                    n, r = _norm(fault.value, axes, eps, centres)
                    if fault.misfit(r * _less_terms(upstream * weight, n, axes, centres)) <= 1e-6:
                        yield upstream, Norm(axes, centres, n, r)


def _less_terms(d_n: Array, n: Array, axes: tuple[int, ...], centres: bool) -> Array:
    """Return d_n - mean(d_n) - n mean(d_n n), or without mean(d_n) for a norm that does not centre."""
    behind = tuple(axis + 1 for axis in axes)
    less: Array = d_n - n * np.mean(d_n * n, axis=behind, keepdims=True)
    return less - d_n.mean(axis=behind, keepdims=True) if centres else less


def _listed(axes: tuple[int, ...]) -> str:
    return ", ".join(map(str, axes))


def weight_of_ones(fault: Fault) -> Iterator[Suspicion]:
    """Wherever the norm is inside the operation: handed a weight of ones, backward is right."""
    for j in fault.subject.tensors:
        weight = fault.subject.inputs[j]
        if j == fault.i or weight.ndim != 1 or weight.size < 2 or fault.is_late:
            continue
        if fault.error_at(fault.subject.inputs) < NOTICEABLE:
            return  # the fault does not show along a few directions
        error = fault.error_at(fault.with_input(j, np.ones_like(weight)))
        if error < RIGHT:
            name = fault.subject.names[j]
            words = (
                f"{fault.gradient} is right if {name} is all ones, and only then: it is left out; with ones"
            )
            yield Suspicion(Kind.LAYER_NORM_WEIGHT, fault.i, words, 2.0, error_left=error)


def _normalised(fault: Fault, axes: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
    """Yield what n may be: saved arrays and outputs that are x normalised, and x normalised in all ways."""
    x = fault.value
    for centres, name in ((True, "n of mean 0 and variance 1"), (False, "n of mean square 1")):
        plain, _ = _norm(x, axes, 0.0, centres)
        if not np.isfinite(plain).all():
            continue
        for found, array in fault.known.items():
            if array.shape == x.shape and found != fault.subject.names[fault.i]:
                along = np.mean(array * plain, axis=axes, keepdims=True)
                if np.allclose(array, along * plain, rtol=0.0, atol=1e-9) and (along > 0.5).all():
                    yield f"n = {found}", array
        for eps in _epsilons(fault.shape):
            yield name, _norm(x, axes, eps, centres)[0]


def _norm(x: Array, axes: tuple[int, ...], eps: float, centres: bool) -> tuple[Array, Array]:
    """Return n and r."""
    centred = x - x.mean(axis=axes, keepdims=True) if centres else x
    with np.errstate(all="ignore"):
        r = 1.0 / np.sqrt(np.mean(centred * centred, axis=axes, keepdims=True) + eps)
        return centred * r, r


def _axes(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the axes that may be normalised over: the last, the first, several."""
    here = tuple(axis for axis, length in enumerate(shape) if length > 1)
    if here:
        yield here[-1:]
    if math.prod(shape) > LARGE:
        return
    for count in range(1, len(here) + 1):
        for axes in combinations(here, count):
            if axes != here[-1:] and count <= 3:
                yield axes


def _epsilons(shape: tuple[int, ...]) -> tuple[float, ...]:
    return EPSILONS[:3] if math.prod(shape) > LARGE else EPSILONS


def _scales(small: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    if not small or len(small) > len(shape):
        return False
    return all(a in (1, b) for a, b in zip(small[::-1], shape[::-1], strict=False))
