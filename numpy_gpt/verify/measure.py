"""How far apart two answers are, measured so that neither tiny nor cancelled values mislead."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from numpy_gpt.parameters import Parameters

CANCELLED_SHARE = 1e-3
"""Floor for gradients, as a share of the largest gradient in the model.

Some gradients are sums that cancel to zero exactly: W_key.bias always (softmax ignores a shift of all
scores), W_query and W_key when there is one token. What a program computes for them is rounding noise, and
noise divided by noise says nothing. Measured against what the rest of the model is worth, it is small.
"""

SYMMETRY_SHARE = 1e-9
"""A float64 gradient below this share of the model's largest is zero but for rounding."""


@np.errstate(invalid="ignore")  # infinity minus infinity is NaN, and NaN is an answer here
def relative_error(value: ArrayLike, reference: ArrayLike, floor: float = 0.0) -> float:
    """Return max|value - reference| / max(max|reference|, floor), computed in float64.

    Args:
        value: any shape; a shape other than the reference's is an infinite error, and so is anything that
            is not finite, on either side.
        reference: what is trusted.
        floor: the size of what was summed, where the sum itself may cancel.
    """
    a, b = np.asarray(value, np.float64), np.asarray(reference, np.float64)
    if a.shape != b.shape:
        return float("inf")
    if a.size == 0:
        return 0.0
    worst = float(np.abs(a - b).max())
    scale = max(float(np.abs(b).max()), floor)
    if not (np.isfinite(worst) and np.isfinite(scale)):
        return float("inf")
    return worst / scale if scale > 0 else (0.0 if worst == 0 else float("inf"))


def largest(gradients: Parameters | dict[str, np.ndarray]) -> float:
    """Return the largest absolute value of any gradient."""
    arrays = gradients.values() if isinstance(gradients, dict) else [gradients.flat]
    return max(float(np.abs(array).max()) for array in arrays)
