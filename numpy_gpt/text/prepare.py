"""From a corpus to token ids, in a stream: in memory, or for a corpus larger than memory, into a folder.

Both ways encode the same documents with the same tokenizer and split them at the same character, so both give
the same ids; but `prepare` reads each file in pieces, two or three times: to measure it, to let bpe learn the
vocabulary, and to write the ids.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.config import TrainConfig
from numpy_gpt.text.corpus import PREPARED, Corpus, Document, Part, embedded_document, find_files, read_pieces
from numpy_gpt.text.prepared import IDS, TOKENIZER, Prepared, id_dtype, require_ids
from numpy_gpt.text.tokenizers import (
    bytes_tokenizer,
    encode,
    gpt2_tokenizer,
    learn_bpe,
    tokenizer_fingerprint,
    tokenizer_to_json,
)
from numpy_gpt.whole_files import name_aside, opened_aside, write_all

if TYPE_CHECKING:
    import tiktoken

LONGEST_RUN = 1 << 24
"""The most characters without a break to hold in memory, which a tokenizer may take for one word. A longer
run is refused."""


@dataclasses.dataclass(frozen=True)
class PrepareConfig:
    """Tokenize a corpus that is larger than memory, to train from the result.

    Args:
        out: the folder to make, new or empty; give it as the text to train from.
        text: the UTF-8 files to tokenize and folders of them; without it, Python's language reference.
        tokenizer: bytes (257 tokens), bpe (learned from the training part) or gpt2 (50257 tokens).
        vocabulary_size: V, how many tokens bpe learns, end-of-text included; 1024 without it.

    Raises:
        ValueError: naming the first setting that makes no vocabulary.
    """

    out: Path
    text: tuple[Path, ...] = ()
    tokenizer: Literal["bytes", "bpe", "gpt2"] = "bpe"
    vocabulary_size: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "vocabulary_size", self._as_of_a_run().vocabulary_size)

    def _as_of_a_run(self) -> TrainConfig:
        """Return the settings as those of a run that reads the text itself: the same rules hold."""
        return TrainConfig(text=self.text, tokenizer=self.tokenizer, vocabulary_size=self.vocabulary_size)

    @property
    def requested_vocabulary(self) -> int:
        """The vocabulary size asked for; a short text may teach bpe fewer tokens."""
        return self._as_of_a_run().requested_vocabulary


# ---- text to ids ------------------------------------------------------------------------------------------


def tokenizer_for(corpus: Corpus, name: str, vocabulary_size: int) -> tiktoken.Encoding:
    """Return the tokenizer of that name; bpe learns from the training part of the corpus."""
    if name == "bytes":
        return bytes_tokenizer()
    if name == "gpt2":
        return gpt2_tokenizer()
    training = (piece for part, piece in corpus.parts() if part == "training" and piece is not None)
    return learn_bpe(training, vocabulary_size)


def tokenize(corpus: Corpus, tokenizer: tiktoken.Encoding) -> Iterator[tuple[Part, Array]]:
    """Yield the ids of a corpus, documents separated by the end-of-text id.

    Returns:
        An iterator of pieces: the part it belongs to, and (n,) ids of the smallest unsigned type.
    """
    dtype = id_dtype(tokenizer.n_vocab)
    for part, piece in corpus.parts():
        ids = np.array([tokenizer.eot_token]) if piece is None else encode(tokenizer, piece)  # (n,)
        require_ids(ids, tokenizer.n_vocab)
        yield part, ids.astype(dtype)


# ---- reading in pieces ------------------------------------------------------------------------------------


def file_document(path: Path) -> Document:
    """Return a file as a document that is read in pieces.

    Raises:
        OSError, ValueError: when it is missing or cannot be read more than once; and from its `pieces`, when
            it is no text, changes while it is in use, or has no break for `LONGEST_RUN` characters.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise type(error)(f"cannot read {path}: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"cannot prepare {path}: it is not a regular file, and is to be read more than once")

    def pieces() -> Iterator[str]:
        yield from end_at_breaks(read_pieces(path), str(path))
        now = path.stat()
        if (now.st_size, now.st_mtime_ns) != (found.st_size, found.st_mtime_ns):
            raise ValueError(f"{path} has changed while it was read")

    return Document(str(path), found.st_size, pieces)


# In the patterns of the three tokenizers no piece goes on to a blank after a visible character, and only
# blanks have a look at what follows them. So a text encoded up to such a break, and then from there on, has
# the ids of the whole. These four are blanks to everyone; what is visible to Python is so to the patterns.
_LAST_BREAK = re.compile(r"(?s:.*)\S(?=[ \t\r\n])")


def end_at_breaks(pieces: Iterable[str], name: str) -> Iterator[str]:
    """Yield the same text in pieces that end where tokenizers do: before a blank, after a visible character.

    Args:
        pieces: that end anywhere.
        name: what to call the text.

    Raises:
        ValueError: no break for `LONGEST_RUN` characters.
    """
    waiting: list[str] = []
    num_waiting = 0
    for piece in pieces:
        cut = found.end() if (found := _LAST_BREAK.match(piece)) else 0
        if cut:
            yield "".join([*waiting, piece[:cut]])
            waiting, num_waiting = [], 0
        waiting.append(piece[cut:])
        num_waiting += len(piece) - cut
        if num_waiting > LONGEST_RUN:
            raise ValueError(f"cannot prepare {name}: more than {LONGEST_RUN:,} characters without a break")
    if waiting:
        yield "".join(waiting)


# ---- ids to files -----------------------------------------------------------------------------------------


def prepare(
    config: PrepareConfig, *, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> Prepared:
    """Tokenize a corpus in a stream and leave the ids in a folder.

    Args:
        config: what to read, how to tokenize it and where to write.
        on_progress: called often, with the bytes read so far and the bytes to read in all; a file counts as
            often as it is read.

    Returns:
        What the folder's prepared.json says.

    Raises:
        FileExistsError: when the folder holds something already, other than what a killed `prepare` left.
        OSError, ValueError: in one line that names the file. After these and any other exception nothing is
            left behind.
    """
    documents = [file_document(path) for path in find_files(config.text)] or [embedded_document()]
    num_readings = 3 if config.tokenizer == "bpe" else 2
    total = num_readings * sum(document.num_bytes for document in documents)
    with _new_folder(config.out):
        corpus = Corpus.measure(_reporting(documents, lambda done: on_progress(done, total)))
        tokenizer = tokenizer_for(corpus, config.tokenizer, config.requested_vocabulary)
        counts = _write_ids(config.out, corpus, tokenizer)
        prepared = Prepared(
            text_fingerprint=corpus.fingerprint,
            tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
            requested_vocabulary=config.requested_vocabulary,
            num_bytes=corpus.num_bytes,
            num_training_ids=counts["training"],
            num_validation_ids=counts["validation"],
            dtype=id_dtype(tokenizer.n_vocab).name,
            sources=[document.name for document in documents],
        )
        _write_json(config.out / TOKENIZER, tokenizer_to_json(tokenizer))
        _write_json(config.out / PREPARED, prepared.to_json())
    return prepared


def _reporting(documents: Iterable[Document], report: Callable[[int], None]) -> list[Document]:
    """Return documents that report how many bytes of them all have been read so far, over all readings."""
    done = 0

    def pieces(document: Document) -> Iterator[str]:
        nonlocal done
        for piece in document.pieces():
            yield piece
            done += len(piece.encode("utf-8"))
            report(done)

    return [dataclasses.replace(each, pieces=functools.partial(pieces, each)) for each in documents]


def _write_ids(folder: Path, corpus: Corpus, tokenizer: tiktoken.Encoding) -> dict[Part, int]:
    """Write the ids of both parts; return how many each has, which the files learn when all are written."""
    dtype = id_dtype(tokenizer.n_vocab)
    counts: dict[Part, int] = dict.fromkeys(IDS, 0)
    with contextlib.ExitStack() as stack:
        files = {part: stack.enter_context(opened_aside(folder / name)) for part, name in IDS.items()}
        for file in files.values():
            write_all(file, _npy_header(dtype, 0))
        for part, ids in tokenize(corpus, tokenizer):
            # Not into a memory map: when the disk is full, that kills the process, where this raises OSError.
            write_all(files[part], ids.tobytes())
            counts[part] += len(ids)
        for part, file in files.items():
            file.seek(0)
            write_all(file, _npy_header(dtype, counts[part]))
    return counts


def _npy_header(dtype: np.dtype[Any], count: int) -> bytes:
    """Return what stands before the data of a (count,) array; NumPy makes it equally long for every count."""
    header = io.BytesIO()
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(header, fields)
    return header.getvalue()


# ---- a folder, whole or not at all ------------------------------------------------------------------------

FILES = (*IDS.values(), TOKENIZER, PREPARED)
"""What is written aside and then renamed; last the file that marks the folder as prepared."""


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Make a folder and name its files when they are complete; when that fails, leave nothing of it."""
    if folder.is_dir() and {path.name for path in folder.iterdir()} - _left_by_a_kill(folder):
        raise FileExistsError(f"{folder} is not empty, and nothing is ever overwritten; choose another --out")
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_files(folder)
        yield
        for name in FILES:
            name_aside(folder / name).replace(folder / name)
    except BaseException:
        _remove_files(folder)
        with contextlib.suppress(OSError):  # somebody else has put something there
            for path in made:
                path.rmdir()
        raise


def _left_by_a_kill(folder: Path) -> set[str]:
    """Return the names in a folder that a `prepare` may have left which had no time to tidy up."""
    names = {name_aside(folder / name).name for name in FILES}
    # Still aside, so the kill came while the others got their names: they are no finished work of anybody.
    return names.union(FILES) if name_aside(folder / PREPARED).exists() else names


def _remove_files(folder: Path) -> None:
    for name in FILES:
        for path in (folder / name, name_aside(folder / name)):
            with contextlib.suppress(OSError):  # it was never made, or nothing can be removed here
                path.unlink()


def _write_json(path: Path, document: dict[str, Any]) -> None:
    with opened_aside(path) as file:
        write_all(file, json.dumps(document).encode())
