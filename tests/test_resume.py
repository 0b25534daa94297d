"""Stopping and going on: a run that was interrupted ends where one that was not ends, to the last bit."""

from __future__ import annotations

import csv
import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

import numpy_gpt as ng
from numpy_gpt.config import TrainConfig
from tests.test_cli import COMMAND, ENVIRONMENT, LAST_LINE, TINY, outcome, run, write_words

STEPS = ("--steps", "14", "--seed", "3")


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_words(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    write_words(folder)
    done = run("train", *TINY, *STEPS, "--eval-interval", "4", "--out", "whole", folder=folder)
    assert done.returncode == 0, done.stderr
    return folder / "whole"


def tensors(path: Path) -> dict[str, np.ndarray]:
    """Return all that a checkpoint holds: parameters, moments and the number of steps."""
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping


def metrics(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def assert_same_run(folder: Path, whole: Path) -> None:
    """Parameters, moments and the losses of every step are equal, bit for bit."""
    resumed, expected = tensors(folder / "last.safetensors"), tensors(whole / "last.safetensors")
    assert resumed.keys() == expected.keys()
    assert all(np.array_equal(resumed[name], expected[name]) for name in expected)
    for name in ("step", "tokens", "learning_rate", "train_loss", "gradient_norm"):
        assert [row[name] for row in metrics(folder)] == [row[name] for row in metrics(whole)]


@pytest.mark.parametrize("eval_interval", ["1", "5", "100"])
def test_a_resumed_run_is_the_run_that_never_stopped(words: Path, whole: Path, eval_interval: str) -> None:
    assert outcome("train", *TINY, *STEPS, "--stop-after", "5", "--out", "parts") == 0
    for last, stop in (("parts/last.safetensors", "9"), ("parts", "14")):
        arguments = ("train", "--resume", last, "--eval-interval", eval_interval, "--stop-after", stop)
        assert outcome(*arguments) == 0
    assert_same_run(words / "parts", whole)


def test_stopping_early_ends_as_a_whole_run_does(words: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome("train", *TINY, *STEPS, "--stop-after", "5", "--out", "parts") == 0
    assert LAST_LINE.fullmatch(capsys.readouterr().out.splitlines()[-1])
    assert ng.load_checkpoint("parts/last.safetensors").step == 5
    rates = [float(row["learning_rate"]) for row in metrics(words / "parts")]
    assert len(rates) == 5
    assert rates[-1] > 0.5 * max(rates), "the schedule is that of all steps, not of those before the stop"


def test_resuming_a_finished_run_evaluates_it_again(words: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome("train", *TINY, *STEPS, "--out", "parts") == 0
    before, first = tensors(words / "parts/last.safetensors"), capsys.readouterr().out.splitlines()[-1]
    assert outcome("train", "--resume", "parts/last.safetensors") == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.endswith(", which was the last") for line in lines)
    assert lines[-1] == first
    after = tensors(words / "parts/last.safetensors")
    assert all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    "changed",
    [
        ("--steps", "20"),
        ("--batch-size", "4"),
        ("--learning-rate", "0.001"),
        ("--seed", "4"),
        ("--num-layers", "2"),
        ("--accumulate", "3"),
        ("--dtype", "float64"),
        ("--weight-decay", "0.5"),
        ("--clip-norm", "0"),
        ("--beta2", "0.5"),
        ("--tokenizer", "bpe"),
        ("--ops", "book"),
    ],
)
def test_a_setting_that_changes_the_result_is_refused_by_name(
    words: Path, changed: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome("train", *TINY, *STEPS, "--stop-after", "2", "--out", "parts") == 0
    before = (words / "parts/last.safetensors").read_bytes()
    capsys.readouterr()
    assert outcome("train", "--resume", "parts/last.safetensors", *changed) == 2
    message = capsys.readouterr().err
    assert changed[0] in message
    assert len(message.splitlines()) == 1
    assert (words / "parts/last.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    "changed",
    [("--tokenizer", "bytes"), ("--vocabulary-size", "280"), ("--preset", "small"), ("--num-heads", "4")],
)
def test_a_setting_that_was_left_open_is_refused_by_name(
    words: Path, changed: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    shape = ("--max-sequence-length", "12", "--embedding-dim", "8", "--num-layers", "1")
    arguments = ("--text", "words.txt", "--batch-size", "3", "--vocabulary-size", "270", *shape, *STEPS)
    assert outcome("train", *arguments, "--stop-after", "1", "--num-heads", "2", "--out", "parts") == 0
    capsys.readouterr()
    open_again = ("train", "--resume", "parts/last.safetensors", "--out", "branch", "--stop-after", "2")
    code = outcome(*open_again, *changed)
    message = capsys.readouterr().err
    if changed[0] == "--preset":  # all that it would bring is given already
        assert (code, message) == (0, "")
        return
    assert code == 2
    assert changed[0] in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    "spelled_out",
    [
        ("--tokenizer", "bpe"),
        ("--vocabulary-size", "1024"),
        ("--num-layers", "2"),
        ("--num-heads", "4"),
        ("--embedding-dim", "128"),
        ("--max-sequence-length", "64"),
        ("--activation", "gelu_tanh"),
        ("--preset", "nano", "--num-layers", "2"),
        ("--dtype", "float32"),
    ],
)
def test_what_stands_in_for_an_open_setting_may_be_said(spelled_out: tuple[str, ...]) -> None:
    saved = TrainConfig().with_tokenizer("bpe", 1024)
    values = {
        flag.removeprefix("--").replace("-", "_"): int(value) if value.isdigit() else value
        for flag, value in zip(spelled_out[::2], spelled_out[1::2], strict=True)
    }
    assert dataclasses.replace(saved, **values).changes_from(saved) == []
    assert dataclasses.replace(saved, **values).changes_from(TrainConfig()) == []


@pytest.mark.parametrize("same", [("--tokenizer", "bytes"), ("--vocabulary-size", "257"), ()])
def test_a_run_on_prepared_text_knows_its_tokenizer(words: Path, same: tuple[str, ...]) -> None:
    assert outcome("prepare", "--text", "words.txt", "--tokenizer", "bytes", "--out", "prepared") == 0
    from_prepared = ["prepared" if argument == "words.txt" else argument for argument in TINY]
    at = from_prepared.index("--tokenizer")
    del from_prepared[at : at + 2]  # it is the folder's
    assert outcome("train", *from_prepared, *STEPS, "--stop-after", "2", "--out", "parts") == 0
    resume = ("train", "--resume", "parts/last.safetensors", "--stop-after", "3")
    assert outcome(*resume, "--tokenizer", "bpe") == 2
    assert outcome(*resume, *same) == 0


def test_settings_that_change_nothing_may_be_given(words: Path, whole: Path) -> None:
    assert outcome("train", *TINY, *STEPS, "--stop-after", "5", "--out", "parts") == 0
    shutil.move("words.txt", "moved.txt")
    arguments = ["--threads", "1", "--eval-interval", "2", "--out", "branch", "--text", "moved.txt", *STEPS]
    assert outcome("train", "--resume", "parts/last.safetensors", *arguments) == 0
    resumed, expected = tensors(words / "branch/last.safetensors"), tensors(whole / "last.safetensors")
    assert all(np.array_equal(resumed[name], expected[name]) for name in expected)
    assert [row["step"] for row in metrics(words / "branch")] == [str(step) for step in range(6, 15)]
    assert ng.load_checkpoint("parts/last.safetensors").step == 5, "the first folder stays as it was"


def test_another_number_of_threads_is_said_to_round_otherwise(
    words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome("train", *TINY, *STEPS, "--stop-after", "5", "--threads", "2", "--out", "parts") == 0
    assert ng.load_checkpoint("parts/last.safetensors").metadata["threads"] == 2
    capsys.readouterr()
    for threads, is_said in (("2", False), ("1", True)):
        arguments = ["--threads", threads, "--stop-after", "6", "--out", f"on-{threads}"]
        assert outcome("train", "--resume", "parts", *arguments) == 0
        lines = capsys.readouterr().out.splitlines()
        assert any(line.startswith("until now it ran on 2 threads") for line in lines) == is_said


def test_a_changed_text_is_noticed(words: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome("train", *TINY, *STEPS, "--stop-after", "2", "--out", "parts") == 0
    with (words / "words.txt").open("a", encoding="utf-8") as file:
        file.write(".")
    assert outcome("train", "--resume", "parts/last.safetensors") == 1
    assert "the text has changed" in capsys.readouterr().err


def test_an_earlier_checkpoint_does_not_overwrite_a_later_one(
    words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome("train", *TINY, *STEPS, "--stop-after", "2", "--out", "parts") == 0
    shutil.copy("parts/last.safetensors", "parts/early.safetensors")
    assert outcome("train", "--resume", "parts/last.safetensors", "--stop-after", "4") == 0
    capsys.readouterr()
    assert outcome("train", "--resume", "parts/early.safetensors") == 2
    assert "further along" in capsys.readouterr().err
    assert ng.load_checkpoint("parts/last.safetensors").step == 4


def test_a_model_without_an_optimizer_cannot_be_resumed(
    words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome("train", *TINY, *STEPS, "--stop-after", "2", "--out", "parts") == 0
    checkpoint = ng.load_checkpoint("parts/last.safetensors")
    ng.save_checkpoint("bare.safetensors", checkpoint.model, metadata=checkpoint.metadata)
    assert outcome("train", "--resume", "bare.safetensors") == 1
    assert "no optimizer" in capsys.readouterr().err


@pytest.mark.parametrize("settings", [None, 3, {}, {"steps": 3}, {"no_such_setting": 1}])
def test_settings_that_are_none_are_refused_in_one_line(
    words: Path, settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ng.GPT(ng.GPTConfig(257, 4, embedding_dim=4, num_heads=1, num_layers=1))
    ng.save_checkpoint("odd.safetensors", model, metadata={"train_config": settings})
    assert outcome("train", "--resume", "odd.safetensors") == 1
    message = capsys.readouterr().err
    assert "settings" in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("accumulate", [2, 3, 5])
def test_parts_of_a_batch_equal_the_whole_batch(words: Path, accumulate: int) -> None:
    # Five windows in two, three or five parts: parts of unequal size, and of one window each.
    shared = ("train", *TINY, *STEPS, "--batch-size", "5", "--dtype", "float64")
    assert outcome(*shared, "--out", "whole") == 0
    assert outcome(*shared, "--accumulate", str(accumulate), "--out", "parts") == 0
    whole, parts = (tensors(words / name / "last.safetensors") for name in ("whole", "parts"))
    for name, expected in whole.items():
        assert np.abs(parts[name] - expected).max() <= 1e-10 * max(1, np.abs(expected).max()), name


def test_more_parts_than_windows_are_refused(words: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome("train", *TINY, "--accumulate", "4") == 2
    assert "accumulate" in capsys.readouterr().err


def killed_while_training(folder: Path, delay: float) -> None:
    """Start or go on with the run in `run`, and kill it without a warning after a while."""
    last = folder / "run/last.safetensors"
    arguments = (
        ["--resume", str(last), "--eval-interval", "1"]
        if last.exists()
        else [*TINY, "--steps", "4000", "--eval-interval", "1", "--out", "run"]
    )
    process = subprocess.Popen(
        [*COMMAND, "train", *arguments], cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not last.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(delay)
    process.kill()
    process.wait()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
@pytest.mark.parametrize("times", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_again_and_again_goes_on(words: Path, times: int) -> None:
    assert signal.SIGKILL
    reached = []
    for attempt in range(times):
        killed_while_training(words, delay=2.5 + 0.13 * attempt)
        reached.append(ng.load_checkpoint(words / "run/last.safetensors").step)
        assert ng.load_checkpoint(words / "run/best.safetensors").step <= reached[-1] + 1
    assert reached == sorted(reached)
    assert reached[-1] > reached[0]
    stop = str(reached[-1] + 2)
    assert outcome("train", "--resume", "run/last.safetensors", "--stop-after", stop) == 0
    assert [row["step"] for row in metrics(words / "run")] == [str(i + 1) for i in range(int(stop))]
    assert not list((words / "run").glob(".*")), "what a kill left aside is gone after the next checkpoint"


def test_a_checkpoint_says_how_its_run_was_set_up(words: Path) -> None:
    assert outcome("train", *TINY, *STEPS, "--stop-after", "2", "--out", "parts") == 0
    metadata = ng.load_checkpoint("parts/last.safetensors").metadata
    assert metadata["train_config"]["batch_size"] == 3
    assert metadata["train_config"]["text"] == ["words.txt"]
    assert json.dumps(metadata)
    assert float(metadata["best_validation_loss"]) > 0
