"""What a run learns from: documents in order, cut once, recognised again, and every fault in one line."""

from __future__ import annotations

import os
import threading
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken.load
import tiktoken.registry
from hypothesis import assume, given
from hypothesis import strategies as st

from numpy_gpt.arrays import Array
from numpy_gpt.config import TrainConfig
from numpy_gpt.text.corpus import Corpus, embedded_corpus, fingerprint, read_pieces, read_text, text_document
from numpy_gpt.text.prepared import id_dtype
from numpy_gpt.text.tokenizers import END_OF_TEXT, encode, learn_bpe, tokenizer_fingerprint
from numpy_gpt.training.data import TrainingData, load_data

SEPARATOR = 256  # of the bytes tokenizer
TEXTS = st.text(st.sampled_from("ab \n\r<né中\U0001f600"), min_size=1, max_size=30)


def load(*paths: Path, handed_in: tiktoken.Encoding | None = None, **settings: Any) -> TrainingData:
    """Return the data of a run with the shortest window there is, on bytes unless told otherwise."""
    defaults: dict[str, Any] = {"tokenizer": "bytes", "max_sequence_length": 1}
    return load_data(TrainConfig(text=paths, **(defaults | settings)), handed_in)


def write(folder: Path, texts: dict[str, str]) -> Path:
    """Write files, each with the folders above it."""
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())
    return folder


def documents(data: TrainingData) -> list[str]:
    """Return the texts that separators separate, both parts joined."""
    ids = [*data.training_ids.tolist(), *data.validation_ids.tolist()]
    return data.tokenizer.decode(ids).split(END_OF_TEXT)


# Splitting


def character_by_character(texts: list[str]) -> tuple[list[int], list[int]]:
    """Return both parts of the corpus as bytes: each character, with the separator behind it, goes to one."""
    characters = [list(character.encode()) for text in texts for character in text]
    position = -1
    for text in texts[:-1]:
        position += len(text)
        characters[position].append(SEPARATOR)
    boundary = len(characters) * 9 // 10
    return list(chain(*characters[:boundary])), list(chain(*characters[boundary:]))


