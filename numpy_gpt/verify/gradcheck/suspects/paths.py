"""Values that are used more than once: every use sends a gradient back, and one of them is forgotten."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.measurement import NEGLIGIBLE
from numpy_gpt.verify.gradcheck.suspects.fault import Fault
from numpy_gpt.verify.gradcheck.suspects.inside import lacking, times
from numpy_gpt.verify.gradcheck.suspects.suspicion import Suspicion
from numpy_gpt.verify.gradcheck.suspects.terms import Term, fits_first, images, shaped, sources
from numpy_gpt.verify.kinds import Kind


def nothing_sent(fault: Fault) -> Iterator[Suspicion]:
    """There is no gradient at all, or none from one of several outputs, where one was measured."""
    measurement = fault.measurement
    if fault.fitting is None:
        return
    is_empty = ~fault.fitting.reshape(len(fault.fitting), -1).any(axis=1)  # (K,)
    silent = is_empty & (measurement.largest > NEGLIGIBLE * np.max(measurement.largest))
    if not silent.any():
        return
    if silent[0]:
        is_none = fault.subject.claims[0][fault.i] is None
        words = (
            f"backward gives {'None' if is_none else 'zero'} for {fault.subject.names[fault.i]}, on which "
            "the output depends; as it stands"
        )
        yield Suspicion(Kind.MISSING_PATH, fault.i, words, 0.5, error_left=fault.error)
        return
    outputs = ", ".join(str(k - 1) for k in np.flatnonzero(silent))
    heard = [k for k in range(1, len(silent)) if not silent[k]]
    if heard:
        errors = [
            np.max(probe.slope.distance(probe.claim)[heard] / _sizes(fault, probe.direction.steps)[heard])
            for probe in measurement.probes
        ]
        words = (
            f"{fault.gradient} gets nothing back from output {outputs}, which depends on "
            f"{fault.subject.names[fault.i]}; for the other outputs"
        )
        yield Suspicion(Kind.MISSING_PATH, fault.i, words, 0.6, error_left=float(max(errors)))


def _sizes(fault: Fault, steps: Array) -> Array:
    largest = fault.measurement.largest
    floor = NEGLIGIBLE * np.max(largest)
    sizes: Array = np.maximum(largest, floor) * float(np.linalg.norm(np.ravel(steps)))
    return sizes


def missing_term(fault: Fault) -> Iterator[Suspicion]:
    """What is missing, or is there once too often, is something at hand: most often the upstream gradient."""
    claims = fault.fitting
    if claims is None or not claims.any():
        return
    for name, term in _terms(fault):
        if fault.is_late:
            return
        for sign, text in ((1.0, "missing; added"), (-1.0, "counted once too often; taken away")):
            if fits_first(fault, claims[0] + sign * term(0)):
                missing = np.stack([term(k) for k in range(len(claims))])
                words = f"in {fault.gradient}, {name} is {text}"
                yield Suspicion(Kind.MISSING_PATH, fault.i, words, 1.58, claims + sign * missing)


def _terms(fault: Fault) -> Iterator[tuple[str, Term]]:
    """Yield what may be missing: other inputs' gradients, and the images of all sources."""
    for j in fault.subject.tensors:
        gradients = fault.claims_of(j)
        if j != fault.i and gradients is not None:
            yield from shaped(fault, f"the gradient of {fault.subject.names[j]}", gradients.__getitem__)
    for name, source in sources(fault):
        yield from images(fault, name, source)
        for other, array in fault.known.items():
            if array.shape == source(0).shape:
                through = lacking(times(1.0 - array * array), source)
                yield from images(fault, f"{name}, times tanh's slope 1 - {other}²,", through)


def half_of_product_rule(fault: Fault) -> Iterator[Suspicion]:
    """In y = x g(x), each number on its own, the gate g is taken for a constant, or x is.

    The true slope is measured by moving all of x at once, which is right only for such operations; of all
    others the error that is left tells.
    """
    for output, value in enumerate(fault.subject.run.outputs):
        x = fault.value
        if fault.fitting is None or np.shape(value) != fault.shape or not x.all():
            continue
        offset = sum(np.size(each) for each in fault.subject.run.outputs[:output])
        steps = fault.measurement.differences.unit_steps[fault.i]
        slopes = fault.slopes({fault.i: steps})[offset : offset + x.size].reshape(x.shape) / steps
        upstream = np.stack([parts[output] for parts in fault.upstreams])  # (K, ...)
        gate = np.asarray(value) / x
        for wrong, constant in ((gate, "output / input"), (slopes - gate, "the input")):
            words = (
                f"{fault.gradient} is the upstream gradient times one half of the product rule, "
                f"{constant} taken for a constant; with both halves"
            )
            corrected = fault.fitting + upstream * (slopes - wrong)
            yield Suspicion(Kind.MISSING_PATH, fault.i, words, 1.4, corrected)
