"""Bugs of the key/value cache, with which a text is fed in parts."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from numpy_gpt.arrays import Array
from numpy_gpt.cache import BlockCache, Cache
from numpy_gpt.model import GPT, TrunkSaved
from numpy_gpt.verify.bugs.bug import Bug
from numpy_gpt.verify.bugs.subject import RIGHT


class GPTFedInParts(GPT):
    """Right: GPT with a method for each thing that a cache changes, so that a bug is one short method."""

    def new_cache(self, batch_size: int = 1) -> Cache:
        """Return an empty cache whose blocks ask the model what to keep."""
        cache = super().new_cache(batch_size)
        cache.blocks = tuple(_BlockOfModel(self, cache, block) for block in range(self.config.num_layers))
        return cache

    def _trunk_forward(
        self, token_ids: ArrayLike, cache: Cache | None = None, *, keep: bool = False
    ) -> tuple[Array, TrunkSaved]:
        x, embedding = self._embed(token_ids, cache)  # (B, T, C)
        pasts = cache.blocks if cache else [None] * self.config.num_layers
        blocks = []
        for block, past in zip(self.parameters.transformer_blocks, pasts, strict=True):
            x, saved = self._block_forward(x, block, past)  # (B, T, C)
            blocks.append(saved)
        if cache:
            self._advance(cache, x.shape[1])
        x, final_norm = self._norm_forward(x, self.parameters.final_norm)  # (B, T, C)
        return x, TrunkSaved(embedding, tuple(blocks), final_norm)

    def _embed(self, token_ids: ArrayLike, cache: Cache | None) -> tuple[Array, Any]:
        token, position = (table.weight for table in self.parameters.embedding)
        first_position = cache.length if cache else 0
        return self.ops.embedding.forward(token_ids, token, position[first_position:])  # (B, T, C)

    def _append(self, cache: Cache, block: int, keys: Array, values: Array) -> tuple[Array, Array]:
        start, end = cache.length, cache.length + keys.shape[1]
        cache.keys[block, :, start:end] = keys
        cache.values[block, :, start:end] = values
        return cache.keys[block, :, :end], cache.values[block, :, :end]

    def _advance(self, cache: Cache, num_tokens: int) -> None:
        cache.length += num_tokens


class _BlockOfModel(BlockCache):
    """One block's part of the cache, which leaves the work to the model's `_append`."""

    def __init__(self, model: GPTFedInParts, cache: Cache, block: int) -> None:
        super().__init__(cache, block)
        self._model = model

    def append(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Keep the keys and values (B, T, C) of new tokens, and return those of all tokens so far."""
        return self._model._append(self._cache, self._block, keys, values)


class PositionsStartOver(GPTFedInParts):
    """Wrong from the second part on: its first token is taken to stand at position 0."""

    def _embed(self, token_ids: ArrayLike, cache: Cache | None) -> tuple[Array, Any]:
        token, position = (table.weight for table in self.parameters.embedding)
        return self.ops.embedding.forward(token_ids, token, position)


class EarlierPartsOverwritten(GPTFedInParts):
    """Wrong from the second part on: its keys and values take the place of the first part's."""

    def _append(self, cache: Cache, block: int, keys: Array, values: Array) -> tuple[Array, Array]:
        start, end = 0, keys.shape[1]
        cache.keys[block, :, start:end] = keys
        cache.values[block, :, start:end] = values
        return cache.keys[block, :, :end], cache.values[block, :, :end]


class LastPartCounted(GPTFedInParts):
    """Wrong from the third part on: the length is that of the part before."""

    def _advance(self, cache: Cache, num_tokens: int) -> None:
        cache.length = num_tokens


class EveryBlockAdvances(GPTFedInParts):
    """Wrong for more than one block: each moves the place at which the next one writes."""

    def _append(self, cache: Cache, block: int, keys: Array, values: Array) -> tuple[Array, Array]:
        start, end = cache.length, cache.length + keys.shape[1]
        cache.keys[block, :, start:end] = keys
        cache.values[block, :, start:end] = values
        cache.length += keys.shape[1]
        return cache.keys[block, :, :end], cache.values[block, :, :end]

    def _advance(self, cache: Cache, num_tokens: int) -> None:
        """Leave the length as it is: the blocks have moved it."""


