"""A tokenizer that Hugging Face keeps beside GPT-2's weights, as a `tiktoken.Encoding`.

tokenizer.json holds vocabulary, merges and what splits text; the older vocab.json with merges.txt implies
GPT-2's own pattern. Both libraries give the same ids of a text: what one cannot tell the other exactly is
refused. Only where a text holds `<|endoftext|>` does Hugging Face make the special token of it; here it is
plain text.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy_gpt.interop.byte_level import last_merge, to_bytes
from numpy_gpt.interop.files import faults_of, read_table
from numpy_gpt.interop.splitting import gpt2_pattern, pattern_of
from numpy_gpt.text.tokenizers import BYTES, END_OF_TEXT, tokenizer_from_json

if TYPE_CHECKING:
    import tiktoken

TOKENIZER = "tokenizer.json"
VOCABULARY, MERGES = "vocab.json", "merges.txt"

# Comparing a vocabulary with its merges takes, for each token, the square of its length. For GPT-2's 50,257
# tokens that is 2.5 million, and about a second.
_MOST_WORK = 50_000_000


class _Files(NamedTuple):
    """What a tokenizer's files say, in tiktoken's terms where they have a counterpart."""

    ids: dict[str, int]  # by token in GPT-2's alphabet, without the special ones
    merges: list[tuple[str, str]]  # the earliest is made first
    special_ids: dict[str, int]
    pattern: str
    takes_whole_pieces: bool  # a piece that is a token is taken as it is, though no merges lead to it


def load_pretrained_tokenizer(path: str | os.PathLike[str]) -> tiktoken.Encoding | None:
    """Return the tokenizer that lies beside pretrained weights, without any network.

    Args:
        path: a folder, or a file in it.

    Returns:
        One that gives the ids Hugging Face gives: named gpt2 where it splits text as GPT-2 does, bytes where
        every token is one byte, otherwise bpe. None where the folder has neither tokenizer.json nor both
        vocab.json and merges.txt.

    Raises:
        OSError: when a file cannot be read.
        ValueError: in one line that names the file, when it is no byte-level BPE, or one whose ids tiktoken
            would not give.
    """
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    if (folder / TOKENIZER).exists():
        table = read_table(folder / TOKENIZER)
        with faults_of(folder / TOKENIZER):
            return _encoding(_from_tokenizer_json(table))
    if (folder / VOCABULARY).exists() and (folder / MERGES).exists():
        ids = read_table(folder / VOCABULARY)
        with faults_of(folder / MERGES):
            lines = (folder / MERGES).read_text(encoding="utf-8").split("\n")
            if lines[0].startswith("#version"):
                del lines[0]
            merges = [_merge(line) for line in lines if line]
        with faults_of(folder / VOCABULARY):
            special_ids = {END_OF_TEXT: ids.pop(END_OF_TEXT)} if END_OF_TEXT in ids else {}
            return _encoding(_Files(ids, merges, special_ids, gpt2_pattern(), takes_whole_pieces=False))
    return None


def _merge(line: str) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    if not left or not right or " " in right:
        raise ValueError(f"the merge {line!r:.40} does not join two tokens")
    return left, right


def _from_tokenizer_json(table: Mapping[str, Any]) -> _Files:
    model = table["model"]
    if model.get("type") != "BPE":
        raise ValueError(f"its model is {model.get('type')!r:.40}, not BPE")
    for owner, name in (
        (table, "normalizer"),
        (model, "dropout"),
        (model, "continuing_subword_prefix"),
        (model, "end_of_word_suffix"),
        (model, "byte_fallback"),
    ):
        if owner.get(name):
            raise ValueError(f"its {name} is {owner[name]!r:.40}; only none can be computed here")
    special_ids = {}
    for token in table.get("added_tokens") or []:
        if not token["special"]:
            raise ValueError(f"the added token {token['content']!r:.40} is not special")
        special_ids[token["content"]] = token["id"]
    return _Files(
        ids={token: number for token, number in model["vocab"].items() if token not in special_ids},
        merges=[_merge(merge if isinstance(merge, str) else " ".join(merge)) for merge in model["merges"]],
        special_ids=special_ids,
        pattern=pattern_of(table.get("pre_tokenizer")),
        takes_whole_pieces=bool(model.get("ignore_merges")),
    )


def _encoding(files: _Files) -> tiktoken.Encoding:
    """Return the tokenizer, after making sure that ranks say what the merges say."""
    all_ids = [*files.ids.values(), *files.special_ids.values()]
    if any(type(number) is not int for number in all_ids) or sorted(all_ids) != list(range(len(all_ids))):
        raise ValueError("its ids are not 0, 1, 2 and so on without gaps")
    ranks = {to_bytes(token): number for token, number in files.ids.items()}
    _check_merges(files, ranks)

    kind = "bytes" if len(ranks) == len(BYTES) else "bpe"
    return tokenizer_from_json(
        {
            "name": "gpt2" if files.pattern == gpt2_pattern() else kind,
            "pattern": files.pattern,
            "tokens": [token.decode("latin-1") for token in sorted(ranks, key=ranks.__getitem__)],
            "special_tokens": list(files.special_ids),
            "special_ids": list(files.special_ids.values()),  # Hugging Face's trainer has them first
        }
    )


def _check_merges(files: _Files, ranks: Mapping[bytes, int]) -> None:
    if sum(len(token) ** 2 for token in ranks) > _MOST_WORK:
        raise ValueError("its tokens are too long to compare them with its merges")
    merges = {to_bytes(left + right): (to_bytes(left), to_bytes(right)) for left, right in files.merges}
    if unknown := merges.keys() - ranks.keys():
        raise ValueError(f"the merge to {min(unknown)!r:.60} makes no token of its vocabulary")
    made = [ranks[token] for token in merges]
    if len(made) < len(files.merges) or made != sorted(made):
        raise ValueError("its merges are not in the order of the ids they make, one for each")
    for token in ranks:
        if len(token) > 1:
            merge = last_merge(token, ranks)
            if merges.get(token) != merge or (merge is None and not files.takes_whole_pieces):
                raise ValueError(f"tiktoken would not make the token {token!r:.60} by its merges")
