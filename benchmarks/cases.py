"""What is measured: models with their batches, and the settings of the optimizer that trains them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from numpy_gpt import GPTConfig
from numpy_gpt.arrays import Array


class Batch(NamedTuple):
    """What one step learns from."""

    token_ids: Array  # (B, T) int64
    target_ids: Array  # (B, T) int64, -100 where a position does not count


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and the size of its batch.

    Args:
        name: as it is shown.
        config: the model's.
        batch_size: B.
        num_tokens: T.

    Raises:
        ValueError: for a batch that the model cannot take.
    """

    name: str
    config: GPTConfig
    batch_size: int
    num_tokens: int

    def __post_init__(self) -> None:
        if not 1 <= self.num_tokens <= self.config.max_sequence_length:
            raise ValueError(
                f"T must lie in 1..{self.config.max_sequence_length} for {self.name}, not {self.num_tokens}"
            )
        if self.batch_size < 1:
            raise ValueError(f"B must be at least 1, not {self.batch_size}")

    @property
    def tokens_per_step(self) -> int:
        """How many positions one step learns from."""
        return self.batch_size * self.num_tokens

    def batch(self, seed: int = 0) -> Batch:
        """Return random ids, all of which count."""
        random = np.random.default_rng(seed)
        ids = random.integers(0, self.config.vocabulary_size, (2, self.batch_size, self.num_tokens))
        return Batch(*ids)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Case:
        """Return the case that `to_json` wrote down."""
        return cls(**{**values, "config": GPTConfig(**values["config"])})


@dataclasses.dataclass(frozen=True)
class Settings:
    """Of clipping and AdamW, for every contestant alike."""

    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0


CASES = {
    "nano": Case("nano", GPTConfig.preset("nano"), batch_size=12, num_tokens=64),
    "small": Case("small", GPTConfig.preset("small"), batch_size=8, num_tokens=256),
    "gpt2": Case("gpt2", GPTConfig.preset("gpt2"), batch_size=4, num_tokens=64),
    "gpt2-long": Case("gpt2-long", GPTConfig.preset("gpt2"), batch_size=1, num_tokens=1024),
}
"""Small and large models, short and long sequences, many and one."""
