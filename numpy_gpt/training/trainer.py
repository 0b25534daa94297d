"""The loop: windows of step k -> loss and gradients -> clip -> AdamW."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from numpy_gpt.config import TrainConfig
from numpy_gpt.model import GPT, TABLES
from numpy_gpt.ops import Ops
from numpy_gpt.parameters import Parameters
from numpy_gpt.text.batches import training_batch
from numpy_gpt.training.accumulation import accumulate_gradients
from numpy_gpt.training.adamw import AdamW
from numpy_gpt.training.checkpoint import Checkpoint
from numpy_gpt.training.clipping import clip_gradients
from numpy_gpt.training.data import TrainingData
from numpy_gpt.training.evaluation import Evaluation, evaluate
from numpy_gpt.training.memory import require_memory, training_bytes
from numpy_gpt.training.schedule import learning_rate_at


@dataclass(frozen=True)
class StepReport:
    """What one step did.

    Attributes:
        step: completed steps, this one included.
        tokens: predicted so far.
        learning_rate: of this step.
        train_loss: nats per token on this step's batch, before the update.
        gradient_norm: before clipping.
        tokens_per_second: of this step, evaluation left out.
        validation: of the updated model, where this step was due for it.
    """

    step: int
    tokens: int
    learning_rate: float
    train_loss: float
    gradient_norm: float
    tokens_per_second: float
    validation: Evaluation | None


class NotFiniteError(ArithmeticError):
    """A loss or a gradient is infinite or not a number, so there is nothing left to learn."""


class Trainer:
    """A model in training.

    Args:
        config: the settings of the run.
        data: what to learn from and what to check on.
        model: updated in place.
        optimizer: of that model's parameters.
        step: completed steps.
    """

    def __init__(
        self, config: TrainConfig, data: TrainingData, model: GPT, optimizer: AdamW, step: int = 0
    ) -> None:
        self.config = config
        self.data = data
        self.model = model
        self.optimizer = optimizer
        self.step = step
        self._gradients = Parameters.zeros(model.config, model.dtype)

    @classmethod
    def start(cls, config: TrainConfig, data: TrainingData, *, ops: Ops | None = None) -> Trainer:
        """Return a trainer of a fresh model, whose settings say which tokenizer the data have.

        It computes with `ops`, or else with the config's table.

        Raises:
            MemoryError: when the machine cannot hold it.
        """
        config = config.with_tokenizer(data.tokenizer.name, data.requested_vocabulary)
        model_config = config.model_config(data.tokenizer.n_vocab)
        require_memory(training_bytes(config, model_config, ops or TABLES[config.ops]))
        model = GPT(
            model_config,
            seed=config.seed,
            dtype=config.dtype,
            ops=ops or config.ops,
            threads=config.threads,
            recompute=config.recompute,
        )
        optimizer = AdamW(
            model.parameters,
            learning_rate=config.learning_rate,
            betas=(config.beta1, config.beta2),
            weight_decay=config.weight_decay,
            threads=config.threads,
        )
        return cls(config, data, model, optimizer)

    @classmethod
    def resume(
        cls, config: TrainConfig, data: TrainingData, checkpoint: Checkpoint, *, ops: Ops | None = None
    ) -> Trainer:
        """Return a trainer that goes on as if it had never stopped; `ops` as for `start`.

        On as many threads, bit for bit: another number adds in another order, and rounds otherwise.

        Raises:
            ValueError: for a checkpoint without an optimizer, or of another text or tokenizer.
        """
        if checkpoint.optimizer is None:
            raise ValueError("the checkpoint holds no optimizer: there is nothing to resume")
        for what in ("text_fingerprint", "tokenizer_fingerprint"):
            now, then = getattr(data, what), checkpoint.metadata.get(what)
            if now != then:
                name = what.removesuffix("_fingerprint")
                raise ValueError(f"the {name} has changed: its fingerprint is {now}, but was {then}")
        model = GPT.from_parameters(
            checkpoint.model.parameters,
            ops=ops or config.ops,
            threads=config.threads,
            recompute=config.recompute,
        )
        optimizer = checkpoint.optimizer.on_threads(config.threads)
        return cls(config, data, model, optimizer, checkpoint.step)

    @property
    def last_step(self) -> int:
        """How many steps are complete when `run` ends."""
        return min(self.config.steps, self.config.stop_after or self.config.steps)

    def run(self) -> Iterator[StepReport]:
        """Train until the configured number of steps is complete, reporting each.

        Raises:
            NotFiniteError: naming the step and the first tensor that is not finite.
        """
        while self.step < self.last_step:
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # said once, by the error
                report = self._train_step()
            yield report

    def _train_step(self) -> StepReport:
        config = self.config
        window = self.model.config.max_sequence_length
        started = time.perf_counter()
        token_ids, target_ids = training_batch(
            self.data.training_ids,
            step=self.step,
            seed=config.seed,
            batch_size=config.batch_size,
            sequence_length=window,
        )  # (B, T) each
        gradients = self._gradients
        parts = zip(*(np.array_split(ids, config.accumulate) for ids in (token_ids, target_ids)), strict=True)
        loss = accumulate_gradients(self.model, list(parts), out=gradients)
        norm = clip_gradients(gradients, config.clip_norm or math.inf, threads=config.threads)
        self._require_finite(loss, norm, gradients)
        learning_rate = learning_rate_at(
            self.step,
            peak=config.learning_rate,
            minimum=config.min_learning_rate,
            warmup_steps=config.warmup_steps,
            total_steps=config.steps,
        )
        self.optimizer.step(gradients, learning_rate)
        self.step += 1
        seconds = time.perf_counter() - started

        due = self.step % config.eval_interval == 0 or self.step == self.last_step
        validation = self.evaluate() if due else None
        if validation and not math.isfinite(validation.loss):
            raise NotFiniteError(f"step {self.step}: the validation loss after it is not finite")
        return StepReport(
            step=self.step,
            tokens=self.step * token_ids.size,
            learning_rate=learning_rate,
            train_loss=loss,
            gradient_norm=norm,
            tokens_per_second=token_ids.size / seconds,
            validation=validation,
        )

    def evaluate(self) -> Evaluation:
        """Return how well the model predicts the whole validation split."""
        return evaluate(
            self.model,
            self.data.validation_ids,
            self.data.bytes_per_token,
            batch_size=self.config.batch_size,
        )

    def _require_finite(self, loss: float, norm: float, gradients: Parameters) -> None:
        if math.isfinite(loss) and math.isfinite(norm):
            return
        culprit = "the loss" if not math.isfinite(loss) else "the gradient's norm"
        for name, view in gradients.named_parameters():
            if math.isfinite(loss) and not np.isfinite(view).all():
                culprit = f"the gradient of {name}"
                break
        raise NotFiniteError(
            f"step {self.step + 1}: {culprit} is not finite; the parameters were not changed"
        )
