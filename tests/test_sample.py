"""The sample command: where a prompt may come from, and what the model holds likely after each token."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpy_gpt as ng
from numpy_gpt.text.tokenizers import bytes_tokenizer
from tests.test_cli import outcome

PROMPT = "na\u00efve caf\u00e9"


@pytest.fixture(scope="module")
def model() -> ng.GPT:
    config = ng.GPTConfig(257, 16, embedding_dim=8, num_heads=2, num_layers=1)
    model = ng.GPT(config, dtype=np.float64)
    model.parameters.flat[:] = np.random.default_rng(0).normal(0, 0.5, model.parameters.flat.size)
    return model


@pytest.fixture
def checkpoint(model: ng.GPT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.chdir(tmp_path)
    ng.save_checkpoint("model.safetensors", model, tokenizer=bytes_tokenizer())
    return "--checkpoint", "model.safetensors"


def test_a_prompt_from_a_file_or_standard_input_is_a_prompt(
    checkpoint: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("prompt.txt").write_text(PROMPT, encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(PROMPT.encode())))
    printed = []
    for source in (("--prompt", PROMPT), ("--prompt-file", "prompt.txt"), ("--prompt-file", "-")):
        assert outcome("sample", *checkpoint, *source, "--max-new-tokens", "30") == 0
        printed.append(capsys.readouterr().out)
    assert printed[0].startswith(PROMPT)
    assert printed[0] == printed[1] == printed[2]


def test_the_speed_is_said_on_standard_error(
    checkpoint: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome("sample", *checkpoint, "--max-new-tokens", "5", "--prompt", "a") == 0
    assert "5 tokens" in capsys.readouterr().err


@pytest.mark.parametrize("action", [("sample", "--max-new-tokens", "2"), ("evaluate", "--text", "text.txt")])
def test_a_model_that_nobody_named_is_named(
    model: ng.GPT, tmp_path: Path, action: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(20 * "abc", encoding="utf-8")
    for folder, step in (("2026-01-02", 1234), ("2026-01-01", 5)):
        (tmp_path / "runs" / folder).mkdir(parents=True)
        path = Path("runs", folder, "best.safetensors")
        ng.save_checkpoint(path, model, tokenizer=bytes_tokenizer(), step=step)
        os.utime(path, (step, step))
    newest = Path("runs", "2026-01-02", "best.safetensors")
    assert outcome(*action) == 0
    assert f"{newest}, after step 1,234\n" in capsys.readouterr().err
    assert outcome(*action, "--checkpoint", str(newest)) == 0
    assert "step" not in capsys.readouterr().err


@pytest.mark.parametrize("top", [1, 3])
def test_the_likeliest_next_tokens_are_listed_at_every_position(
    model: ng.GPT, checkpoint: tuple[str, str], top: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome("sample", *checkpoint, "--prompt", "abca", "--top", str(top)) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("'")]
    logits = model([list(b"abca")])[0, :, :257]
    assert len(lines) == 4
    for line, after, row in zip(lines, "abca", logits, strict=True):
        probabilities = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        assert line.startswith(repr(after))
        places = [
            line.find(
                f"{repr(bytes([v]).decode('utf-8', 'replace')) if v < 256 else ''} {probabilities[v]:.1%}"
            )
            for v in np.argsort(-row, kind="stable")[:top]
            if v < 256
        ]
        assert -1 not in places
        assert places == sorted(places)


@pytest.mark.parametrize("top", ["20", "257", "258", "1000000000000"])
def test_a_list_is_as_wide_as_it_needs_to_be(
    checkpoint: tuple[str, str], top: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome("sample", *checkpoint, "--prompt", "ab", "--top", top) == 0
    printed = capsys.readouterr().out
    assert "\u2026" not in printed, "something was cut off"
    for line in printed.splitlines()[-2:]:
        # One chance for every token listed, and in the first line one for the token that came.
        assert len(re.findall(r" \d+\.\d%", line)) == min(int(top), 257) + line.startswith("'a'")


@pytest.mark.parametrize("prompt", [("--prompt", ""), ("--prompt-file", "empty.txt")])
def test_an_empty_prompt_lists_what_may_begin_a_text(
    checkpoint: tuple[str, str], prompt: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty.txt").touch()
    assert outcome("sample", *checkpoint, *prompt, "--top", "2") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("'<|endoftext|>'")


def test_two_prompts_are_refused(checkpoint: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("prompt.txt").write_text("one")
    assert outcome("sample", *checkpoint, "--prompt", "two", "--prompt-file", "prompt.txt") == 2
    assert "prompt_file" in capsys.readouterr().err


@pytest.mark.parametrize("top", [(), ("--top", "2")])
def test_a_model_of_nothing_finite_is_said_in_one_line(
    model: ng.GPT, checkpoint: tuple[str, str], top: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    ruined = ng.GPT(model.config)
    ruined.parameters.flat[:] = 3e38  # whatever it is multiplied with overflows, and NumPy would warn
    ng.save_checkpoint("model.safetensors", ruined, tokenizer=bytes_tokenizer())
    assert outcome("sample", *checkpoint, "--prompt", "a", *top) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("top", ["0", "-1"])
def test_a_list_of_nothing_is_refused(
    checkpoint: tuple[str, str], top: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome("sample", *checkpoint, "--top", top) == 2
    assert "top" in capsys.readouterr().err
