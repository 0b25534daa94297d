"""How well a model predicts a text, in nats per token and in bits per byte."""

from __future__ import annotations

import math
from typing import NamedTuple

from numpy_gpt.arrays import Array
from numpy_gpt.model import GPT
from numpy_gpt.ops.ids import IGNORED_TARGET
from numpy_gpt.text.batches import evaluation_windows


class Evaluation(NamedTuple):
    """What one look at a whole text gives.

    Attributes:
        loss: nats per token.
        bits_per_byte: the same surprise spread over the text's UTF-8 bytes, which compares tokenizers.
    """

    loss: float
    bits_per_byte: float

    @property
    def perplexity(self) -> float:
        """How many tokens, equally likely, would be as surprising."""
        try:
            return math.exp(self.loss)
        except OverflowError:  # above 709 nats
            return math.inf

    def __str__(self) -> str:
        return f"{self.loss:.4f} nats/token {self.bits_per_byte:.4f} bits/byte"


def evaluate(
    model: GPT, token_ids: Array, bytes_per_token: Array, *, batch_size: int, stride: int | None = None
) -> Evaluation:
    """Predict every token of a text but the first, each once.

    Args:
        model: whose max_sequence_length is the window's length.
        token_ids: (N,) ints, the text.
        bytes_per_token: (V,) ints, how many bytes each token id stands for.
        batch_size: windows per forward pass; of no consequence but for speed.
        stride: how far each window moves on; None means its length, windows that do not overlap.

    Raises:
        ValueError: for a text shorter than one window.
    """
    nats, num_bytes = 0.0, 0
    windows = evaluation_windows(
        token_ids,
        batch_size=batch_size,
        sequence_length=model.config.max_sequence_length,
        stride=stride,
    )
    for inputs, targets in windows:  # (B, T) each
        nats += model.loss(inputs, targets, divisor=1.0)
        num_bytes += int(bytes_per_token[targets[targets != IGNORED_TARGET]].sum())
    return Evaluation(nats / (len(token_ids) - 1), nats / math.log(2) / num_bytes)
