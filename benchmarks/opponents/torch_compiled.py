"""PyTorch with torch.compile, which fuses elementwise work into compiled loops. It needs a C++ compiler."""

from __future__ import annotations

import torch

from benchmarks.opponents.torch_eager import EagerTraining
from benchmarks.opponents.training import Setup


class CompiledTraining(EagerTraining):
    """As eager, but forward and backward are compiled; the fused AdamW is compiled C++ as it is."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.loss = torch.compile(self.loss)  # type: ignore[method-assign]  # this is what compiling means
