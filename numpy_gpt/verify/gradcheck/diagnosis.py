"""What is probably wrong with a backward pass that failed."""

from __future__ import annotations

from numpy_gpt.verify.gradcheck.evidence import Evidence
from numpy_gpt.verify.gradcheck.report import Finding


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """Return the mistakes that explain the evidence, likeliest first.

    A mistake is confirmed by what is left after its correction: `evidence.measurements[i].error(corrected)`
    is the error of corrected gradients (K, ...) against everything that was measured of input i.
    """
    return ()