@given(texts=st.lists(TEXTS, min_size=1, max_size=5))
def test_documents_stand_in_a_line_that_is_cut_once(
    texts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    training, validation = character_by_character(texts)
    assume(min(len(training), len(validation)) > 1)
    folder = tmp_path_factory.mktemp("texts")
    write(folder, {f"{number}.txt": text for number, text in enumerate(texts)})
    data = load(folder)
    assert data.training_ids.tolist() == training
    assert data.validation_ids.tolist() == validation
    assert documents(data) == texts
    assert data.num_bytes == sum(len(text.encode()) for text in texts)
    ids = np.concatenate([data.training_ids, data.validation_ids])
    assert data.bytes_per_token[ids].sum() == data.num_bytes


def test_a_separator_at_the_boundary_ends_the_training_part(tmp_path: Path) -> None:
    write(tmp_path, {"a": "123456789012345678", "b": "90"})
    data = load(tmp_path)
    assert data.training_ids[-2:].tolist() == [ord("8"), SEPARATOR]
    assert data.validation_ids.tolist() == [ord("9"), ord("0")]


def test_end_of_text_within_a_text_is_no_separator(tmp_path: Path) -> None:
    write(tmp_path, {"a": f"one{END_OF_TEXT}two", "b": f"{END_OF_TEXT} three"})
    data = load(tmp_path)
    ids = np.concatenate([data.training_ids, data.validation_ids])
    assert np.count_nonzero(ids == SEPARATOR) == 1


def test_bpe_learns_from_the_training_part_only(tmp_path: Path) -> None:
    write(tmp_path, {"a": "ab " * 300, "b": "xy " * 30})
    data = load(tmp_path, tokenizer="bpe", vocabulary_size=300)
    tokens = [data.tokenizer.decode_single_token_bytes(i) for i in range(256, data.tokenizer.n_vocab)]
    assert b" ab" in tokens
    assert b"xy" not in tokens
    assert data.tokenizer_fingerprint == tokenizer_fingerprint(learn_bpe("ab " * 297, 300))


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_the_opening_of_the_validation_part_is_kept_as_text(tmp_path: Path, tokenizer: str) -> None:
    text = "\U0001f600" * 18_000 + "na\u00efve " * 300 + "\U0001f600" * 500
    write(tmp_path, {"long": text, "a": "x" * 905, "b": "y" * 95})
    assert load(tmp_path / "long", tokenizer=tokenizer).validation_text == text[18_270:][:1000]
    # Not past its first document: a separator is no text.
    assert load(tmp_path / "a", tmp_path / "b", tokenizer=tokenizer).validation_text == "x" * 5


def test_without_a_text_it_is_the_embedded_corpus() -> None:
    text = embedded_corpus()
    data = load()
    assert data.description == "Python's language reference"
    assert data.text_fingerprint == fingerprint(text)
    assert bytes(data.training_ids.tolist()).decode() == text[: len(text) * 9 // 10]
    assert data.validation_text == text[len(text) * 9 // 10 :][:1000]


# Files and folders


def test_a_folder_is_every_file_below_it_in_the_order_of_names(tmp_path: Path) -> None:
    texts = {
        "b.txt": "2nd",
        "b/z": "3rd",
        "b/a/y": "4th, not",
        "a": "1st",
        "c": "5th",
        ".hidden": "no",
        "b/.hidden/a": "no",
        "b/.a": "no",
    }
    write(tmp_path / ".above", texts)
    (tmp_path / ".above" / "a-link").symlink_to(tmp_path / ".above" / "c")
    (tmp_path / ".above" / "b" / "circle").symlink_to(tmp_path / ".above")
    data = load(tmp_path / ".above")
    assert documents(data) == ["1st", "5th", "4th, not", "3rd", "2nd", "5th"]
    assert data.description == f"{tmp_path / '.above'} (6 documents)"


def test_paths_keep_their_order_and_may_repeat(tmp_path: Path) -> None:
    write(tmp_path, {"z": "first", "folder/b": "third", "folder/a": "second"})
    data = load(tmp_path / "z", tmp_path / "folder", tmp_path / "z")
    assert documents(data) == ["first", "second", "third", "first"]
    assert data.description == f"{tmp_path / 'z'} and 2 more (4 documents)"
    assert load(write(tmp_path / "one", {"x": "ninety or so"}) / "x").description == str(
        tmp_path / "one" / "x"
    )


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=[b"from elsewhere, once"])
    writer.start()
    assert documents(load(pipe)) == ["from elsewhere, once"]
    writer.join()


def not_text(folder: Path) -> Path:
    (folder / "binary").write_bytes("né".encode() * 20_000 + b"\xed\xa0\x80")  # half a character
    return folder / "binary"


def with_an_empty_file(folder: Path) -> Path:
    write(folder / "texts", {"a": "text", "nothing": ""})
    return folder / "texts"


def with_hidden_files_only(folder: Path) -> Path:
    return write(folder / "hidden", {".a": "text", ".b/c": "text"})


def with_a_link_to_nowhere(folder: Path) -> Path:
    write(folder / "links", {"a": "text"})
    (folder / "links" / "nowhere").symlink_to(folder / "gone")
    return folder / "links"


def missing(folder: Path) -> Path:
    return folder / "missing"


@pytest.mark.parametrize(
    ("text", "kind", "fault"),
    [
        (missing, FileNotFoundError, "missing: No such file"),
        (not_text, ValueError, "binary is not UTF-8 text: byte 60000 is 0xed"),
        (with_an_empty_file, ValueError, "texts/nothing is empty"),
        (with_hidden_files_only, ValueError, "there is no file in .*hidden"),
        (with_a_link_to_nowhere, FileNotFoundError, "nowhere: No such file"),
    ],
)
def test_what_cannot_be_read_is_named_in_one_line(tmp_path: Path, text: Any, kind: type, fault: str) -> None:
    with pytest.raises(kind, match=fault) as caught:
        load(text(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("length", "window", "part", "tokens"),
    [(100, 10, "validation", 10), (100, 90, "training", 90), (1, 1, "training", 0)],
)
def test_a_part_shorter_than_a_window_is_refused_with_both_lengths(
    tmp_path: Path, length: int, window: int, part: str, tokens: int
) -> None:
    write(tmp_path, {"text": "x" * length})
    message = f"text is too short: its {part} part has {tokens} tokens, but one window needs {window + 1}"
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "text", max_sequence_length=window)
    if window > 1:
        write(tmp_path, {"text": "x" * 1000})
        assert len(load(tmp_path / "text", max_sequence_length=99).validation_ids) == 100


@given(
    characters=st.lists(st.sampled_from([b"a", b"\n", "é".encode(), "中".encode(), "\U0001f600".encode()])),
    noise=st.sampled_from([b"", b"\xff", b"\xc3", b"\xe4\xb8", b"\xed\xa0\x80", b"\xf0\x9f"]),
    position=st.integers(0, 20),
    block_size=st.integers(1, 9),
)
def test_a_file_read_in_pieces_is_the_file_and_so_are_its_faults(
    characters: list[bytes],
    noise: bytes,
    position: int,
    block_size: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("file") / "text"
    characters.insert(position, noise)
    path.write_bytes(b"".join(characters))
    try:
        expected = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        fault = f"byte {error.start} is 0x{path.read_bytes()[error.start]:02x} ({error.reason})"
        for read in (lambda: read_text(path), lambda: list(read_pieces(path, block_size=block_size))):
            with pytest.raises(ValueError, match="is not UTF-8 text") as caught:
                read()
            assert str(caught.value).endswith(fault)
    else:
        assert read_text(path) == expected
        pieces = list(read_pieces(path, block_size=block_size))
        assert "".join(pieces) == expected
        assert "" not in pieces


# Tokenizers and fingerprints


def test_a_tokenizer_that_is_handed_in_is_used(tmp_path: Path) -> None:
    write(tmp_path, {"a": "abab abab abab " * 9})
    learned = learn_bpe("abab", 258)
    data = load(tmp_path, tokenizer="gpt2", handed_in=learned)
    assert data.tokenizer is learned
    assert data.tokenizer_fingerprint == tokenizer_fingerprint(learned)
    assert np.array_equal(data.training_ids, encode(learned, ("abab abab abab " * 9)[:121]))
    assert data.training_ids.dtype == np.uint16


def test_gpt2_without_its_files_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(path: str) -> bytes:
        raise ConnectionError("no route")

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tiktoken.load, "read_file", no_network)
    monkeypatch.delitem(tiktoken.registry.ENCODINGS, "gpt2", raising=False)
    with pytest.raises(FileNotFoundError, match=r"TIKTOKEN_CACHE_DIR.*--tokenizer bpe"):
        load(tokenizer="gpt2")


@pytest.mark.parametrize(
    ("vocabulary_size", "dtype"),
    [(256, "uint8"), (257, "uint16"), (50257, "uint16"), (65536, "uint16"), (65537, "uint32")],
)
def test_ids_have_the_smallest_type_that_holds_the_vocabulary(vocabulary_size: int, dtype: str) -> None:
    assert id_dtype(vocabulary_size) == dtype


def test_an_id_that_the_vocabulary_does_not_have_is_never_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiktoken.Encoding, "n_vocab", 100)  # too few for the letter d
    with pytest.raises(ValueError, match=r"id 1\d\d at \d+ is outside 0\.\.99"):
        load()


def fingerprint_of(*texts: str) -> str:
    return Corpus.measure([text_document("any", text) for text in texts]).fingerprint


@given(texts=st.lists(TEXTS, min_size=1, max_size=3), others=st.lists(TEXTS, min_size=1, max_size=3))
def test_fingerprints_tell_corpora_apart(texts: list[str], others: list[str]) -> None:
    assert (fingerprint_of(*texts) == fingerprint_of(*others)) == (texts == others)
    assert fingerprint_of(texts[0]) == fingerprint(texts[0])


def test_fingerprints_tell_boundaries_and_order_but_not_names(tmp_path: Path) -> None:
    different = [("abc",), ("ab", "c"), ("a", "bc"), ("a", "b", "c"), ("bc", "a")]
    assert len({fingerprint_of(*texts) for texts in different}) == len(different)
    one = load(write(tmp_path / "one", {"a": "some text", "b/c": "and more"}))
    other = load(tmp_path / "one" / "a", write(tmp_path / "other", {"d": "and more"}))
    assert one.text_fingerprint == other.text_fingerprint == fingerprint_of("some text", "and more")


def test_reading_twice_gives_equal_arrays_that_belong_to_the_caller(tmp_path: Path) -> None:
    write(tmp_path, {"a": "some text " * 9})
    first, second = load(tmp_path), load(tmp_path)
    kept: list[Array] = [first.training_ids.copy(), first.validation_ids.copy()]
    second.training_ids[:] = 0
    assert np.array_equal(first.training_ids, kept[0])
    assert np.array_equal(first.validation_ids, kept[1])
