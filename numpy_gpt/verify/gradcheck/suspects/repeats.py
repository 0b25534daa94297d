"""Integer inputs that index a table: a row that is used twice has two gradients to add."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.suspects.fault import Fault
from numpy_gpt.verify.gradcheck.suspects.suspicion import Suspicion
from numpy_gpt.verify.kinds import Kind


def repeated_indices(fault: Fault) -> Iterator[Suspicion]:
    """Each index counts once: by its last use, its first, their mean, or in some other way."""
    for name, ids in fault.integers.items():
        for axis, length in enumerate(fault.shape):
            if ids.size == 0 or int(ids.max()) >= length or int(ids.min()) < -length:
                continue
            counts = np.bincount(ids.ravel() % length, minlength=length)
            if counts.max() > 1:
                if axis == 0:
                    yield from _by_use(fault, name, ids)
                yield from _by_count(fault, name, axis, counts)


def _by_use(fault: Fault, name: str, ids: Array) -> Iterator[Suspicion]:
    """Compare with the gradient of single uses: of what each place in the output contributes."""
    if fault.fitting is None:
        return
    flat = ids.ravel() % len(fault.value)
    for output, value in enumerate(fault.subject.run.outputs):
        if np.shape(value)[: ids.ndim] != ids.shape:
            continue
        uses = np.stack(
            [_uses(fault, k, output, flat) for k in range(len(fault.upstreams))]
        )  # (K, uses, ...)
        right = np.zeros_like(fault.fitting)
        last, first = np.zeros_like(right), np.zeros_like(right)
        for k in range(len(right)):
            np.add.at(right[k], flat, uses[k])
            for use in range(len(flat)):
                last[k, flat[use]] = uses[k, use]
                first[k, flat[-1 - use]] = uses[k, -1 - use]
        for wrong, which in ((last, "last"), (first, "first")):
            words = (
                f"a row of {fault.subject.names[fault.i]} that {name} names repeatedly gets only its {which} "
                "use's gradient; with all uses added"
            )
            corrected = fault.fitting + right - wrong
            yield Suspicion(Kind.REPEATED_INDICES, fault.i, words, 1.2, corrected)


def _uses(fault: Fault, k: int, output: int, flat: Array) -> Array:
    """Return what each use sends to its row (uses, *row's shape): by the Jacobian, or as of a lookup."""
    row = fault.shape[1:]
    parts = fault.parts(k, output)
    if parts is None:
        upstream = fault.upstreams[k][output]
        looked_up = upstream.reshape(len(flat), -1)
        if looked_up.shape[1] != int(np.prod(row)):
            return np.zeros((len(flat), *row))
        return looked_up.reshape(len(flat), *row)
    by_place = parts.reshape(*fault.shape, len(flat), -1).sum(axis=-1)  # (rows, ..., uses)
    return np.stack([by_place[at, ..., use] for use, at in enumerate(flat)])


def _by_count(fault: Fault, name: str, axis: int, counts: Array) -> Iterator[Suspicion]:
    """Compare with sums divided by the number of uses, then look whether only repeated rows are wrong."""
    if fault.fitting is None:
        return
    shaped = np.maximum(counts, 1).reshape((-1,) + (1,) * (len(fault.shape) - axis - 1))
    table = fault.subject.names[fault.i]
    words = f"the gradient of each row of {table} is divided by how often {name} names it; times that number"
    yield Suspicion(Kind.REPEATED_INDICES, fault.i, words, 1.3, fault.fitting * shaped)
    profile = fault.profile(axis)
    repeated, once = np.flatnonzero(counts > 1), np.flatnonzero(counts == 1)
    if profile.wrong and once.size and set(profile.wrong) <= set(repeated.tolist()):
        rows = ", ".join(map(str, profile.wrong[:6]))
        words = f"wrong are only rows of {table} that {name} names more than once, as {rows}; elsewhere"
        yield Suspicion(Kind.REPEATED_INDICES, fault.i, words, 1.63, error_left=profile.error)
