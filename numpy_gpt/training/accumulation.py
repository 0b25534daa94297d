"""Gradient accumulation: a batch too large for memory, taken in parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from numpy_gpt.model import GPT
from numpy_gpt.ops import IGNORED_TARGET
from numpy_gpt.parameters import Parameters


def accumulate_gradients(
    model: GPT, micro_batches: Sequence[tuple[ArrayLike, ArrayLike]], *, out: Parameters
) -> float:
    """Write into `out` the gradient of the mean loss over all micro-batches together, and return that loss.

        loss = Σ_k (summed loss of micro-batch k) / N          N counts the valid targets of all of them

    Each part is divided by the whole's N and not by its own, so that every token weighs the same wherever the
    batch is cut: the sum of the parts is the one large batch, exactly but for rounding.

    Args:
        model: whose gradients these are.
        micro_batches: pairs of token ids (B, T) and target ids (B, T); B and T may differ between pairs.
        out: overwritten.

    Returns:
        The loss in nats per valid target; 0.0 when there is none.

    Raises:
        ValueError: without micro-batches; and as `GPT.loss_and_gradients`.
        TypeError: as `GPT.loss_and_gradients`.
    """
    if not micro_batches:
        raise ValueError("there must be at least one micro-batch")
    valid_targets = sum(int(np.sum(np.asarray(targets) != IGNORED_TARGET)) for _, targets in micro_batches)
    loss = 0.0
    for i, (token_ids, target_ids) in enumerate(micro_batches):
        part, _ = model.loss_and_gradients(
            token_ids, target_ids, divisor=valid_targets, out=out, accumulate=i > 0
        )
        loss += part
    return loss
