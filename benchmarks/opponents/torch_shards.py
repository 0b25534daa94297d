"""PyTorch with our own trick: one shard of the batch for each thread, and one thread for each shard.

Where there are fewer sequences than threads, a shard is one sequence and has several threads. The replicas
share their weights and have gradients of their own, which are then summed in a fixed order.
"""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  the name everyone gives it

from benchmarks.opponents.torch_eager import EagerTraining
from benchmarks.opponents.training import Setup


class ShardedTraining(EagerTraining):
    """As eager, but forward and backward run on shards of the batch at once."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        count = min(self.threads, len(self.token_ids))
        parts = (ids.tensor_split(count) for ids in (self.token_ids, self.target_ids))
        self.shards = list(zip(*parts, strict=True))
        self.replicas = [self.model, *(self._replica() for _ in self.shards[1:])]
        # torch's thread count is each thread's own: the shards' are theirs, the main thread's stays.
        self.pool = ThreadPoolExecutor(
            count, initializer=torch.set_num_threads, initargs=(self.threads // count,)
        )

    def forward_backward(self) -> float:
        """Compute the loss, which is returned, and all gradients."""
        for replica in self.replicas:
            replica.zero_grad()
        counted = max(1, int((self.target_ids >= 0).sum()))

        def run(shard: int) -> Tensor:
            token_ids, target_ids = self.shards[shard]
            logits = self.replicas[shard](token_ids)  # (b, T, V)
            # A sum over the count of the whole batch: a shard may have nothing to count, and then no mean.
            loss = F.cross_entropy(logits.flatten(0, 1), target_ids.flatten(), reduction="sum") / counted
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
