"""PyTorch with our own trick: one shard of the batch for each thread, and one thread for each shard.

The replicas share their weights and have gradients of their own, which are then summed in a fixed order.
"""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from benchmarks.opponents.torch_eager import TorchTraining, mean_cross_entropy
from benchmarks.opponents.training import Setup


class ShardedTraining(TorchTraining):
    """As eager, but forward and backward run on shards of the batch at once."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.shards = list(
            zip(self.token_ids.chunk(self.threads), self.target_ids.chunk(self.threads), strict=True)
        )
        self.replicas = [self.model, *(self._replica() for _ in self.shards[1:])]
        # torch's thread count is each thread's own: the shards' are one, the main thread's stays.
        self.pool = ThreadPoolExecutor(len(self.shards), initializer=torch.set_num_threads, initargs=(1,))

    def forward_backward(self) -> float:
        """Compute the loss, which is returned, and all gradients."""
        for replica in self.replicas:
            replica.zero_grad()
        counted = int((self.target_ids >= 0).sum())
        shares = [int((targets >= 0).sum()) / counted for _, targets in self.shards]

        def run(shard: int) -> Tensor:
            token_ids, target_ids = self.shards[shard]
            loss = mean_cross_entropy(self.replicas[shard](token_ids), target_ids) * shares[shard]
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves this one without types
            return loss.detach()

        losses = list(self.pool.map(run, range(len(self.shards))))
        whole = _gradients(self.model)
        for replica in self.replicas[1:]:
            torch._foreach_add_(whole, _gradients(replica))
        return float(sum(losses))

    def _replica(self) -> torch.nn.Module:
        replica = copy.deepcopy(self.model)
        for mine, shared in zip(replica.parameters(), self.model.parameters(), strict=True):
            mine.data = shared.data
        return replica


def _gradients(model: torch.nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]
