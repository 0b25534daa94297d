"""Bugs of gradient accumulation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from numpy_gpt.model import GPT
from numpy_gpt.parameters import Parameters
from numpy_gpt.verify.bugs.bug import Bug
from numpy_gpt.verify.bugs.subject import RIGHT

MicroBatches = Sequence[tuple[ArrayLike, ArrayLike]]


def sum_of_means(model: GPT, micro_batches: MicroBatches, *, out: Parameters) -> float:
    """Wrong: k micro-batches make the gradient k times as long."""
    losses = []
    for i, (token_ids, target_ids) in enumerate(micro_batches):
        loss, _ = model.loss_and_gradients(token_ids, target_ids, out=out, accumulate=i > 0)
        losses.append(loss)
    return float(np.mean(losses))


def mean_of_means(model: GPT, micro_batches: MicroBatches, *, out: Parameters) -> float:
    """Wrong for unequal micro-batches: each weighs the same, however many targets it has."""
    losses = []
    for i, (token_ids, target_ids) in enumerate(micro_batches):
        loss, _ = model.loss_and_gradients(token_ids, target_ids, out=out, accumulate=i > 0)
        losses.append(loss)
    out.flat /= len(micro_batches)
    return float(np.mean(losses))


def ignored_counted(model: GPT, micro_batches: MicroBatches, *, out: Parameters) -> float:
    """Wrong with ignored targets: divides by the number of positions."""
    positions = sum(np.size(target_ids) for _, target_ids in micro_batches)
    loss = 0.0
    for i, (token_ids, target_ids) in enumerate(micro_batches):
        part, _ = model.loss_and_gradients(
            token_ids, target_ids, divisor=positions, out=out, accumulate=i > 0
        )
        loss += part
    return loss


BUGS = (
    Bug(
        name="accumulation-unscaled",
        where="accumulation",
        title="The micro-batches' gradients are summed and never divided",
        line="loss, _ = model.loss_and_gradients(token_ids, target_ids, out=out, accumulate=i > 0)",
        lesson="Each micro-batch's loss is a mean, so each gradient is that of a mean, and k of them add "
        "up to k times that of the whole. The loss shown is averaged and looks right. For plain gradient "
        "descent it is a learning rate k times as high; Adam divides the factor out again, and clipping "
        "cuts it off.",
        in_practice="The loss falls as with right code, for AdamW and clipping hide the factor. The "
        "gradient's norm is about k times too large, and clips where it should not.",
        fools=("loss_falls",),
        subject=RIGHT._replace(accumulate_gradients=sum_of_means),
    ),
    Bug(
        name="accumulation-mean-of-means",
        where="accumulation",
        title="Unequal micro-batches weigh the same",
        line="out.flat /= len(micro_batches)",
        lesson="Dividing by the number of micro-batches is right when all have equally many valid targets. "
        "With padding they have not, and a token in a short one weighs more than a token in a long one: a "
        "mean of means is not the mean. Widely used libraries had it until 2024. Divide each part by the "
        "targets of the whole.",
        in_practice="The loss falls as with right code. Equal micro-batches are right; here two sequences "
        "weigh as much as four, and the gradient is not that of the whole batch.",
        fools=("loss_falls",),
        subject=RIGHT._replace(accumulate_gradients=mean_of_means),
    ),
    Bug(
        name="accumulation-ignored-targets-counted",
        where="accumulation",
        title="The divisor counts ignored targets",
        line="positions = sum(np.size(target_ids) for _, target_ids in micro_batches)",
        lesson="The right idea, one divisor for all micro-batches, with the wrong number: positions "
        "instead of targets that count. The accumulated gradient is then shorter than the large batch's, "
        "by the share of padding in it.",
        in_practice="Text without ignored targets trains the same, to the last digit. With them, loss and "
        "gradient are too small by the same factor.",
        fools=("loss_falls",),
        subject=RIGHT._replace(accumulate_gradients=ignored_counted),
    ),
)
