"""Mistakes in the middle of a layer, told by what forward saved and by what arrives at its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.suspects.activation import mistaken_slopes
from numpy_gpt.verify.gradcheck.suspects.fault import Fault
from numpy_gpt.verify.gradcheck.suspects.suspicion import Suspicion
from numpy_gpt.verify.gradcheck.suspects.terms import Term, fits_first, images_before, sources
from numpy_gpt.verify.kinds import Kind

Gap = Callable[[Array], Array]
"""What a mistake makes the gradient of an inner array lack, from the gradient that reaches it."""

MAX_SIZE = 20_000
"""Of larger arrays inside an operation nothing is tried."""


def inner_mistakes(fault: Fault) -> Iterator[Suspicion]:
    """An activation or a softmax of something saved has a wrong gradient, and the input's lacks its image."""
    if fault.fitting is None:
        return
    gradients = [(name, source) for name, source in sources(fault) if source(0).size <= MAX_SIZE]
    for name, array in fault.known.items():
        arriving = [source for _, source in gradients if source(0).shape == array.shape]
        if not arriving:
            continue
        for kind, text, gap in _gaps(name, array):
            for source in arriving:
                if fault.is_late:
                    return
                words = f"inside forward there is {text}; with the right gradient of that, {fault.gradient}:"
                yield from corrected_by(fault, kind, words, lacking(gap, source))


def corrected_by(fault: Fault, kind: Kind, words: str, gap: Term) -> Iterator[Suspicion]:
    """Add to the claims the images of what a gradient inside the operation lacks."""
    claims = fault.fitting
    if claims is None:
        return
    for _, image in images_before(fault, "", gap):
        if fits_first(fault, claims[0] + image(0)):
            missing = np.stack([image(k) for k in range(len(claims))])
            yield Suspicion(kind, fault.i, words, 1.4, claims + missing)


def lacking(gap: Gap, source: Term) -> Term:
    """Return what a mistake takes from the gradient that reaches an inner array."""
    return lambda k: gap(source(k))


def _gaps(name: str, array: Array) -> Iterator[tuple[Kind, str, Gap]]:
    """Yield the mistakes that may be made with an array: kind, description, and what is then lacking."""
    for kind, text, right, wrong in mistaken_slopes(array):
        yield kind, f"{text} of {name}", times(right - wrong)
    if (array < 0.0).any() and (array > 0.0).any():
        yield Kind.MASK, f"a ReLU of {name} without its mask", times(np.where(array > 0.0, 0.0, -1.0))
    if (array >= 0.0).all() and array.shape and np.max(np.abs(array.sum(axis=-1) - 1.0)) < 1e-9:
        text = f"the softmax {name}, whose gradient lacks the sum over the row"
        yield Kind.SOFTMAX_ROW_TERM, text, lambda d: -array * np.sum(d * array, axis=-1, keepdims=True)
        text = f"the softmax {name} with the sigmoid's slope"
        yield (
            Kind.SOFTMAX_ROW_TERM,
            text,
            lambda d: array * (array * d - np.sum(d * array, axis=-1, keepdims=True)),
        )


def times(factor: Array) -> Gap:
    """Return what is lacking where the slope is off by so much."""
    return lambda d: d * factor
