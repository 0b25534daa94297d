"""Text: tokenizers and what keeps them, the corpus, and windows of ids."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter

import numpy as np
import pytest
import tiktoken
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from numpy_gpt.text.batches import evaluation_windows, training_batch
from numpy_gpt.text.corpus import embedded_corpus, fingerprint, read_text
from numpy_gpt.text.tokenizers import (
    BYTES,
    END_OF_TEXT,
    SPLIT_PATTERN,
    bytes_tokenizer,
    encode,
    gpt2_tokenizer,
    learn_bpe,
    stream_text,
    token_lengths,
    tokenizer_fingerprint,
    tokenizer_from_json,
    tokenizer_to_json,
)

MILLION = 1_000_000
IGNORED = -100

TOKENIZERS = {"bytes": bytes_tokenizer(), "bpe": learn_bpe(embedded_corpus(), 600)}

# Any code point, surrogates too; and what splitting and spelling have to do with: blanks, the special token.
PIECES = st.sampled_from(
    [" ", "  ", "\n", "\t ", "\x1c", "\u00a0", "'s", "12", END_OF_TEXT, "中", "\U0001f600"]
)
TEXTS = st.lists(PIECES | st.text(st.characters(exclude_categories=()), max_size=8), max_size=12).map("".join)

# A tokenizer has no state that one example could leave behind for the next.
same_tokenizer = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def gpt2(shared_data, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(shared_data / "tiktoken-cache"))
    return gpt2_tokenizer()


@pytest.fixture(params=["bytes", "bpe", "gpt2"])
def tokenizer(request):
    return TOKENIZERS.get(request.param) or request.getfixturevalue("gpt2")


def without_lone_surrogates(text):
    """The slow way: pairs are joined, then every surrogate that is left is a lone one."""
    joined = re.sub(
        "[\ud800-\udbff][\udc00-\udfff]",
        lambda pair: chr(0x10000 + (ord(pair[0][0]) - 0xD800) * 0x400 + ord(pair[0][1]) - 0xDC00),
        text,
    )
    return re.sub("[\ud800-\udfff]", "\ufffd", joined)


# Tokenizers


@same_tokenizer
@given(text=TEXTS)
def test_any_text_comes_back(tokenizer, text):
    ids = encode(tokenizer, text)
    assert ids.ndim == 1
    assert ids.dtype == np.int64
    assert tokenizer.decode(ids.tolist()) == without_lone_surrogates(text)


@same_tokenizer
@given(text=TEXTS)
def test_ids_are_those_that_tiktoken_gives_to_plain_text(tokenizer, text):
    assert encode(tokenizer, text).tolist() == tokenizer.encode_ordinary(text)


def test_end_of_text_in_a_text_is_plain_text(tokenizer):
    assert tokenizer.special_tokens_set == {END_OF_TEXT}
    assert tokenizer.eot_token == tokenizer.n_vocab - 1
    ids = encode(tokenizer, f"one{END_OF_TEXT}two")
    assert tokenizer.eot_token not in ids
    assert tokenizer.decode(ids.tolist()) == f"one{END_OF_TEXT}two"


def test_bytes_are_their_own_ids():
    assert TOKENIZERS["bytes"].n_vocab == 257
    assert encode(TOKENIZERS["bytes"], "né\n").tolist() == list("né\n".encode())


def test_gpt2_reads_the_opening_of_1984(gpt2):
    text = "It was a bright cold day in April, and the clocks were striking thirteen"
    expected = [1026, 373, 257, 6016, 4692, 1110, 287, 3035, 11, 290, 262, 29906, 547, 8871, 28306]
    assert encode(gpt2, text).tolist() == expected
    assert gpt2.n_vocab == 50257


@pytest.mark.parametrize(
    "run",
    [
        "a" * MILLION,
        " " * MILLION,
        " " * MILLION + "x",
        "\n \t" * (MILLION // 3) + "x",
        "x" + "\n" * MILLION + END_OF_TEXT,
        "7" * MILLION,
        "!?" * (MILLION // 2),
        "\U0001f600" * (MILLION // 4),
        "".join(np.random.default_rng(0).choice(list("abcdefghij"), MILLION)),
    ],
    ids=[
        "letter",
        "blank",
        "blank-word",
        "blanks-word",
        "word-lines-word",
        "digit",
        "marks",
        "emoji",
        "random",
    ],
)
def test_a_million_bytes_without_a_break(tokenizer, run):
    assert tokenizer.decode(encode(tokenizer, run).tolist()) == run


def test_learning_from_a_million_bytes_without_a_break():
    letters = "".join(np.random.default_rng(0).choice(list("abcdefghij"), MILLION))
    assert learn_bpe([letters, " " * MILLION + "x"], 300).n_vocab == 300


@pytest.mark.parametrize("run", [" ", "\n\u00a0 ", " \x1c"])
@pytest.mark.parametrize("after", ["", "x", "\x1f", END_OF_TEXT])
@pytest.mark.parametrize("length", [99_999, 100_000, 100_033])
def test_cutting_a_long_run_of_blanks_changes_no_id(gpt2, run, after, length):
    text = "before" + (run * length)[:length] + after
    for tokenizer in (gpt2, TOKENIZERS["bpe"], learn_bpe(run * 9, 259)):
        assert encode(tokenizer, text).tolist() == tokenizer.encode_ordinary(text)


@same_tokenizer
@given(text=TEXTS)
def test_lengths_of_tokens_add_up_to_the_text(tokenizer, text):
    lengths = token_lengths(tokenizer)
    assert lengths.shape == (tokenizer.n_vocab,)
    assert lengths[tokenizer.eot_token] == 0
    assert lengths[encode(tokenizer, text)].sum() == len(without_lone_surrogates(text).encode())


def test_learning_joins_the_most_frequent_neighbours_first():
    # Pieces: "ab", " ab" twice, " ac" twice. " a" stands 4 times, "ab" 3 times; then " a"+"b" and " a"+"c"
    # twice each, and the lower ids come first.
    learned = learn_bpe("ab ab ab ac ac", 259)
    assert spelled_out(learned) == [*BYTES, b" a", b" ab", END_OF_TEXT.encode()]
    assert encode(learned, "ab ab").tolist() == [97, 98, 257]


def spelled_out(tokenizer):
    return [tokenizer.decode_single_token_bytes(i) for i in range(tokenizer.n_vocab)]


@given(
    texts=st.lists(st.text("ab \n", max_size=30) | TEXTS, max_size=6),
    vocabulary_size=st.integers(257, 300),
    data=st.data(),
)
def test_learning_depends_on_nothing_but_the_texts(texts, vocabulary_size, data):
    learned = learn_bpe(texts, vocabulary_size)
    again = learn_bpe(iter(data.draw(st.permutations(texts))), vocabulary_size)
    assert spelled_out(again) == spelled_out(learned)
    assert 257 <= learned.n_vocab <= vocabulary_size
    assert learned.eot_token == learned.n_vocab - 1


def test_learning_reads_lone_surrogates_as_replacement_characters():
    assert spelled_out(learn_bpe("a\ud800b", 259)) == spelled_out(learn_bpe("a\ufffdb", 259))


def test_a_short_text_yields_a_smaller_vocabulary():
    assert learn_bpe("ab ab", 5000).n_vocab == 256 + len([b"ab", b" ab"]) + 1
    assert learn_bpe([], 2**40).n_vocab == 257


def test_the_whole_vocabulary_is_learned_where_the_text_offers_it():
    assert TOKENIZERS["bpe"].n_vocab == 600
    text = embedded_corpus()
    assert len(encode(TOKENIZERS["bpe"], text)) < len(text) / 2


@pytest.mark.parametrize("size", [256, 0, -1])
def test_a_vocabulary_too_small_for_the_bytes_is_refused(size):
    with pytest.raises(ValueError, match=f"vocabulary_size must be at least 257.*not {size}"):
        learn_bpe("text", size)


def test_gpt2_without_its_files_says_what_to_do(tmp_path, monkeypatch):
    def no_network(path):
        raise ConnectionError(f"no route to\n{path}")

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tiktoken.load, "read_file", no_network)
    monkeypatch.delitem(tiktoken.registry.ENCODINGS, "gpt2", raising=False)
    with pytest.raises(FileNotFoundError, match=r"TIKTOKEN_CACHE_DIR.*--tokenizer bpe") as caught:
        gpt2_tokenizer()
    assert "\n" not in str(caught.value)


# Streaming


@same_tokenizer
@given(text=TEXTS)
def test_streamed_text_is_as_far_as_whole_characters_go(tokenizer, text):
    ids = encode(tokenizer, text).tolist()
    fed = []

    def feed():
        for token in ids:
            fed.append(token)
            yield token

    shown = ""
    for piece in stream_text(feed(), tokenizer):
        shown += piece
        assert piece != ""
        assert shown == tokenizer.decode_bytes(fed).decode("utf-8", "ignore")
    assert shown == without_lone_surrogates(text)


@given(ids=st.lists(st.integers(0, 256), max_size=20))
def test_streamed_pieces_of_any_ids_join_to_their_text(ids):
    tokenizer = TOKENIZERS["bytes"]
    assert "".join(stream_text(ids, tokenizer)) == tokenizer.decode(ids)


def test_a_character_is_shown_with_the_token_that_completes_it():
    pieces = stream_text(iter("né".encode()), TOKENIZERS["bytes"])
    assert next(pieces) == "n"
    assert next(pieces) == "é"
    assert list(stream_text([0xC3], TOKENIZERS["bytes"])) == ["\ufffd"]


# A tokenizer as JSON


def test_a_tokenizer_comes_back_from_json(tokenizer):
    text = embedded_corpus()[:20_000] + "né  中文 \U0001f600"
    returned = tokenizer_from_json(json.loads(json.dumps(tokenizer_to_json(tokenizer))))
    assert returned.name == tokenizer.name
    assert returned.eot_token == tokenizer.eot_token
    assert returned.n_vocab == tokenizer.n_vocab
    assert encode(returned, text).tolist() == encode(tokenizer, text).tolist()
    assert tokenizer_fingerprint(returned) == tokenizer_fingerprint(tokenizer)


def test_fingerprints_tell_tokenizers_apart():
    tokenizers = [*TOKENIZERS.values(), learn_bpe("ab ab", 258), learn_bpe("ac ac", 258)]
    assert len({tokenizer_fingerprint(tokenizer) for tokenizer in tokenizers}) == 4


def foreign(ranks, special_tokens, pattern=SPLIT_PATTERN):
    return tiktoken.Encoding("mine", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special_tokens)


RANKS = {byte: rank for rank, byte in enumerate(BYTES)}


def test_a_foreign_tokenizer_can_be_kept():
    tokenizer = foreign(
        {**RANKS, b"ab": 256}, {"<|user|>": 257, END_OF_TEXT: 258}, r"\p{L}+|\p{N}++|[^\s\p{L}]|\s+(?!\S)|\s"
    )
    returned = tokenizer_from_json(tokenizer_to_json(tokenizer))
    assert returned.eot_token == 258
    assert encode(returned, "ab 12\n\nc").tolist() == encode(tokenizer, "ab 12\n\nc").tolist()


@given(special_ids=st.lists(st.integers(0, 259), min_size=3, max_size=3, unique=True))
def test_special_tokens_may_stand_anywhere(special_ids):
    special = dict(zip(["<|user|>", END_OF_TEXT, "<|pad|>"], special_ids, strict=True))
    free = [number for number in range(260) if number not in special_ids]
    tokenizer = foreign(dict(zip([*BYTES, b"ab"], free, strict=True)), special)
    returned = tokenizer_from_json(json.loads(json.dumps(tokenizer_to_json(tokenizer))))
    assert returned._special_tokens == special
    assert returned.n_vocab == 260
    text = "cab \u00e9 <|user|>"
    assert encode(returned, text).tolist() == encode(tokenizer, text).tolist()
    assert tokenizer.decode(encode(returned, text).tolist()) == text
    assert tokenizer_to_json(returned) == tokenizer_to_json(tokenizer)
    assert np.array_equal(token_lengths(returned)[special_ids], [0, 0, 0])


@pytest.mark.parametrize(
    ("tokenizer", "fault"),
    [
        (foreign({**RANKS, b"ab": 257}, {END_OF_TEXT: 258}), "gaps"),
        (foreign(RANKS, {END_OF_TEXT: 300}), "gaps"),
        (foreign(RANKS, {"<|other|>": 256}), "no <|endoftext|>"),
        (foreign(RANKS, {END_OF_TEXT: 256}, r"\w+"), "loses parts"),
    ],
)
def test_a_tokenizer_that_could_not_be_read_back_is_not_written(tokenizer, fault):
    with pytest.raises(ValueError, match=re.escape(fault)):
        tokenizer_to_json(tokenizer)


GOOD = tokenizer_to_json(TOKENIZERS["bytes"])
TOKENS = GOOD["tokens"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"name": 1}, "name must be a str"),
        ({"pattern": None}, "pattern must be a str"),
        ({"tokens": {}}, "tokens must be a list"),
        ({"special_tokens": END_OF_TEXT}, "special_tokens must be a list"),
        ({"extra": 0}, "and no others"),
        ({"tokens": [*TOKENS, 97]}, "tokens must be different texts, but hold 97"),
        ({"tokens": [*TOKENS, "a"]}, "but hold 'a'"),
        ({"tokens": [*TOKENS, ""]}, "but hold ''"),
        ({"tokens": [*TOKENS, ["a"]]}, "but hold ['a']"),
        ({"tokens": [*TOKENS, "\u0100"]}, "'Ā' is not one character per byte"),
        ({"tokens": [*TOKENS, "\ud800"]}, "is not one character per byte"),
        ({"tokens": TOKENS[:97] + TOKENS[98:]}, "no token for the byte 0x61"),
        ({"tokens": []}, "no token for the byte 0x00"),
        ({"special_tokens": []}, "no <|endoftext|>"),
        ({"special_tokens": [END_OF_TEXT, END_OF_TEXT]}, "special_tokens must be different texts"),
        ({"special_tokens": [END_OF_TEXT, "\ud800"]}, "cannot be built"),
        ({"special_ids": None}, "special_ids must be one id for each special token"),
        ({"special_ids": {"a": 0}}, "one id for each special token"),
        ({"special_ids": []}, "one id for each special token"),
        ({"special_ids": [0, 1]}, "one id for each special token"),
        ({"special_ids": [257]}, "special_ids must be different ids in 0..256, but hold 257"),
        ({"special_ids": [-1]}, "but hold -1"),
        ({"special_ids": [True]}, "but hold True"),
        ({"special_ids": ["0"]}, "but hold '0'"),
        ({"special_ids": [10**400]}, "but hold 1000"),
        ({"special_tokens": [END_OF_TEXT, "b"], "special_ids": [7, 7]}, "but hold 7"),
        ({"pattern": ""}, "cannot split this text"),
        ({"pattern": "a*"}, "cannot split this text"),
        ({"pattern": "a"}, "loses parts of a text"),
        ({"pattern": "."}, "loses parts of a text"),
        ({"pattern": "("}, "cannot be built"),
        ({"pattern": r"\p{Nonsense}"}, "cannot be built"),
        ({"pattern": r"(?:\p{L}{1000}){1000}"}, "cannot be built"),
        ({"pattern": "\ud800"}, "cannot be built"),
        ({"pattern": r"(?s:.)" * 200}, "longer than 1000 characters"),
        ({"pattern": r"(?<=a+)b|(?s:.)"}, "might take for ever"),
        ({"pattern": r"(?=(a*)*)b|(?s:.)"}, "might take for ever"),
        ({"pattern": r"(a*)*\1$|(?s:.)"}, "might take for ever"),
    ],
)
def test_hostile_json_is_refused_in_one_line(change, fault):
    with pytest.raises(ValueError, match=re.escape(fault)) as caught:
        tokenizer_from_json({**GOOD, **change})
    assert "\n" not in str(caught.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(GOOD)), inner),
    )
)
def test_json_that_is_no_tokenizer_is_refused(mapping):
    with pytest.raises(ValueError, match="tokenizer"):
        tokenizer_from_json(mapping)


# Corpus


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions of Python document other things")
def test_the_embedded_corpus_has_the_documented_size():
    assert len(embedded_corpus().encode()) == 373_963


def test_the_embedded_corpus_repeats_no_paragraph():
    text = embedded_corpus()
    paragraphs = [paragraph.strip() for paragraph in text.split("\n\n")]
    assert len(set(paragraphs)) == len(paragraphs)
    assert text == text.strip()
    assert 'The "for" statement' in text


def test_a_file_is_read_as_it_stands(tmp_path):
    (tmp_path / "text").write_bytes("né\r\n中".encode())
    assert read_text(tmp_path / "text") == "né\r\n中"
    assert read_text(str(tmp_path / "text")) == "né\r\n中"


def test_a_file_that_is_not_text_names_the_byte(tmp_path):
    (tmp_path / "binary").write_bytes("né".encode() + b"\xff\xfe")
    with pytest.raises(ValueError, match=r"binary is not UTF-8 text: byte 3 is 0xff"):
        read_text(tmp_path / "binary")


@pytest.mark.parametrize(
    ("name", "kind", "fault"),
    [
        ("missing", FileNotFoundError, "No such file"),
        (".", IsADirectoryError, "it is a folder"),
        ("file/inside", NotADirectoryError, "Not a directory"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_in_one_line(tmp_path, name, kind, fault):
    (tmp_path / "file").touch()
    with pytest.raises(kind, match=fault) as caught:
        read_text(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


@given(TEXTS, TEXTS)
def test_fingerprints_tell_texts_apart(text, other):
    assert re.fullmatch("[0-9a-f]{16}", fingerprint(text))
    assert (fingerprint(text) == fingerprint(other)) == (text == other)


def test_a_fingerprint_is_the_start_of_the_sha256():
    assert fingerprint("abc") == "ba7816bf8f01cfea"
    assert fingerprint("\ud800") != fingerprint("?")


# Batches


def frozen(ids):
    ids = np.asarray(ids)
    ids.flags.writeable = False
    return ids


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint64])
def test_sizes_of_windows_may_be_any_integer(kind):
    text = np.arange(1000)
    sizes = {"batch_size": 100, "sequence_length": 7}
    others = {name: kind(size) for name, size in sizes.items()}
    expected = training_batch(text, step=3, seed=1, **sizes)
    assert np.array_equal(training_batch(text, step=kind(3), seed=kind(1), **others), expected)
    windows = list(evaluation_windows(text, stride=5, **sizes))
    for batch, other in zip(windows, evaluation_windows(text, stride=kind(5), **others), strict=True):
        assert np.array_equal(batch, other)
    for name in sizes:
        with pytest.raises(TypeError, match="integer"):
            evaluation_windows(text, **(sizes | {name: 7.0}))


@given(
    num_tokens=st.integers(2, 40),
    data=st.data(),
    step=st.integers(0, 2**40),
    seed=st.integers(0, 2**40),
    batch_size=st.integers(1, 5),
)
def test_a_training_batch_is_windows_and_what_follows(num_tokens, data, step, seed, batch_size):
    sequence_length = data.draw(st.integers(1, num_tokens - 1))
    options = {"seed": seed, "batch_size": batch_size, "sequence_length": sequence_length}
    text = frozen(np.arange(num_tokens, dtype=np.uint16))
    inputs, targets = training_batch(text, step=step, **options)
    assert inputs.shape == targets.shape == (batch_size, sequence_length)
    assert inputs.dtype == targets.dtype == np.int64
    assert np.array_equal(inputs, inputs[:, :1] + np.arange(sequence_length))
    assert np.array_equal(targets, inputs + 1)
    assert targets.max() < num_tokens

    training_batch(text, step=step + 1, **options)
    inputs[:], targets[:] = 0, 0  # what a call returned is the caller's
    again, _ = training_batch(text.tolist(), step=step, **options)
    assert np.array_equal(again, training_batch(text, step=step, **options)[0])
    assert np.array_equal(again, again[:, :1] + np.arange(sequence_length))


def test_every_step_and_every_seed_has_a_batch_of_its_own():
    text = np.arange(10_000)
    batches = {
        training_batch(text, step=step, seed=seed, batch_size=4, sequence_length=8)[0].tobytes()
        for step in range(20)
        for seed in range(20)
    }
    assert len(batches) == 400


def test_every_window_is_drawn_about_as_often_as_any_other():
    num_windows, draws = 7, 7_000
    inputs, targets = training_batch(np.arange(10), step=0, seed=0, batch_size=draws, sequence_length=3)
    counts = np.bincount(inputs[:, 0], minlength=num_windows)
    assert len(counts) == num_windows
    assert np.all(np.abs(counts - draws / num_windows) < 5 * np.sqrt(draws / num_windows))
    assert targets.max() == 9


@given(
    num_tokens=st.integers(2, 60),
    data=st.data(),
    batch_size=st.integers(1, 5),
)
def test_evaluation_predicts_every_token_but_the_first_exactly_once(num_tokens, data, batch_size):
    sequence_length = data.draw(st.integers(1, num_tokens - 1))
    text = frozen(np.arange(1000, 1000 + num_tokens, dtype=np.uint16))
    predicted = Counter()
    shapes = []
    for inputs, targets in evaluation_windows(text, batch_size=batch_size, sequence_length=sequence_length):
        shapes.append(inputs.shape)
        assert inputs.shape == targets.shape
        assert inputs.dtype == targets.dtype == np.int64
        counted = targets != IGNORED
        assert np.array_equal(targets[counted], inputs[counted] + 1)
        assert np.all(inputs[~counted] == 0)
        predicted.update(targets[counted].tolist())
    assert predicted == Counter(text[1:].tolist())
    num_windows = -(-(num_tokens - 1) // sequence_length)
    full, rest = divmod(num_windows, batch_size)
    assert shapes == [(batch_size, sequence_length)] * full + [(rest, sequence_length)] * (rest > 0)


def test_windows_are_read_from_a_memory_map(tmp_path):
    np.save(tmp_path / "ids.npy", np.arange(100, dtype=np.uint16))
    mapped = np.load(tmp_path / "ids.npy", mmap_mode="r")
    expected = training_batch(np.arange(100), step=3, seed=1, batch_size=2, sequence_length=5)
    assert np.array_equal(training_batch(mapped, step=3, seed=1, batch_size=2, sequence_length=5), expected)
    (inputs, targets), *_ = evaluation_windows(mapped, batch_size=2, sequence_length=5)
    assert type(inputs) is np.ndarray
    assert np.array_equal(inputs.ravel(), np.arange(10))
    assert np.array_equal(targets.ravel(), np.arange(1, 11))


def draw(token_ids, *, batch_size=1, sequence_length=4):
    return training_batch(token_ids, step=0, seed=0, batch_size=batch_size, sequence_length=sequence_length)


def evaluate(token_ids, *, batch_size=1, sequence_length=4):
    return evaluation_windows(token_ids, batch_size=batch_size, sequence_length=sequence_length)


def test_a_window_and_one_token_are_enough():
    assert np.array_equal(draw([5, 6, 7, 8, 9]), ([[5, 6, 7, 8]], [[6, 7, 8, 9]]))
    ((inputs, targets),) = evaluate([5, 6, 7, 8, 9])
    assert np.array_equal(inputs, [[5, 6, 7, 8]])
    assert np.array_equal(targets, [[6, 7, 8, 9]])


@pytest.mark.parametrize("windows", [draw, evaluate])
@pytest.mark.parametrize(
    ("token_ids", "options", "kind", "fault"),
    [
        ([5, 6, 7, 8], {}, ValueError, "the text has 4 tokens, but one window needs 5"),
        ([], {}, ValueError, "the text has 0 tokens, but one window needs 5"),
        (np.zeros((9, 9), int), {}, ValueError, r"shape \(N,\), not \(9, 9\)"),
        (np.zeros(9, int), {"batch_size": 0}, ValueError, "batch_size must be at least 1, not 0"),
        (np.zeros(9, int), {"sequence_length": 0}, ValueError, "sequence_length must be at least 1, not 0"),
        (np.zeros(9), {}, TypeError, "token_ids must be integers, not float64"),
        (np.zeros(9, bool), {}, TypeError, "token_ids must be integers, not bool"),
    ],
)
def test_what_holds_no_window_is_refused_at_the_call(windows, token_ids, options, kind, fault):
    with pytest.raises(kind, match=fault):
        windows(token_ids, **options)


@pytest.mark.parametrize(("step", "seed"), [(-1, 0), (0, -1)])
def test_a_negative_step_or_seed_is_refused(step, seed):
    with pytest.raises(ValueError, match="step and seed must be at least 0"):
        training_batch(np.arange(9), step=step, seed=seed, batch_size=1, sequence_length=2)
