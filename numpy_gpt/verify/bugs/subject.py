"""What a bug can be planted in: every part of training and generation, right unless replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from numpy_gpt.arrays import Array
from numpy_gpt.generation import generate, next_token_probabilities
from numpy_gpt.model import GPT
from numpy_gpt.ops import Op, Ops, book
from numpy_gpt.parameters import Parameters
from numpy_gpt.text.batches import evaluation_windows, training_batch
from numpy_gpt.training.accumulation import accumulate_gradients
from numpy_gpt.training.adamw import AdamW
from numpy_gpt.training.clipping import clip_gradients
from numpy_gpt.training.evaluation import Evaluation, evaluate
from numpy_gpt.training.schedule import learning_rate_at
from numpy_gpt.verify.bugs.run import Run


class Subject(NamedTuple):
    """One of everything that computes; change a part with `RIGHT._replace(optimizer=MyAdamW)`."""

    ops: Ops = book
    model: type[GPT] = GPT
    optimizer: type[AdamW] = AdamW
    clip_gradients: Callable[..., float] = clip_gradients
    learning_rate_at: Callable[..., float] = learning_rate_at
    accumulate_gradients: Callable[..., float] = accumulate_gradients
    training_batch: Callable[..., tuple[Array, Array]] = training_batch
    evaluation_windows: Callable[..., Iterator[tuple[Array, Array]]] = evaluation_windows
    evaluate: Callable[..., Evaluation] = evaluate
    next_token_probabilities: Callable[..., Array] = next_token_probabilities
    generate: Callable[..., Iterator[int]] = generate
    run: type[Run] = Run

    def build(self, parameters: Parameters) -> GPT:
        """Return this subject's model around the given parameters, computing with this subject's ops."""
        return self.model.from_parameters(parameters, ops=self.ops)


RIGHT = Subject()
"""The package as it is."""


def with_op(
    name: str, *, forward: Callable[..., Any] | None = None, backward: Callable[..., Any] | None = None
) -> Subject:
    """Return the right subject with one operation's forward or backward, or both, replaced."""
    right = getattr(book, name)
    return RIGHT._replace(
        ops=book._replace(**{name: Op(forward or right.forward, backward or right.backward)})
    )
