"""A gradient that is right but for one number."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from numpy_gpt.verify.gradcheck.suspects.fault import Fault
from numpy_gpt.verify.gradcheck.suspects.numbers import recognise
from numpy_gpt.verify.gradcheck.suspects.suspicion import Suspicion
from numpy_gpt.verify.kinds import Kind


def constant_factor(fault: Fault) -> Iterator[Suspicion]:
    """The claims are one number times the truth, the same for every element and upstream gradient."""
    factor = least_squares_factor(fault)
    if factor is None or fault.fitting is None or abs(factor) < 1e-12:
        return
    known = recognise(factor, fault.subject)
    if known is None and fault.value.size < 2:
        return  # any mistake is some factor there
    value, name = known or (factor, "")
    text = f"{value:.7g} times what it should be" + (f" ({name})" if name else "")
    yield Suspicion(
        Kind.CONSTANT_FACTOR,
        fault.i,
        f"{fault.gradient} is {text}; divided by that",
        cost=1.0 if known else 1.75 if fault.value.size > 3 else 5.0,
        corrected=fault.fitting / value,
    )
    uses = round(1 / value)
    if uses in (2, 3) and abs(value * uses - 1) < 1e-9:
        yield Suspicion(
            Kind.MISSING_PATH,
            fault.i,
            f"{fault.gradient} is as if one of {uses} equal uses sent its gradient back; times {uses}",
            cost=2.0,
            corrected=fault.fitting * uses,
        )


def least_squares_factor(fault: Fault) -> float | None:
    """Return the c for which claims = c · truth fits best over all probes; None where all is zero."""
    probes, fitting = fault.measurement.probes, fault.fitting
    if fitting is None or not probes:
        return None
    if fault.truth is not None:
        claims, slopes = fitting, fault.truth
    else:
        lengths = np.array([max(float(np.linalg.norm(probe.direction.steps)), 1e-300) for probe in probes])
        claims = np.stack([probe.claim for probe in probes]) / lengths[:, None]
        slopes = np.stack([probe.slope.value for probe in probes]) / lengths[:, None]
    square = float(np.sum(slopes * slopes))
    return float(np.sum(claims * slopes)) / square if square > 0.0 else None
