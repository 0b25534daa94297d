"""Weights in and out through the real command, and a corpus prepared and trained from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import numpy_gpt as ng
from numpy_gpt.interop import export_pretrained
from numpy_gpt.text.tokenizers import bytes_tokenizer
from tests.test_cli import LAST_LINE, TINY, outcome, write_words

PADDED = 300  # ids from 257 on have no token


@pytest.fixture
def model() -> ng.GPT:
    model = ng.GPT(ng.GPTConfig(PADDED, 12, embedding_dim=8, num_heads=2, num_layers=1))
    model.parameters.flat[:] = np.random.default_rng(0).normal(0, 0.5, model.parameters.flat.size)
    return model


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_weights_go_out_and_come_back(model: ng.GPT, capsys: pytest.CaptureFixture[str]) -> None:
    ng.save_checkpoint("model.safetensors", model, tokenizer=bytes_tokenizer())
    assert outcome("export", "--checkpoint", "model.safetensors", "--out", "exported") == 0
    assert outcome("import", "--weights", "exported", "--out", "back.safetensors") == 0
    assert "num_heads=2" in capsys.readouterr().out
    back = ng.load_checkpoint("back.safetensors")
    assert np.array_equal(back.model.parameters.flat, model.parameters.flat)
    assert back.tokenizer is not None
    assert back.tokenizer.n_vocab == 257


def test_ids_without_a_token_are_never_sampled(model: ng.GPT, capsys: pytest.CaptureFixture[str]) -> None:
    model.parameters["embedding.token_embedding.weight"][257:] *= 100  # by far the likeliest, were they let
    ng.save_checkpoint("model.safetensors", model, tokenizer=bytes_tokenizer())
    assert max(ng.generate(model, [65], max_new_tokens=200, seed=1)) >= 257
    assert max(ng.generate(model, [65], max_new_tokens=200, seed=1, vocabulary_limit=257)) < 257
    assert outcome("sample", "--checkpoint", "model.safetensors", "--prompt", "A") == 0
    assert capsys.readouterr().out.startswith("A")


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused() -> None:
    small = ng.GPT(ng.GPTConfig(256, 4, embedding_dim=4, num_heads=1, num_layers=1))
    with pytest.raises(ValueError, match="257 tokens, more than the model's vocabulary of 256"):
        ng.save_checkpoint("model.safetensors", small, tokenizer=bytes_tokenizer())
    assert not Path("model.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "exit_code", "fault"),
    [
        (("import", "--weights", "missing", "--out", "new.safetensors"), 1, "missing"),
        (("import", "--weights", "exported", "--out", "model.safetensors"), 2, "nothing is overwritten"),
        (("export", "--checkpoint", "missing.safetensors", "--out", "new"), 1, "missing.safetensors"),
        (("export", "--checkpoint", "model.safetensors", "--out", "exported"), 2, "nothing is overwritten"),
        (("prepare", "--text", "missing.txt", "--out", "new"), 1, "missing.txt"),
        (("prepare", "--out", "exported"), 2, "exported"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    model: ng.GPT, arguments: tuple[str, ...], exit_code: int, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ng.save_checkpoint("model.safetensors", model)
    export_pretrained("exported", model)
    assert outcome(*arguments) == exit_code
    message = capsys.readouterr().err
    assert fault in message
    assert len(message.splitlines()) == 1


def test_heads_that_weights_do_not_show_are_asked_for(
    model: ng.GPT, capsys: pytest.CaptureFixture[str]
) -> None:
    export_pretrained("exported", model)
    Path("exported/config.json").unlink()
    bare = ("import", "--weights", "exported/model.safetensors", "--out", "new.safetensors")
    assert outcome(*bare) == 1
    message = capsys.readouterr().err
    assert "--num-heads" in message
    assert len(message.splitlines()) == 1
    assert not Path("new.safetensors").exists()
    assert outcome(*bare, "--num-heads", "4") == 0
    assert ng.load_checkpoint("new.safetensors").model.config.num_heads == 4


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
@pytest.mark.parametrize(
    "given", [("--tokenizer", "bytes"), ("--tokenizer", "bpe"), ("--vocabulary-size", "300")]
)
def test_a_tokenizer_that_a_folder_was_not_prepared_with_is_wrong_usage(
    folder: Path, tokenizer: str, given: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    write_words(folder)
    assert outcome("prepare", "--text", "words.txt", "--tokenizer", tokenizer, "--out", "prepared") == 0
    capsys.readouterr()
    shape = ("--num-layers", "1", "--max-sequence-length", "12", "--steps", "1", "--out", "run")
    code = outcome("train", "--text", "prepared", *shape, *given)
    message = capsys.readouterr().err
    if given == ("--tokenizer", tokenizer):
        assert (code, message) == (0, "")
        return
    assert code == 2
    assert "prepared was prepared with" in message
    assert len(message.splitlines()) == 1
    assert not Path("run").exists()


def test_a_prepared_corpus_trains_as_its_text_does(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_words(folder)
    assert outcome("prepare", "--text", "words.txt", "--tokenizer", "bytes", "--out", "prepared") == 0
    assert outcome("train", *TINY, "--steps", "3", "--out", "from_text") == 0
    from_text = capsys.readouterr().out.splitlines()[-1]
    settings = ("prepared" if argument == "words.txt" else argument for argument in TINY)
    assert outcome("train", *settings, "--steps", "3", "--out", "from_prepared") == 0
    assert LAST_LINE.fullmatch(from_text)
    assert capsys.readouterr().out.splitlines()[-1] == from_text
