"""What forward broadcasts, backward sums: sums that are absent, or over the wrong axes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.suspects.fault import Fault
from numpy_gpt.verify.gradcheck.suspects.suspicion import Suspicion
from numpy_gpt.verify.kinds import Kind

MAX_LENGTH = 64
"""Backward is called for every index of an axis of the output."""


def not_summed(fault: Fault) -> Iterator[Suspicion]:
    """The gradient has axes too many; summed over, it is right."""
    claims = fault.claims
    if claims is None or claims.shape[1:] == fault.shape or claims.ndim - 1 < len(fault.shape):
        return
    if claims[0].size == fault.value.size and claims.ndim - 1 == len(fault.shape):
        return
    axes = range(1, claims.ndim)
    for count in range(1, claims.ndim):
        for summed in combinations(axes, count):
            corrected = claims.sum(axis=summed)
            if corrected.size == len(claims) * fault.value.size:
                names = ", ".join(str(axis - 1) for axis in summed)
                words = (
                    f"{fault.gradient} has shape {claims.shape[1:]} instead of {fault.shape}: forward "
                    f"broadcasts {fault.subject.names[fault.i]}; summed over axis {names}"
                )
                yield Suspicion(
                    Kind.MISSING_REDUCTION, fault.i, words, 1.0, corrected.reshape(len(claims), *fault.shape)
                )


def summed_too_far(fault: Fault) -> Iterator[Suspicion]:
    """The gradient is the truth summed over axes that belong to it."""
    claims, truth = fault.claims, fault.truth
    if claims is None or truth is None or claims[0].size >= truth[0].size:
        return
    for count in range(1, truth.ndim):
        for summed in combinations(range(1, truth.ndim), count):
            sums = truth.sum(axis=summed, keepdims=True)
            if sums.size == claims.size:
                corrected = truth + (claims.reshape(sums.shape) - sums)
                axes = ", ".join(str(axis - 1) for axis in summed)
                words = f"{fault.gradient} is summed over axis {axes}, which it should keep; told apart"
                yield Suspicion(Kind.MISSING_REDUCTION, fault.i, words, 2.0, corrected)


def one_of_many(fault: Fault) -> Iterator[Suspicion]:
    """Of a sum over an axis of the output there is but one term, or all but some terms at its end."""
    if fault.fitting is None or fault.jacobian is None:
        return
    for output, value in enumerate(fault.subject.run.outputs):
        shape = np.shape(value)
        for axis, length in enumerate(shape):
            if length > 1:
                yield from _terms(fault, output, shape, axis, axis + 1)
        if len(shape) > 2:
            yield from _terms(fault, output, shape, 0, len(shape) - 1)


def _terms(fault: Fault, output: int, shape: tuple[int, ...], first: int, stop: int) -> Iterator[Suspicion]:
    """Compare with single terms, and with sums that end early, along the output's axes first .. stop - 1."""
    terms = np.stack([_contributions(fault, k, output, first, stop) for k in range(len(fault.upstreams))])
    length = terms.shape[2]
    if length > 512:
        return
    assert fault.right is not None  # its caller has looked
    others = fault.right - terms.sum(axis=2).reshape(fault.measurement.claims.shape)
    axes = f"axis {first}" if stop == first + 1 else f"the flattened axes {first} to {stop - 1}"
    for at in (length - 1, *range(length - 1)):
        wrong = others + terms[:, :, at].reshape(others.shape)
        words = (
            f"of the sum over {axes} of the output, of length {length}, {fault.gradient} has only the term "
            f"at index {at}; with the others"
        )
        yield _instead(fault, Kind.MISSING_REDUCTION, words, 1.6, wrong)
    sums = np.cumsum(terms, axis=2)
    for stop_at in range(1, length):
        wrong = others + sums[:, :, stop_at - 1].reshape(others.shape)
        words = (
            f"{fault.gradient} lacks what indices {stop_at} to {length - 1} along {axes} of the output send "
            "back; with that"
        )
        yield _instead(fault, Kind.PARTIAL, words, 1.7, wrong)


def _contributions(fault: Fault, k: int, output: int, first: int, stop: int) -> Array:
    """Return what each index along some axes of an output contributes (size, length)."""
    parts = fault.parts(k, output)
    assert parts is not None  # its callers have looked
    shape = parts.shape[1:]
    before, after = int(np.prod(shape[:first])), int(np.prod(shape[stop:]))
    terms: Array = parts.reshape(len(parts), before, -1, after).sum(axis=(1, 3))
    return terms


