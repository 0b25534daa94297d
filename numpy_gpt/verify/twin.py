"""The torch twin's gradients of everything in a model, where torch is installed."""

from __future__ import annotations

import importlib.util

from numpy.typing import ArrayLike

from numpy_gpt.arrays import Array
from numpy_gpt.model import GPT


def twin_gradients(model: GPT, token_ids: ArrayLike, target_ids: ArrayLike) -> dict[str, Array]:
    """Return torch's gradient of every parameter and of every module's input and output; {} without torch.

    Args:
        model: whose weights are copied into the twin.
        token_ids: (B, T) integers.
        target_ids: (B, T) integers, or -100 where a position does not count.

    Returns:
        By parameter name, and by module name with `.input` or `.output` after it.
    """
    if importlib.util.find_spec("torch") is None:
        return {}
    from torch_gpt.oracle import activation_gradients, answer

    of_parameters = answer(model, token_ids, target_ids).gradients
    return of_parameters | activation_gradients(model, token_ids, target_ids)
