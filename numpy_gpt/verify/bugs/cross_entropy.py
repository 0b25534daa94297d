"""Bugs of the cross_entropy operation."""

from __future__ import annotations

import numpy as np

from numpy_gpt.arrays import Array, deliver
from numpy_gpt.ops.cross_entropy import CrossEntropySaved, cross_entropy_forward
from numpy_gpt.ops.ids import IGNORED_TARGET
from numpy_gpt.ops.softmax import softmax_forward
from numpy_gpt.verify.bugs.bug import Bug, Out
from numpy_gpt.verify.bugs.subject import with_op
from numpy_gpt.verify.kinds import Kind


def all_positions_backward(d_loss: float, saved: CrossEntropySaved, *, out: Out = None) -> tuple[Array, None]:
    """Wrong: divides by the number of positions, where forward divides by the number of valid targets."""
    d_logits, _ = out or (None, None)
    probabilities, targets, _ = saved
    counted = (targets != IGNORED_TARGET)[..., None]  # (..., 1)
    one_hot = np.arange(probabilities.shape[-1]) == targets[..., None]  # (..., V)
    difference = np.where(counted, probabilities - one_hot, 0)  # (..., V)
    return deliver(difference * (float(d_loss) / targets.size), d_logits), None


def ignored_rows_backward(d_loss: float, saved: CrossEntropySaved, *, out: Out = None) -> tuple[Array, None]:
    """Wrong: ignored positions have a gradient."""
    d_logits, _ = out or (None, None)
    probabilities, targets, divisor = saved
    one_hot = np.arange(probabilities.shape[-1]) == targets[..., None]  # (..., V); all False where ignored
    difference = probabilities - one_hot
    return deliver(difference * (float(d_loss) / divisor), d_logits), None


def negated_backward(d_loss: float, saved: CrossEntropySaved, *, out: Out = None) -> tuple[Array, None]:
    """Wrong: the gradient of the log-likelihood, of which the loss is the negative."""
    d_logits, _ = out or (None, None)
    probabilities, targets, divisor = saved
    counted = (targets != IGNORED_TARGET)[..., None]  # (..., 1)
    one_hot = np.arange(probabilities.shape[-1]) == targets[..., None]  # (..., V)
    difference = np.where(counted, one_hot - probabilities, 0)
    return deliver(difference * (float(d_loss) / divisor), d_logits), None


def upstream_forgotten_backward(
    d_loss: float, saved: CrossEntropySaved, *, out: Out = None
) -> tuple[Array, None]:
    """Wrong: takes the loss to be the end of the computation."""
    d_logits, _ = out or (None, None)
    probabilities, targets, divisor = saved
    counted = (targets != IGNORED_TARGET)[..., None]  # (..., 1)
    one_hot = np.arange(probabilities.shape[-1]) == targets[..., None]  # (..., V)
    difference = np.where(counted, probabilities - one_hot, 0)  # (..., V)
    return deliver(difference / divisor, d_logits), None


def log_of_softmax_forward(
    logits: Array, targets: Array, *, divisor: float | None = None
) -> tuple[float, CrossEntropySaved]:
    """Wrong for improbable targets: their probability underflows to zero, and its logarithm is infinite."""
    _, saved = cross_entropy_forward(logits, targets, divisor=divisor)
    probabilities, _ = softmax_forward(logits)  # (..., V)
    counted = saved.targets != IGNORED_TARGET  # (...)
    columns = np.where(counted, saved.targets, 0)[..., None]  # (..., 1)
    surprise = -np.log(np.take_along_axis(probabilities, columns, axis=-1)[..., 0])
    return float(surprise[counted].sum()) / saved.divisor, saved


