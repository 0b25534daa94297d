"""A small training run that can be stopped and resumed: what a checkpoint must keep, without the file."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from numpy.typing import ArrayLike, DTypeLike

from numpy_gpt.arrays import Array
from numpy_gpt.config import GPTConfig
from numpy_gpt.model import GPT
from numpy_gpt.parameters import Parameters
from numpy_gpt.text.batches import training_batch
from numpy_gpt.training.adamw import AdamW
from numpy_gpt.training.schedule import learning_rate_at

ADAMW: dict[str, Any] = {"learning_rate": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.1}
BATCH: dict[str, int] = {"seed": 0, "batch_size": 6}
SCHEDULE: dict[str, Any] = {"peak": 1e-2, "minimum": 1e-3, "warmup_steps": 5}


class Kept(NamedTuple):
    """What a checkpoint keeps: all that the rest of a run depends on, but for its text and its settings."""

    config: GPTConfig
    dtype: DTypeLike
    weights: dict[str, Array]  # as `GPT.state_dict`
    optimizer: dict[str, Array]  # as `AdamW.state_dict`: both moments and the number of steps
    step: int  # completed steps, and so the number of the next one


class Run:
    """A run of training.

    Args:
        model, optimizer: updated in place.
        text: (N,) ids to learn from.
        total_steps: what the schedule is made for.
        step: completed steps.

    Attributes:
        model, optimizer, text, total_steps, step: as given; `losses`: of each step, in nats per token.
    """

    def __init__(
        self, model: GPT, optimizer: AdamW, text: ArrayLike, *, total_steps: int, step: int = 0
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.text = text
        self.total_steps = total_steps
        self.step = step
        self.losses: list[float] = []

    @classmethod
    def start(cls, model: GPT, text: ArrayLike, *, total_steps: int) -> Self:
        """Return a run of a fresh model."""
        return cls(model, AdamW(model.parameters, **ADAMW), text, total_steps=total_steps)

    @classmethod
    def resume(cls, kept: Kept, text: ArrayLike, *, total_steps: int) -> Self:
        """Return a run that goes on as the one that was kept would have."""
        parameters = Parameters.zeros(kept.config, kept.dtype)
        parameters.load_state_dict(kept.weights)
        optimizer = AdamW(parameters, **ADAMW)
        optimizer.load_state_dict(kept.optimizer)
        return cls(GPT.from_parameters(parameters), optimizer, text, total_steps=total_steps, step=kept.step)

    def keep(self) -> Kept:
        """Return all that `resume` needs, as it stands now; no later step changes it."""
        model, optimizer = self.model, self.optimizer
        return Kept(model.config, model.dtype, model.state_dict(), optimizer.state_dict(), self.step)

    def train(self, until: int) -> None:
        """Make steps until that many are complete."""
        while self.step < until:
            self._train_step(batch=self.step, rate=self.step)
            self.step += 1

    def _train_step(self, *, batch: int, rate: int) -> None:
        """Update the model with the batch of one step and the learning rate of one, which are the same."""
        window = self.model.config.max_sequence_length
        token_ids, target_ids = training_batch(self.text, step=batch, sequence_length=window, **BATCH)
        loss, gradients = self.model.loss_and_gradients(token_ids, target_ids)
        self.optimizer.step(gradients, learning_rate_at(rate, total_steps=self.total_steps, **SCHEDULE))
        self.losses.append(loss)
