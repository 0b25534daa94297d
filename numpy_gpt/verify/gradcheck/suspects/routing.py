"""Gradients that go astray: the derivative the wrong way round, or parts of it sent to other places."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.suspects.fault import Fault
from numpy_gpt.verify.gradcheck.suspects.mask import MAX_LENGTH
from numpy_gpt.verify.gradcheck.suspects.suspicion import Suspicion
from numpy_gpt.verify.kinds import Kind

SAME = 1e-6
"""Relative to the largest: parts of a gradient that differ by less are the same."""


def derivative_untransposed(fault: Fault) -> Iterator[Suspicion]:
    """Backward does what forward does, as a rotation that is not turned back; or it does nothing at all.

    For an output like the input the derivative is a square matrix J, and d_x = Jᵀ d_y. Claimed is J d_y, or
    d_y.
    """
    claims, right = fault.fitting, fault.right
    if claims is None or right is None or fault.jacobian is None:
        return
    if [np.shape(output) for output in fault.subject.run.outputs] != [fault.shape]:
        return
    forwards = (fault.subject.upstreams @ fault.jacobian).reshape(claims.shape)
    words = (
        f"{fault.gradient} is the upstream gradient times the derivative where its transpose belongs: "
        "backward does what forward does, and does not undo it; transposed"
    )
    yield Suspicion(Kind.TRANSPOSED, fault.i, words, 1.63, claims + right - forwards)
    words = f"{fault.gradient} is the upstream gradient as it came, without the derivative; times that"
    unchanged = fault.subject.upstreams.reshape(claims.shape)
    yield Suspicion(Kind.MISSING_FACTOR, fault.i, words, 2.1, claims + right - unchanged)


def astray(fault: Fault) -> Iterator[Suspicion]:
    """What some indices of the output send back does not arrive, or arrives elsewhere."""
    claims = fault.fitting
    if claims is None or fault.jacobian is None or len(fault.subject.run.outputs) != 1:
        return
    for axis, length in enumerate(np.shape(fault.subject.run.outputs[0])):
        if not 2 <= length <= MAX_LENGTH:
            continue
        sent, due = fault.sent(axis), fault.due(axis)
        if sent is None or due is None:
            continue
        size = np.max(np.abs(due))
        off = np.max(np.abs(sent - due), axis=(0, *range(2, due.ndim))) > SAME * size  # (n,)
        wrong = np.flatnonzero(off)
        if not wrong.size:
            continue
        corrected = claims + (due[:, wrong] - sent[:, wrong]).sum(axis=1)
        if not sent[:, wrong].any() and wrong.size < length and not _is_tail(wrong, length):
            words = (
                f"indices {', '.join(map(str, wrong[:8]))} of {length} along axis {axis} of the output send "
                f"nothing back to {fault.subject.names[fault.i]}; with what they should"
            )
            yield Suspicion(Kind.MISSING_REDUCTION, fault.i, words, 1.54, corrected)
        for across, width in enumerate(fault.shape):
            kind, text = _landing(sent[:, wrong], due[:, wrong], across + 2) if width > 1 else (None, "")
            if kind is not None:
                words = f"what comes back along axis {axis} of the output " + text.format(
                    f"axis {across} of {fault.subject.names[fault.i]}"
                )
                yield Suspicion(kind, fault.i, words, 1.5, corrected)


def _landing(sent: Array, due: Array, axis: int) -> tuple[Kind | None, str]:
    """Say where along an axis each index (of n) sends what should go to one place: to another, or to all."""
    sent, due = (np.moveaxis(each, axis, 2) for each in (sent, due))  # (K, n, m, ...)
    size = SAME * np.max(np.abs(due))
    goes, should = (
        np.max(np.abs(each), axis=(0, *range(3, due.ndim))) > size for each in (sent, due)
    )  # (n, m)
    rows, targets = np.arange(len(should)), should.argmax(axis=1)
    content = due[:, rows, targets]  # (K, n, ...)
    if not (should.sum(axis=1) == 1).all():
        return None, ""
    if (goes.sum(axis=1) == 1).all():
        others = goes.argmax(axis=1)
        if (others != targets).all() and _same(sent[:, rows, others], content, size):
            where = f"such as {others[0]} instead of {targets[0]}"
            return Kind.PERMUTED_AXES, f"lands at other indices of {{}}, {where}: regrouped; put in place"
    elif goes.all() and len(set(targets)) > 1 and _same(sent, content[:, :, None], size):
        return Kind.MISSING_REDUCTION, "is summed over {} and the sum handed to all; kept apart"
    return None, ""


def _same(sent: Array, content: Array, size: float) -> bool:
    return bool((np.abs(sent - content) <= size).all())


def _is_tail(wrong: Array, length: int) -> bool:
    return bool(wrong[-1] == length - 1 and len(wrong) == length - wrong[0])
