"""From a long line of token ids to windows: T inputs, and for each of them the token that follows.

Shapes
    token_ids (N,) integers  ->  inputs (B, T), targets (B, T), both int64 and both the caller's own.
    N tokens hold N - T windows, each of which needs T + 1 tokens.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from numpy_gpt.arrays import Array
from numpy_gpt.ops.ids import IGNORED_TARGET

PADDING = 0
"""The input at positions past the end of the text: an id that every vocabulary has. No result depends on it,
because attention never looks ahead and the target there is ignored."""


def training_batch(
    token_ids: ArrayLike, *, step: int, seed: int, batch_size: int, sequence_length: int
) -> tuple[Array, Array]:
    """Return the batch of one training step: B windows that begin anywhere, each as likely as any other.

    A pure function of (data, seed, step): a run that is stopped goes on with the batches it would have
    seen, and nothing that happens between two steps can shift them.

    Args:
        token_ids: (N,) integers; may be a memory map, of which only the windows are read.
        step: 0 or more, the number of the step.
        seed: 0 or more; another seed gives other batches at every step.
        batch_size: B.
        sequence_length: T.

    Returns:
        inputs (B, T) and targets (B, T); targets[b, t] is the token after inputs[b, t].

    Raises:
        ValueError: fewer than T + 1 tokens, a size below 1, a negative step or seed.
        TypeError: ids that are not integers.
    """
    token_ids = _check(token_ids, batch_size, sequence_length)  # (N,)
    if step < 0 or seed < 0:
        raise ValueError(f"step and seed must be at least 0, not {step} and {seed}")
    num_windows = len(token_ids) - sequence_length
    starts = np.random.default_rng((seed, step)).integers(num_windows, size=batch_size)  # (B,)
    positions = starts[:, None] + np.arange(sequence_length)  # (B, T)
    return token_ids[positions].astype(np.int64), token_ids[positions + 1].astype(np.int64)


def evaluation_windows(
    token_ids: ArrayLike, *, batch_size: int, sequence_length: int
) -> Iterator[tuple[Array, Array]]:
    """Return windows that do not overlap and in which every token but the first is a target exactly once.

    Every batch has B windows but the last, which has what is left. The last window is filled up with
    ignored targets, so that all windows are T long.

    Args:
        token_ids: (N,) integers; may be a memory map, which is read batch by batch.
        batch_size: B.
        sequence_length: T.

    Returns:
        An iterator of (inputs (B, T), targets (B, T)), in the order of the text.

    Raises:
        ValueError: fewer than T + 1 tokens or a size below 1.
        TypeError: ids that are not integers. Both at the call, not at the first batch.
    """
    token_ids = _check(token_ids, batch_size, sequence_length)  # (N,)
    last = len(token_ids) - 1  # the last token is a target only
    tokens_per_batch = batch_size * sequence_length
    return (
        (
            _windows(token_ids[start : min(start + tokens_per_batch, last)], sequence_length, PADDING),
            _windows(token_ids[start + 1 : start + 1 + tokens_per_batch], sequence_length, IGNORED_TARGET),
        )
        for start in range(0, last, tokens_per_batch)
    )


def _windows(token_ids: Array, sequence_length: int, fill: int) -> Array:
    """Return (n,) ids as (ceil(n / T), T), the end filled up."""
    missing = -len(token_ids) % sequence_length
    return np.pad(token_ids.astype(np.int64), (0, missing), constant_values=fill).reshape(-1, sequence_length)


def _check(token_ids: ArrayLike, batch_size: int, sequence_length: int) -> Array:
    token_ids = np.asanyarray(token_ids)  # a memory map stays one
    if token_ids.ndim != 1:
        raise ValueError(f"a text must be one line of token ids, shape (N,), not {token_ids.shape}")
    for name, size in (("batch_size", batch_size), ("sequence_length", sequence_length)):
        if operator.index(size) < 1:
            raise ValueError(f"{name} must be at least 1, not {size}")
    if len(token_ids) < sequence_length + 1:
        raise ValueError(
            f"the text has {len(token_ids)} tokens, but one window needs {sequence_length + 1}: "
            f"{sequence_length} inputs and the token after the last"
        )
    if not np.issubdtype(token_ids.dtype, np.integer):
        raise TypeError(f"token_ids must be integers, not {token_ids.dtype}")
    return token_ids
