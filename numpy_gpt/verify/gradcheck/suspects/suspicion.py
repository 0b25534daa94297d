"""One suspected mistake, to be confirmed or dropped."""

from __future__ import annotations

from dataclasses import dataclass

from numpy_gpt.arrays import Array
from numpy_gpt.verify.kinds import Kind


@dataclass(frozen=True)
class Suspicion:
    """A mistake that would explain one gradient.

    Args:
        kind: the mistake.
        i: the position of the input whose gradient it is.
        words: what is wrong and what sets it right; "the error is ..." follows.
        cost: how far-fetched it is: of two that explain equally well the cheaper one comes first.
        corrected: what the gradients (K, ...) would be without the mistake.
        error_left: where no corrected gradient can be built, the error of what the mistake does not touch.
    """

    kind: Kind
    i: int
    words: str
    cost: float
    corrected: Array | None = None
    error_left: float | None = None
