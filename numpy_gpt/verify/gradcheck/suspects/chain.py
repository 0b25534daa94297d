"""The chain rule is a product, and one of its factors is left out, taken twice, or a wrong one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.suspects.activation import activations
from numpy_gpt.verify.gradcheck.suspects.fault import Fault
from numpy_gpt.verify.gradcheck.suspects.inside import MAX_SIZE, corrected_by, lacking, times
from numpy_gpt.verify.gradcheck.suspects.suspicion import Suspicion
from numpy_gpt.verify.gradcheck.suspects.terms import Term, broadcasts, sources
from numpy_gpt.verify.kinds import Kind


def missing_factor(fault: Fault) -> Iterator[Suspicion]:
    """The claims lack a factor that is at hand, or have it once too often."""
    claims = fault.fitting
    if claims is None:
        return
    for name, array in fault.known.items():
        for text, factor in _forms(name, array):
            shaped = _spread(factor, fault.shape)
            if shaped is None:
                continue
            words = f"{fault.gradient} lacks the factor {text}; times that"
            yield Suspicion(Kind.MISSING_FACTOR, fault.i, words, 1.35, claims * shaped)
            with np.errstate(all="ignore"):
                words = (
                    f"{fault.gradient} lacks a division by {text}, or has that factor once too often; "
                    "divided by that"
                )
                yield Suspicion(Kind.MISSING_FACTOR, fault.i, words, 1.4, claims / shaped)


def measured_factor(fault: Fault) -> Iterator[Suspicion]:
    """The claims are off by a factor that depends on the place alone: equal for all upstream gradients.

    It is fitted to all of these together, and they are more than one; so what is left of the error tells.
    But to a loss of one number they are all multiples of one: then a factor for each element proves nothing.
    """
    claims, truth = fault.fitting, fault.truth
    if claims is None or truth is None or fault.value.size < 2:
        return
    axes = [axis for axis, length in enumerate(fault.shape) if length > 1]
    fewest = 0 if fault.subject.values.size > 1 else 1
    for count in range(len(axes) - 1, fewest - 1, -1):
        for shared in combinations(axes, count):
            behind = (0, *(axis + 1 for axis in shared))
            squares = np.sum(claims * claims, axis=behind, keepdims=True)
            products = np.sum(claims * truth, axis=behind, keepdims=True)
            factor = np.divide(products, squares, out=np.ones_like(squares), where=squares > 0.0)[0]
            if np.ptp(factor) <= 1e-6 * np.max(np.abs(factor)):
                continue  # one number is a constant factor
            at = tuple(int(i) for i in np.unravel_index(np.argmax(np.abs(factor - 1.0)), factor.shape))
            alike = f"alike along axis {', '.join(map(str, shared))}" if shared else "one for each element"
            words = (
                f"{fault.gradient} is off by factors that no upstream gradient changes, {alike}, such as "
                f"{factor[at]:.6g} at {at}: a factor of the chain rule is wrong or left out; times these"
            )
            yield Suspicion(Kind.MISSING_FACTOR, fault.i, words, 1.7 if shared else 2.2, claims * factor)


def factor_inside(fault: Fault) -> Iterator[Suspicion]:
    """A gradient inside has a factor left out, or another one, and the input's lacks the image of that."""
    if fault.fitting is None:
        return
    gradients = [source for _, source in sources(fault) if source(0).size <= MAX_SIZE]
    for name, array in fault.known.items():
        for text, gap in _mistaken(name, array):
            yield from _gaps_inside(fault, gradients, text, gap)
    for name, array in fault.known.items():
        alike = [source for source in gradients if source(0).shape == array.shape]
        for activation, values in activations(array) if alike and array.size <= MAX_SIZE else ():
            through = [lacking(times(values), source) for source in alike]
            for other, factor in fault.known.items():
                text = f"lacks the factor {other} beside {activation} of {name}"
                yield from _gaps_inside(fault, through, text, factor - 1.0)


def _gaps_inside(fault: Fault, gradients: list[Term], text: str, gap: Array) -> Iterator[Suspicion]:
    """Add the image of what each gradient inside lacks, if it is the product with `gap`."""
    for source in gradients:
        shaped = _spread(gap, source(0).shape)
        if shaped is None:
            continue
        if fault.is_late:
            return
        words = f"a gradient inside, on its way to {fault.gradient}, {text}; with that"
        yield from corrected_by(fault, Kind.MISSING_FACTOR, words, lacking(times(shaped), source))


def _mistaken(name: str, array: Array) -> Iterator[tuple[str, Array]]:
    """Yield what is wrong with a factor, and right factor less wrong one."""
    for text, factor in _forms(name, array):
        yield f"lacks the factor {text}", factor - 1.0
    slopes = list(_slopes(name, array))
    for (right_text, right), (wrong_text, wrong) in permutations(slopes, 2):
        yield f"has the factor {wrong_text} where {right_text} belongs", right - wrong


def _forms(name: str, array: Array) -> Iterator[tuple[str, Array]]:
    """Yield an array and what derivatives are written with it."""
    yield from _slopes(name, array)
    yield f"{name}²", array * array
    with np.errstate(all="ignore"):
        for function, slope in (("exp", np.exp), ("cos", np.cos), ("sin", np.sin), ("√", np.sqrt)):
            values = slope(array)
            if np.isfinite(values).all():
                yield f"{function}({name})", values


def _slopes(name: str, array: Array) -> Iterator[tuple[str, Array]]:
    """Yield an array, and the slopes of tanh and sigmoid if it holds their values."""
    yield name, array
    yield f"1 - {name}", 1.0 - array
    yield f"1 - {name}², tanh's slope", 1.0 - array * array
    yield f"{name} (1 - {name}), the sigmoid's slope", array * (1.0 - array)


def _spread(factor: Array, shape: tuple[int, ...]) -> Array | None:
    """Return a factor that can be multiplied with an array of this shape, by element, row or column."""
    if factor.ndim and factor.size > 1:
        if broadcasts(factor.shape, shape):
            return factor
        if factor.ndim < len(shape) and broadcasts(factor.shape, shape[: factor.ndim]):
            return factor.reshape(factor.shape + (1,) * (len(shape) - factor.ndim))
    return None
