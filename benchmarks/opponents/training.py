"""What every contestant builds: a model that can be trained on one batch, over and over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from benchmarks.cases import Batch, Settings
from numpy_gpt import GPTConfig
from numpy_gpt.arrays import Array


class Setup(NamedTuple):
    """All that a contestant needs to build its model."""

    config: GPTConfig
    batch: Batch
    threads: int
    settings: Settings = Settings()
    state: Mapping[str, Array] | None = None  # the initial weights, by name; None draws fresh ones


class Training(Protocol):
    """A model, its optimizer and its batch. Names are the parameters', a tied matrix stands once."""

    def forward_backward(self) -> float:
        """Compute the loss, which is returned, and all gradients."""

    def step(self) -> float:
        """The same, then clip the gradients and update every weight by AdamW."""

    def gradients(self) -> dict[str, Array]:
        """Return the gradients of the last `forward_backward`."""

    def weights(self) -> dict[str, Array]:
        """Return the weights."""
