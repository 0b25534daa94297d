"""The key/value cache: what attention needs of the tokens seen so far, kept so that it is computed once.

A token's keys and values depend only on the tokens before it, so they stay right while the text grows at its
end. When it must be cut at its beginning, every token moves to another position embedding, and all of them
change: a sliding window cannot use the cache, and recomputes.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import DTypeLike

from numpy_gpt.arrays import Array
from numpy_gpt.config import GPTConfig

FIRST_ROOM = 64
"""Positions that a new cache has memory for. It doubles when they are full: a short text needs little of what
the longest would, and memory that is never used still costs time to get."""


class BlockCache:
    """One block's part of a `Cache`."""

    def __init__(self, cache: Cache, block: int) -> None:
        self._cache = cache
        self._block = block

    def append(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Keep the keys and values (B, T, C) of new tokens, and return those of all tokens so far."""
        start = self._cache.length
        end = start + keys.shape[1]
        all_keys, all_values = self._cache.keys[self._block], self._cache.values[self._block]  # (B, room, C)
        all_keys[:, start:end] = keys
        all_values[:, start:end] = values
        return all_keys[:, :end], all_values[:, :end]


class Cache:
    """Keys and values of every block for the tokens seen so far; made by `GPT.new_cache`.

    Attributes:
        length: how many tokens it has seen.
        keys, values: (L, B, room, C); what lies past `length` means nothing. The room grows as it is needed,
            up to max_sequence_length, and the arrays are then others.
        blocks: one `BlockCache` for each transformer block.
    """

    def __init__(self, config: GPTConfig, batch_size: int, dtype: DTypeLike) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        self._config = config
        room = min(FIRST_ROOM, config.max_sequence_length)
        shape = (config.num_layers, batch_size, room, config.embedding_dim)
        self.length = 0
        self.keys = np.zeros(shape, dtype)
        self.values = np.zeros(shape, dtype)
        self.blocks = tuple(BlockCache(self, block) for block in range(config.num_layers))

    def check_fits(self, config: GPTConfig, dtype: DTypeLike) -> None:
        """Refuse a model that this cache was not made for, as far as settings tell models apart.

        Args:
            config: the model's.
            dtype: the model's.

        Raises:
            ValueError: naming the first setting that differs; the cache stays as it was.
        """
        if np.dtype(dtype) != self.keys.dtype:
            raise ValueError(f"the cache was made for a model in {self.keys.dtype}, not {np.dtype(dtype)}")
        for field in dataclasses.fields(config):
            made_for, given = getattr(self._config, field.name), getattr(config, field.name)
            if made_for != given:
                raise ValueError(f"the cache was made for a model with {field.name} {made_for}, not {given}")

    def make_room(self, batch_size: int, num_tokens: int) -> None:
        """Get memory for that many more tokens of that many sequences.

        Raises:
            ValueError: when they do not fit; the cache stays as it was.
        """
        _, B, room, _ = self.keys.shape
        length = self.length + num_tokens
        if batch_size != B:
            raise ValueError(f"the cache was made for a batch_size of {B}, not {batch_size}")
        if length > self._config.max_sequence_length:
            raise ValueError(
                f"input has {length} tokens, but the maximum is {self._config.max_sequence_length}"
            )
        if length > room:
            room = min(max(2 * room, length), self._config.max_sequence_length)
            self.keys, self.values = (_with_room(kept, room) for kept in (self.keys, self.values))


def _with_room(kept: Array, room: int) -> Array:
    """Return (L, B, room, C) that begins with what is kept."""
    L, B, old_room, C = kept.shape
    larger = np.zeros((L, B, room, C), kept.dtype)
    larger[:, :, :old_room] = kept
    return larger
