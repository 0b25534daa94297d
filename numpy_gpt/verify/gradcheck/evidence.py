"""All that a check saw, for whoever wants to explain it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from numpy_gpt.verify.gradcheck.measurement import Measurement
from numpy_gpt.verify.gradcheck.report import Finding, TensorReport
from numpy_gpt.verify.gradcheck.subject import Subject


@dataclass(frozen=True)
class Evidence:
    """A failed check.

    Args:
        subject: the operation to call again, its inputs, the upstream gradients and backward's claims.
        measurements: per position of an input with a gradient, the measured derivatives.
        tensors: the verdicts, by name.
        findings: the broken properties.
    """

    subject: Subject
    measurements: Mapping[int, Measurement]
    tensors: Mapping[str, TensorReport]
    findings: tuple[Finding, ...]
