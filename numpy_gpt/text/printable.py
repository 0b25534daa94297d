"""Text that comes from elsewhere, made safe to show."""

from __future__ import annotations


def printable(text: str, *, keep: str = "") -> str:
    """Return the text with U+FFFD for whatever would end a line or move a terminal's cursor.

    Args:
        text: anything.
        keep: characters to let through all the same.
    """
    return "".join(c if c.isprintable() or c in keep else "\N{REPLACEMENT CHARACTER}" for c in text)
