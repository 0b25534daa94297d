"""What depends on how often backward was called."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.operation import OperationRaisedError
from numpy_gpt.verify.gradcheck.subject import ROUNDING, as_gradient, copies, largest
from numpy_gpt.verify.gradcheck.suspects.fault import Fault
from numpy_gpt.verify.gradcheck.suspects.suspicion import Suspicion
from numpy_gpt.verify.kinds import Kind


def stale_accumulation(fault: Fault) -> Iterator[Suspicion]:
    """The second of two equal calls gives the first one's answer and the right one added."""
    for fresh, text in ((False, "again for the same forward"), (True, "again after a new forward")):
        differences = []
        for upstream in fault.subject.upstreams:
            difference = _difference(fault, upstream, fresh)
            if difference is None:
                return
            differences.append(difference)
        if any(largest(difference) > ROUNDING for difference in differences):
            words = (
                f"{fault.gradient} grows from call to call: backward called {text} adds to what it gave "
                "before; in what the second call adds"
            )
            yield Suspicion(Kind.STALE_ACCUMULATION, fault.i, words, 0.1, np.stack(differences))


def _difference(fault: Fault, upstream: Array, fresh: bool) -> Array | None:
    """Return by how much a second call's gradient differs from the first's; None if that cannot be told."""
    subject = fault.subject
    answers = []
    try:
        run = subject.operation.run(copies(subject.inputs))
        for _ in range(2):
            answer = subject.operation.gradients(run, run.shaped(upstream))[fault.i]
            answers.append(as_gradient(answer))
            if fresh:
                run = subject.operation.run(copies(subject.inputs))
    except (OperationRaisedError, ValueError):
        return None
    first, second = answers
    if first is None or second is None or first.shape != fault.shape or second.shape != fault.shape:
        return None
    with np.errstate(all="ignore"):
        return second - first
