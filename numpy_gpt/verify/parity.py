"""One model, two implementations, every number compared: the table that `numpy-gpt verify` prints."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.config import GPTConfig
from numpy_gpt.model import GPT
from numpy_gpt.parameters import Parameters
from numpy_gpt.verify.cases import revealing_batch, revealing_parameters
from numpy_gpt.verify.measure import CANCELLED_SHARE, SYMMETRY_SHARE, largest, relative_error

FLOAT64_LIMIT = 1e-10
"""Both sides round in the 16th digit; a wrong term shows in the first ones."""

FLOAT32_RATIO = 4
"""NumPy's float32 error may be this many times torch's own, which is the worst of eight runs.

The table shows the worst of the four that differ in the order of their sums alone.
"""

NUDGED_RUNS = 4
"""Of these, how many have every weight moved to a neighbouring float32."""

FLOAT32_LUCK = 8 * float(np.finfo(np.float32).eps)
"""A float32 error below this is a few last digits, where the ratio of two errors is luck."""

DIFFERENCE_LIMIT = 1e-6
"""Central differences of a float64 loss are good to about 1e-9; a wrong term is far above this."""


@dataclass(frozen=True)
class VerifyConfig:
    """Prove NumPy's forward and backward equal to PyTorch's.

    Args:
        batch_size: B, sequences.
        num_tokens: T, tokens per sequence.
        num_layers: L, transformer blocks.
        num_heads: H, attention heads per block.
        embedding_dim: C, the width of a token vector.
        vocabulary_size: V, token ids.
        activation: gelu_tanh or gelu.
        tie_weights: whether the vocabulary projection is the token embedding.
        qkv_bias: whether the query, key and value projections have biases.
        seed: of the random weights and the random batch.
        train_steps: instead, train both side by side for so many steps and compare after each.
        dtype: of that training; in float32 the comparison is shown and not judged.
        bugs: instead, plant every bug of the catalogue and show which property finds it.
        precision: instead, show how float32 errs as the model gets longer, deeper and wider.
    """

    batch_size: int = 3
    num_tokens: int = 17
    num_layers: int = 2
    num_heads: int = 3
    embedding_dim: int = 48
    vocabulary_size: int = 101
    activation: Literal["gelu_tanh", "gelu"] = "gelu_tanh"
    tie_weights: bool = True
    qkv_bias: bool = True
    seed: int = 0
    train_steps: int = 0
    dtype: Literal["float64", "float32"] = "float64"
    bugs: bool = False
    precision: bool = False

    def __post_init__(self) -> None:
        for name, at_least in (("batch_size", 1), ("num_tokens", 1), ("seed", 0), ("train_steps", 0)):
            if getattr(self, name) < at_least:
                raise ValueError(f"{name} must be at least {at_least}, not {getattr(self, name)}")
        self.model_config()  # raises for a shape that makes no model

    def model_config(self) -> GPTConfig:
        """Return the shape of the model to compare; it has room for twice the tokens."""
        return GPTConfig(
            vocabulary_size=self.vocabulary_size,
            max_sequence_length=2 * self.num_tokens,
            embedding_dim=self.embedding_dim,
            num_heads=self.num_heads,
            num_layers=self.num_layers,
            qkv_bias=self.qkv_bias,
            tie_weights=self.tie_weights,
            activation=self.activation,
        )


@dataclass(frozen=True)
class Row:
    """One tensor's comparison.

    Attributes:
        name: "logits", "loss", or the parameter whose gradient this is.
        shape: of the tensor.
        errors: worst relative errors, aligned with the report's columns.
        zero_by_symmetry: whether the true gradient is zero, and only rounding noise was compared.
        passed: whether every error is within its limit.
    """

    name: str
    shape: tuple[int, ...]
    errors: tuple[float, ...]
    zero_by_symmetry: bool
    passed: bool


@dataclass(frozen=True)
class ParityReport:
    """Every tensor's comparison.

    Attributes:
        method: what NumPy was compared with, in words.
        columns: what each error compares.
        rows: one per tensor.
    """

    method: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def passed(self) -> bool:
        """Whether every tensor is within its limits."""
        return all(row.passed for row in self.rows)


Tensors = dict[str, Array]


def verify_parity(config: VerifyConfig) -> ParityReport:
    """Compare with torch where it is installed, otherwise with finite differences alone."""
    parameters = revealing_parameters(config.model_config(), config.seed)
    batch = revealing_batch(parameters.config, config.batch_size, config.num_tokens, config.seed)
    if importlib.util.find_spec("torch") is None:
        return compare_with_differences(parameters, *batch, seed=config.seed)
    return compare_with_torch(parameters, *batch)


def compare_with_torch(parameters: Parameters, token_ids: Array, target_ids: Array) -> ParityReport:
    """Run both implementations in both dtypes on the same weights and batch."""
    from torch_gpt.oracle import answer

    def ours(model: GPT) -> Tensors:
        loss, gradients = model.loss_and_gradients(token_ids, target_ids)
        return {"logits": model(token_ids), "loss": np.array(loss), **dict(gradients.named_parameters())}

    def theirs(model: GPT, order: int = 1, attention: str = "explicit") -> Tensors:
        """Return torch's tensors, with the batch taken forwards (1) or backwards (-1)."""
        logits, loss, gradients = answer(model, token_ids[::order], target_ids[::order], attention=attention)
        return {"logits": logits[::order], "loss": np.array(loss), **gradients}

    flat32 = parameters.flat.astype(np.float32)
    model64 = GPT.from_parameters(parameters)
    model32 = GPT.from_parameters(Parameters(parameters.config, flat32))
    numpy64, torch64, numpy32 = ours(model64), theirs(model64), ours(model32)
    # One float32 run alone can be right by luck. These differ only in the order of their sums, ...
    torch32 = [theirs(model32, order, attention) for order in (1, -1) for attention in ("explicit", "fused")]
    # ... and these by one rounding of every weight, which shows wherever rounding is magnified.
    nudged32 = []
    for seed in range(NUDGED_RUNS):
        towards = np.random.default_rng(seed).choice(np.array([-np.inf, np.inf], np.float32), flat32.shape)
        nudged = Parameters(parameters.config, np.nextafter(flat32, towards))
        nudged32.append(theirs(GPT.from_parameters(nudged)))
    scale = largest({name: array for name, array in torch64.items() if name not in ("logits", "loss")})

    rows = []
    for name, truth in torch64.items():
        is_gradient = name not in ("logits", "loss")
        floor = CANCELLED_SHARE * scale if is_gradient else 0.0
        errors = (
            relative_error(numpy64[name], truth, floor),
            relative_error(numpy32[name], truth, floor),
            max(relative_error(run[name], truth, floor) for run in torch32),
            max(relative_error(numpy32[name], run[name], floor) for run in torch32),
        )
        zero = is_gradient and bool(np.abs(truth).max() <= SYMMETRY_SHARE * scale)
        # Noise is held against the model's largest gradient, 1 / CANCELLED_SHARE times the floor.
        share = CANCELLED_SHARE if zero else 1.0
        magnified = max(relative_error(run[name], truth, floor) for run in nudged32)
        allowed = max(FLOAT32_RATIO * max(errors[2], magnified), FLOAT32_LUCK / share)
        passed = (
            errors[0] <= FLOAT64_LIMIT / share and errors[1] <= allowed and errors[3] <= allowed + errors[2]
        )
        rows.append(Row(name, truth.shape, errors, zero, passed))
    return ParityReport(
        method="NumPy against PyTorch's autograd",
        columns=("NumPy64 ~ torch64", "NumPy32 ~ torch64", "torch32 ~ torch64", "NumPy32 ~ torch32"),
        rows=tuple(rows),
    )


