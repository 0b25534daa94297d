"""A sentence as a batch small enough to read: a handful of words, cut into two rows."""

from __future__ import annotations

import itertools
import unicodedata
from dataclasses import dataclass

import numpy as np

from numpy_gpt.arrays import Array

BATCH_SIZE = 2
MOST_TOKENS = 8
"""T is at most this: a (T, T) table of attention weights should be taken in at a glance."""

LONGEST_TOKEN = 12
"""Longer words are cut, so that a column of numbers stays narrower than a screen."""


@dataclass(frozen=True)
class Batch:
    """What the model of the page is trained on.

    Attributes:
        vocabulary: the distinct tokens, in the order in which they occur; a token's id is its place here.
        token_ids: (B, T) ints, the sentence cut into rows as a text is for pre-training.
        target_ids: (B, T) ints, the token that follows each of them.
        is_whole: whether the rows hold all of the text.
        unit: "word", or "character" where there are too few words.
    """

    vocabulary: tuple[str, ...]
    token_ids: Array
    target_ids: Array
    is_whole: bool
    unit: str

    @property
    def windows(self) -> tuple[Array, Array]:
        """Every window of T tokens of the sentence, and its targets: (windows, T) each."""
        B, T = self.token_ids.shape
        ids = np.append(self.token_ids, self.target_ids[-1, -1])  # (B T + 1,)
        starts = np.arange((B - 1) * T + 1)[:, None]  # (windows, 1)
        return ids[starts + np.arange(T)], ids[starts + np.arange(T) + 1]

    def tokens(self, ids: Array) -> list[list[str]]:
        """Return (B, T) ids as text."""
        return [[self.vocabulary[i] for i in row] for row in ids]


def read_sentence(text: str) -> Batch:
    """Cut a sentence into words and punctuation, or a single word into characters, and these into two rows.

    Only as much of a long text is looked at as the rows can hold.

    Raises:
        ValueError: for fewer than three tokens, or fewer than two different ones.
    """
    wanted = BATCH_SIZE * MOST_TOKENS + 1
    normal = unicodedata.normalize("NFC", text[: 100 * wanted * LONGEST_TOKEN])
    tokens, unit = _words(normal), "word"
    if len(tokens) <= BATCH_SIZE:
        tokens, unit = [c for word in tokens for c in word], "character"
    vocabulary = tuple(dict.fromkeys(tokens[:wanted]))
    if len(tokens) <= BATCH_SIZE or len(vocabulary) < 2:
        raise ValueError(
            f"the text has {len(tokens)} words or characters, {len(vocabulary)} of them different: "
            f"a batch of {BATCH_SIZE} rows needs at least {BATCH_SIZE + 1}, and two different ones"
        )
    num_tokens = min((len(tokens) - 1) // BATCH_SIZE, MOST_TOKENS)
    used = BATCH_SIZE * num_tokens + 1
    ids = np.array([vocabulary.index(token) for token in tokens[:used]])
    return Batch(
        vocabulary=vocabulary,
        token_ids=ids[:-1].reshape(BATCH_SIZE, num_tokens),
        target_ids=ids[1:].reshape(BATCH_SIZE, num_tokens),
        is_whole=len(tokens) == used,
        unit=unit,
    )


def _words(text: str) -> list[str]:
    """Return runs of letters and digits, and every other visible character on its own with its marks."""
    words: list[str] = []
    for kind, group in itertools.groupby(text, key=_kind):
        run = "".join(group)
        if kind == "word":
            words += [run[i : i + LONGEST_TOKEN] for i in range(0, len(run), LONGEST_TOKEN)]
        elif kind == "mark" and words:
            words[-1] += run[:LONGEST_TOKEN]  # an accent that has no character of its own joins what it is on
        elif kind == "symbol":
            words += run
    return words


def _kind(character: str) -> str:
    category = unicodedata.category(character)
    if category[0] in "LN":
        return "word"
    if category[0] == "M":
        return "mark"
    return "symbol" if category[0] in "PS" else "invisible"
