"""PyTorch as most people run it: eager, with fused attention and fused AdamW. The main opponent.

It makes queries, keys and values in one product, as numpy_gpt does.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  the name everyone gives it

import torch_gpt
from benchmarks.opponents.training import Setup
from numpy_gpt.arrays import Array
from torch_gpt.model import CausalAttention
from torch_gpt.oracle import parameter_groups


class EagerTraining:
    """A torch model in training.

    Args:
        setup: what to build.
        model: to train instead of the opponent's own, which is `fused_model`.
    """

    def __init__(self, setup: Setup, model: torch_gpt.GPT | None = None) -> None:
        torch.set_num_threads(setup.threads)
        self.threads = setup.threads
        self.model = fused_model(setup) if model is None else model
        self.token_ids, self.target_ids = (torch.from_numpy(ids) for ids in setup.batch)  # (B, T) each
        self.clip_norm = setup.settings.clip_norm
        self.optimizer = torch.optim.AdamW(
            parameter_groups(self.model, setup.settings.weight_decay),
            lr=setup.settings.learning_rate,
            betas=setup.settings.betas,
            eps=setup.settings.eps,
            fused=True,
        )

    def loss(self) -> Tensor:
        """Return the mean cross-entropy of the batch."""
        return mean_cross_entropy(self.model(self.token_ids), self.target_ids)

    def forward_backward(self) -> float:
        """Compute the loss, which is returned, and all gradients."""
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves this one without types
        return loss.item()

    def step(self) -> float:
        """The same, then clip the gradients and update every weight by AdamW."""
        loss = self.forward_backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
        self.optimizer.step()
        return loss

    def gradients(self) -> dict[str, Array]:
        """Return the gradients of the last `forward_backward`."""
        known = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        return _by_our_names(known)

    def weights(self) -> dict[str, Array]:
        """Return the weights."""
        return _by_our_names({name: p.detach() for name, p in self.model.named_parameters()})


class FusedAttention(nn.Module):
    """`torch_gpt`'s attention with one product (B, T, C) -> (B, T, 3C) for its queries, keys and values.

    Args:
        plain: whose weights are copied, query rows first, then key rows, then value rows.
    """

    def __init__(self, plain: CausalAttention) -> None:
        super().__init__()
        parts = (plain.W_query, plain.W_key, plain.W_value)
        C = plain.W_query.in_features
        self.split_heads = plain.split_heads
        self.W_qkv = nn.Linear(C, 3 * C, bias=plain.W_query.bias is not None)
        self.out_proj = plain.out_proj
        with torch.no_grad():
            for name, whole in self.W_qkv.named_parameters():
                whole.copy_(torch.cat([getattr(part, name) for part in parts]))

    def forward(self, x: Tensor) -> Tensor:
        """Return context (B, T, C) for token vectors x (B, T, C)."""
        queries, keys, values = (self.split_heads(part) for part in self.W_qkv(x).chunk(3, dim=-1))
        context = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)  # (B, H, T, D)
        out: Tensor = self.out_proj(context.transpose(1, 2).flatten(2))  # (B, T, C)
        return out


def plain_model(setup: Setup, attention: str) -> torch_gpt.GPT:
    """Return a `torch_gpt.GPT` as it stands, with the weights to begin with."""
    model = torch_gpt.GPT(setup.config, attention=attention)
    if setup.state is not None:
        model.load_state_dict({name: torch.from_numpy(array) for name, array in setup.state.items()})
    return model


def fused_model(setup: Setup) -> torch_gpt.GPT:
    """Return the same with `FusedAttention` in every block."""
    model = plain_model(setup, "fused")
    for block in model.transformer_blocks:
        assert isinstance(block.attention, CausalAttention)
        block.attention = FusedAttention(block.attention)
    return model


def mean_cross_entropy(logits: Tensor, target_ids: Tensor) -> Tensor:
    """Return the mean over targets that are not -100, for logits (B, T, V) and targets (B, T)."""
    return F.cross_entropy(logits.flatten(0, 1), target_ids.flatten())


def _by_our_names(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """Return arrays by the names of our parameters: rows of W_qkv are those of three."""
    found: dict[str, Array] = {}
    for name, tensor in tensors.items():
        before, fused, after = name.partition("W_qkv")
        if fused:
            parts = zip(("W_query", "W_key", "W_value"), tensor.chunk(3), strict=True)
            found |= {f"{before}{part}{after}": rows.numpy() for part, rows in parts}
        else:
            found[name] = tensor.numpy()
    return found
