"""Preparing: from pieces of a text the ids of the whole, in little memory; a folder whole or not at all."""

from __future__ import annotations

import dataclasses
import errno
import io
import itertools
import json
import os
import random
import re
import shutil
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from numpy_gpt.config import TrainConfig
from numpy_gpt.text.corpus import embedded_corpus, find_files
from numpy_gpt.text.prepare import (
    LONGEST_RUN,
    PrepareConfig,
    end_at_breaks,
    file_document,
    prepare,
)
from numpy_gpt.text.prepared import require_ids
from numpy_gpt.text.tokenizers import (
    END_OF_TEXT,
    bytes_tokenizer,
    encode,
    gpt2_tokenizer,
    learn_bpe,
    tokenizer_to_json,
)
from numpy_gpt.training.data import TrainingData, load_data

MILLION = 1_000_000
NAMES = {"training.npy", "validation.npy", "tokenizer.json", "prepared.json"}

# Whatever a pattern looks at: letters, marks, digits, signs, contractions, and blanks of every kind.
PIECES = st.sampled_from(
    [*"ab1!' \n\r\t\x0b\x1c\u0301\u00a0\u3000\u2028", "'s", "'ll", " '", "  ", "\r\n", "a" * 40, " " * 40]
)
TEXTS = st.lists(PIECES | st.text(max_size=4), max_size=30).map("".join)

# A tokenizer has no state that one example could leave behind for the next.
same_tokenizer = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
TOKENIZERS = {"bytes": bytes_tokenizer(), "bpe": learn_bpe(embedded_corpus() + "\n \r\n  ll's 's" * 99, 600)}


@pytest.fixture
def gpt2(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> tiktoken.Encoding:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(shared_data / "tiktoken-cache"))
    return gpt2_tokenizer()


@pytest.fixture(params=["bytes", "bpe", "gpt2"])
def tokenizer(request: pytest.FixtureRequest) -> tiktoken.Encoding:
    found: tiktoken.Encoding = TOKENIZERS.get(request.param) or request.getfixturevalue("gpt2")
    return found


def in_pieces(text: str, cuts: list[int]) -> Iterator[str]:
    """Yield a text cut after so many characters, again and again from the list."""
    start = 0
    for length in itertools.cycle(cuts):
        if start >= len(text):
            return
        yield text[start : start + length]
        start += length


# Reading in pieces


