"""Gradient clipping: shorten the whole gradient where it is too long, keeping its direction."""

from __future__ import annotations

import math

import numpy as np

from numpy_gpt.parallel import Team, share_chunks
from numpy_gpt.parameters import Parameters

ROUNDING_ROOM = 1e-6
"""Added to the norm before dividing, as torch.nn.utils.clip_grad_norm_ does, so that results compare."""


def clip_gradients(gradients: Parameters, max_norm: float, *, threads: int | None = None) -> float:
    """Scale all gradients by one factor so that their joint length is at most `max_norm`.

        norm = √(Σ g²) over every number of every tensor;   g ← g · min(1, max_norm / norm)

    Args:
        gradients: changed in place; left alone when their norm is not finite.
        max_norm: positive; infinity never clips.
        threads: how many share the work; None means as many as this process can run at once. The result
            does not depend on it.

    Returns:
        The norm before clipping, accumulated in float64.

    Raises:
        ValueError: for a max_norm that is not positive.

    Source:
        Pascanu, Mikolov and Bengio 2013, "On the difficulty of training recurrent neural
        networks", section 3.2.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm must be positive, not {max_norm}")
    flat = gradients.flat
    squares: dict[int, float] = {}  # of each chunk, by its place: threads end in any order

    def measure(part: slice) -> None:
        wide = flat[part].astype(np.float64)  # float32 squares of small numbers would vanish
        squares[part.start] = float(wide @ wide)

    with Team(threads).at_work():
        share_chunks(measure, flat.size, flat.itemsize)
        norm = math.sqrt(sum(squares[start] for start in sorted(squares)))
        factor = max_norm / (norm + ROUNDING_ROOM)
        if factor < 1 and math.isfinite(norm):
            share_chunks(
                lambda part: np.multiply(flat[part], factor, out=flat[part]), flat.size, flat.itemsize
            )
    return norm
