"""Tokenizers: how text becomes token ids, and ids text. Each is a `tiktoken.Encoding`.

A tokenizer first splits the text into pieces, words for the most part, by a regular expression. Then, within
a piece, it joins neighbouring byte sequences in the order in which they were learned (byte-pair encoding),
starting from single bytes: so any text can be written, and what is frequent takes few ids.

The byte sequences have the ids 0 .. n-1 in the order of learning. Special tokens follow directly; the three
tokenizers here have one, `<|endoftext|>`. A tokenizer from elsewhere may have them at other ids: the byte
sequences then take the ids that are left, in their order.

Source
    Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units", section 3.2, and for
    bytes in place of characters Radford et al. 2019, section 2.2.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.text.corpus import fingerprint

if TYPE_CHECKING:
    import tiktoken

END_OF_TEXT = "<|endoftext|>"

SPLIT_PATTERN = (
    r" ?[\p{L}\p{M}]{1,32}"  # a word with the blank before it
    r"| ?\p{N}{1,3}"  # a number
    r"| ?[^\s\p{L}\p{M}\p{N}]{1,32}"  # punctuation
    r"|\s{1,32}(?!\S)"  # blanks, but for the one that belongs to the next word
    r"|\s"
)
"""How `bytes` and `bpe` split text. Every repetition is bounded: no text, however long without a break, makes
splitting, or learning from the pieces, take more than linear time."""

BYTES = [bytes([value]) for value in range(256)]


def bytes_tokenizer() -> tiktoken.Encoding:
    """Return the tokenizer with one id per byte, and 256 for the end of text."""
    return _tokenizer("bytes", SPLIT_PATTERN, BYTES)


def learn_bpe(texts: str | Iterable[str], vocabulary_size: int) -> tiktoken.Encoding:
    """Learn which byte sequences are frequent enough in the texts to have an id of their own.

    Args:
        texts: one text, or many; nothing is joined across two of them, so their order is of no account.
        vocabulary_size: 256 single bytes + the sequences to learn + 1 for the end of text. Texts too short
            to offer so many yield a smaller vocabulary: see the result's `n_vocab`.

    Raises:
        ValueError: for a vocabulary_size below 257.
    """
    if vocabulary_size < len(BYTES) + 1:
        raise ValueError(
            f"vocabulary_size must be at least {len(BYTES) + 1}, 256 bytes and the end of text, "
            f"not {vocabulary_size}"
        )
    import rustbpe  # type: ignore[import-untyped]  # it comes without type stubs

    learner = rustbpe.Tokenizer()
    # rustbpe asks Python's logging whether anybody reads its log, loses an interrupt that comes up meanwhile,
    # and remembers the answer. So let it ask when it has nothing to do: later Ctrl-C counts.
    learner.train_from_iterator([], vocab_size=len(BYTES))
    learner.train_from_iterator(
        map(_replace_lone_surrogates, [texts] if isinstance(texts, str) else texts),
        vocab_size=min(vocabulary_size - 1, 2**31),  # no text offers so many, and rustbpe counts in 32 bits
        buffer_size=64,  # texts that it holds at a time: the pieces of a large file can be long
        pattern=SPLIT_PATTERN,
    )
    tokens = [bytes(token) for token, _ in learner.get_mergeable_ranks()]
    return _tokenizer("bpe", SPLIT_PATTERN, tokens)


def gpt2_tokenizer() -> tiktoken.Encoding:
    """Return GPT-2's own tokenizer, 50,257 ids.

    Raises:
        FileNotFoundError: its files are neither in tiktoken's cache nor to be had from the network.
    """
    import tiktoken

    try:
        return tiktoken.get_encoding("gpt2")
    except (OSError, ValueError) as error:  # no network; a file that is not what it should be
        raise FileNotFoundError(
            "GPT-2's vocabulary is not in tiktoken's cache and cannot be downloaded "
            f"({type(error).__name__}): set TIKTOKEN_CACHE_DIR to a folder that has it, "
            "or learn a vocabulary from the text with --tokenizer bpe"
        ) from error


# ---- ids and text -----------------------------------------------------------------------------------------

# tiktoken remembers a way back at every blank of a run that a word follows, a million at most, and panics
# beyond. Such a run is cut before its last blank, where the split patterns end a piece in any case. Python
# counts four control characters as blanks that tiktoken does not.
_BLANK = r"[^\S\x1c-\x1f]"
_LONG_RUN = re.compile(rf"(?<!{_BLANK}){_BLANK}{{100000,}}+(?!\Z)")


def encode(tokenizer: tiktoken.Encoding, text: str) -> Array:
    """Return the ids of a text.

    All of it is plain text: `<|endoftext|>` within it is spelled out and never becomes the special token. A
    lone surrogate, half a character that UTF-8 cannot hold, is read as U+FFFD.

    Returns:
        (N,) int64.

    Raises:
        ValueError: when a split pattern that came with a foreign tokenizer gives up on the text.
    """
    text = _replace_lone_surrogates(text)
    cuts = [run.end() - 1 for run in _LONG_RUN.finditer(text)]
    parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, None], strict=True)]
    try:
        ids = [tokenizer.encode_to_numpy(part, disallowed_special=()) for part in parts]
    except BaseException as error:
        # The only trace of a Rust panic is its class, which cannot be imported and is no Exception.
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"tokenizer {tokenizer.name!r} cannot split this text: {error}") from None
    return np.concatenate(ids).astype(np.int64)  # (N,)


def stream_text(tokens: Iterable[int], tokenizer: tiktoken.Encoding) -> Iterator[str]:
    """Yield the text of ids as soon as it is whole characters, which one token may not be.

    Joined, the pieces equal `tokenizer.decode`: bytes that are no UTF-8 become U+FFFD.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for token in tokens:
        if piece := decoder.decode(tokenizer.decode_single_token_bytes(token)):
            yield piece
    if rest := decoder.decode(b"", final=True):
        yield rest