@np.errstate(invalid="ignore")  # what is not finite is reported as different
def compare_with_differences(
    parameters: Parameters, token_ids: Array, target_ids: Array, *, seed: int = 0
) -> ParityReport:
    """Compare each gradient, along a random direction, with how the loss really changes that way."""
    model = GPT.from_parameters(parameters)
    _, gradients = model.loss_and_gradients(token_ids, target_ids)
    random = np.random.default_rng([seed, 2])
    scale = largest(gradients)

    rows = []
    for name, view in parameters.named_parameters():
        gradient = gradients[name]
        direction = random.choice([-1.0, 1.0], view.shape)
        predicted = float(np.sum(gradient * direction))
        measured = _slope(lambda: model.loss(token_ids, target_ids), view, direction)
        floor = max(CANCELLED_SHARE * scale, float(np.abs(gradient).sum()) / math.sqrt(gradient.size))
        error = relative_error(predicted, measured, floor)
        zero = bool(np.abs(gradient).max() <= SYMMETRY_SHARE * scale)
        rows.append(Row(name, view.shape, (error,), zero, error <= DIFFERENCE_LIMIT))
    return ParityReport(
        method="NumPy against finite differences alone, because PyTorch is not installed",
        columns=("gradient ~ difference",),
        rows=tuple(rows),
    )


def _slope(loss: Callable[[], float], view: Array, direction: Array, step: float = 1e-5) -> float:
    """Return d loss / d s along view + s · direction, by a central difference; the view is put back."""
    original = view.copy()
    view += step * direction
    above = loss()
    view[...] = original - step * direction
    below = loss()
    view[...] = original
    return (above - below) / (2 * step)