class FirstRowForAll(GPTFedInParts):
    """Wrong for more than one sequence: all rows keep the first one's keys and values."""

    def _append(self, cache: Cache, block: int, keys: Array, values: Array) -> tuple[Array, Array]:
        start, end = cache.length, cache.length + keys.shape[1]
        cache.keys[block, :, start:end] = keys[0]
        cache.values[block, :, start:end] = values[0]
        return cache.keys[block, :, :end], cache.values[block, :, :end]


BUGS = (
    Bug(
        name="cache-positions-start-over",
        where="cache",
        title="Every part of a text begins at position 0",
        line="return self.ops.embedding.forward(token_ids, token, position)",
        lesson="The embedding counts positions from its first token, which is right for a whole text. With "
        "a cache the new tokens stand after all that came before, so the table has to be read from there. "
        "The mask counts keys and is right without further ado, and so the forgotten offset is easy to "
        "overlook: every new token of a generation believes that it is the first.",
        in_practice="Every gradient check passes, and training is not concerned. The small run's text "
        "needs no order, and fed in two halves or token by token its loss is the right 0.709 nats, give "
        "or take a thousandth. The logits of the first part are right, all later ones are not.",
        fools=("loss_falls", "gradient_check", "fresh_weights"),
        subject=RIGHT._replace(model=PositionsStartOver),
    ),
    Bug(
        name="cache-earlier-parts-overwritten",
        where="cache",
        title="Each part takes the place of the part before",
        line="start, end = 0, keys.shape[1]",
        lesson="A buffer is filled from its beginning, as one does with a buffer. The first part is right, "
        "and each later one finds itself alone: a prompt is read, and the first token after it sees no "
        "more than itself. What is new belongs after what is there, and what attention gets is all of it.",
        in_practice="Every gradient check passes, and training is not concerned. A text fed whole is "
        "right. Fed token by token the small run's model has 0.718 nats instead of 0.709: little, because "
        "its text needs no more than the last token. A real model forgets its prompt at once.",
        fools=("loss_falls", "gradient_check", "fresh_weights"),
        subject=RIGHT._replace(model=EarlierPartsOverwritten),
    ),
    Bug(
        name="cache-last-part-counted",
        where="cache",
        title="The cache is as long as the last part",
        line="cache.length = num_tokens",
        lesson="An equals sign where += belongs. After the first part the two are one, so the second part "
        "is right too, and a test that feeds a prompt and one more token is satisfied. The third part is "
        "written over the first and takes its positions. A test of a cache needs three parts.",
        in_practice="Every gradient check passes, and training is not concerned. Fed in two halves the "
        "small run's model has the right 0.709 nats, fed token by token 0.718. The first two tokens of a "
        "generation are right.",
        fools=("loss_falls", "gradient_check", "fresh_weights"),
        subject=RIGHT._replace(model=LastPartCounted),
    ),
    Bug(
        name="cache-advanced-by-every-block",
        where="cache",
        title="The length moves once per block instead of once per part",
        line="cache.length += keys.shape[1]",
        lesson="To append and to count seem to be one thing, and for a list they are. But all blocks share "
        "one length, and each has to write at the same place: the second block writes behind the first's "
        "and reads rows that nobody filled. The length moves when all blocks are done.",
        in_practice="Every gradient check passes, and training is not concerned. One block is right. With "
        "two all logits are wrong, from the first part on, until the second block has no room left to "
        "write: then it raises, at half of the window.",
        fools=("loss_falls", "gradient_check", "fresh_weights"),
        subject=RIGHT._replace(model=EveryBlockAdvances),
    ),
    Bug(
        name="cache-first-row-for-all",
        where="cache",
        title="All sequences of a batch share the first one's keys and values",
        line="cache.keys[block, :, start:end] = keys[0]",
        lesson="A cache written for one text indexes [0], like everything else in a loop that generates. "
        "Put into a batch, (T, C) fits into (B, T, C) by broadcasting, and no shape complains: each "
        "sequence asks its own questions and gets answers about the first.",
        in_practice="Every gradient check passes, and training is not concerned. One sequence alone is "
        "right, and so is the first of every batch. In batches the small run's model has 0.714 nats "
        "instead of 0.709, where a real one would speak of somebody else's text.",
        fools=("loss_falls", "gradient_check", "fresh_weights"),
        subject=RIGHT._replace(model=FirstRowForAll),
    ),
)
