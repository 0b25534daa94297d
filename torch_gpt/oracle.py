"""torch's answer to what numpy_gpt computes, arrays in and arrays out, for `numpy_gpt.verify`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  the name everyone gives it

import numpy_gpt
from torch_gpt.conversion import from_numpy
from torch_gpt.model import GPT


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
    logits, loss = _logits_and_loss(twin, token_ids, target_ids)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves this one without types
    gradients = {name: p.grad.numpy() for name, p in twin.named_parameters() if p.grad is not None}
    return Answer(logits.detach().numpy(), loss.item(), gradients)


def activation_gradients(
    model: numpy_gpt.GPT, token_ids: ArrayLike, target_ids: ArrayLike
) -> dict[str, NDArray[Any]]:
    """Return the loss's gradient for what goes into and comes out of each module of a model's torch twin.

    The names are the modules', with `.input` or `.output` after them. An array with several readers, such as
    the residual stream, has the sum of what they send back.
    """
    twin = from_numpy(model)
    activations: dict[str, Tensor] = {}

    def remember(name: str) -> Callable[..., None]:
        def hook(module: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            for end, tensor in (("input", inputs[0]), ("output", output)):
                if tensor.requires_grad:
                    tensor.retain_grad()
                    activations[f"{name}.{end}"] = tensor

        return hook

    for name, module in twin.named_modules():
        module.register_forward_hook(remember(name))
    _, loss = _logits_and_loss(twin, token_ids, target_ids)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves this one without types
    return {name: t.grad.numpy() for name, t in activations.items() if t.grad is not None}


def _logits_and_loss(twin: GPT, token_ids: ArrayLike, target_ids: ArrayLike) -> tuple[Tensor, Tensor]:
    """Return logits (B, T, V) and the mean cross-entropy over targets that are not -100."""
    logits = twin(torch.from_numpy(np.array(token_ids, np.int64)))  # (B, T, V)
    targets = torch.from_numpy(np.array(target_ids, np.int64))  # (B, T)
    return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def parameter_groups(twin: GPT, weight_decay: float) -> list[dict[str, Any]]:
    """Return the twin's parameters as torch's optimizers take them, in which only matrices decay."""
    return [
        {"params": [p for p in twin.parameters() if p.ndim == 2], "weight_decay": weight_decay},
        {"params": [p for p in twin.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]


class TorchTraining:
    """The torch twin of a NumPy model in training: torch's autograd, clipping and AdamW.

    Args:
        model: whose weights are copied into the twin at the start.
        weight_decay: on matrices and embeddings; biases and norms do not decay.
        clip_norm: the longest gradient let through unshortened.
    """

    def __init__(self, model: numpy_gpt.GPT, *, weight_decay: float, clip_norm: float) -> None:
        self.twin = from_numpy(model)
        self.clip_norm = clip_norm
        self.optimizer = torch.optim.AdamW(parameter_groups(self.twin, weight_decay))

    def step(self, token_ids: ArrayLike, target_ids: ArrayLike, learning_rate: float) -> tuple[float, float]:
        """Update once; return the loss and the gradient's norm before clipping."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.zero_grad()
        _, loss = _logits_and_loss(self.twin, token_ids, target_ids)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves this one without types
        norm = torch.nn.utils.clip_grad_norm_(self.twin.parameters(), self.clip_norm)
        self.optimizer.step()
        return loss.item(), norm.item()

    def weights(self) -> dict[str, NDArray[Any]]:
        """Return every weight by name; a tied matrix once."""
        return {name: p.detach().numpy() for name, p in self.twin.named_parameters()}
