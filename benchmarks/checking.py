"""Nothing is timed whose results are wrong: every contestant is held against torch first.

The weights are those of `numpy_gpt.verify.cases`, which hide no term of a gradient, and a sixth of the
targets are ignored. The optimizer takes one step with a large eps: at AdamW's usual one the first update is
only the gradient's sign, which rounding decides where the gradient is zero and which clipping never changes.
Its rate is large too, so that the update is not lost in the rounding of the weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from benchmarks.cases import Batch, Case, Settings
from benchmarks.opponents.training import Setup, Training
from numpy_gpt.arrays import Array
from numpy_gpt.parameters import Parameters
from numpy_gpt.verify.cases import revealing_batch, revealing_parameters
from numpy_gpt.verify.measure import CANCELLED_SHARE, largest, relative_error
from numpy_gpt.verify.parity import FLOAT32_RATIO

NOISE_LIMIT = FLOAT32_RATIO * float(np.finfo(np.float32).eps) / CANCELLED_SHARE
"""Of a gradient that cancels to zero only rounding is left, which is this much of the floor it is held to."""

CHECK_SETTINGS = Settings(learning_rate=1e3, eps=0.1, weight_decay=1e-4)

Tensors = dict[str, Array]


class Check(NamedTuple):
    """How far a contestant is from torch.

    Attributes:
        worst: where it differs most, and by how much.
        limit: how much is allowed: some times what torch differs from itself, with attention fused and the
            batch taken backwards.
    """

    worst: tuple[str, float]
    limit: float


class Answer(NamedTuple):
    """What one step of training gives, all that a contestant computes."""

    loss: float
    gradients: Tensors
    updates: Tensors  # each weight after the step, minus before


def check_training(case: Case, build: Callable[[Setup], Training], threads: int, *, seed: int = 0) -> Check:
    """Return how far a contestant's loss, gradients and updated weights are from torch's.

    torch is `torch_gpt` as it stands, with attention spelled out, and not the opponent that is timed. Errors
    are as DESIGN measures them: largest difference over largest value, and over the model's largest gradient
    for what cancels.

    Args:
        case: the model and the size of the batch.
        build: makes the contestant's `Training`.
        threads: for the contestant and torch.
        seed: of weights and batch.
    """
    from benchmarks.opponents.torch_eager import EagerTraining, plain_model

    batch = Batch(*revealing_batch(case.config, case.batch_size, case.num_tokens, seed))
    weights = revealing_parameters(case.config, seed).flat.astype(np.float32)
    state = Parameters(case.config, weights).state_dict()
    setup = Setup(case.config, batch, threads, CHECK_SETTINGS, state)
    truth = _answer(EagerTraining(setup, plain_model(setup, "explicit")), state)
    backwards = setup._replace(batch=Batch(*(ids[::-1].copy() for ids in batch)))
    _, own = _worst(_answer(EagerTraining(backwards, plain_model(backwards, "fused")), state), truth)
    worst = _worst(_answer(build(setup), state), truth)
    return Check(worst, max(NOISE_LIMIT, FLOAT32_RATIO * own))


def require_right(case: Case, name: str, worst: tuple[str, float], limit: float = NOISE_LIMIT) -> None:
    """Raise ArithmeticError, naming the contestant and the tensor, unless the error is within the limit."""
    tensor, error = worst
    if not error <= limit:
        raise ArithmeticError(
            f"{name} is wrong on {case.name}, so it is not timed: {tensor} differs from torch's by "
            f"{error:.1e} of its largest value, and {limit:.1e} is allowed"
        )


def _answer(training: Training, before: Tensors) -> Answer:
    loss = training.forward_backward()
    gradients = {name: gradient.copy() for name, gradient in training.gradients().items()}
    training.step()
    return Answer(loss, gradients, {name: after - before[name] for name, after in training.weights().items()})


def _worst(answer: Answer, truth: Answer) -> tuple[str, float]:
    """Return the tensor of the largest error, and that error."""
    errors = {"loss": relative_error(answer.loss, truth.loss)}
    for what, values, right in (
        ("gradient", answer.gradients, truth.gradients),
        ("update", answer.updates, truth.updates),
    ):
        if values.keys() != right.keys():
            return f"the {what}s' names", float("inf")
        floor = CANCELLED_SHARE * largest(right)
        for name in right:
            errors[f"{what} of {name}"] = relative_error(values[name], right[name], floor)
    return max(errors.items(), key=lambda item: item[1])
