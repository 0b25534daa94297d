"""What is probably wrong with a backward pass that failed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.evidence import Evidence
from numpy_gpt.verify.gradcheck.report import Finding, Property
from numpy_gpt.verify.gradcheck.suspects.activation import activation_slope
from numpy_gpt.verify.gradcheck.suspects.attention import attention_mistakes
from numpy_gpt.verify.gradcheck.suspects.attention_inside import attention_inside
from numpy_gpt.verify.gradcheck.suspects.calls import stale_accumulation
from numpy_gpt.verify.gradcheck.suspects.chain import factor_inside, measured_factor, missing_factor
from numpy_gpt.verify.gradcheck.suspects.factor import constant_factor
from numpy_gpt.verify.gradcheck.suspects.fault import Fault
from numpy_gpt.verify.gradcheck.suspects.inside import inner_mistakes
from numpy_gpt.verify.gradcheck.suspects.mask import another_mask, elements_let_through, positions_let_through
from numpy_gpt.verify.gradcheck.suspects.norm import norm_terms, norm_weight, weight_of_ones
from numpy_gpt.verify.gradcheck.suspects.order import (
    exchanged,
    factor_turned,
    moved,
    scrambled,
    symmetric_alone,
    transposed,
)
from numpy_gpt.verify.gradcheck.suspects.paths import half_of_product_rule, missing_term, nothing_sent
from numpy_gpt.verify.gradcheck.suspects.reduction import (
    deaf,
    not_summed,
    one_of_many,
    summed_over_other_axes,
    summed_too_far,
)
from numpy_gpt.verify.gradcheck.suspects.repeats import repeated_indices
from numpy_gpt.verify.gradcheck.suspects.routing import astray, derivative_untransposed
from numpy_gpt.verify.gradcheck.suspects.rows import some_rows
from numpy_gpt.verify.gradcheck.suspects.softmax import (
    half_of_cross_entropy,
    row_term_over_other_axes,
    softmax_row_term,
)
from numpy_gpt.verify.gradcheck.suspects.suspicion import Suspicion
from numpy_gpt.verify.kinds import Kind

Suspect = Callable[[Fault], Iterator[Suspicion]]

QUICK: tuple[Suspect, ...] = (
    nothing_sent,
    constant_factor,
    transposed,
    not_summed,
    softmax_row_term,
    row_term_over_other_axes,
    half_of_cross_entropy,
    norm_terms,
    norm_weight,
    activation_slope,
    half_of_product_rule,
    missing_factor,
    measured_factor,
    scrambled,
    moved,
    exchanged,
    another_mask,
    some_rows,
    attention_mistakes,
)
"""What is tried on every wrong gradient."""

SLOW: tuple[Suspect, ...] = (
    repeated_indices,
    missing_term,
    factor_turned,
    summed_over_other_axes,
    summed_too_far,
    one_of_many,
    elements_let_through,
    inner_mistakes,
    factor_inside,
    attention_inside,
    deaf,
    derivative_untransposed,
    astray,
    positions_let_through,
    weight_of_ones,
    symmetric_alone,
)
"""What is tried if nothing above sets the gradient right: long searches, and further calls."""

FIRST: tuple[Suspect, ...] = (
    transposed,
    moved,
    softmax_row_term,
    norm_weight,
    activation_slope,
    norm_terms,
    scrambled,
)
SECOND: tuple[Suspect, ...] = (constant_factor, missing_factor, norm_weight, transposed)
"""What is tried together if nothing sets the gradient right alone: what is quick and calls nothing. One of
the first is corrected, and then one of the second."""

REMEMBERING = {Property.REPEATABLE, Property.SAVED_REUSABLE, Property.LINEAR}
"""The properties that break when something is left over from earlier calls."""

SECONDS = 1.5
"""What all of it may cost."""

PAIR_SECONDS = 0.75
"""What trying pairs may cost beside that."""

EXACT = 3e-6
"""An error left below this, and well below the one before, is what a right gradient would show."""

SETTLED = 1.5
"""The cost below which an exact explanation ends the search."""

PAIR_COST = 5.0
"""Two mistakes are more far-fetched than one."""

MOST = 5
"""Findings to show."""


@dataclass(frozen=True)
class Explanation:
    """A suspicion that holds.

    Args:
        suspicion: which.
        error_left: what is left of the error.
    """

    suspicion: Suspicion
    error_left: float

    @property
    def is_exact(self) -> bool:
        """Whether nothing is left to explain."""
        return self.error_left <= EXACT


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """Return the mistakes that explain the evidence, likeliest first.

    A mistake is confirmed by what is left after its correction: the error of the corrected gradients against
    everything that was measured. Exact explanations come before partial ones, and simple ones before others.
    """
    deadline = time.process_time() + SECONDS
    explanations: list[Explanation] = []
    subject = evidence.subject
    remembers = any(finding.kind in REMEMBERING for finding in evidence.findings)
    wrong = [i for i in subject.tensors if evidence.tensors[subject.names[i]].verdict == "failed"]
    for i in subject.tensors if remembers else ():
        fault = Fault(subject, evidence.measurements[i], i, deadline)
        explanations += _explained(fault, stale_accumulation)
    if not explanations:
        for done, i in enumerate(wrong):
            now = time.process_time()
            share = now + (deadline - now) / (len(wrong) - done)
            fault = Fault(subject, evidence.measurements[i], i, share)
            found = _all_explained(fault)
            if not any(each.is_exact for each in found):
                until = time.process_time() + PAIR_SECONDS / len(wrong)
                with np.errstate(all="ignore"):
                    found += _pairs_explained(replace(fault, deadline=until))
            explanations += found
    return _findings(evidence, explanations)


def _all_explained(fault: Fault) -> list[Explanation]:
    """Return everything that holds."""
    found: list[Explanation] = []
    for suspect in (*QUICK, *SLOW):
        is_settled = any(each.is_exact and each.suspicion.cost < SETTLED for each in found)
        if (is_settled and suspect in SLOW) or fault.is_late:
            break
        found += _explained(fault, suspect)
    return found


def _pairs_explained(fault: Fault) -> list[Explanation]:
    """Return the first two mistakes found that set the gradient right together, once as either kind."""
    if fault.truth is None:
        return []
    for first, corrected in _corrections(fault, FIRST):
        halfway = fault.with_claims(corrected)
        for suspect in SECOND:
            for second in _explained(halfway, suspect):
                if second.is_exact and second.suspicion.kind != first.kind:
                    return [_both(each, first, second) for each in (first, second.suspicion)]
        if fault.is_late:
            break
    return []


def _corrections(fault: Fault, suspects: tuple[Suspect, ...]) -> Iterator[tuple[Suspicion, Array]]:
    """Yield what suspects would correct, whether or not it explains anything."""
    for suspect in suspects:
        for suspicion in suspect(fault):
            corrected = suspicion.corrected
            if corrected is not None and np.isfinite(corrected).all():
                yield suspicion, corrected


def _both(one: Suspicion, first: Suspicion, second: Explanation) -> Explanation:
    words = f"two mistakes at once: {first.words}, and then {second.suspicion.words}"
    return Explanation(replace(one, words=words, cost=PAIR_COST + one.cost), second.error_left)


def _explained(fault: Fault, suspect: Suspect) -> list[Explanation]:
    """Return the suspicions of one kind that hold."""
    found = []
    # Somebody's operation may do anything when it is called otherwise than usual: what then does not work
    # explains nothing, and must not hide what does.
    try:
        with np.errstate(all="ignore"):
            for suspicion in suspect(fault):
                error_left = _error_left(fault, suspicion)
                if error_left is not None and math.isfinite(error_left):
                    found.append(Explanation(suspicion, error_left))
                if fault.is_late:
                    break
    except Exception:
        return found
    return found


def _error_left(fault: Fault, suspicion: Suspicion) -> float | None:
    """Return the error that a suspicion leaves, None if it explains nothing."""
    if suspicion.corrected is None:
        return suspicion.error_left
    before = fault.error if math.isfinite(fault.error) else 1.0
    # The first of several calls is right even if the sums of later ones are not: there was no error before.
    is_later = suspicion.kind == Kind.STALE_ACCUMULATION
    enough = EXACT if is_later else min(EXACT, 0.03 * before)
    if fault.misfit(suspicion.corrected) > 10 * enough:
        return None
    error = fault.measurement.error(suspicion.corrected)
    return error if error <= enough else None


def _findings(evidence: Evidence, explanations: list[Explanation]) -> tuple[Finding, ...]:
    """Write down the best explanation of each kind, with the other gradients that it holds for."""
    best: dict[tuple[Kind, int], Explanation] = {}
    for explanation in sorted(explanations, key=_rank):
        best.setdefault((explanation.suspicion.kind, explanation.suspicion.i), explanation)
    kinds: dict[Kind, list[Explanation]] = {}
    for (kind, _), explanation in best.items():
        kinds.setdefault(kind, []).append(explanation)
    order = sorted(kinds.values(), key=lambda alike: (not alike[0].is_exact, -len(alike), _rank(alike[0])))
    return tuple(_finding(evidence, alike) for alike in order[:MOST])


def _rank(explanation: Explanation) -> tuple[bool, float, float]:
    return not explanation.is_exact, explanation.suspicion.cost, explanation.error_left


def _finding(evidence: Evidence, alike: list[Explanation]) -> Finding:
    first = alike[0]
    names = evidence.subject.names
    text = f"{first.suspicion.words} the error is {first.error_left:.1e}"
    if len(alike) > 1:
        others = ", ".join(f"d_{names[each.suspicion.i]} ({each.error_left:.1e})" for each in alike[1:])
        text += f"; likewise {others}"
    return Finding(str(first.suspicion.kind), text, names[first.suspicion.i], first.error_left)
