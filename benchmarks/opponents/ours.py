"""numpy_gpt itself, with the kernels, with the book, or with the book and some of the kernels."""

from __future__ import annotations

import numpy_gpt as ng
from benchmarks.opponents.training import Setup
from numpy_gpt.arrays import Array
from numpy_gpt.model import TABLES
from numpy_gpt.ops import Ops, book


def table(choice: str) -> Ops:
    """Return the table of operations that a name stands for.

    Args:
        choice: "fast", "book", or names of operations joined by "+", which are then the kernels' while all
            others are the book's.

    Raises:
        ValueError: for an operation that does not exist.
    """
    if choice in TABLES:
        return TABLES[choice]
    names = choice.split("+")
    if unknown := [name for name in names if name not in Ops._fields]:
        raise ValueError(f"there is no operation {unknown[0]!r}: choose among {', '.join(Ops._fields)}")
    return book._replace(**{name: getattr(TABLES["fast"], name) for name in names})


class NumpyTraining:
    """A `numpy_gpt.GPT` in training; its gradients are written into one place again and again.

    Args:
        setup: what to build.
        ops: the table to compute with, or its name as in `table`.
    """

    def __init__(self, setup: Setup, ops: str | Ops) -> None:
        ops = table(ops) if isinstance(ops, str) else ops
        self.model = ng.GPT(setup.config, ops=ops, threads=setup.threads)
        if setup.state is not None:
            self.model.load_state_dict(setup.state)
        self.batch = setup.batch
        self.clip_norm = setup.settings.clip_norm
        self.optimizer = ng.AdamW(
            self.model.parameters,
            learning_rate=setup.settings.learning_rate,
            betas=setup.settings.betas,
            eps=setup.settings.eps,
            weight_decay=setup.settings.weight_decay,
            threads=setup.threads,
        )
        self.gradient = ng.Parameters.zeros(setup.config, self.model.dtype)

    def forward_backward(self) -> float:
        """Compute the loss, which is returned, and all gradients."""
        loss, _ = self.model.loss_and_gradients(*self.batch, out=self.gradient)
        return loss

    def step(self) -> float:
        """The same, then clip the gradients and update every weight by AdamW."""
        loss = self.forward_backward()
        ng.clip_gradients(self.gradient, self.clip_norm, threads=self.model.threads)
        self.optimizer.step(self.gradient)
        return loss

    def gradients(self) -> dict[str, Array]:
        """Return the gradients of the last `forward_backward`."""
        return dict(self.gradient.named_parameters())

    def weights(self) -> dict[str, Array]:
        """Return the weights."""
        return dict(self.model.named_parameters())
