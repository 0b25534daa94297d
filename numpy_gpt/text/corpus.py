"""Where the text comes from, how it is split, and how it is recognised again."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path


def embedded_corpus() -> str:
    """Return the text of Python's own language reference: real prose on every machine, without a download.

    The reference repeats itself. A paragraph that occurs again is dropped, or the validation part would
    hold sentences that the training part has shown. 373,963 bytes are left on Python 3.11; other versions
    differ.

    Source:
        The standard library's `pydoc_data.topics`, which `help("for")` prints from.
    """
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics))
    # Keyed by what the eye compares; of equal paragraphs the first stays, with its indentation.
    paragraphs: dict[str, str] = {}
    for paragraph in re.split(r"\n\s*\n", text):
        paragraphs.setdefault(paragraph.strip(), paragraph)
    return "\n\n".join(paragraphs.values()).strip()


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a UTF-8 file exactly as it stands, line endings included.

    Raises:
        OSError: the file is missing, a folder or unreadable; the kind of OSError says which.
        ValueError: it is not UTF-8. Both are one line that names the file.
    """
    if Path(path).is_dir():
        raise IsADirectoryError(f"cannot read {path}: it is a folder")
    try:
        contents = Path(path).read_bytes()
    except OSError as error:
        raise type(error)(f"cannot read {path}: {error.strerror}") from None
    try:
        return contents.decode("utf-8")
    except UnicodeDecodeError as error:
        wrong = contents[error.start]
        raise ValueError(
            f"{path} is not UTF-8 text: byte {error.start} is 0x{wrong:02x} ({error.reason})"
        ) from None


def split_text(text: str) -> tuple[str, str]:
    """Return (training, validation): the last tenth of the characters, rounded up, is for validation."""
    boundary = len(text) * 9 // 10
    return text[:boundary], text[boundary:]


def fingerprint(text: str) -> str:
    """Return 16 hexadecimal digits that tell one text from another: the start of its SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