BUGS = (
    Bug(
        name="cross-entropy-divided-by-all-positions",
        where="cross_entropy",
        title="The gradient counts ignored positions, the loss does not",
        line="return deliver(difference * (float(d_loss) / targets.size), d_logits), None",
        lesson="The loss is a mean over the targets that count, so its gradient is divided by their "
        "number. `targets.size` counts the ignored ones as well. Without any the two agree, which is how "
        "the line passes its first test; with some, the whole gradient is too small by one factor, another "
        "one in every batch.",
        in_practice="As the model's loss it trains as right code does, since AdamW divides a common factor "
        "out again. Cases without ignored targets pass every check; one with an ignored target is off by a "
        "plain ratio.",
        fools=("loss_falls", "one_of_everything", "fresh_weights"),
        subject=with_op("cross_entropy", backward=all_positions_backward),
        kind=Kind.CONSTANT_FACTOR,
    ),
    Bug(
        name="cross-entropy-ignored-positions-learn",
        where="cross_entropy",
        title="Ignored positions push all their logits down",
        line="difference = probabilities - one_hot",
        lesson="A target of -100 equals no column, so its row of one_hot is empty, and probabilities minus "
        "nothing is left: a gradient that makes every token less likely where no token was asked for. The "
        "loss leaves the position out; the gradient has to be told separately, by a zero row.",
        in_practice="Text without padding trains the same, to the last bit. With padding the loss is still "
        "right, as it leaves those positions out, and only the gradient tells.",
        fools=("loss_falls", "one_of_everything", "fresh_weights"),
        subject=with_op("cross_entropy", backward=ignored_rows_backward),
        kind=Kind.PARTIAL,
    ),
    Bug(
        name="cross-entropy-negated",
        where="cross_entropy",
        title="The gradient points the other way",
        line="difference = np.where(counted, one_hot - probabilities, 0)",
        lesson="Many texts derive the gradient of log p_y, which is one_hot - p, and maximise it. The loss "
        "is -log p_y, and optimizers go against the gradient. One of the two signs was forgotten: training "
        "climbs, as fast as it should descend.",
        in_practice="The loss climbs from the first step and is above 10 nats after fifty. The kindest of "
        "bugs: nobody overlooks it. In a check the ratio of the two gradients is -1 everywhere.",
        fools=(),
        subject=with_op("cross_entropy", backward=negated_backward),
        kind=Kind.CONSTANT_FACTOR,
    ),
    Bug(
        name="cross-entropy-upstream-forgotten",
        where="cross_entropy",
        title="The upstream gradient of the loss is taken to be 1",
        line="return deliver(difference / divisor, d_logits), None",
        lesson="The loss is usually the last thing computed, and its own gradient is 1. It is not when the "
        "loss is scaled, for float16 or for a share of several losses. Every backward multiplies by what "
        "comes from above; one that does not is no longer linear in it.",
        in_practice="Training is the same to the last bit, and a check whose upstream gradient is 1 "
        "passes. It takes another number than 1 from above, or the question whether backward is linear.",
        fools=("loss_falls", "ones_upstream", "fresh_weights"),
        subject=with_op("cross_entropy", backward=upstream_forgotten_backward),
    ),
    Bug(
        name="cross-entropy-log-of-softmax",
        where="cross_entropy",
        title="The logarithm of a probability that has become zero",
        line="surprise = -np.log(np.take_along_axis(probabilities, columns, axis=-1)[..., 0])",
        lesson="log(softmax(z)) is right on paper and loses everything below the smallest number: a token "
        "104 behind in float32, or 746 in float64, has probability 0 and surprise infinity. With the two "
        "written together, z_y - max - log Σ exp(z - max), nothing small is ever formed. The gradient p - "
        "1 never needed the logarithm and stays right.",
        in_practice="At ordinary logits loss and gradient are right, and training does not notice. A "
        "confident mistake shows as an infinite loss while the gradient stays finite and right.",
        fools=("loss_falls", "one_of_everything", "fresh_weights"),
        subject=with_op("cross_entropy", forward=log_of_softmax_forward),
    ),
)
