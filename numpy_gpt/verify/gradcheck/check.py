"""The check of any operation's backward pass, in NumPy alone."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from numpy_gpt.verify.gradcheck.diagnosis import diagnose
from numpy_gpt.verify.gradcheck.evidence import Evidence
from numpy_gpt.verify.gradcheck.finite_differences import Differences
from numpy_gpt.verify.gradcheck.judgement import judge
from numpy_gpt.verify.gradcheck.layouts import layout_findings
from numpy_gpt.verify.gradcheck.operation import Function, Operation, OperationRaisedError, described
from numpy_gpt.verify.gradcheck.probing import PATIENCE, measure_all
from numpy_gpt.verify.gradcheck.properties import broken_properties, forward_repeatable, shared_gradients
from numpy_gpt.verify.gradcheck.report import Finding, Property, Report, TensorReport
from numpy_gpt.verify.gradcheck.subject import Subject, is_float_array, largest
from numpy_gpt.verify.gradcheck.usage import usable_functions, usable_inputs, usable_names, usable_random

MOST_FAULTS = 3
"""Of calls that fail now and then so many are shown."""


def check_backward(
    forward: Function,
    backward: Function,
    inputs: Any,
    *,
    names: Any = None,
    torch_forward: Function | None = None,
    seed: int = 0,
) -> Report:
    """Check a hand-written backward pass against what forward really does.

    For a random upstream gradient g the claim is  d_x = ∂⟨g, forward(x)⟩/∂x.  It is measured by central
    differences in float64, extrapolated and with an error estimate of their own: on every element of small
    inputs, on random directions, slices and single elements of large ones. Beside the numbers, whatever an
    operation owes its caller is tried: see `Property`.

    Args:
        forward: `forward(*inputs) -> (output or tuple of outputs, saved)`; floats or float arrays.
        backward: `backward(d_output, saved) -> tuple`, one gradient per input, None for inputs without one;
            d_output is a tuple if forward's output is.
        inputs: one entry per argument of forward. Floats of any precision are promoted to float64 and have a
            gradient; integers, booleans and None are passed on.
        names: one per input; forward's own parameter names by default.
        torch_forward: the same operation for torch tensors, returning the output alone: a second oracle.
        seed: of the upstream gradients and directions.

    Returns:
        The report. `failed` if a tensor's gradient is off by more than 3e-6 of its size, beyond what the
        measurement leaves open, or if a property is broken; `inconclusive`, with its reason, if it cannot
        be measured to that. At a kink any slope between those of its two sides is right. A call that raises
        fails the check, however late, unless it refuses other inputs than the caller's, and always does.

    Raises:
        ValueError: when the check is called wrongly, or forward or backward return what cannot be checked;
            the message says what to change.
        ImportError: when torch_forward is given and torch is not installed.

    Source: W. H. Press et al., Numerical Recipes, section 5.7, on step sizes and extrapolation.
    """
    usable = usable_inputs(inputs)
    operation = usable_functions(forward, backward, usable)
    labels = usable_names(names, forward, usable)
    random = usable_random(seed)
    if torch_forward is not None and not callable(torch_forward):
        raise ValueError(f"torch_forward must be callable, not {described(torch_forward)}")
    # What NumPy would warn of is looked for in the results; and steps may well leave a function's domain.
    with np.errstate(all="ignore"):
        return _checked(operation, labels, usable, torch_forward, random)


def _checked(
    operation: Operation,
    names: tuple[str, ...],
    inputs: tuple[Any, ...],
    torch_forward: Function | None,
    random: np.random.Generator,
) -> Report:
    title = f"{_name(operation.forward)} with {_name(operation.backward)}"
    try:
        subject = Subject.observe(operation, names, inputs, random)
        if not forward_repeatable(subject):
            return _unmeasurable(subject, title)
    except OperationRaisedError as error:
        tensors = _unmeasured(names, inputs, f"{error.call} raised")
        return Report(title, tensors, (Finding(Property.RUNS, str(error)),))

    findings = broken_properties(subject)
    differences = Differences(subject, random)
    if not {finding.kind for finding in findings} & {Property.REPEATABLE, Property.INPUTS_UNTOUCHED}:
        findings += layout_findings(subject, largest(differences.noise.level))
    measurements = measure_all(differences, time.process_time() + PATIENCE)
    tensors = {subject.names[i]: judge(measurements[i]) for i in subject.tensors}
    if torch_forward is not None:
        from numpy_gpt.verify.gradcheck.torch_oracle import with_torch

        tensors, disagreements = with_torch(differences, torch_forward, tensors)
        findings += disagreements
    notes = _tried_last(subject)
    findings += [Finding(Property.RUNS, fault) for fault in [*dict.fromkeys(subject.faults)][:MOST_FAULTS]]
    report = Report(title, tensors, tuple(findings), notes=tuple(notes))
    if report.verdict != "failed":
        return report
    return replace(report, diagnosis=diagnose(Evidence(subject, measurements, tensors, report.findings)))


def _tried_last(subject: Subject) -> list[Finding]:
    """Return notes on shared memory, from one more call at the point itself: the first ones went well."""
    try:
        return shared_gradients(subject)
    except (OperationRaisedError, ValueError) as error:
        subject.faults.append(f"{error}, though the same call went well before")
        return []


def _unmeasurable(subject: Subject, title: str) -> Report:
    reason = (
        "forward gives other outputs when called again with the same inputs: fix the seed of whatever it "
        "draws, and carry nothing over from call to call"
    )
    tensors = _unmeasured(subject.names, subject.inputs, "forward is not repeatable")
    return Report(title, tensors, reason=reason)


def _unmeasured(names: tuple[str, ...], inputs: tuple[Any, ...], reason: str) -> dict[str, TensorReport]:
    return {
        name: TensorReport(name, value.shape, "inconclusive", float("nan"), checked="nothing", reason=reason)
        for name, value in zip(names, inputs, strict=True)
        if is_float_array(value)
    }


def _name(function: Function) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