def deaf(fault: Fault) -> Iterator[Suspicion]:
    """Backward answers as if along an axis of the output the last index, or the first, were alone.

    Where an input is merely added to all indices alike, the one that is heard can stand in for each of the
    others, one after the other, and their sum is right. Otherwise its deafness is all there is to show.
    """
    claims = fault.fitting
    if claims is None or not claims.any():
        return
    for output, value in enumerate(fault.subject.run.outputs):
        for axis, length in enumerate(np.shape(value)):
            if not 2 <= length <= MAX_LENGTH or fault.is_late:
                continue
            for heard, which in ((length - 1, "last"), (0, "first")):
                alone = _heard(fault, output, axis, heard, heard)
                if alone is None or np.max(np.abs(alone - claims)) > 1e-9 * np.max(np.abs(claims)):
                    continue
                if not _is_silent(fault):
                    return
                words = (
                    f"{fault.gradient} depends on the upstream gradient at the {which} of {length} indices "
                    f"along axis {axis} of the output alone"
                )
                others = [_heard(fault, output, axis, at, heard) for at in range(length)]
                if all(other is not None for other in others):
                    total = np.sum(np.stack([other for other in others if other is not None]), axis=0)
                    yield Suspicion(
                        Kind.MISSING_REDUCTION, fault.i, f"{words}; with all of them added", 1.62, total
                    )
                words += "; as it stands"
                yield Suspicion(Kind.MISSING_REDUCTION, fault.i, words, 3.0, error_left=fault.error)


def _is_silent(fault: Fault) -> bool:
    """Whether backward gives zero for an upstream gradient of zero: if not, it listens to nothing."""
    silence = fault.answers(fault.subject.inputs, np.zeros_like(fault.subject.upstreams))
    return silence is not None and not silence.any()


def _heard(fault: Fault, output: int, axis: int, at: int, heard: int) -> Array | None:
    """Return the claims (K, ...) for upstream gradients cut down to one index, and moved to another."""
    rows = []
    for parts in fault.upstreams:
        moved = [np.zeros(part.shape) for part in parts] if at != heard else [part.copy() for part in parts]
        moved[output] = np.zeros(parts[output].shape)
        here, there = ((slice(None),) * axis + (index,) for index in (at, heard))
        moved[output][there] = parts[output][here]
        rows.append(np.concatenate([part.ravel() for part in moved]))
    return fault.answers(fault.subject.inputs, np.stack(rows))


def summed_over_other_axes(fault: Fault) -> Iterator[Suspicion]:
    """The upstream gradient, or its product with something known, is summed over the wrong axes."""
    if fault.fitting is None:
        return
    for name, products in _products(fault):
        for right, right_axes in _sums(products, fault.shape):
            if fault.misfit(right) > 1e-6:
                continue
            for wrong, wrong_axes in _sums(products, fault.shape):
                if wrong_axes != right_axes:
                    words = (
                        f"{fault.gradient} is {name} summed over axis {_listed(wrong_axes)} instead of "
                        f"{_listed(right_axes)}; summed so"
                    )
                    corrected = fault.fitting + right - wrong
                    yield Suspicion(Kind.MISSING_REDUCTION, fault.i, words, 1.6, corrected)


def _products(fault: Fault) -> Iterator[tuple[str, Array]]:
    """Yield the upstream gradient and its products with what is known (K, *output's shape)."""
    for output in range(len(fault.subject.run.outputs)):
        upstream = np.stack([parts[output] for parts in fault.upstreams])  # (K, ...)
        yield "the upstream gradient", upstream
        for name, array in fault.known.items():
            if array.shape == upstream.shape[1:]:
                yield f"the upstream gradient times {name}", upstream * array


def _sums(products: Array, shape: tuple[int, ...]) -> list[tuple[Array, tuple[int, ...]]]:
    """Return the sums of products (K, ...) over axes that leave the shape."""
    found = []
    for count in range(1, products.ndim):
        for axes in combinations(range(1, products.ndim), count):
            summed = products.sum(axis=axes)
            if summed.shape[1:] == shape:
                found.append((summed, tuple(axis - 1 for axis in axes)))
    return found


def _listed(axes: tuple[int, ...]) -> str:
    return ", ".join(map(str, axes))


def _instead(fault: Fault, kind: Kind, words: str, cost: float, wrong: Array) -> Suspicion:
    """Suspect that the claims are `wrong`: replaced by what is right, only their difference is left."""
    assert fault.fitting is not None  # its callers have looked at both
    assert fault.right is not None
    return Suspicion(kind, fault.i, words, cost, fault.fitting + fault.right - wrong)
