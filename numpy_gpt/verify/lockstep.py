"""NumPy and torch train side by side: same weights, same batches, same AdamW, compared after every step.

A gradient that is right on one batch can still meet an optimizer that is not, or batches in another order.
In float64 the two stay together to many digits for as long as one cares to look. In float32 they cannot: at
any step some numbers of a gradient are little but rounding noise (all of W_key.bias, always), and AdamW
divides each by its own root mean square. What is larger than its eps becomes a step of full size, noise or
not, in a direction that neither side can know. The loss hardly depends on such numbers, which is why the
losses still agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.config import GPTConfig
from numpy_gpt.model import GPT
from numpy_gpt.parameters import Parameters
from numpy_gpt.text.batches import training_batch
from numpy_gpt.text.corpus import embedded_corpus
from numpy_gpt.training.adamw import AdamW
from numpy_gpt.training.clipping import clip_gradients
from numpy_gpt.training.schedule import learning_rate_at
from numpy_gpt.verify.cases import revealing_parameters
from numpy_gpt.verify.measure import relative_error

PEAK_LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.1
CLIP_NORM = 1.0
BYTE_VOCABULARY = 256

FLOAT64_LIMIT = 1e-8
"""How far a tensor may drift, relative to its largest weight: rounding at 1e-16, amplified over the steps."""

SMALL_TENSOR_SHARE = 1e-3
"""Floor of that measure, as a share of the model's largest weight."""


@dataclass(frozen=True)
class LockstepRow:
    """Both sides after one step.

    Attributes:
        step: completed steps.
        losses: of the step's batch, NumPy's and torch's.
        norms: of the gradient before clipping, NumPy's and torch's.
        gap: the largest relative distance between two weight tensors after the update.
        tensor: the name of that tensor.
    """

    step: int
    losses: tuple[float, float]
    norms: tuple[float, float]
    gap: float
    tensor: str


@dataclass(frozen=True)
class LockstepReport:
    """A whole run.

    Attributes:
        dtype: of both sides.
        rows: one per step.
        limit: on the gap; None in float32, where it is shown and not judged.
    """

    dtype: str
    rows: tuple[LockstepRow, ...]
    limit: float | None

    @property
    def divergence(self) -> LockstepRow | None:
        """The first step at which a tensor was further apart than the limit, or None."""
        if self.limit is None:
            return None
        return next((row for row in self.rows if not row.gap <= self.limit), None)

    @property
    def passed(self) -> bool:
        """Whether no tensor ever was."""
        return self.divergence is None


def train_in_lockstep(
    config: GPTConfig,
    *,
    steps: int,
    batch_size: int,
    num_tokens: int,
    dtype: str = "float64",
    seed: int = 0,
    on_step: Callable[[LockstepRow], None] = lambda row: None,
) -> LockstepReport:
    """Train both sides on the bytes of the embedded corpus.

    Args:
        config: of the model; its vocabulary is replaced by the 256 bytes.
        steps: how many updates, with warm-up, cosine decay, clipping and weight decay.
        batch_size: B.
        num_tokens: T.
        dtype: "float64" or "float32".
        seed: of the weights and the batches.
        on_step: called after each step.

    Raises:
        ImportError: where torch is missing.
    """
    from torch_gpt.oracle import TorchTraining

    config = replace(config, vocabulary_size=BYTE_VOCABULARY)
    weights = revealing_parameters(config, seed).flat.astype(dtype)
    model = GPT.from_parameters(Parameters(config, weights))
    optimizer = AdamW(model.parameters, learning_rate=PEAK_LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    torch_side = TorchTraining(model, weight_decay=WEIGHT_DECAY, clip_norm=CLIP_NORM)
    text = np.frombuffer(embedded_corpus().encode(), np.uint8)

    rows = []
    for step in range(steps):
        token_ids, target_ids = training_batch(
            text, step=step, seed=seed, batch_size=batch_size, sequence_length=num_tokens
        )  # (B, T) each
        learning_rate = learning_rate_at(
            step, peak=PEAK_LEARNING_RATE, minimum=0.0, warmup_steps=steps // 10, total_steps=steps
        )
        loss, gradients = model.loss_and_gradients(token_ids, target_ids)
        norm = clip_gradients(gradients, CLIP_NORM)
        optimizer.step(gradients, learning_rate)
        torch_loss, torch_norm = torch_side.step(token_ids, target_ids, learning_rate)

        gap, tensor = _widest_gap(model.parameters, torch_side.weights())
        row = LockstepRow(step + 1, (loss, torch_loss), (norm, torch_norm), gap, tensor)
        rows.append(row)
        on_step(row)
    return LockstepReport(dtype, tuple(rows), FLOAT64_LIMIT if dtype == "float64" else None)


def _widest_gap(ours: Parameters, theirs: dict[str, Array]) -> tuple[float, str]:
    """Return the largest relative distance between tensors of one name, and that name."""
    floor = SMALL_TENSOR_SHARE * float(np.abs(ours.flat).max())
    return max((relative_error(view, theirs[name], floor), name) for name, view in ours.named_parameters())
