"""Cross-entropy: how surprised the model is, on average, by the token that really came next.

Equation
    p_nv = exp(z_nv) / Σ_u exp(z_nu)       probabilities from logits z, one row n per position
    loss = (1/divisor) Σ_n -log p_{n,y(n)}            over the positions whose target y(n) is not -100
    In nats per token when the divisor is the number of those positions, which is the default.

Shapes
    logits (..., V), targets (...)  ->  loss, one Python float.

Derivation
    -log p_y = log Σ_u exp(z_u) - z_y. The first part's gradient is the softmax, the second's is a 1 at y:
        d_z_v = ( p_v - [v = y] ) d_loss / divisor        and zero for an ignored position
    Dividing p by itself never happens: softmax and logarithm are differentiated together, and what is left
    is "what was predicted minus what came". It sums to zero over v.

Saved
    The probabilities, the targets, and what the sum was divided by.

The bug that looks right
    Dividing the loss by the number of valid targets and the gradient by the number of all positions. Without
    an ignored target they agree; with some, every gradient is too small by one and the same factor, which
    AdamW hides completely.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from numpy_gpt.arrays import Array, deliver
from numpy_gpt.ops.ids import IGNORED_TARGET, check_target_ids


class CrossEntropySaved(NamedTuple):
    """What cross_entropy_backward needs."""

    probabilities: Array  # (..., V): the gradient is this, minus a 1 at the target
    targets: Array  # (...): where that 1 stands, and which rows are ignored
    divisor: float  # what the loss was divided by


def cross_entropy_forward(
    logits: Array, targets: ArrayLike, *, divisor: float | None = None
) -> tuple[float, CrossEntropySaved]:
    """Return the summed surprise at the targets, over the divisor.

    Args:
        logits: (..., V) float.
        targets: (...) integers in 0..V-1, or -100 for a position that does not count.
        divisor: what to divide the sum by; None means by the number of targets that count. Micro-batches
            of one large batch all take the number of targets of the whole.

    Returns:
        The loss in nats, accumulated in float64; 0.0 when no target counts (torch returns NaN there). And
        what backward needs.

    Raises:
        ValueError: targets of another shape or outside the vocabulary; a divisor that is not positive.
        TypeError: targets that are not integers.
    """
    targets = check_target_ids(targets, logits.shape[:-1], logits.shape[-1])  # (...)
    counted = targets != IGNORED_TARGET  # (...)
    divisor = check_divisor(divisor, int(counted.sum()))

    shifted = logits - logits.max(axis=-1, keepdims=True)  # (..., V)
    exponentials = np.exp(shifted)  # (..., V)
    sums = exponentials.sum(axis=-1, keepdims=True)  # (..., 1)
    columns = np.where(counted, targets, 0)[..., None]  # (..., 1): any valid column will do where ignored
    log_probability = np.take_along_axis(shifted, columns, axis=-1) - np.log(sums)  # (..., 1)
    loss = -float(np.sum(log_probability[..., 0], where=counted, dtype=np.float64)) / divisor
    return loss, CrossEntropySaved(exponentials / sums, targets, divisor)


def cross_entropy_backward(
    d_loss: float, saved: CrossEntropySaved, *, out: tuple[Array | None, ...] | None = None
) -> tuple[Array, None]:
    """Return (d_logits (..., V), None); targets have no gradient."""
    d_logits, _ = out or (None, None)
    probabilities, targets, divisor = saved
    counted = targets != IGNORED_TARGET  # (...)
    one_hot = np.arange(probabilities.shape[-1]) == targets[..., None]  # (..., V); all False where ignored
    # loss = Σ (log Σ exp(logits) - logits[target]) / divisor
    difference = np.subtract(
        probabilities, one_hot, where=counted[..., None], out=np.zeros_like(probabilities)
    )
    d_logits = deliver(difference * (float(d_loss) / divisor), d_logits)  # (..., V)
    return d_logits, None


def check_divisor(divisor: float | None, count: int) -> float:
    """Return what to divide by: 1 when nothing counts, so that an ignored batch gives 0 and not 0/0."""
    if divisor is None:
        return float(max(count, 1))
    divisor = float(divisor)
    if divisor == 0 and count == 0:
        return 1.0
    if not 0 < divisor < math.inf:
        raise ValueError(f"divisor must be a positive number, not {divisor}")
    return divisor
