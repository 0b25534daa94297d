"""torch's own functions for the operations of our table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  the name everyone gives it

from benchmarks.operations import Operands
from benchmarks.opponents.torch_eager import mean_cross_entropy


class TorchCall:
    """An operation in torch, backward by its autograd."""

    def __init__(self, operation: str, operands: Operands, threads: int) -> None:
        torch.set_num_threads(threads)
        self.function = FUNCTIONS[operation]
        self.tensors = [torch.from_numpy(array) for array in operands.arrays]
        self.options = operands.options
        self.d_out = torch.as_tensor(operands.d_out, dtype=torch.float32)
        self.differentiable = [t.requires_grad_() for t in self.tensors if t.is_floating_point()]

    def forward(self) -> Any:
        """Compute the output, which is returned, and keep what backward needs."""
        self.out = self.function(*self.tensors, **self.options)
        return self.out.detach().numpy()

    def backward(self) -> tuple[Any, ...]:
        """Return the gradients after the last forward, None for integers."""
        found = iter(torch.autograd.grad(self.out, self.differentiable, self.d_out, retain_graph=True))
        return tuple(next(found).numpy() if t.is_floating_point() else None for t in self.tensors)


def embedding(token_ids: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
    """Return token and position vectors, added."""
    return F.embedding(token_ids, tokens) + positions[: token_ids.shape[1]]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """Return x normalised over its last axis."""
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def softmax(x: Tensor) -> Tensor:
    """Return softmax over the last axis."""
    return torch.softmax(x, dim=-1)


def attention(queries: Tensor, keys: Tensor, values: Tensor, *, num_heads: int) -> Tensor:
    """Return fused causal attention, heads split and joined as ours does it."""

    def split(x: Tensor) -> Tensor:
        B, T, C = x.shape
        return x.view(B, T, num_heads, C // num_heads).transpose(1, 2)  # (B, H, T, D)

    context = F.scaled_dot_product_attention(split(queries), split(keys), split(values), is_causal=True)
    return context.transpose(1, 2).flatten(2)  # (B, T, C)


def linear_cross_entropy(x: Tensor, weight: Tensor, target_ids: Tensor) -> Tensor:
    """Return the loss straight from token vectors."""
    return mean_cross_entropy(F.linear(x, weight), target_ids)


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "embedding": embedding,
    "linear": F.linear,
    "layer_norm": layer_norm,
    "gelu": F.gelu,
    "softmax": softmax,
    "attention": attention,
    "cross_entropy": mean_cross_entropy,
    "linear_cross_entropy": linear_cross_entropy,
}