@same_tokenizer
@given(text=TEXTS, cuts=st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_pieces_that_end_at_breaks_have_the_ids_of_the_whole(
    tokenizer: tiktoken.Encoding, text: str, cuts: list[int]
) -> None:
    pieces = list(end_at_breaks(in_pieces(text, cuts), "text"))
    assert "".join(pieces) == text
    ids = [np.empty(0, int), *(encode(tokenizer, piece) for piece in pieces)]
    assert np.array_equal(np.concatenate(ids), encode(tokenizer, text))


@settings(max_examples=10)  # a quarter of a second each
@given(text=TEXTS, cuts=st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_pieces_that_end_at_breaks_teach_what_the_whole_teaches(text: str, cuts: list[int]) -> None:
    text *= 3
    from_pieces = learn_bpe(end_at_breaks(in_pieces(text, cuts), "text"), 280)
    assert from_pieces._mergeable_ranks == learn_bpe(text, 280)._mergeable_ranks


def test_what_python_takes_for_visible_no_pattern_takes_for_blank() -> None:
    # The break is found by Python's table of characters, the ids by that of tiktoken's patterns.
    finder = tiktoken.Encoding(
        "blanks", pat_str=r"\s", mergeable_ranks=TOKENIZERS["bytes"]._mergeable_ranks, special_tokens={}
    )
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    blanks = finder.decode(finder.encode_ordinary(everything))
    assert set("\t\n\r ") <= set(blanks)
    assert re.findall(r"\S", blanks) == []


def test_a_text_of_words_comes_in_small_pieces(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("some words and " * 50_000)
    lengths = [len(piece) for piece in file_document(tmp_path / "text").pieces()]
    assert len(lengths) > 40
    assert max(lengths) < 20_000


def test_a_run_without_a_break_is_read_whole_or_refused() -> None:
    block = "x" * (LONGEST_RUN // 16)
    assert sum(len(piece) for piece in end_at_breaks([block] * 16, "run")) == LONGEST_RUN
    with pytest.raises(
        ValueError, match="cannot prepare run: more than 16,777,216 characters without a break"
    ):
        list(end_at_breaks([block] * 16 + ["x"], "run"))


def test_runs_without_a_break_are_counted_one_by_one() -> None:
    block = "x" * (LONGEST_RUN // 8)
    assert sum(1 for _ in end_at_breaks([f"y {block}"] * 9, "runs")) == 10


# The same as reading directly


def load(*text: Path, **settings: Any) -> TrainingData:
    return load_data(TrainConfig(text=text, max_sequence_length=1, **settings))


def assert_same_data(prepared: TrainingData, direct: TrainingData) -> None:
    for name in ("training_ids", "validation_ids", "bytes_per_token"):
        one, other = getattr(prepared, name), getattr(direct, name)
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    for name in ("text_fingerprint", "tokenizer_fingerprint", "num_bytes", "validation_text"):
        assert getattr(prepared, name) == getattr(direct, name)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of documents: prose in many pieces, and text that is hard to cut; one lies in both parts."""
    folder = tmp_path_factory.mktemp("texts")
    letters = random.Random(0).choices("abcdefghij", k=50_000)
    documents = {
        "a": embedded_corpus()[:60_000],
        "b/long-run": "".join(letters) + " " * 50_000 + "x",
        "b/special": f"one{END_OF_TEXT}two\r\n\r\n  three's \u00a0 4444",
        "c": "na\u00efve 中文 \U0001f600\n" * 9000,
        "d": "the end",
    }
    for name, text in documents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text.encode())
    return folder


def test_preparing_and_reading_directly_are_the_same(
    texts: Path, tmp_path: Path, tokenizer: tiktoken.Encoding
) -> None:
    options: dict[str, Any] = {"tokenizer": tokenizer.name}
    if tokenizer.name == "bpe":
        options["vocabulary_size"] = 400
    prepared = prepare(PrepareConfig(tmp_path / "out", (texts,), **options))
    assert_same_data(load(tmp_path / "out", **options), load(texts, **options))
    assert prepared.sources == [str(path) for path in find_files([texts])]
    if tokenizer.name == "gpt2":
        assert prepared.requested_vocabulary == 50257


def test_without_a_text_the_embedded_corpus_is_prepared(tmp_path: Path) -> None:
    prepare(PrepareConfig(tmp_path / "out", tokenizer="bytes"))
    assert_same_data(load(tmp_path / "out"), load(tokenizer="bytes"))


@pytest.mark.parametrize("text", ["x", "xy", " ", "né"])
def test_texts_of_next_to_nothing_are_prepared_as_they_are_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "text").write_bytes(text.encode())
    prepared = prepare(PrepareConfig(tmp_path / "out", (tmp_path / "text",), tokenizer="bytes"))
    assert prepared.num_training_ids + prepared.num_validation_ids == len(text.encode())
    for path in (tmp_path / "text", tmp_path / "out"):
        with pytest.raises(ValueError, match=f"{path} is too short: its training part has"):
            load_data(TrainConfig(text=(path,), tokenizer="bytes"))


def test_a_folder_holds_what_it_says(texts: Path, tmp_path: Path) -> None:
    prepared = prepare(PrepareConfig(tmp_path / "new" / "out", (texts,), vocabulary_size=300))
    out = tmp_path / "new" / "out"
    assert {path.name for path in out.iterdir()} == NAMES
    document = json.loads((out / "prepared.json").read_text())
    assert document["format_version"] == 1
    assert set(document["versions"]) == {"numpy_gpt", "numpy"}
    assert {name: document[name] for name in dataclasses.asdict(prepared)} == dataclasses.asdict(prepared)
    training, validation = (np.load(out / f"{part}.npy") for part in ("training", "validation"))
    assert (len(training), len(validation)) == (prepared.num_training_ids, prepared.num_validation_ids)
    assert training.dtype == validation.dtype == np.uint16
    assert prepared.dtype == "uint16"
    data = load(out)
    assert isinstance(data.training_ids, np.memmap)
    assert not data.training_ids.flags.writeable
    assert data.description == f"{out} (5 documents)"
    assert data.tokenizer.n_vocab == prepared.requested_vocabulary == 300
    assert data.tokenizer_fingerprint == prepared.tokenizer_fingerprint


def test_a_million_characters_without_a_break_are_prepared(
    tmp_path: Path, tokenizer: tiktoken.Encoding
) -> None:
    (tmp_path / "text").write_text("a" * MILLION)
    options: Any = {"tokenizer": tokenizer.name}
    prepare(PrepareConfig(tmp_path / "out", (tmp_path / "text",), **options))
    assert_same_data(load(tmp_path / "out", **options), load(tmp_path / "text", **options))


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for size in (500_000, 2_000_000):
        (tmp_path / "text").write_text("some words, " * (size // 12))
        tracemalloc.start()
        prepare(PrepareConfig(tmp_path / f"{size}", (tmp_path / "text",), tokenizer="bytes"))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 100_000 < 2_000_000


@pytest.mark.parametrize(("kind", "readings"), [("bytes", 2), ("bpe", 3)])
def test_progress_counts_the_bytes_of_every_reading(
    texts: Path, tmp_path: Path, kind: Any, readings: int
) -> None:
    seen: list[tuple[int, int]] = []
    config = PrepareConfig(tmp_path / "out", (texts,), tokenizer=kind)
    prepared = prepare(config, on_progress=lambda *progress: seen.append(progress))
    assert seen == sorted(seen)
    assert {total for _, total in seen} == {readings * prepared.num_bytes}
    assert seen[-1] == (readings * prepared.num_bytes, readings * prepared.num_bytes)
    assert len(seen) > 10 * readings


# A folder whole or not at all


def everything_in(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.mark.parametrize("moment", ["first", "learning", "writing", "last"])
@pytest.mark.parametrize("exists", [False, True])
def test_an_interruption_leaves_nothing(texts: Path, tmp_path: Path, moment: str, exists: bool) -> None:
    out = tmp_path / "new" / "out"
    if exists:
        out.mkdir(parents=True)
    before = everything_in(tmp_path)
    when = {"first": 0.0, "learning": 0.5, "writing": 0.8, "last": 1.0}[moment]
    seen_aside: set[str] = set()

    def interrupt(done: int, total: int) -> None:
        if done >= when * total:
            seen_aside.update(path.name for path in out.iterdir())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(PrepareConfig(out, (texts,), vocabulary_size=300), on_progress=interrupt)
    assert everything_in(tmp_path) == before
    assert bool(seen_aside) == (moment in ("writing", "last"))
    assert not NAMES & seen_aside  # no file has its name before all are complete


@pytest.mark.parametrize("renamed", range(len(NAMES)))
def test_an_interruption_between_two_renamings_leaves_nothing(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renamed: int
) -> None:
    replace, calls = Path.replace, itertools.count()

    def interrupted(self: Path, target: Path) -> Path:
        if next(calls) == renamed:
            assert len(everything_in(tmp_path / "out")) == len(NAMES)
            assert not (tmp_path / "out" / "prepared.json").exists()  # it is the last to get its name
            raise KeyboardInterrupt
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare(PrepareConfig(tmp_path / "out", (texts / "d",), tokenizer="bytes"))
    assert everything_in(tmp_path) == set()


@pytest.mark.parametrize("limit", ["in the middle", "one byte short"])
def test_a_disk_that_is_full_leaves_nothing_and_is_named(texts: Path, tmp_path: Path, limit: str) -> None:
    resource = pytest.importorskip("resource", reason="this system cannot limit the size of files")
    config = PrepareConfig(tmp_path / "out", (texts,), tokenizer="bytes")
    prepare(dataclasses.replace(config, out=tmp_path / "whole"))
    size = (tmp_path / "whole" / "training.npy").stat().st_size
    shutil.rmtree(tmp_path / "whole")

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2 if limit == "in the middle" else size - 1, hard))
    try:
        with pytest.raises(OSError, match=r"training\.npy") as caught:
            prepare(config)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.strerror == "File too large"
    assert everything_in(tmp_path) == set()


@pytest.mark.parametrize("flushed", range(len(NAMES)))
def test_a_file_that_does_not_reach_the_disk_is_no_file(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushed: int
) -> None:
    calls = itertools.count()

    def fail(descriptor: int) -> None:
        if next(calls) == flushed:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error") as caught:
        prepare(PrepareConfig(tmp_path / "out", (texts / "d",), tokenizer="bytes"))
    assert any(name in caught.value.filename for name in NAMES)
    assert everything_in(tmp_path) == set()


def test_a_folder_in_use_is_left_alone(texts: Path, tmp_path: Path) -> None:
    (tmp_path / "training.npy").write_text("mine")
    with pytest.raises(FileExistsError, match=r"is not empty.*choose another --out"):
        prepare(PrepareConfig(tmp_path, (texts,)))
    with pytest.raises(FileExistsError):
        prepare(PrepareConfig(tmp_path / "training.npy", (texts,)))
    assert everything_in(tmp_path) == {tmp_path / "training.npy"}
    assert (tmp_path / "training.npy").read_text() == "mine"


def faulty(folder: Path, name: str) -> Path:
    """Return a file or folder that cannot be prepared."""
    path = folder / name
    if name == "binary":
        path.write_bytes(b"text " * 9999 + b"\xff")
    elif name == "pipe":
        os.mkfifo(path)
    elif name == "prepared":
        path.mkdir()
        (path / "prepared.json").touch()
    elif name == "empty":
        path.touch()
    return path


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("binary", "binary is not UTF-8 text: byte 49995 is 0xff"),
        ("pipe", "pipe: it is not a regular file"),
        ("prepared", "prepared has been prepared"),
        ("empty", "empty is empty"),
        ("missing", "missing: No such file"),
    ],
)
def test_what_cannot_be_prepared_is_named_in_one_line_and_leaves_nothing(
    texts: Path, tmp_path: Path, name: str, fault: str
) -> None:
    path = faulty(tmp_path, name)
    before = everything_in(tmp_path)
    with pytest.raises((ValueError, OSError), match=fault) as caught:
        prepare(PrepareConfig(tmp_path / "out", (texts, path)))
    assert "\n" not in str(caught.value)
    assert everything_in(tmp_path) == before


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("some words " * 9000)

    def change(done: int, total: int) -> None:
        if 0.5 < done / total < 0.7:
            with (tmp_path / "text").open("a") as file:
                file.write("more")

    with pytest.raises(ValueError, match="text has changed while it was read"):
        prepare(PrepareConfig(tmp_path / "out", (tmp_path / "text",), tokenizer="bytes"), on_progress=change)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"tokenizer": "words"}, "tokenizer must be one of bytes, bpe, gpt2, not 'words'"),
        ({"vocabulary_size": 256}, "vocabulary_size must be at least 257, not 256"),
        ({"vocabulary_size": 300.5}, "vocabulary_size must be an integer"),
        ({"tokenizer": "bytes", "vocabulary_size": 300}, "the bytes tokenizer is 257, not 300"),
    ],
)
def test_settings_that_make_no_vocabulary_are_refused(options: Any, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        PrepareConfig(Path("out"), **options)


# Opening a prepared folder


@pytest.fixture(scope="module")
def original(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder that no test changes."""
    out = tmp_path_factory.mktemp("prepared")
    prepare(PrepareConfig(out, (texts / "a",), vocabulary_size=300))
    return out


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "copy"))


@pytest.mark.parametrize("options", [{}, {"tokenizer": "bpe"}, {"vocabulary_size": 300}])
def test_settings_that_agree_with_the_folder_are_welcome(original: Path, options: Any) -> None:
    assert load(original, **options).tokenizer.n_vocab == 300


def test_a_vocabulary_larger_than_could_be_learned_agrees_under_both_sizes(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("ab ab " * 9)
    prepare(PrepareConfig(tmp_path / "out", (tmp_path / "text",), vocabulary_size=5000))
    learned = load(tmp_path / "out", vocabulary_size=5000).tokenizer.n_vocab
    assert learned < 300
    assert load(tmp_path / "out", vocabulary_size=learned).tokenizer.n_vocab == learned


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"tokenizer": "bytes"}, "was prepared with the tokenizer 'bpe', not 'bytes'"),
        ({"tokenizer": "gpt2"}, "was prepared with the tokenizer 'bpe', not 'gpt2'"),
        ({"vocabulary_size": 301}, "was prepared with a vocabulary of 300, not 301"),
    ],
)
def test_settings_that_disagree_with_the_folder_are_refused(original: Path, options: Any, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        load(original, **options)


def test_a_prepared_folder_keeps_its_own_tokenizer(original: Path) -> None:
    data = load_data(TrainConfig(text=(original,)), learn_bpe("something else", 260))
    assert data.tokenizer.n_vocab == 300
    assert np.array_equal(data.training_ids, load(original).training_ids)


def test_a_prepared_folder_goes_with_no_other_text(original: Path, texts: Path) -> None:
    with pytest.raises(ValueError, match=r"has been prepared.*only text"):
        load(original, texts)


def saved(make: Callable[[Any], Any]) -> Callable[[Any], bytes]:
    """Return what writes an array made from the right ids as a .npy file."""

    def contents(ids: Any) -> bytes:
        buffer = io.BytesIO()
        np.save(buffer, make(ids), allow_pickle=True)
        return buffer.getvalue()

    return contents


def whole(ids: Any) -> bytes:
    return saved(lambda right: right)(ids)


def with_shape(shape: str) -> Callable[[Any], bytes]:
    """Return what writes the right ids under a header with whatever shape."""
    header = f"{{'descr': '<u2', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    return lambda ids: start + ids.tobytes()


def zipped(ids: Any) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("training.npy", whole(ids))
    return buffer.getvalue()


def with_value(value: int) -> Callable[[Any], Any]:
    def make(ids: Any) -> Any:
        ids = ids.copy()
        ids[1234] = value
        return ids

    return saved(make)


HOSTILE_IDS: dict[str, tuple[Callable[[Any], bytes], str]] = {
    "objects": (saved(lambda ids: ids.astype(object)), "object"),
    "pickle": (lambda ids: b"\x80\x04N.", "magic string"),
    "zip": (zipped, "magic string"),
    "empty": (lambda ids: b"", "magic string"),
    "magic": (lambda ids: b"\x93NUMPY\x01\x00", "EOF"),
    "floats": (saved(lambda ids: ids.astype(np.float16)), "float16"),
    "signed": (saved(lambda ids: ids.astype(np.int16)), "int16"),
    "wide": (saved(lambda ids: ids.astype(np.uint32)), "uint32"),
    "swapped": (saved(lambda ids: ids.astype(">u2")), ">u2"),
    "records": (saved(lambda ids: ids.astype([("id", "<u2")])), "id"),
    "matrix": (saved(lambda ids: ids[None]), r"shape \(1, "),
    "scalar": (saved(lambda ids: ids[0]), r"shape \(\)"),
    "shorter": (saved(lambda ids: ids[:-1]), "of shape"),
    "longer": (saved(lambda ids: np.append(ids, ids[:1])), "of shape"),
    "none": (saved(lambda ids: ids[:0]), r"shape \(0,\)"),
    "truncated": (lambda ids: whole(ids)[:-1], "mmap length"),
    "no-data": (lambda ids: whole(ids)[:128], "mmap length"),
    "above": (with_value(300), r"id 300 at 1234 is outside 0\.\.299"),
    "highest": (with_value(65535), r"id 65535 at 1234 is outside 0\.\.299"),
    "huge": (with_shape(f"({2**62},)"), ""),
    "beyond": (with_shape(f"({10**30},)"), ""),
    "negative": (with_shape("(-1,)"), ""),
    "words": (with_shape("('x',)"), ""),
    "code": (with_shape("(f(),)"), ""),
    "nested": (with_shape("-" * 9000 + "1"), ""),
}


@pytest.mark.parametrize(("contents", "fault"), HOSTILE_IDS.values(), ids=HOSTILE_IDS)
@pytest.mark.parametrize("part", ["training", "validation"])
def test_hostile_ids_are_refused_in_one_line(
    copy: Path, part: str, contents: Callable[[Any], bytes], fault: str
) -> None:
    path = copy / f"{part}.npy"
    path.write_bytes(contents(np.load(path)))
    with pytest.raises(ValueError, match=re.escape(f"{path} is damaged: ") + f".*{fault}") as caught:
        load(copy)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 127), value=st.integers(0, 255))
