"""Vocabulary projection and cross-entropy in one: from the last token vectors straight to the loss.

Equation
    logits_btv = Σ_c x_btc W_vc            loss = cross_entropy(logits, targets)

Shapes
    x (B, T, C), weight W (V, C), targets (B, T)  ->  loss, one Python float.
    Every position predicts its next token, so the logits are (B, T, V): with GPT-2's V = 50257 by far the
    largest array of a training step. This operation is one, so that a faster twin need never make it whole.

Derivation
    The backward passes of cross_entropy.py and linear.py, last one first. With z the logits, p their softmax
    and y(b,t) the target:
        d_z_btv = ( p_btv - [v = y(b,t)] ) d_loss / divisor     zero for an ignored position
        d_x_btc = Σ_v d_z_btv W_vc         d_W_vc = Σ_bt d_z_btv x_btc
    Every row of W gets a gradient from every position: a token that did not come was predicted a little too.

Saved
    What those two save: x and W, the probabilities and the targets, and what the sum was divided by.

The bug that looks right
    Projecting only the last position, as for inference, and training on that. The loss falls, T times slower
    than it could.
"""

from __future__ import annotations

from typing import NamedTuple

from numpy.typing import ArrayLike

from numpy_gpt.arrays import Array
from numpy_gpt.ops.cross_entropy import CrossEntropySaved, cross_entropy_backward, cross_entropy_forward
from numpy_gpt.ops.linear import LinearSaved, linear_backward, linear_forward


class LinearCrossEntropySaved(NamedTuple):
    """What linear_cross_entropy_backward needs."""

    linear: LinearSaved
    cross_entropy: CrossEntropySaved


def linear_cross_entropy_forward(
    x: Array, weight: Array, targets: ArrayLike, *, divisor: float | None = None
) -> tuple[float, LinearCrossEntropySaved]:
    """Return the loss of predicting each position's target from its token vector.

    Args:
        x: (B, T, C) float.
        weight: (V, C) float.
        targets: (B, T) integers in 0..V-1, or -100 for a position that does not count.
        divisor: as in cross_entropy_forward.

    Returns:
        The loss in nats, and what backward needs.

    Raises:
        ValueError, TypeError: as cross_entropy_forward.
    """
    logits, linear_saved = linear_forward(x, weight, None)  # (B, T, V)
    loss, cross_entropy_saved = cross_entropy_forward(logits, targets, divisor=divisor)
    return loss, LinearCrossEntropySaved(linear_saved, cross_entropy_saved)


def linear_cross_entropy_backward(
    d_loss: float, saved: LinearCrossEntropySaved, *, out: tuple[Array | None, ...] | None = None
) -> tuple[Array, Array, None]:
    """Return (d_x (B, T, C), d_weight (V, C), None); targets have no gradient."""
    d_x, d_weight, _ = out or (None, None, None)
    d_logits, _ = cross_entropy_backward(d_loss, saved.cross_entropy)  # (B, T, V)
    d_x, d_weight, _ = linear_backward(d_logits, saved.linear, out=(d_x, d_weight, None))
    return d_x, d_weight, None
