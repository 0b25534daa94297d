"""From a long line of token ids to windows: T inputs, and for each of them the token that follows.

Shapes
    token_ids (N,) integers  ->  inputs (B, T), targets (B, T), both int64 and both the caller's own.
    N tokens hold N - T windows, each of which needs T + 1 tokens.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from numpy_gpt.arrays import Array
from numpy_gpt.config import SettingsError
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
    token_ids, batch_size, sequence_length = _check(token_ids, batch_size, sequence_length)  # (N,)
    if step < 0 or seed < 0:
        raise ValueError(f"step and seed must be at least 0, not {step} and {seed}")
    num_windows = len(token_ids) - sequence_length
    starts = np.random.default_rng((seed, step)).integers(num_windows, size=batch_size)  # (B,)
    positions = starts[:, None] + np.arange(sequence_length)  # (B, T)
    return token_ids[positions].astype(np.int64), token_ids[positions + 1].astype(np.int64)


def evaluation_windows(
    token_ids: ArrayLike, *, batch_size: int, sequence_length: int, stride: int | None = None
) -> Iterator[tuple[Array, Array]]:
    """Return windows in which every token but the first is a target exactly once.

    Windows begin every `stride` tokens. Where two overlap, the later one counts only what lies past the
    earlier one's end, so that those targets have at least T - stride tokens before them. The last window is
    filled up with ignored targets. Every batch has B windows but the last, which has what is left.

    Args:
        token_ids: (N,) integers; may be a memory map, which is read batch by batch.
        batch_size: B.
        sequence_length: T.
        stride: 1 to T; None means T, windows that do not overlap.

    Returns:
        An iterator of (inputs (B, T), targets (B, T)), in the order of the text.

    Raises:
        ValueError: fewer than T + 1 tokens, a size below 1; a SettingsError for a stride outside 1 to T.
        TypeError: ids that are not integers. Both at the call, not at the first batch.
    """
    token_ids, batch_size, sequence_length = _check(token_ids, batch_size, sequence_length)  # (N,)
    stride = sequence_length if stride is None else operator.index(stride)
    if not 1 <= stride <= sequence_length:
        raise SettingsError(f"stride must be in 1..{sequence_length}, the window's length, not {stride}")
    last = len(token_ids) - 1  # the last token is a target only
    num_windows = 1 + math.ceil((last - sequence_length) / stride)

    def batches() -> Iterator[tuple[Array, Array]]:
        for first in range(0, num_windows, batch_size):
            starts = np.arange(first, min(first + batch_size, num_windows))[:, None] * stride  # (B, 1)
            offsets = np.arange(sequence_length)  # (T,)
            inside = starts + offsets < last  # (B, T)
            positions = np.where(inside, starts + offsets, 0)  # (B, T)
            counted = inside & ((starts == 0) | (offsets >= sequence_length - stride))  # (B, T)
            inputs = np.where(inside, token_ids[positions], PADDING).astype(np.int64)  # (B, T)
            targets = np.where(counted, token_ids[positions + 1].astype(np.int64), IGNORED_TARGET)  # (B, T)
            yield inputs, targets

    return batches()


def _check(token_ids: ArrayLike, batch_size: int, sequence_length: int) -> tuple[Array, int, int]:
    """Return the three as an array and two of Python's own integers, which no sum overflows."""
    token_ids = np.asarray(token_ids)  # a memory map is not read, only wrapped
    batch_size, sequence_length = operator.index(batch_size), operator.index(sequence_length)
    if token_ids.ndim != 1:
        raise ValueError(f"a text must be one line of token ids, shape (N,), not {token_ids.shape}")
    for name, size in (("batch_size", batch_size), ("sequence_length", sequence_length)):
        if size < 1:
            raise ValueError(f"{name} must be at least 1, not {size}")
    if len(token_ids) < sequence_length + 1:
        raise ValueError(
            f"the text has {len(token_ids)} tokens, but one window needs {sequence_length + 1}: "
            f"{sequence_length} inputs and the token after the last"
        )
    if not np.issubdtype(token_ids.dtype, np.integer):
        raise TypeError(f"token_ids must be integers, not {token_ids.dtype}")
    return token_ids, batch_size, sequence_length