@pytest.mark.filterwarnings("ignore:Reading")  # NumPy's of a header that Python 2 might have written
def test_a_header_with_a_wrong_byte_is_refused_or_means_the_same(
    copy: Path, original: Path, position: int, value: int
) -> None:
    contents = bytearray((original / "training.npy").read_bytes())
    contents[position] = value
    (copy / "training.npy").write_bytes(contents)
    refusal = ""
    try:
        data = load(copy)
    except ValueError as error:
        refusal = str(error)
    if refusal:
        assert refusal.startswith(f"{copy / 'training.npy'} is damaged: ")
        assert "\n" not in refusal
    else:
        assert np.array_equal(data.training_ids, np.load(original / "training.npy"))


def changed(**fields: Any) -> Callable[[str], str]:
    return lambda text: json.dumps({**json.loads(text), **fields})


def without(field: str) -> Callable[[str], str]:
    return lambda text: json.dumps({name: v for name, v in json.loads(text).items() if name != field})


HOSTILE_JSON: dict[str, tuple[str, Callable[[str], str], str]] = {
    "empty": ("prepared.json", lambda text: "", "Expecting value"),
    "cut": ("prepared.json", lambda text: text[:-9], ""),
    "list": ("prepared.json", lambda text: "[]", "no description"),
    "deep": ("prepared.json", lambda text: "[" * 100_000, "recursion"),
    "versionless": ("prepared.json", without("format_version"), "no description"),
    "version": ("prepared.json", changed(format_version=2), "format version is 2, not 1"),
    "fieldless": ("prepared.json", without("num_bytes"), "num_bytes must be a int, not None"),
    "kind": ("prepared.json", changed(num_training_ids=1.5), "num_training_ids must be a int, not 1.5"),
    "bool": ("prepared.json", changed(num_bytes=True), "num_bytes must be a int, not True"),
    "text": ("prepared.json", changed(text_fingerprint=["\n" * 99]), "text_fingerprint must be a str"),
    "sources": ("prepared.json", changed(sources="a"), "sources must be a list"),
    "not-json": ("tokenizer.json", lambda text: "{", ""),
    "no-tokenizer": ("tokenizer.json", changed(tokens=[]), "no token for the byte"),
}


