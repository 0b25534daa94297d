"""Gradients where forward lets nothing through, or none where it does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.suspects.fault import Fault
from numpy_gpt.verify.gradcheck.suspects.suspicion import Suspicion
from numpy_gpt.verify.kinds import Kind

NOTHING = 1e-7
"""Relative to the largest entry: what counts as no dependence at all."""

MAX_LENGTH = 64
"""Backward is called once per index of an axis of the output."""


def elements_let_through(fault: Fault) -> Iterator[Suspicion]:
    """Elements on which no output depends have a gradient, and all others are right."""
    claims, jacobian = fault.fitting, fault.jacobian
    if claims is None or jacobian is None:
        return
    sizes = np.max(np.abs(jacobian), axis=1)
    blocked = (sizes <= NOTHING * np.max(sizes, initial=0.0)).reshape(fault.shape)
    if blocked.any() and not blocked.all() and claims[:, blocked].any():
        words = (
            f"{np.count_nonzero(blocked)} of {blocked.size} elements of {fault.subject.names[fault.i]} "
            "change nothing, yet have a gradient: a mask is missing; with zeros there"
        )
        # Whole rows that are blocked are rather rows left out by forward, and forgotten to be by backward.
        leaking = (blocked & (np.abs(claims[0]) > NOTHING * np.max(np.abs(claims[0])))).any(axis=-1)
        is_rows = blocked.ndim > 1 and bool(blocked.all(axis=-1)[leaking].all())
        cost = 1.7 if is_rows else 1.5
        yield Suspicion(Kind.MASK, fault.i, words, cost, np.where(blocked, 0.0, claims))


def another_mask(fault: Fault) -> Iterator[Suspicion]:
    """Zeros stand where there is a gradient, and gradients where there is none; all others are right."""
    claims, truth = fault.fitting, fault.truth
    if claims is None or truth is None:
        return
    gone, blocked = (
        np.max(np.abs(each), axis=0) <= NOTHING * np.max(np.abs(truth), initial=0.0)
        for each in (claims, truth)
    )
    both = ~gone & ~blocked
    if (gone & ~blocked).any() and (blocked & ~gone).any() and both.any():
        gap = np.max(np.abs(claims - truth)[:, both]) / np.max(np.abs(truth))
        words = (
            f"{fault.gradient} is zero at {np.count_nonzero(gone & ~blocked)} elements that matter, and not "
            f"at {np.count_nonzero(blocked & ~gone)} that do not: backward has another mask; elsewhere"
        )
        yield Suspicion(Kind.MASK, fault.i, words, 1.62, error_left=float(gap))


class Crossing(NamedTuple):
    """An axis of the only output and an axis of the input, and what passes between their indices."""

    axis: int  # of the output
    across: int  # the axis of the input
    depends: Array  # (n, m): which outputs depend on which inputs
    claimed: Array  # (n, m): which outputs send a gradient to which inputs
    sent: Array  # (K, n, ...): those gradients


def positions_let_through(fault: Fault) -> Iterator[Suspicion]:
    """Along one axis outputs depend on earlier inputs only, and gradients say otherwise, or the reverse."""
    if fault.fitting is None or fault.jacobian is None or len(fault.subject.run.outputs) != 1:
        return
    crossings = list(_crossings(fault))
    for crossing in crossings:
        if (crossing.claimed & ~crossing.depends).any():
            yield _stopped(fault, crossing)
    if not any(map(_mixes_sequences, crossings)):
        for crossing in crossings:
            yield from _causal(fault, crossing)


def _crossings(fault: Fault) -> Iterator[Crossing]:
    for axis, length in enumerate(np.shape(fault.subject.run.outputs[0])):
        if not 2 <= length <= MAX_LENGTH:
            continue
        sent = fault.sent(axis)
        if sent is None:
            continue
        measured = _measured(fault, axis)
        for across in range(len(fault.shape)):
            depends, claimed = _dependence(measured, across), _dependence(sent[0], across)
            yield Crossing(axis, across, depends, claimed, sent)


def _mixes_sequences(crossing: Crossing) -> bool:
    """Whether indices that have nothing to do with one another send each other gradients: that is noise."""
    depends = crossing.depends
    is_diagonal = depends.shape[0] == depends.shape[1] and bool((depends == np.eye(len(depends))).all())
    return is_diagonal and bool((crossing.claimed & ~depends).any())


def _stopped(fault: Fault, crossing: Crossing) -> Suspicion:
    """Take away what is sent to positions that the sender does not depend on."""
    axis, across, depends, _, sent = crossing
    rest = [length if a == across else 1 for a, length in enumerate(fault.shape)]
    stopped = np.where(depends.reshape(1, len(depends), *rest), sent, 0.0).sum(axis=1)
    words = (
        f"along axis {axis} of the output, positions send a gradient to such along axis {across} of "
        f"{fault.subject.names[fault.i]} as they do not depend on: a mask is missing; without that"
    )
    return Suspicion(Kind.MASK, fault.i, words, 1.55, stopped)


def _causal(fault: Fault, crossing: Crossing) -> Iterator[Suspicion]:
    """Say so if either of dependence and claim is causal, and the other is not."""
    axis, across, depends, claimed, _ = crossing
    where = f"along axis {axis} of the output and axis {across} of {fault.subject.names[fault.i]}, position"
    if _is_causal(depends) and not _is_causal(claimed) and (claimed & ~depends).any():
        t, s = np.argwhere(claimed & ~depends)[0]
        words = (
            f"{where} {t} does not depend on {s}, yet sends it a gradient: a causal mask is missing or "
            "shifted in backward; as it stands"
        )
    elif _is_causal(claimed) and not _is_causal(depends) and (depends & ~claimed).any():
        t, s = np.argwhere(depends & ~claimed)[0]
        words = (
            f"{where} {t} depends on {s}, but sends it no gradient: there is a causal mask in backward that "
            "forward has not, or applies too late; as it stands"
        )
    else:
        return
    yield Suspicion(Kind.MASK, fault.i, words, 3.0, error_left=fault.error)


def _is_causal(depends: Array) -> bool:
    """Whether the dependence is a staircase: each later row on more columns, from the first column on."""
    counts = depends.sum(axis=1)
    is_staircase = (depends == (np.arange(depends.shape[1]) < counts[:, None])).all()
    return bool(is_staircase and (np.diff(counts) >= 0).all() and counts[0] < counts[-1])


def _dependence(sizes: Array, across: int) -> Array:
    """Return (n, m) booleans from gradients (n, *input's shape), m the length of one axis of the input."""
    others = tuple(a + 1 for a in range(sizes.ndim - 1) if a != across)
    largest = np.max(np.abs(sizes), axis=others)
    depends: Array = largest > NOTHING * max(float(np.max(largest)), math.ulp(0.0))
    return depends


def _measured(fault: Fault, axis: int) -> Array:
    """Return how strongly each index along the output's axis depends on each input (n, ...)."""
    parts = fault.parts(0, 0)
    assert parts is not None  # its caller has looked
    others = tuple(a + 1 for a in range(parts.ndim - 1) if a != axis)
    sizes: Array = np.max(np.abs(parts), axis=others)  # (size, n)
    return sizes.T.reshape(-1, *fault.shape)
