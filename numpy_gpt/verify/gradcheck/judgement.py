"""From measurements to verdicts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from numpy_gpt.verify.gradcheck.measurement import Measurement, Probe
from numpy_gpt.verify.gradcheck.report import AxisProfile, TensorReport, Verdict

FLOAT32 = "arithmetic stuck in float32: with float64 inputs forward resolves {noise:.0e} of its output"
KINK = "kink or jump within a step: no step is small enough to stay on one side of it"
ILL_CONDITIONED = "ill-conditioned sum: rounding of {noise:.0e} in forward hides errors of {hidden:.0e}"
LEAVES_DOMAIN = "no step can be taken: forward raises or is not finite beside the point"
TOO_SLOW = "forward is too slow to measure within the time allowed"


def judge(measurement: Measurement) -> TensorReport:
    """Weigh all probes of one input."""
    verdict, reason = _verdict(measurement)
    name, shape = measurement.differences.subject.names[measurement.i], measurement.claims.shape[1:]
    if _other_shape(measurement) is not None:
        return TensorReport(name, shape, verdict, float("inf"), checked="its shape", reason=reason)
    report = TensorReport(
        name,
        shape,
        verdict,
        _error(measurement),
        checked=_how(measurement),
        reason=reason,
        profile=_profile(measurement) if verdict == "failed" else (),
    )
    if not measurement.elements:
        return report
    worst = max(measurement.elements.values(), key=lambda probe: measurement.error_in(probe, probe.claim))
    distance = worst.slope.distance(worst.claim)
    k = int(np.argmax(np.where(np.isnan(distance), np.inf, distance)))
    return replace(
        report,
        index=tuple(int(at) for at in worst.direction.index),
        claimed=float(worst.claim[k] / worst.direction.steps),
        measured=float(worst.slope.value[k] / worst.direction.steps),
    )


def _verdict(measurement: Measurement) -> tuple[Verdict, str]:
    """Return the verdict and its reason."""
    fault = _fault(measurement)
    if fault is not None:
        return "failed", fault
    doubt = _doubt(measurement)
    if doubt is not None:
        return "inconclusive", doubt
    is_zero = bool(measurement.probes) and bool(measurement.is_zero.all())
    return "passed", "zero by symmetry: nothing but rounding depends on this input" if is_zero else ""


def _fault(measurement: Measurement) -> str | None:
    """Return what is wrong, "" where the numbers say it all, or None if nothing is."""
    if _other_shape(measurement) is not None:
        shape = measurement.claims.shape[1:]
        return f"its gradient has shape {_other_shape(measurement)}, the input has {shape}"
    if not np.isfinite(measurement.claims).all():
        return "its gradient is not finite"
    if not any(probe.is_wrong for probe in measurement.probes):
        return None
    is_none = all(claims[measurement.i] is None for claims in measurement.differences.subject.claims)
    return "backward gives None, but the output depends on this input" if is_none else ""


def _doubt(measurement: Measurement) -> str | None:
    """Return why the measurement proves nothing, or None if it does."""
    differences = measurement.differences
    if not np.count_nonzero(differences.unit_steps[measurement.i]):
        return None  # an input of no elements, or of infinite ones
    if not measurement.probes:
        return TOO_SLOW
    if differences.is_single_precision:
        return FLOAT32.format(noise=differences.resolution)
    unsure = [probe for probe in measurement.probes if measurement.is_open(probe)]
    return _why_open(measurement, unsure) if unsure else None


def _other_shape(measurement: Measurement) -> tuple[int, ...] | None:
    """Return the shape of backward's gradient if it is not the input's."""
    claims = [claims[measurement.i] for claims in measurement.differences.subject.claims]
    shapes = [claim.shape for claim in claims if claim is not None]
    return next((shape for shape in shapes if shape != measurement.claims.shape[1:]), None)


def _error(measurement: Measurement) -> float:
    """Return the largest error of single elements, or of all probes if the fault shows in no element."""
    elements = list(measurement.elements.values())
    unseen = not any(probe.is_wrong for probe in elements) and any(
        probe.is_wrong for probe in measurement.probes
    )
    probes = measurement.probes if unseen or not elements else elements
    return max((measurement.error_in(probe, probe.claim) for probe in probes), default=0.0)


def _why_open(measurement: Measurement, probes: list[Probe]) -> str:
    slopes = [probe.slope for probe in probes]
    if any(np.isinf(slope.uncertainty).any() for slope in slopes):
        return LEAVES_DOMAIN
    if any((slope.noise < 0.1 * slope.uncertainty).any() or slope.at_kink for slope in slopes):
        return KINK
    hidden = max(measurement.error_in(probe, probe.slope.low - probe.blur) for probe in probes)
    return ILL_CONDITIONED.format(noise=measurement.differences.resolution, hidden=hidden)


def _how(measurement: Measurement) -> str:
    if measurement.is_dense:
        return "every element"
    slices = sum(map(len, measurement.slices.values()))
    return f"{len(measurement.directions)} directions, {slices} slices, {len(measurement.elements)} elements"


def _profile(measurement: Measurement) -> tuple[AxisProfile, ...]:
    """Say per axis which indices are wrong: by every element, or by slices if the elements are a sample."""
    profiles = []
    for axis, length in enumerate(measurement.claims.shape[1:]):
        if measurement.is_dense:
            placed = [(range(i[axis], i[axis] + 1), probe) for i, probe in measurement.elements.items()]
        else:
            placed = list(measurement.slices.get(axis, {}).items())
        profile = _axis_profile(measurement, axis, length, placed)
        if profile.wrong:
            profiles.append(profile)
    return tuple(profiles)


def _axis_profile(
    measurement: Measurement, axis: int, length: int, placed: list[tuple[range, Probe]]
) -> AxisProfile:
    errors: dict[range, float] = {}
    wrong: set[int] = set()
    # By luck of its signs a slice can hide a wrong factor: what is off in like manner is wrong as well.
    alike = 1e-3 * max((probe.error for _, probe in placed), default=0.0)
    for indices, probe in placed:
        error = measurement.error_in(probe, probe.claim)
        errors[indices] = max(errors.get(indices, 0.0), error)
        if probe.is_wrong or (probe.is_off and probe.error > alike):
            wrong.update(indices)
    by_start = dict(sorted(errors.items(), key=lambda item: item[0].start))
    return AxisProfile(axis, length, by_start, tuple(sorted(wrong)))
