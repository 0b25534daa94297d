"""Evaluation of a whole text: every token counts once, whatever the stride, and the sum is torch's."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812  the name everyone gives it

import numpy_gpt as ng
import torch_gpt
from numpy_gpt.ops import IGNORED_TARGET
from numpy_gpt.text.batches import evaluation_windows
from numpy_gpt.text.tokenizers import bytes_tokenizer
from numpy_gpt.training.evaluation import evaluate
from tests.test_cli import LAST_LINE, outcome

TEXT = "Nobody knows how many licks it takes – na\u00efve people count them twice.\n" * 3


@given(data=st.data(), T=st.integers(1, 7), batch_size=st.integers(1, 4), seed=st.integers(0, 9))
def test_every_token_but_the_first_is_a_target_once_with_enough_before_it(
    data: st.DataObject, T: int, batch_size: int, seed: int
) -> None:
    stride = data.draw(st.integers(1, T))
    ids = np.random.default_rng(seed).permutation(data.draw(st.integers(T + 1, 40)))  # all different
    counted: list[int] = []
    for inputs, targets in evaluation_windows(ids, batch_size=batch_size, sequence_length=T, stride=stride):
        assert inputs.shape == targets.shape
        assert 1 <= len(inputs) <= batch_size
        for row, target_row in zip(inputs.tolist(), targets.tolist(), strict=True):
            start = ids.tolist().index(row[0])
            for t, target in enumerate(target_row):
                if target != IGNORED_TARGET:
                    counted.append(target)
                    assert row[: t + 1] == ids[start : start + t + 1].tolist()
                    assert target == ids[start + t + 1]
                    assert start == 0 or t >= T - stride
    assert counted == ids[1:].tolist()


@pytest.mark.parametrize("stride", [0, 5, -1])
def test_a_stride_that_skips_tokens_is_refused(stride: int) -> None:
    with pytest.raises(ValueError, match="stride"):
        evaluation_windows(np.arange(9), batch_size=1, sequence_length=4, stride=stride)


@pytest.fixture(scope="module")
def model() -> ng.GPT:
    config = ng.GPTConfig(257, 9, embedding_dim=12, num_heads=2, num_layers=2)
    model = ng.GPT(config, dtype=np.float64)
    model.parameters.flat[:] = np.random.default_rng(0).normal(0, 0.3, model.parameters.flat.size)
    return model


@pytest.mark.parametrize("stride", [None, 9, 4, 1])
def test_the_loss_is_torchs_sum_over_the_same_windows(model: ng.GPT, stride: int | None) -> None:
    ids = np.frombuffer(TEXT.encode(), np.uint8)
    bytes_per_token = np.array([1] * 256 + [0])
    result = evaluate(model, ids, bytes_per_token, batch_size=5, stride=stride)

    twin, tokens, T, step = torch_gpt.from_numpy(model), torch.tensor(ids.astype(int)), 9, stride or 9
    nats, scored = 0.0, 1  # the first token is no target
    for start in range(0, len(tokens), step):
        window = tokens[start : start + T + 1]
        new = min(start + T, len(tokens) - 1) - (scored - 1)
        if new <= 0:
            break
        losses = F.cross_entropy(twin(window[None, :-1])[0], window[1:], reduction="none")
        nats, scored = nats + losses[-new:].sum().item(), scored + new
    assert scored == len(tokens)
    assert result.loss == pytest.approx(nats / (len(tokens) - 1), rel=1e-12)
    assert result.bits_per_byte == pytest.approx(nats / math.log(2) / (len(TEXT.encode()) - 1), rel=1e-12)
    assert result.perplexity == pytest.approx(math.exp(result.loss), rel=1e-12)


@pytest.fixture
def checkpoint(model: ng.GPT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT, encoding="utf-8")
    ng.save_checkpoint("model.safetensors", model, tokenizer=bytes_tokenizer())
    return "model.safetensors"


def test_the_command_prints_loss_perplexity_and_bits(
    checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = []
    for stride in ("9", "2"):
        arguments = ("evaluate", "--checkpoint", checkpoint, "--text", "text.txt", "--stride", stride)
        assert outcome(*arguments) == 0
        printed = capsys.readouterr().out
        found = LAST_LINE.fullmatch(printed.splitlines()[-1])
        assert found
        losses.append(float(found[1]))
        perplexity = re.search(r"perplexity ([\d,]+\.\d\d)", printed)
        assert perplexity
        assert float(perplexity[1].replace(",", "")) == pytest.approx(math.exp(losses[-1]), rel=1e-3)
    assert losses[0] != losses[1]


def test_a_perplexity_beyond_all_numbers_is_infinite(
    model: ng.GPT, checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sure = ng.GPT(model.config, dtype=np.float64)
    sure.parameters.flat[:] = model.parameters.flat * 1e3
    ng.save_checkpoint(checkpoint, sure, tokenizer=bytes_tokenizer())
    assert outcome("evaluate", "--checkpoint", checkpoint, "--text", "text.txt") == 0
    printed = capsys.readouterr().out
    assert "perplexity inf\n" in printed
    found = LAST_LINE.fullmatch(printed.splitlines()[-1])
    assert found
    assert 709 < float(found[1]) < math.inf


@pytest.mark.parametrize("weight", [math.nan, 3e38])
def test_a_loss_that_is_not_finite_is_said_in_one_line(
    model: ng.GPT, checkpoint: str, weight: float, capsys: pytest.CaptureFixture[str]
) -> None:
    ruined = ng.GPT(model.config)
    ruined.parameters.flat[:] = weight
    ng.save_checkpoint(checkpoint, ruined, tokenizer=bytes_tokenizer())
    assert outcome("evaluate", "--checkpoint", checkpoint, "--text", "text.txt") == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "numpy-gpt: the model's loss on text.txt is not finite\n")


@pytest.mark.parametrize(
    ("arguments", "exit_code", "fault"),
    [
        (("--text", "missing.txt"), 1, "missing.txt"),
        (("--text", "text.txt", "--stride", "0"), 2, "stride"),
        (("--text", "text.txt", "--stride", "10"), 2, "stride must be in 1..9"),
        (("--text", "text.txt", "--batch-size", "0"), 2, "batch_size"),
        (("--text", "short.txt"), 1, "5 tokens, but one window needs 10"),
        ((), 2, "--text"),
    ],
)
def test_what_cannot_be_evaluated_is_said_in_one_line(
    checkpoint: str,
    arguments: tuple[str, ...],
    exit_code: int,
    fault: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("short.txt").write_text("short", encoding="utf-8")
    assert outcome("evaluate", "--checkpoint", checkpoint, *arguments) == exit_code
    message = capsys.readouterr().err
    assert fault in message
    assert exit_code == 2 or len(message.splitlines()) == 1
