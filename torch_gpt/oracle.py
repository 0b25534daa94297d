"""torch's answer to what numpy_gpt computes, arrays in and arrays out, for `numpy_gpt.verify`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.nn import functional as F  # noqa: N812  the name everyone gives it

import numpy_gpt
from torch_gpt.conversion import from_numpy


class Answer(NamedTuple):
    """What torch's autograd makes of one batch.

    Attributes:
        logits: (B, T, V).
        loss: the mean cross-entropy over targets that are not -100.
        gradients: of that loss, by parameter name; a tied matrix once.
    """

    logits: NDArray[Any]
    loss: float
    gradients: dict[str, NDArray[Any]]


def answer(
    model: numpy_gpt.GPT, token_ids: ArrayLike, target_ids: ArrayLike, *, attention: str = "explicit"
) -> Answer:
    """Return logits, loss and every gradient of a NumPy model's torch twin, in the model's dtype.

    Args:
        model: whose weights are copied into the twin.
        token_ids: (B, T) integers.
        target_ids: (B, T) integers, or -100 where a position does not count.
        attention: as for `torch_gpt.GPT`.
    """
    twin = from_numpy(model, attention=attention)
    logits = twin(torch.from_numpy(np.array(token_ids, np.int64)))  # (B, T, V)
    targets = torch.from_numpy(np.array(target_ids, np.int64))  # (B, T)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves this one without types
    gradients = {name: p.grad.numpy() for name, p in twin.named_parameters() if p.grad is not None}
    return Answer(logits.detach().numpy(), loss.item(), gradients)
