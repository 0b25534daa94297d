"""Gradients that are wrong in some places only."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.suspects.fault import Fault
from numpy_gpt.verify.gradcheck.suspects.observed import Profile
from numpy_gpt.verify.gradcheck.suspects.suspicion import Suspicion
from numpy_gpt.verify.kinds import Kind


def some_rows(fault: Fault) -> Iterator[Suspicion]:
    """Along one axis, or among the rows of all leading axes, some are wrong and all others right."""
    claims = fault.fitting
    for axis, length in enumerate(fault.shape):
        by_index = None if claims is None else np.moveaxis(claims, axis + 1, 1)
        yield from _partly(fault, fault.profile(axis), length, f" along axis {axis}", by_index)
    if len(fault.shape) > 2:
        by_row = None if claims is None else claims.reshape(len(claims), -1, fault.shape[-1])
        length = fault.value.size // max(1, fault.shape[-1])
        yield from _partly(
            fault, fault.profile_of_rows(), length, " rows, counted over all leading axes", by_row
        )


def _partly(
    fault: Fault, profile: Profile, length: int, where: str, by_index: Array | None
) -> Iterator[Suspicion]:
    wrong, error, is_telling = profile
    if not 0 < len(wrong) < length or not is_telling:
        return
    is_block = wrong[-1] - wrong[0] == len(wrong) - 1 > 0
    indices = f"{wrong[0]}-{wrong[-1]}" if is_block else ", ".join(map(str, wrong[:8]))
    tail = ", the tail" if is_block and wrong[-1] == length - 1 else ""
    zero = ", and zero there" if by_index is not None and not by_index[:, wrong].any() else ""
    words = f"{fault.gradient} is wrong only at {indices} of {length}{where}{tail}{zero}; elsewhere"
    yield Suspicion(Kind.PARTIAL, fault.i, words, 1.65, error_left=error)
