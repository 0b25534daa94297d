"""What makes a batch of token ids or target ids valid; the one place that says no."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from numpy_gpt.arrays import Array

IGNORED_TARGET = -100
"""A target with this value counts for nothing: no loss, no gradient, not in the divisor."""


def check_token_ids(token_ids: ArrayLike, vocabulary_size: int, max_sequence_length: int) -> Array:
    """Return a copy of `token_ids` as a (B, T) array of ints, or say what is wrong with them.

    The copy lets a caller refill its own batch buffer between forward and backward.

    Raises:
        ValueError: not 2-D, no sequences, no tokens, too long, or an id outside 0..V-1.
        TypeError: ids that are not integers.
    """
    try:
        ids = np.asarray(token_ids)
    except ValueError:  # rows of unequal length
        ids = np.empty(0)
    if ids.ndim != 2:
        raise ValueError("token_ids must have shape (batch_size, sequence_length)")
    batch_size, sequence_length = ids.shape
    if batch_size == 0:
        raise ValueError("batch_size must be at least 1, but token_ids holds no sequences")
    if sequence_length == 0:
        raise ValueError("each sequence must contain at least one token")
    _require_integers("token_ids", ids)
    if sequence_length > max_sequence_length:
        raise ValueError(f"input has {sequence_length} tokens, but the maximum is {max_sequence_length}")
    # NumPy would read -1 as "the last row": without this check a wrong id is a silent wrong lookup.
    _require("token id", ids, (ids >= 0) & (ids < vocabulary_size), vocabulary_size)
    return ids.astype(np.intp)


def check_target_ids(target_ids: ArrayLike, shape: tuple[int, ...], vocabulary_size: int) -> Array:
    """Return a copy of `target_ids` as an array of ints of the given shape, or say what is wrong with them.

    Raises:
        ValueError: another shape, or a target that is neither IGNORED_TARGET nor in 0..V-1.
        TypeError: targets that are not integers.
    """
    try:
        targets = np.asarray(target_ids)
    except ValueError:
        raise ValueError(f"targets must have shape {shape}, but their rows differ in length") from None
    if targets.shape != shape:
        raise ValueError(f"targets must have shape {shape}, but have {targets.shape}")
    _require_integers("targets", targets)
    valid = (targets == IGNORED_TARGET) | ((targets >= 0) & (targets < vocabulary_size))
    _require("target", targets, valid, vocabulary_size)
    return targets.astype(np.intp)


def _require_integers(what: str, ids: Array) -> None:
    # Python ints beyond 64 bits arrive as objects; they are integers, and the range check names them.
    if np.issubdtype(ids.dtype, np.integer) or (
        ids.dtype == object and all(type(i) is int for i in ids.flat)
    ):
        return
    raise TypeError(f"{what} must be integers, not {ids.dtype}")


def _require(what: str, ids: Array, valid: Array, vocabulary_size: int) -> None:
    valid = valid.astype(bool)
    if not valid.all():
        index = tuple(int(i) for i in np.argwhere(~valid)[0])
        raise ValueError(
            f"{what} {ids[index]} at {index} is outside 0..{vocabulary_size - 1}, "
            f"the ids of a vocabulary of {vocabulary_size}"
        )