def token_lengths(tokenizer: tiktoken.Encoding) -> Array:
    """Return (V,) int64: how many bytes of text each id stands for; a special token stands for none."""
    lengths = np.zeros(tokenizer.n_vocab, np.int64)  # (V,)
    for token, rank in tokenizer._mergeable_ranks.items():
        lengths[rank] = len(token)
    return lengths


def _replace_lone_surrogates(text: str) -> str:
    # UTF-16 is what surrogates are for: a pair of them is one character, a lone one an error.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


# ---- a tokenizer as JSON ----------------------------------------------------------------------------------
#
# All three kinds are written out whole, GPT-2's too (0.5 MB beside 500 MB of weights): a checkpoint alone can
# read and write text, on a machine without tiktoken's files. Ids are positions in a list, so they can neither
# repeat nor leave gaps; `special_ids` is there only when the special tokens do not stand at the end.

_FIELDS = {"name": str, "pattern": str, "tokens": list, "special_tokens": list}
_SPECIAL_IDS = "special_ids"
_LONGEST_PATTERN = 1000
# With these a pattern can take quadratic time: look-around other than "no visible character follows", as in
# GPT-2's, and back-references.
_SLOW_CONSTRUCT = re.compile(r"\(\?(?!:|i:|s:|!\\S\))|\\[1-9kKG]")
_PROBE = "It's 1984:\n\n  être \t ሴ 中文 ١٢ e\u0301 \U0001f600!\x00\x1c \n"


def tokenizer_to_json(tokenizer: tiktoken.Encoding) -> dict[str, Any]:
    """Return all there is to a tokenizer as JSON: name, pattern, and tokens in the order of their ids.

    Tokens are written as text, one character per byte (Latin-1).

    Raises:
        ValueError: for a foreign tokenizer that `tokenizer_from_json` would refuse.
    """
    ranks, special_ids = tokenizer._mergeable_ranks, tokenizer._special_tokens
    ids = [*ranks.values(), *special_ids.values()]
    if sorted(ids) != list(range(len(ids))):
        raise ValueError(f"tokenizer {tokenizer.name!r} cannot be kept: its ids leave gaps")
    mapping: dict[str, Any] = {
        "name": tokenizer.name,
        "pattern": tokenizer._pat_str,
        "tokens": [token.decode("latin-1") for token in sorted(ranks, key=ranks.__getitem__)],
        "special_tokens": sorted(special_ids, key=special_ids.__getitem__),
    }
    if min(special_ids.values(), default=len(ranks)) < len(ranks):
        mapping[_SPECIAL_IDS] = sorted(special_ids.values())
    tokenizer_from_json(mapping)
    return mapping


