"""GPT-2's way of writing byte sequences as text, and the merges that a ranked vocabulary stands for.

tiktoken keeps for every byte sequence its rank, and joins whatever two neighbours make a sequence of the
lowest rank. Hugging Face keeps a list of merges, and joins only two neighbours that are on it.

Source: Radford et al. 2019, section 2.2, and the code that came with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]

CHARACTERS = {byte: chr(byte) for byte in _PRINTABLE} | {
    byte: chr(256 + place) for place, byte in enumerate(_OTHERS)
}
"""The character each byte is written as: itself where it shows, the others from U+0100 on in order."""

_BYTES = {character: byte for byte, character in CHARACTERS.items()}


def to_text(token: bytes) -> str:
    """Return a byte sequence in GPT-2's alphabet."""
    return "".join(CHARACTERS[byte] for byte in token)


def to_bytes(text: str) -> bytes:
    """Return the byte sequence that `to_text` wrote.

    Raises:
        ValueError: for a character outside GPT-2's alphabet.
    """
    try:
        return bytes(_BYTES[character] for character in text)
    except KeyError:
        raise ValueError(f"the token {text!r:.40} is not written in GPT-2's alphabet of bytes") from None


def last_merge(token: bytes, ranks: Mapping[bytes, int]) -> tuple[bytes, bytes] | None:
    """Return the two halves that tiktoken joins last when it makes this token, or None where it never does.

    Whatever surrounds it, a token comes about by the same joins: those within it are taken in order of rank,
    the first among equals, and a join across its edge would have made another token. So one pair is all that
    a list of merges needs for it.

    Args:
        token: two bytes or more.
        ranks: of every byte sequence of the vocabulary.
    """
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        rank, i = min((ranks.get(parts[i] + parts[i + 1], math.inf), i) for i in range(len(parts) - 1))
        if rank == math.inf:
            return None
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts[0], parts[1]
