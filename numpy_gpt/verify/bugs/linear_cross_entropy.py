"""Bugs of the linear_cross_entropy operation: vocabulary projection and loss in one."""

from __future__ import annotations

import numpy as np

from numpy_gpt.arrays import Array, deliver
from numpy_gpt.ops.cross_entropy import cross_entropy_backward, cross_entropy_forward
from numpy_gpt.ops.ids import IGNORED_TARGET
from numpy_gpt.ops.linear import linear_backward, linear_forward
from numpy_gpt.ops.linear_cross_entropy import LinearCrossEntropySaved, linear_cross_entropy_forward
from numpy_gpt.verify.bugs.bug import Bug, Out
from numpy_gpt.verify.bugs.subject import with_op
from numpy_gpt.verify.kinds import Kind

Result = tuple[float, LinearCrossEntropySaved]
ROWS_PER_CHUNK = 4


def dropped_tail_backward(
    d_loss: float, saved: LinearCrossEntropySaved, *, out: Out = None
) -> tuple[Array, Array, None]:
    """Wrong: rows that do not fill a chunk have no gradient."""
    d_x, d_weight, _ = out or (None, None, None)
    x, weight, _ = saved.linear
    rows = x.reshape(-1, x.shape[-1])  # (N, C)
    d_logits, _ = cross_entropy_backward(d_loss, saved.cross_entropy)
    d_logits = d_logits.reshape(len(rows), -1)  # (N, V)
    d_rows, d_sum = np.zeros_like(rows), np.zeros_like(weight)  # (N, C), (V, C)
    for start in range(0, len(rows) - ROWS_PER_CHUNK + 1, ROWS_PER_CHUNK):
        chunk = slice(start, start + ROWS_PER_CHUNK)
        d_rows[chunk] = d_logits[chunk] @ weight
        d_sum += d_logits[chunk].T @ rows[chunk]
    return deliver(d_rows.reshape(x.shape), d_x), deliver(d_sum, d_weight), None


def all_positions_backward(
    d_loss: float, saved: LinearCrossEntropySaved, *, out: Out = None
) -> tuple[Array, Array, None]:
    """Wrong: divides by the number of positions, where forward divides by the number of valid targets."""
    d_x, d_weight, _ = out or (None, None, None)
    probabilities, targets, _ = saved.cross_entropy
    counted = (targets != IGNORED_TARGET)[..., None]  # (B, T, 1)
    one_hot = np.arange(probabilities.shape[-1]) == targets[..., None]  # (B, T, V)
    d_logits = np.where(counted, probabilities - one_hot, 0) * (float(d_loss) / targets.size)
    d_x, d_weight, _ = linear_backward(d_logits, saved.linear, out=(d_x, d_weight, None))
    return d_x, d_weight, None


def twice_shifted_forward(x: Array, weight: Array, targets: Array, *, divisor: float | None = None) -> Result:
    """Wrong: shifts targets that are shifted already."""
    targets = np.asarray(targets)
    shifted = np.full_like(targets, IGNORED_TARGET)
    shifted[:, :-1] = targets[:, 1:]
    return linear_cross_entropy_forward(x, weight, shifted, divisor=divisor)


def last_position_forward(x: Array, weight: Array, targets: Array, *, divisor: float | None = None) -> Result:
    """Wrong for training: only the last position of each sequence is scored."""
    logits, linear_saved = linear_forward(x, weight, None)  # (B, T, V)
    last_only = np.full_like(targets, IGNORED_TARGET)
    last_only[:, -1] = np.asarray(targets)[:, -1]
    loss, cross_entropy_saved = cross_entropy_forward(logits, last_only, divisor=divisor)
    return loss, LinearCrossEntropySaved(linear_saved, cross_entropy_saved)


BUGS = (
    Bug(
        name="head-tail-dropped",
        where="linear_cross_entropy",
        title="The rows that do not fill a chunk are left out",
        line="for start in range(0, len(rows) - ROWS_PER_CHUNK + 1, ROWS_PER_CHUNK):",
        lesson="To take the vocabulary projection in chunks of rows keeps the (N, V) array small. This "
        "loop counts whole chunks only. If the number of tokens is a multiple of the chunk, as all powers "
        "of two are, it is right; otherwise the last few tokens of the batch teach nothing. Slices end by "
        "themselves where the array ends: range(0, len(rows), ROWS_PER_CHUNK) is enough.",
        in_practice="The small training run has 16 and 32 tokens per micro-batch, no remainder, and every "
        "number is right. With an odd number of tokens the last rows of d_x are exactly zero, the others "
        "right.",
        fools=("loss_falls", "one_of_everything", "fresh_weights"),
        subject=with_op("linear_cross_entropy", backward=dropped_tail_backward),
        kind=Kind.PARTIAL,
    ),
    Bug(
        name="head-divided-by-all-positions",
        where="linear_cross_entropy",
        title="The gradient counts ignored positions, the loss does not",
        line="d_logits = np.where(counted, probabilities - one_hot, 0) * (float(d_loss) / targets.size)",
        lesson="Written together with the projection, the loss loses its own backward, and the divisor "
        "that was saved for it is forgotten with it. `targets.size` is the number it had in the test that "
        "was at hand. It is wrong with ignored targets, and it is wrong when the caller gives the divisor "
        "of a larger batch.",
        in_practice="The loss falls as with right code, AdamW being indifferent to a factor. Every token "
        "counted and no divisor given, every check passes; accumulated micro-batches no longer equal the "
        "large batch.",
        fools=("loss_falls", "one_of_everything", "fresh_weights"),
        subject=with_op("linear_cross_entropy", backward=all_positions_backward),
        kind=Kind.CONSTANT_FACTOR,
    ),
    Bug(
        name="head-targets-shifted-again",
        where="linear_cross_entropy",
        title="Targets are shifted by the data and by the loss",
        line="shifted[:, :-1] = targets[:, 1:]",
        lesson="Some libraries take labels equal to the inputs and shift them inside the loss. Here the "
        "data does it: target t is the token after input t. If both do, the model learns to predict the "
        "token after the next, which is possible and only harder. Decide once who shifts, and say it where "
        "the targets enter.",
        in_practice="The loss falls, slower, and stays higher; divided by the number of all targets, it "
        "begins below ln V, because the last position of each sequence is missing. Every gradient check "
        "passes: backward is true to the wrong forward.",
        fools=("loss_falls", "gradient_check", "ones_upstream", "one_of_everything", "fresh_weights"),
        subject=with_op("linear_cross_entropy", forward=twice_shifted_forward),
    ),
    Bug(
        name="head-last-position-only",
        where="linear_cross_entropy",
        title="Only the last position is trained",
        line="last_only[:, -1] = np.asarray(targets)[:, -1]",
        lesson="For generation the last position's prediction is all that is wanted, and code that was "
        "written for it scores only that. But a causal model predicts at every position at no further "
        "cost: T lessons per sequence instead of one. Also, short contexts are never practised.",
        in_practice="Divided by the number of all targets the loss begins at ln V / T instead of ln V, a "
        "sign worth looking for, and falls from there. Every gradient check passes.",
        fools=("loss_falls", "gradient_check", "ones_upstream", "one_of_everything", "fresh_weights"),
        subject=with_op("linear_cross_entropy", forward=last_position_forward),
    ),
)