def tokenizer_from_json(mapping: Any) -> tiktoken.Encoding:
    """Return the tokenizer that `tokenizer_to_json` wrote down.

    Raises:
        ValueError: in one line, for whatever else the JSON may hold.
    """
    if not isinstance(mapping, dict) or mapping.keys() - {_SPECIAL_IDS} != _FIELDS.keys():
        raise ValueError(f"a tokenizer has the fields {', '.join(_FIELDS)}, and no others")
    for field, kind in _FIELDS.items():
        if not isinstance(mapping[field], kind):
            raise ValueError(f"the tokenizer's {field} must be a {kind.__name__}, not {mapping[field]!r:.40}")
    tokens = [_token_bytes(token) for token in _distinct_texts(mapping, "tokens")]
    if missing := set(BYTES).difference(tokens):
        raise ValueError(f"the tokenizer has no token for the byte 0x{min(missing).hex()}")
    special_tokens = _distinct_texts(mapping, "special_tokens")
    if END_OF_TEXT not in special_tokens:
        raise ValueError(f"the tokenizer has no {END_OF_TEXT} among its special tokens")
    special_ids = mapping.get(_SPECIAL_IDS, range(len(tokens), len(tokens) + len(special_tokens)))
    _check_special_ids(special_ids, special_tokens, num_ids=len(tokens) + len(special_tokens))
    pattern = mapping["pattern"]
    if len(pattern) > _LONGEST_PATTERN or _SLOW_CONSTRUCT.search(pattern):
        raise ValueError(
            f"the tokenizer's pattern {pattern!r:.40} is longer than {_LONGEST_PATTERN} characters "
            "or might take for ever: of look-around it may hold (?!\\S), and no back-reference"
        )

    try:
        tokenizer = _tokenizer(
            mapping["name"], pattern, tokens, dict(zip(special_tokens, special_ids, strict=True))
        )
    except ValueError as error:
        raise ValueError(f"the tokenizer cannot be built: {error}") from None
    if tokenizer.decode(encode(tokenizer, _PROBE).tolist()) != _PROBE:
        raise ValueError(f"the tokenizer's pattern {pattern!r:.40} loses parts of a text")
    return tokenizer


def tokenizer_fingerprint(tokenizer: tiktoken.Encoding) -> str:
    """Return 16 hexadecimal digits that tell one tokenizer from another."""
    return fingerprint(json.dumps(tokenizer_to_json(tokenizer), sort_keys=True))


def _distinct_texts(mapping: dict[str, list[Any]], field: str) -> list[str]:
    texts = mapping[field]
    seen = set()
    for text in texts:
        if not isinstance(text, str) or text == "" or text in seen:
            raise ValueError(f"the tokenizer's {field} must be different texts, but hold {text!r:.40}")
        seen.add(text)
    return texts


def _check_special_ids(special_ids: Any, special_tokens: list[str], *, num_ids: int) -> None:
    if not isinstance(special_ids, list | range) or len(special_ids) != len(special_tokens):
        raise ValueError(f"the tokenizer's {_SPECIAL_IDS} must be one id for each special token")
    seen = set()
    for number in special_ids:
        if type(number) is not int or not 0 <= number < num_ids or number in seen:
            raise ValueError(
                f"the tokenizer's {_SPECIAL_IDS} must be different ids in 0..{num_ids - 1}, "
                f"but hold {number!r:.40}"
            )
        seen.add(number)


def _token_bytes(token: str) -> bytes:
    try:
        return token.encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError(f"the tokenizer's token {token!r:.40} is not one character per byte") from None


def _tokenizer(
    name: str, pattern: str, tokens: list[bytes], special_ids: dict[str, int] | None = None
) -> tiktoken.Encoding:
    """Return the tokenizer whose tokens take, in their order, the ids that the special ones leave.

    Args:
        name, pattern: as tiktoken takes them.
        tokens: in the order of learning.
        special_ids: by token; without them, the end of text after all tokens.
    """
    import tiktoken

    special_ids = {END_OF_TEXT: len(tokens)} if special_ids is None else special_ids
    num_ids, taken = len(tokens) + len(special_ids), set(special_ids.values())
    ranks = (number for number in range(num_ids) if number not in taken)
    return tiktoken.Encoding(
        name=name,
        pat_str=pattern,
        mergeable_ranks=dict(zip(tokens, ranks, strict=True)),
        special_tokens=special_ids,
        explicit_n_vocab=num_ids,
    )
