"""The key/value cache: what attention needs of the tokens seen so far, kept so that it is computed once.

A token's keys and values depend only on the tokens before it, so they stay right while the text grows at its
end. When it must be cut at its beginning, every token moves to another position embedding, and all of them
change: a sliding window cannot use the cache, and recomputes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from numpy_gpt.arrays import Array
from numpy_gpt.config import GPTConfig


class BlockCache:
    """One block's part of a `Cache`."""

    def __init__(self, cache: Cache, block: int) -> None:
        self._cache = cache
        self._keys = cache.keys[block]  # (B, max_sequence_length, C)
        self._values = cache.values[block]  # (B, max_sequence_length, C)

    def append(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Keep the keys and values (B, T, C) of new tokens, and return those of all tokens so far."""
        start = self._cache.length
        end = start + keys.shape[1]
        self._keys[:, start:end] = keys
        self._values[:, start:end] = values
        return self._keys[:, :end], self._values[:, :end]


class Cache:
    """Keys and values of every block for the tokens seen so far; made by `GPT.new_cache`.

    Attributes:
        length: how many tokens it has seen.
        keys, values: (L, B, max_sequence_length, C); what lies past `length` means nothing.
        blocks: one `BlockCache` for each transformer block.
    """

    def __init__(self, config: GPTConfig, batch_size: int, dtype: DTypeLike) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        shape = (config.num_layers, batch_size, config.max_sequence_length, config.embedding_dim)
        self.length = 0
        self.keys = np.empty(shape, dtype)
        self.values = np.empty(shape, dtype)
        self.blocks = tuple(BlockCache(self, block) for block in range(config.num_layers))

    def check(self, batch_size: int, num_tokens: int) -> None:
        """Raise ValueError unless that many more tokens of that many sequences fit."""
        _, B, max_sequence_length, _ = self.keys.shape
        if batch_size != B:
            raise ValueError(f"the cache was made for a batch_size of {B}, not {batch_size}")
        if self.length + num_tokens > max_sequence_length:
            raise ValueError(
                f"input has {self.length + num_tokens} tokens, but the maximum is {max_sequence_length}"
            )
