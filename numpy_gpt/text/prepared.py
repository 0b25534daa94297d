"""A prepared folder: a corpus as token ids in files, for training to map into memory.

    training.npy, validation.npy    ids, (N,) each, of the smallest unsigned type that holds the vocabulary
    tokenizer.json                  as `tokenizer_to_json` writes it
    prepared.json                   the fields of `Prepared`, and versions

`prepare` makes it; here it is read, with the suspicion that a file from anywhere deserves.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.text.corpus import PREPARED, Part, read_text
from numpy_gpt.text.tokenizers import tokenizer_fingerprint, tokenizer_from_json

if TYPE_CHECKING:
    import tiktoken

T = TypeVar("T")

FORMAT_VERSION = 1
TOKENIZER = "tokenizer.json"
IDS: dict[Part, str] = {"training": "training.npy", "validation": "validation.npy"}

CHECKED_AT_ONCE = 1 << 20
"""Ids to look at in one go, so that checking a large file takes little memory."""


@dataclasses.dataclass(frozen=True)
class Prepared:
    """What prepared.json says.

    Attributes:
        text_fingerprint: of the corpus.
        tokenizer_fingerprint: of the tokenizer in tokenizer.json.
        requested_vocabulary: the vocabulary size asked for; a short corpus may have taught bpe fewer tokens.
        num_bytes: of the corpus in UTF-8.
        num_training_ids: in training.npy.
        num_validation_ids: in validation.npy.
        dtype: of both.
        sources: the names of the documents, in their order.
    """

    text_fingerprint: str
    tokenizer_fingerprint: str
    requested_vocabulary: int
    num_bytes: int
    num_training_ids: int
    num_validation_ids: int
    dtype: str
    sources: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, with the versions of what wrote them."""
        from numpy_gpt import __version__

        versions = {"numpy_gpt": __version__, "numpy": np.__version__}
        return {"format_version": FORMAT_VERSION, "versions": versions} | dataclasses.asdict(self)

    @classmethod
    def from_json(cls, mapping: Any) -> Prepared:
        """Return what `to_json` wrote down.

        Raises:
            ValueError: in one line, for anything else.
        """
        if not isinstance(mapping, dict) or type(mapping.get("format_version")) is not int:
            raise ValueError("it is no description of prepared ids")
        if mapping["format_version"] != FORMAT_VERSION:
            raise ValueError(f"its format version is {mapping['format_version']}, not {FORMAT_VERSION}")
        kinds = {"str": str, "int": int, "list[str]": list}
        for field in dataclasses.fields(cls):
            value, kind = mapping.get(field.name), kinds[str(field.type)]
            if type(value) is not kind:
                raise ValueError(f"its {field.name} must be a {kind.__name__}, not {value!r:.40}")
        return cls(**{field.name: mapping[field.name] for field in dataclasses.fields(cls)})


def id_dtype(vocabulary_size: int) -> np.dtype[Any]:
    """Return the smallest unsigned type that holds every id of a vocabulary."""
    return np.min_scalar_type(vocabulary_size - 1)


def require_ids(ids: Array, vocabulary_size: int) -> None:
    """Check (N,) integers, which may be a memory map, without reading all of it into memory.

    Raises:
        ValueError: naming the first id that is not one of the vocabulary's, and its position.
    """
    for start in range(0, len(ids), CHECKED_AT_ONCE):
        some = ids[start : start + CHECKED_AT_ONCE]
        wrong = (some < 0) | (some >= vocabulary_size)
        if wrong.any():
            index = int(wrong.argmax())
            raise ValueError(
                f"id {some[index]} at {start + index} is outside 0..{vocabulary_size - 1}, "
                f"the ids of a vocabulary of {vocabulary_size}"
            )


def open_prepared(folder: Path) -> tuple[Prepared, tiktoken.Encoding, dict[Part, Array]]:
    """Return the description, the tokenizer and the ids of a prepared folder.

    Returns:
        The ids are read-only memory maps, (N,) each, of `id_dtype(tokenizer.n_vocab)`. Every one of them has
        been found to be of the tokenizer's vocabulary.

    Raises:
        OSError, ValueError: in one line that names the file.
    """
    prepared = _read_json(folder / PREPARED, Prepared.from_json)
    tokenizer = _read_json(folder / TOKENIZER, tokenizer_from_json)
    if tokenizer_fingerprint(tokenizer) != prepared.tokenizer_fingerprint:
        raise ValueError(f"{folder / TOKENIZER} is not the tokenizer that made the ids beside it")
    counts: dict[Part, int] = {
        "training": prepared.num_training_ids,
        "validation": prepared.num_validation_ids,
    }
    ids = {part: _map_ids(folder / IDS[part], count, tokenizer.n_vocab) for part, count in counts.items()}
    return prepared, tokenizer, ids


def _read_json(path: Path, convert: Callable[[Any], T]) -> T:
    text = read_text(path)
    try:
        return convert(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _map_ids(path: Path, count: int, vocabulary_size: int) -> Array:
    try:
        ids = np.lib.format.open_memmap(path, mode="r")  # never unpickles
    except OSError as error:
        raise type(error)(f"cannot read {path}: {error.strerror}") from None
    except Exception as error:  # a hostile header raises whatever Python's parser does
        raise ValueError(f"{path} is damaged: {' '.join(str(error).split()):.200}") from None
    shape, dtype = (count,), id_dtype(vocabulary_size)
    if ids.shape != shape or ids.dtype != dtype:
        raise ValueError(
            f"{path} is damaged: it holds {ids.dtype!s:.40} of shape {ids.shape}, not {dtype} of {shape}"
        )
    try:
        require_ids(ids, vocabulary_size)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    return ids
