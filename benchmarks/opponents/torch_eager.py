"""PyTorch as most people run it: eager, with fused attention and fused AdamW. The main opponent."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  the name everyone gives it

import torch_gpt
from benchmarks.opponents.training import Setup
from numpy_gpt.arrays import Array
from torch_gpt.oracle import parameter_groups


class TorchTraining:
    """A `torch_gpt.GPT` in training.

    Args:
        setup: what to build.
        attention: as for `torch_gpt.GPT`.
    """

    def __init__(self, setup: Setup, attention: str = "fused") -> None:
        torch.set_num_threads(setup.threads)
        self.threads = setup.threads
        self.model = torch_gpt.GPT(setup.config, attention=attention)
        if setup.state is not None:
            self.model.load_state_dict({name: torch.from_numpy(a) for name, a in setup.state.items()})
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
        return {name: p.grad.numpy() for name, p in self.model.named_parameters() if p.grad is not None}

    def weights(self) -> dict[str, Array]:
        """Return the weights."""
        return {name: p.detach().numpy() for name, p in self.model.named_parameters()}


def mean_cross_entropy(logits: Tensor, target_ids: Tensor) -> Tensor:
    """Return the mean over targets that are not -100, for logits (B, T, V) and targets (B, T)."""
    return F.cross_entropy(logits.flatten(0, 1), target_ids.flatten())
