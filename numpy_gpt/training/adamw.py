"""AdamW: Adam with weight decay kept out of the gradient.

Equation
    at step t = 1, 2, ...:
        θ ← θ (1 - lr λ)                       decay; matrices and embeddings only
        m ← β₁ m + (1 - β₁) g                  running mean of the gradient
        v ← β₂ v + (1 - β₂) g²                 running mean of its square
        θ ← θ - lr · m̂ / (√v̂ + ε)             m̂ = m / (1 - β₁ᵗ),  v̂ = v / (1 - β₂ᵗ)

    m and v start at zero, so early on they are too small by the factors 1 - βᵗ: that is what the hats mend.
    ε is added after the mending. The decay does not depend on g, so a rarely used row decays all the same.

The bug that looks right
    Adding λθ to g before the running means ("L2"). Divided by √v̂ it decays large-gradient weights least.

Source
    Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2; defaults and order of
    operations are torch.optim.AdamW's.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import ArrayLike

from numpy_gpt.arrays import Array
from numpy_gpt.parallel import Team, share_chunks
from numpy_gpt.parameters import Parameters


class AdamW:
    """The optimizer, with its two moments for every parameter.

    Args:
        parameters: the model's, updated in place by `step`.
        learning_rate: lr, used by `step` unless it is given another.
        betas: β₁ and β₂, each in [0, 1).
        eps: ε, added to the root of the second moment.
        weight_decay: λ, applied to matrices and embeddings; a tied matrix is one matrix and decays once.
        threads: how many share a step; None means as many as this process can run at once. The result does
            not depend on it.

    Attributes:
        steps_taken: t, how often `step` has run.
        first_moment, second_moment: m and v, each a `Parameters`.

    Raises:
        ValueError: naming the setting that is out of range.
        TypeError: for a setting that is no number, or threads that are no integer.
    """

    def __init__(
        self,
        parameters: Parameters,
        *,
        learning_rate: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        threads: int | None = None,
    ) -> None:
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be two numbers in [0, 1), not {betas}")
        beta1, beta2 = betas
        self.parameters = parameters
        self.learning_rate = _finite("learning_rate", learning_rate)
        self.betas = (float(beta1), float(beta2))
        self.eps = _finite("eps", eps)
        self.weight_decay = _finite("weight_decay", weight_decay)
        self._team = Team(threads)
        self.steps_taken = 0
        self.first_moment = Parameters.zeros(parameters.config, parameters.dtype)
        self.second_moment = Parameters.zeros(parameters.config, parameters.dtype)

    @property
    def threads(self) -> int:
        """How many threads share a step."""
        return self._team.size

    def on_threads(self, threads: int | None) -> AdamW:
        """Return the same optimizer on another number of threads; both update the same arrays."""
        other = copy.copy(self)
        other._team = Team(threads)
        return other

    def step(self, gradients: Parameters, learning_rate: float | None = None) -> None:
        """Update every parameter from its gradient.

        Args:
            gradients: as `GPT.loss_and_gradients` returns them; not changed.
            learning_rate: for this step; None means the optimizer's own.

        Raises:
            ValueError: for gradients of another model, or a learning rate that is negative or not finite;
                nothing has changed then.
        """
        if gradients.config != self.parameters.config or gradients.dtype != self.parameters.dtype:
            raise ValueError(f"gradients {gradients!r} do not belong to {self.parameters!r}")
        rate = self.learning_rate if learning_rate is None else _finite("learning_rate", learning_rate)
        beta1, beta2 = self.betas
        self.steps_taken += 1
        correction1 = 1 - beta1**self.steps_taken
        root2 = math.sqrt(1 - beta2**self.steps_taken)  # of v's correction
        vectors = (self.parameters.flat, gradients.flat, self.first_moment.flat, self.second_moment.flat)
        matrices_end = self.parameters.matrices.size  # vectors, which do not decay, stand after them

        def update(part: slice) -> None:
            """Do all of the step for some of the numbers, so that each is fetched from memory once."""
            theta, g, m, v = (vector[part] for vector in vectors)
            theta[: max(0, matrices_end - part.start)] *= 1 - rate * self.weight_decay
            work = g * (1 - beta1)
            m *= beta1
            m += work
            np.multiply(g, g, out=work)
            work *= 1 - beta2
            v *= beta2
            v += work
            # m̂ / (√v̂ + ε) with both corrections taken out of the array: √c₂ (m / c₁) / (√v + ε √c₂)
            np.sqrt(v, out=work)
            work += self.eps * root2
            np.divide(m, work, out=work)
            work *= rate * root2 / correction1
            theta -= work

        with self._team.at_work():
            share_chunks(update, self.parameters.flat.size, self.parameters.flat.itemsize)

    def state_dict(self) -> dict[str, Array]:
        """Return copies of the moments, and the number of steps taken, under flat names."""
        return {name: array.copy() for name, array in self.named_state()}

    def named_state(self) -> Iterator[tuple[str, Array]]:
        """Yield what `state_dict` holds: the number of steps taken, and the moments themselves."""
        yield "steps_taken", np.array(self.steps_taken, np.int64)
        for moment in ("first_moment", "second_moment"):
            for name, view in getattr(self, moment).named_parameters():
                yield f"{moment}.{name}", view

    def load_state_dict(self, mapping: Mapping[str, ArrayLike]) -> None:
        """Copy the moments and the number of steps in, all of them or none.

        Raises:
            ValueError: listing what is missing, unexpected or of another shape.
        """
        remaining = dict(mapping)
        steps_taken = np.asarray(remaining.pop("steps_taken", None))
        if steps_taken.shape != () or steps_taken.dtype.kind not in "iu" or steps_taken < 0:
            raise ValueError("optimizer state needs steps_taken, an integer of at least 0")
        moments = {}
        for moment in ("first_moment", "second_moment"):
            part = {name: remaining.pop(name) for name in list(remaining) if name.startswith(moment + ".")}
            moments[moment] = Parameters.zeros(self.parameters.config, self.parameters.dtype)
            moments[moment].load_state_dict({name.removeprefix(moment + "."): a for name, a in part.items()})
        if remaining:
            raise ValueError(f"optimizer state has unexpected {', '.join(remaining)}")
        self.steps_taken = int(steps_taken)
        self.first_moment, self.second_moment = moments["first_moment"], moments["second_moment"]


def _finite(name: str, value: float) -> float:
    """Return a setting as a float, unless it is negative, infinite or not a number."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be zero or a positive finite number, not {value}")
    return float(value)
