"""Right numbers in wrong places: transposes, scrambled reshapes, reversed axes, exchanged gradients."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.suspects.fault import NOTICEABLE, RIGHT, Fault
from numpy_gpt.verify.gradcheck.suspects.suspicion import Suspicion
from numpy_gpt.verify.kinds import Kind

MOST_AXES = 5
"""More axes have too many orders to try."""

MOST_SHIFTS = 5
"""Shifts along an axis are less than this."""


def transposed(fault: Fault) -> Iterator[Suspicion]:
    """The claims are the truth with its axes in another order."""
    if fault.claims is None or not 2 <= fault.claims.ndim - 1 <= MOST_AXES:
        return
    here = tuple(range(fault.claims.ndim - 1))
    last_two_swapped = (*here[:-2], here[-1], here[-2])
    for order in permutations(here):
        corrected = _permuted(fault.claims, order)
        if order == here or corrected.shape[1:] != fault.shape:
            continue
        is_transpose = order in (last_two_swapped, here[::-1])
        if is_transpose:
            words = f"{fault.gradient} is transposed; transposed back"
            yield Suspicion(Kind.TRANSPOSED, fault.i, words, 1.45, corrected)
        else:
            words = f"{fault.gradient} has its axes mixed up; put in the order {order}"
            yield Suspicion(Kind.PERMUTED_AXES, fault.i, words, 1.45, corrected)


def scrambled(fault: Fault) -> Iterator[Suspicion]:
    """A reshape stands where a transpose belongs, of whole axes or of one that is cut in two, as by heads."""
    claims = fault.fitting
    if claims is None:
        return
    for cut, text in _cuts(fault.shape):
        here = tuple(range(len(cut)))
        if len(cut) > MOST_AXES:
            continue
        for order in permutations(here):
            if order == here:
                continue
            as_written = claims.reshape(len(claims), *(cut[axis] for axis in order))
            corrected = _permuted(as_written, tuple(np.argsort(order))).reshape(claims.shape)
            words = (
                f"{fault.gradient} is in the order in memory of axes {order}{text}: a reshape stands where "
                "a transpose belongs; transposed back"
            )
            yield Suspicion(Kind.PERMUTED_AXES, fault.i, words, 1.6 + 0.001 * len(cut), corrected)


def moved(fault: Fault) -> Iterator[Suspicion]:
    """An axis is reversed, or shifted by a few places."""
    claims = fault.fitting
    if claims is None:
        return
    for axis, length in enumerate(fault.shape):
        if length > 1:
            flipped = np.flip(claims, axis + 1)
            words = f"axis {axis} of {fault.gradient} is reversed; turned round"
            yield Suspicion(Kind.PERMUTED_AXES, fault.i, words, 1.6, flipped)
        for shift in range(1, min(length, MOST_SHIFTS)):
            for back in (-shift, shift):
                words = f"axis {axis} of {fault.gradient} is shifted by {-back}; shifted back"
                rolled = np.roll(claims, back, axis=axis + 1)
                yield Suspicion(Kind.PERMUTED_AXES, fault.i, words, 1.61 + 0.001 * shift, rolled)


def exchanged(fault: Fault) -> Iterator[Suspicion]:
    """Backward returned another input's gradient in this one's place."""
    for j in fault.subject.tensors:
        others = fault.claims_of(j)
        if j != fault.i and others is not None and others.shape[1:] == fault.shape:
            name = fault.subject.names[j]
            words = (
                f"what was returned for {name} is the gradient of {fault.subject.names[fault.i]}; so placed"
            )
            yield Suspicion(Kind.PERMUTED_AXES, fault.i, words, 1.57, others)


def factor_turned(fault: Fault) -> Iterator[Suspicion]:
    """Another input enters transposed or reversed: give forward that input so turned, and it comes right."""
    for j in fault.subject.tensors:
        other = fault.subject.inputs[j]
        if j == fault.i:
            continue
        for value, kind, text in _turned(other):
            if fault.is_late:
                return
            corrected = fault.answers(fault.with_input(j, value))
            if corrected is not None:
                words = (
                    f"{fault.gradient} uses {fault.subject.names[j]} {text} (seen by handing in one that is "
                    "so already); without that"
                )
                yield Suspicion(kind, fault.i, words, 1.9, corrected)


def symmetric_alone(fault: Fault) -> Iterator[Suspicion]:
    """Wherever a square matrix is inside the operation: handed a symmetric one, backward is right."""
    for j in fault.subject.tensors:
        matrix = fault.subject.inputs[j]
        if j == fault.i or fault.is_late or matrix.ndim < 2 or not matrix.shape[-1] == matrix.shape[-2] > 1:
            continue
        if fault.error_at(fault.subject.inputs) < NOTICEABLE:
            return
        error = fault.error_at(fault.with_input(j, 0.5 * (matrix + matrix.swapaxes(-1, -2))))
        if error < RIGHT:
            name = fault.subject.names[j]
            words = (
                f"{fault.gradient} is right if {name} is symmetric, and only then: it is used transposed; "
                "with a symmetric one"
            )
            yield Suspicion(Kind.TRANSPOSED, fault.i, words, 2.0, error_left=error)


def _turned(other: Array) -> Iterator[tuple[Array, Kind, str]]:
    if other.ndim >= 2 and other.shape[-1] == other.shape[-2] > 1:
        yield other.swapaxes(-1, -2), Kind.TRANSPOSED, "transposed"
    for axis, length in enumerate(other.shape):
        if length > 1:
            yield np.flip(other, axis), Kind.PERMUTED_AXES, f"with axis {axis} reversed"


def _permuted(gradients: Array, order: tuple[int, ...]) -> Array:
    """Permute the axes behind the first, which counts upstream gradients."""
    return gradients.transpose(0, *(axis + 1 for axis in order))


def _cuts(shape: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield a shape as it is, and with one axis cut in two in every way."""
    yield shape, ""
    for axis, length in enumerate(shape):
        for parts in range(2, length):
            if length % parts == 0:
                cut = (*shape[:axis], parts, length // parts, *shape[axis + 1 :])
                yield cut, f", axis {axis} cut into {parts} × {length // parts}"
