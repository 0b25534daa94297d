"""Where the text comes from, how it is split, and how it is recognised again.

A corpus is a line of documents: files in a fixed order, or the one embedded text. Each is read as often as
needed, in pieces, so that nothing here depends on how much of it fits into memory.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

PREPARED = "prepared.json"
"""The file that marks a folder as made by `prepare`: it holds token ids, and no text to read."""

BLOCK_SIZE = 1 << 14
"""Bytes to read at a time, where a file is not read whole. rustbpe gathers 8,192 pieces before it counts
them: at this size, 128 MB."""

Part: TypeAlias = Literal["training", "validation"]


@dataclass(frozen=True)
class Document:
    """One text, to be read as often as needed.

    Attributes:
        name: what people know it by.
        num_bytes: of its UTF-8.
        pieces: begins to read anew at every call; joined, the pieces are the text. They are encoded one by
            one, so they may end only where every tokenizer ends a piece.
    """

    name: str
    num_bytes: int
    pieces: Callable[[], Iterable[str]]


@dataclass(frozen=True)
class Corpus:
    """Documents that have been measured; made by `measure`.

    Attributes:
        documents: in their order, none of them empty.
        num_training_characters: where the training part ends; the last tenth of all characters, rounded up,
            is for validation.
        fingerprint: of the documents' contents and boundaries, whatever their names. One document has the
            fingerprint of its text.
    """

    documents: tuple[Document, ...]
    num_training_characters: int
    fingerprint: str

    @classmethod
    def measure(cls, documents: Iterable[Document]) -> Corpus:
        """Read all documents once.

        Raises:
            OSError, ValueError: a document that cannot be read or is empty, by its name.
        """
        documents = tuple(documents)
        num_characters = 0
        digests = []
        for document in documents:
            if document.num_bytes == 0:
                raise ValueError(f"{document.name} is empty")
            digest = hashlib.sha256()
            for piece in document.pieces():
                num_characters += len(piece)
                digest.update(piece.encode("utf-8", "surrogatepass"))
            digests.append(digest.digest())
        whole = digests[0] if len(digests) == 1 else hashlib.sha256(b"".join(digests)).digest()
        return cls(documents, num_characters * 9 // 10, whole.hex()[:16])

    @property
    def num_bytes(self) -> int:
        """Of all documents in UTF-8."""
        return sum(document.num_bytes for document in self.documents)

    def parts(self) -> Iterator[tuple[Part, str | None]]:
        """Yield the text in pieces, each with the part that it belongs to, and None between two documents.

        A document that the boundary falls into is cut in two, and as its text goes on, nothing marks the cut.
        """
        position = 0  # in characters
        for number, document in enumerate(self.documents):
            # A separator says that what follows has nothing to do with what came before. So n documents have
            # n - 1, and one document has none: its ids are those of its text. Where the boundary falls
            # between two documents, their separator ends the training part.
            if number > 0:
                yield ("training" if position <= self.num_training_characters else "validation"), None
            for piece in document.pieces():
                cut = max(0, self.num_training_characters - position)
                if piece[:cut]:
                    yield "training", piece[:cut]
                if piece[cut:]:
                    yield "validation", piece[cut:]
                position += len(piece)


def text_document(name: str, text: str) -> Document:
    """Return a document that is in memory already; it has one piece."""
    return Document(name, len(text.encode("utf-8", "surrogatepass")), lambda: [text])


def fingerprint(text: str) -> str:
    """Return 16 hexadecimal digits that tell one text from another: the start of its SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


# ---- where text comes from --------------------------------------------------------------------------------


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


def embedded_document() -> Document:
    """Return the embedded corpus as the document that stands in where no text is given."""
    return text_document("Python's language reference", embedded_corpus())


def find_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files in the order of the paths, a folder standing for every file below it.

    Those follow the order of their names, folder by folder. Names that begin with a dot are left out, and
    folders that are symbolic links, which may lead in circles, are not entered.

    Raises:
        ValueError: a folder without files, or with token ids in place of text.
        OSError: a folder that cannot be read.
    """
    files = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        if (path / PREPARED).exists():
            raise ValueError(f"{path} has been prepared: it can be trained from, as the only text of a run")
        below = list(_files_below(path))
        if not below:
            raise ValueError(f"there is no file in {path}")
        files += below
    return files


def _files_below(folder: Path) -> Iterator[Path]:
    waiting = _visible_entries(folder)
    while waiting:
        path = waiting.pop()
        if path.is_dir():
            waiting += [] if path.is_symlink() else _visible_entries(path)
        elif path.is_file() or not path.exists():  # a link that leads nowhere is named when it is read
            yield path


def _visible_entries(folder: Path) -> list[Path]:
    """Return what a folder holds, last name first."""
    entries = (entry for entry in folder.iterdir() if not entry.name.startswith("."))
    return sorted(entries, key=lambda entry: entry.name, reverse=True)


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a UTF-8 file exactly as it stands, line endings included.

    Raises:
        OSError: the file is missing, a folder or unreadable; the kind of OSError says which.
        ValueError: it is not UTF-8. Both are one line that names the file.
    """
    return "".join(read_pieces(path, block_size=-1))


def read_pieces(path: str | os.PathLike[str], *, block_size: int = BLOCK_SIZE) -> Iterator[str]:
    """Yield the text of a UTF-8 file in pieces, as `read_text` returns it whole.

    Args:
        path: of the file.
        block_size: bytes to read at a time; -1 reads all at once.

    Raises:
        OSError, ValueError: as `read_text`, when the fault is reached.
    """
    if Path(path).is_dir():
        raise IsADirectoryError(f"cannot read {path}: it is a folder")
    decoder = codecs.getincrementaldecoder("utf-8")()
    num_read = position = 0  # position: of the first byte that is not decoded yet
    try:
        with Path(path).open("rb") as file:
            at_end = False
            while not at_end:
                block = file.read(block_size)
                at_end = not block
                piece = decoder.decode(block, final=at_end)
                num_read += len(block)
                position = num_read - len(decoder.getstate()[0])
                if piece:
                    yield piece
    except UnicodeDecodeError as error:
        wrong = error.object[error.start]
        raise ValueError(
            f"{path} is not UTF-8 text: byte {position + error.start} is 0x{wrong:02x} ({error.reason})"
        ) from None
    except OSError as error:
        raise type(error)(f"cannot read {path}: {error.strerror}") from None
