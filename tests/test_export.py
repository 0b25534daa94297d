"""A GPT written for Hugging Face: the same model and tokenizer there, and the same again when read back."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors.numpy
import tiktoken
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import numpy_gpt as ng
from numpy_gpt.interop import export_pretrained, load_pretrained, load_pretrained_tokenizer
from numpy_gpt.interop.splitting import gpt2_pattern
from numpy_gpt.interop.tokenizer_writing import tokenizer_files
from numpy_gpt.text.corpus import embedded_corpus
from numpy_gpt.text.tokenizers import (
    BYTES,
    END_OF_TEXT,
    bytes_tokenizer,
    encode,
    gpt2_tokenizer,
    learn_bpe,
    tokenizer_from_json,
    tokenizer_to_json,
)
from tests.comparison import assert_float32, assert_same_bits
from tests.models import configs
from tests.pretrained import (
    CONFIG,
    HEAD,
    TOKEN_IDS,
    assert_same_answers,
    drawn_model,
    hugging_face_tensors,
    logits_of,
    with_prefix,
)
from tests.strategies import DTYPES

TOKENIZERS = {"bytes": bytes_tokenizer(), "bpe": learn_bpe(embedded_corpus(), 700)}
# The learned tokens, split as GPT-2 splits.
TOKENIZERS["gpt2"] = tokenizer_from_json(
    tokenizer_to_json(TOKENIZERS["bpe"]) | {"name": "gpt2", "pattern": gpt2_pattern()}
)
# Special tokens first, as Hugging Face's trainer has them, and one among the others.
TOKENIZERS["special first"] = tokenizer_from_json(
    tokenizer_to_json(TOKENIZERS["bpe"])
    | {"special_tokens": [END_OF_TEXT, "<|pad|>", "<|user|>"], "special_ids": [0, 1, 300]}
)


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers", reason="pip install 'numpy-gpt[interop]'")


# ---- the model ---------------------------------------------------------------------------------------------


@given(config=configs(), dtype=DTYPES)
def test_what_was_exported_comes_back_bit_for_bit(config: ng.GPTConfig, dtype: type) -> None:
    model = drawn_model(config, dtype)
    with tempfile.TemporaryDirectory() as name:
        export_pretrained(Path(name) / "a", model)
        returned = load_pretrained(Path(name) / "a")
    assert returned.config == config
    assert_same_bits(returned.parameters.flat, model.parameters.flat, "parameters")


@given(config=configs(), dtype=DTYPES)
def test_the_file_holds_what_hugging_face_expects(config: ng.GPTConfig, dtype: type) -> None:
    model = drawn_model(config, dtype)
    with tempfile.TemporaryDirectory() as name:
        export_pretrained(name, model)
        found = safetensors.numpy.load_file(Path(name) / "model.safetensors")
    expected = with_prefix(hugging_face_tensors(dict(model.named_parameters())), "transformer.")
    if not config.qkv_bias:
        zeros = np.zeros(3 * config.embedding_dim, dtype)
        expected |= {f"transformer.h.{i}.attn.c_attn.bias": zeros for i in range(config.num_layers)}
    assert found.keys() == expected.keys()
    for tensor, array in expected.items():
        assert_same_bits(found[tensor], array, tensor)
    assert (HEAD in found) == (not config.tie_weights)


def test_config_json_says_what_tensors_cannot(tmp_path: Path) -> None:
    untied = replace(CONFIG, tie_weights=False)
    model = drawn_model(untied, np.float64)
    model.parameters.vocabulary_projection.weight[...] = model.parameters.embedding.token_embedding.weight
    export_pretrained(tmp_path / "a", model, tokenizer=None)
    assert load_pretrained(tmp_path / "a").config == untied
    found = json.loads((tmp_path / "a" / "config.json").read_text(encoding="utf-8"))
    assert (found["torch_dtype"], found["eos_token_id"]) == ("float64", None)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation": "gelu"},
        {"tie_weights": False, "layer_norm_eps": 1e-3},
        {"qkv_bias": False, "num_heads": 1, "num_layers": 1},
    ],
    ids=str,
)
def test_transformers_answers_as_the_model_does(
    transformers: Any, tmp_path: Path, changes: dict[str, Any]
) -> None:
    config = replace(CONFIG, **changes)
    model, single = drawn_model(config, np.float64), drawn_model(config, np.float32)
    export_pretrained(tmp_path / "double", model)
    theirs, report = transformers.GPT2LMHeadModel.from_pretrained(
        tmp_path / "double", output_loading_info=True, dtype="auto"
    )
    assert not any(report.values()), report
    assert next(theirs.parameters()).dtype.itemsize == 8
    theirs.train()  # there is no dropout to switch on
    assert_same_answers(model, theirs)

    export_pretrained(tmp_path / "single", single)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "single", dtype="auto")
    assert next(theirs.parameters()).dtype.itemsize == 4
    chains = config.num_layers + 1
    assert_float32(logits_of(theirs), [single(TOKEN_IDS)], model(TOKEN_IDS), "theirs", chains=chains)
    assert_float32(single(TOKEN_IDS), [logits_of(theirs)], model(TOKEN_IDS), "ours", chains=chains)


def test_transformers_never_generates_padding(transformers: Any, tmp_path: Path) -> None:
    tokenizer = TOKENIZERS["bytes"]
    model = drawn_model(replace(CONFIG, vocabulary_size=tokenizer.n_vocab + 9))
    export_pretrained(tmp_path / "a", model, tokenizer=tokenizer)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "a")
    # A head that finds padding the likeliest of all.
    theirs.lm_head.weight.data[tokenizer.n_vocab :] = 1e3 * theirs.transformer.ln_f.bias.data
    prompt = torch.tensor([[1, 2]])
    assert theirs(prompt).logits[0, -1].argmax() >= tokenizer.n_vocab
    new = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=4, do_sample=False)
    assert new.max() < tokenizer.n_vocab


# ---- the tokenizer -----------------------------------------------------------------------------------------

BLANKS = [" ", "   ", "\n", "\n\n", "\t ", "\r\n", "\x1c", "\u00a0"]
PIECES = st.sampled_from([*BLANKS, "'s", "'tis", "12345", "e\u0301", "\u4e2d", "\U0001f600", "<|", "|>"])
WORDS = st.sampled_from(["the", "object", "expression,", "section_7.1", "(__init__)", "endoftext", "x"])
CHARACTERS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
TEXTS = (
    st.lists(PIECES | WORDS | WORDS.map(" {}".format) | CHARACTERS, max_size=20)
    .map("".join)
    .filter(lambda text: END_OF_TEXT not in text)  # which Hugging Face alone makes the special token
)
LONG_TEXTS = ["a" * 100, "." * 100, " " * 100 + "x", "1" * 100, "e\u0301" * 40, embedded_corpus()[:20_000]]
LONG_TEXTS += ["It's 1984:\n\n  \u00eatre \t \u1234 \u4e2d\u6587 \U0001f600!\x00\x1c \n"]


class Pair(NamedTuple):
    """A tokenizer, what transformers makes of its files, and what is read back here."""

    ours: tiktoken.Encoding
    theirs: Any
    returned: tiktoken.Encoding | None

    def check_ids(self, text: str) -> None:
        """Fail unless both give one list of ids, and the text again."""
        ids = encode(self.ours, text).tolist()
        assert self.theirs(text)["input_ids"] == ids, f"{text[:40]!r}"
        assert self.theirs.decode(ids) == text

    def check_vocabulary(self) -> None:
        """Fail unless both know every token and the end of text, and all came back."""
        assert len(self.theirs) == self.ours.n_vocab
        assert self.theirs.eos_token_id == self.theirs.bos_token_id == self.ours.eot_token
        for token, number in self.ours._special_tokens.items():
            assert self.theirs(token)["input_ids"] == [number]
        assert self.returned is not None
        assert tokenizer_to_json(self.returned) == tokenizer_to_json(self.ours)


def export_tokenizer(folder: Path, tokenizer: tiktoken.Encoding, reader: Any) -> Pair:
    config = replace(CONFIG, vocabulary_size=tokenizer.n_vocab, num_layers=1)
    export_pretrained(folder, ng.GPT(config), tokenizer=tokenizer)
    theirs = reader.from_pretrained(folder, model_max_length=10**9)
    return Pair(tokenizer, theirs, load_pretrained_tokenizer(folder))


@pytest.fixture(scope="module", params=list(TOKENIZERS))
def pair(request: pytest.FixtureRequest, transformers: Any, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("exported")
    return export_tokenizer(folder, TOKENIZERS[request.param], transformers.AutoTokenizer)


@settings(max_examples=100)
@given(text=TEXTS)
def test_transformers_gives_the_same_ids(pair: Pair, text: str) -> None:
    pair.check_ids(text)


def test_long_texts_get_the_same_ids(pair: Pair) -> None:
    for text in LONG_TEXTS:
        pair.check_ids(text)


def test_every_token_and_the_end_of_text_are_known(pair: Pair) -> None:
    pair.check_vocabulary()


def test_gpt2s_own_tokenizer_is_read_by_both_its_classes(
    transformers: Any, shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(shared_data / "tiktoken-cache"))
    pair = export_tokenizer(tmp_path / "a", gpt2_tokenizer(), transformers.AutoTokenizer)
    fast = transformers.GPT2TokenizerFast.from_pretrained(tmp_path / "a", model_max_length=10**9)
    for both in (pair, pair._replace(theirs=fast)):
        both.check_vocabulary()
        for text in LONG_TEXTS:
            both.check_ids(text)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tokens=st.lists(st.text("ab ", min_size=2, max_size=6), unique=True, max_size=12),
    texts=st.lists(st.text("ab ", max_size=40), min_size=1, max_size=9),
)
def test_any_order_of_joins_is_the_same_order_there(
    transformers: Any, tokens: list[str], texts: list[str]
) -> None:
    import tokenizers

    mapping = {
        "name": "bpe" if tokens else "bytes",
        "pattern": r"[ab ]{1,9}|[\s\S]",
        "tokens": [*(byte.decode("latin-1") for byte in BYTES), *tokens],
        "special_tokens": ["<|pad|>", END_OF_TEXT],
    }
    ours = tokenizer_from_json(mapping)
    files = tokenizer_files(ours, max_sequence_length=9)
    theirs = tokenizers.Tokenizer.from_str(json.dumps(files["tokenizer.json"]))
    for text in texts:
        assert theirs.encode(text).ids == encode(ours, text).tolist(), text
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "tokenizer.json").write_text(json.dumps(files["tokenizer.json"]), encoding="utf-8")
        returned = load_pretrained_tokenizer(name)
    assert returned is not None
    assert tokenizer_to_json(returned) == mapping


def test_a_tokenizer_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    model = drawn_model()
    with pytest.raises(ValueError, match="tokenizer 'bytes' has 257 tokens, but the model only 11"):
        export_pretrained(tmp_path / "a", model, tokenizer=TOKENIZERS["bytes"])
    ranks = {token: rank for rank, token in enumerate([*BYTES, END_OF_TEXT.encode()])}
    special_ids = {END_OF_TEXT: len(ranks)}
    wide = ng.GPT(replace(CONFIG, vocabulary_size=300, num_layers=1))
    for pattern, ids, fault in (
        (r"[\s\S]", ranks, "as text and as a special token"),
        (r"\w+|\W", dict(list(ranks.items())[:256]), "different ways"),
    ):
        tokenizer = tiktoken.Encoding("odd", pat_str=pattern, mergeable_ranks=ids, special_tokens=special_ids)
        with pytest.raises(ValueError, match=fault):
            export_pretrained(tmp_path / "a", wide, tokenizer=tokenizer)
    assert list(tmp_path.iterdir()) == []


# ---- the folder --------------------------------------------------------------------------------------------


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("kept")
    for name in ("file", "folder"):
        with pytest.raises(FileExistsError, match=name):
            export_pretrained(tmp_path / name, drawn_model())
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "file", "folder"]
    with pytest.raises(FileNotFoundError, match="absent"):
        export_pretrained(tmp_path / "absent" / "a", drawn_model())


def test_an_empty_folder_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path)
    export_pretrained("a", drawn_model())
    assert sorted(path.name for path in Path("a").iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]

    (tmp_path / "b").mkdir()
    monkeypatch.chdir("b")
    export_pretrained(".", drawn_model())
    assert (tmp_path / "b" / "config.json").exists()


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="needs a limit on the size of files, as POSIX has")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # as if 4 KiB were left
    try:
        with pytest.raises(OSError, match=r"a'$"):
            export_pretrained(tmp_path / "a", drawn_model())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing_and_a_kill_what_the_next_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            export_pretrained(tmp_path / "a", drawn_model())
    assert list(tmp_path.iterdir()) == []

    (tmp_path / ".a.tmp").mkdir()  # killed in between
    (tmp_path / ".a.tmp" / "model.safetensors").write_text("half")
    (tmp_path / ".a.tmp" / "stray").write_text("half")
    export_pretrained(tmp_path / "a", drawn_model())
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert not (tmp_path / "a" / "stray").exists()