@pytest.mark.parametrize(("name", "change", "fault"), HOSTILE_JSON.values(), ids=HOSTILE_JSON)
def test_hostile_descriptions_are_refused_in_one_line(
    copy: Path, name: str, change: Callable[[str], str], fault: str
) -> None:
    path = copy / name
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=re.escape(f"{path} is damaged: ") + f".*{fault}") as caught:
        load(copy)
    assert "\n" not in str(caught.value)


def test_another_tokenizer_is_noticed(copy: Path) -> None:
    other = learn_bpe("another text of as many tokens" * 9, 300)
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer_to_json(other)))
    with pytest.raises(ValueError, match=r"tokenizer\.json is not the tokenizer that made the ids"):
        load(copy)


@pytest.mark.parametrize("name", sorted(NAMES - {"prepared.json"}))
def test_a_missing_file_is_named(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"cannot read .*{name}: No such file"):
        load(copy)


@pytest.mark.parametrize("position", [0, 2**20 - 1, 2**20, 2**21 + 4])
def test_an_id_out_of_range_is_found_wherever_it_stands(position: int) -> None:
    ids = np.zeros(2**21 + 5, np.uint16)
    require_ids(ids, 1)
    ids[position] = 7
    require_ids(ids, 8)
    with pytest.raises(ValueError, match=rf"id 7 at {position} is outside 0\.\.6"):
        require_ids(ids, 7)
    with pytest.raises(ValueError, match=r"id -1 at 2 is outside"):
        require_ids(np.array([3, 2, -1]), 7)
