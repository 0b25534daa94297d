"""From a run's settings to token ids: what to learn from, and what to check on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.config import SettingsError, TrainConfig
from numpy_gpt.text.corpus import (
    PREPARED,
    Corpus,
    Part,
    embedded_document,
    find_files,
    read_text,
    text_document,
)
from numpy_gpt.text.prepare import tokenize, tokenizer_for
from numpy_gpt.text.prepared import id_dtype, open_prepared
from numpy_gpt.text.tokenizers import token_lengths, tokenizer_fingerprint

if TYPE_CHECKING:
    import tiktoken

OPENING = 1000
"""Characters of the validation part to keep as text."""


@dataclass(frozen=True)
class TrainingData:
    """A corpus, split and tokenized.

    Attributes:
        description: where the text comes from, for people.
        text_fingerprint: of the whole corpus.
        tokenizer_fingerprint: of the tokenizer.
        num_bytes: of the whole corpus in UTF-8.
        tokenizer: whose n_vocab is the model's vocabulary size.
        requested_vocabulary: the vocabulary size asked for; a short corpus may have taught bpe fewer tokens.
        training_ids: (N,) of the smallest unsigned type, the first nine tenths; a memory map when the corpus
            was prepared.
        validation_ids: (M,) likewise, the last tenth, which the tokenizer has not learned from either.
        validation_text: how the last tenth begins: 1,000 characters, or as many as its first document has.
        bytes_per_token: (V,) int64, how many bytes each token id stands for.
    """

    description: str
    text_fingerprint: str
    tokenizer_fingerprint: str
    num_bytes: int
    tokenizer: tiktoken.Encoding
    requested_vocabulary: int
    training_ids: Array
    validation_ids: Array
    validation_text: str
    bytes_per_token: Array


def load_data(config: TrainConfig, tokenizer: tiktoken.Encoding | None = None) -> TrainingData:
    """Read, split and tokenize what a run learns from, or open what `prepare` has made of it.

    Args:
        config: of the run.
        tokenizer: to use in place of a new one, when a run is resumed. A prepared folder has its own, whose
            fingerprint tells whether it is the same.

    Raises:
        SettingsError: for a tokenizer or a vocabulary that a prepared folder was not prepared with.
        OSError, ValueError: in one line that names the file and what is wrong with it.
    """
    if len(config.text) == 1 and (config.text[0] / PREPARED).exists():
        data = _open_prepared(config, config.text[0])
    else:
        data = _read(config, tokenizer)
    window = config.model_config(data.tokenizer.n_vocab).max_sequence_length
    for part, ids in (("training", data.training_ids), ("validation", data.validation_ids)):
        if len(ids) <= window:
            raise ValueError(
                f"{data.description} is too short: its {part} part has {len(ids)} tokens, but one window "
                f"needs {window + 1}"
            )
    return data


def _read(config: TrainConfig, tokenizer: tiktoken.Encoding | None) -> TrainingData:
    documents = [text_document(str(path), read_text(path)) for path in find_files(config.text)]
    corpus = Corpus.measure(documents or [embedded_document()])
    if tokenizer is None:
        tokenizer = tokenizer_for(corpus, config.requested_tokenizer, config.requested_vocabulary)
    nothing = np.empty(0, id_dtype(tokenizer.n_vocab))  # the training part of a text of one character
    pieces: dict[Part, list[Array]] = {"training": [nothing], "validation": [nothing]}
    for part, ids in tokenize(corpus, tokenizer):
        pieces[part].append(ids)
    return _training_data(
        _describe(config.text, len(documents)) if documents else corpus.documents[0].name,
        corpus.fingerprint,
        corpus.num_bytes,
        tokenizer,
        {part: np.concatenate(ids) for part, ids in pieces.items()},
        requested_vocabulary=config.requested_vocabulary,
    )


def _open_prepared(config: TrainConfig, folder: Path) -> TrainingData:
    prepared, tokenizer, ids = open_prepared(folder)
    if config.tokenizer not in (None, tokenizer.name):
        raise SettingsError(
            f"{folder} was prepared with the tokenizer {tokenizer.name!r:.40}, not {config.tokenizer!r}"
        )
    if config.vocabulary_size not in (None, prepared.requested_vocabulary, tokenizer.n_vocab):
        raise SettingsError(
            f"{folder} was prepared with a vocabulary of {tokenizer.n_vocab}, not {config.vocabulary_size}"
        )
    description = _describe([folder], len(prepared.sources))
    return _training_data(
        description,
        prepared.text_fingerprint,
        prepared.num_bytes,
        tokenizer,
        ids,
        requested_vocabulary=prepared.requested_vocabulary,
    )


def _describe(paths: Sequence[Path], num_documents: int) -> str:
    names = f"{paths[0]} and {len(paths) - 1} more" if len(paths) > 1 else str(paths[0])
    return f"{names} ({num_documents:,} documents)" if num_documents > 1 else names


def _training_data(
    description: str,
    text_fingerprint: str,
    num_bytes: int,
    tokenizer: tiktoken.Encoding,
    ids: Mapping[Part, Array],
    *,
    requested_vocabulary: int,
) -> TrainingData:
    return TrainingData(
        description=description,
        text_fingerprint=text_fingerprint,
        tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
        num_bytes=num_bytes,
        tokenizer=tokenizer,
        requested_vocabulary=requested_vocabulary,
        training_ids=ids["training"],
        validation_ids=ids["validation"],
        validation_text=_opening(ids["validation"], tokenizer),
        bytes_per_token=token_lengths(tokenizer),
    )


def _opening(ids: Array, tokenizer: tiktoken.Encoding) -> str:
    """Return how a text begins, the same for ids in memory and in a file."""
    first = ids[: 4 * OPENING].tolist()  # a character has at most four bytes, and a token at least one
    if tokenizer.eot_token in first:
        first = first[: first.index(tokenizer.eot_token)]
    return tokenizer.decode(first)[:OPENING]
