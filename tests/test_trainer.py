"""Training: it learns, it is torch's step for step, and nothing but data and seed decides its bits."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

import numpy_gpt as ng
import torch_gpt
from numpy_gpt.arrays import Array
from numpy_gpt.config import TrainConfig
from numpy_gpt.ops import Op, Ops, book
from numpy_gpt.parallel import blas_threads
from numpy_gpt.text.batches import training_batch
from numpy_gpt.training.data import TrainingData, load_data
from numpy_gpt.training.evaluation import evaluate
from numpy_gpt.training.run_folder import RunFolder
from numpy_gpt.training.schedule import learning_rate_at
from numpy_gpt.training.trainer import NotFiniteError, StepReport, Trainer
from tests.comparison import FLOAT64_AGREEMENT, assert_close, assert_same_bits
from tests.models import TIED, configs

SENTENCE = "the quick brown fox jumps over a lazy dog while seven wizards brew tea \u2013 na\u00efve, no?"
SMALL: dict[str, Any] = {
    "tokenizer": "bytes",
    "num_layers": 1,
    "num_heads": 2,
    "embedding_dim": 16,
    "max_sequence_length": 12,
    "batch_size": 4,
    "steps": 6,
    "warmup_steps": 2,
    "learning_rate": 0.01,
    "min_learning_rate": 0.001,
    "eval_interval": 100,
}


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five hundred words in random order."""
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(" ".join(random.Random(0).choices(SENTENCE.split(), k=500)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def data(text_file: Path) -> TrainingData:
    """Those words as bytes."""
    return load_data(TrainConfig(text=(text_file,), **SMALL))


def run(data: TrainingData, **settings: Any) -> tuple[Trainer, list[StepReport]]:
    """Return a trainer that has run to its end, and its reports."""
    trainer = Trainer.start(TrainConfig(**(SMALL | settings)), data)
    return trainer, list(trainer.run())


def test_the_loss_falls_from_a_guess_to_what_the_text_is_like(data: TrainingData) -> None:
    _, reports = run(data, steps=150, learning_rate=0.02)
    assert reports[0].train_loss == pytest.approx(
        math.log(257), abs=0.1
    )  # as good as rolling a 257-sided die
    last = reports[-1].validation
    assert last is not None
    # Letters drawn as often as the text has them, and no more learned than that, would give 2.9.
    counts = np.bincount(data.validation_ids)
    shares = counts[counts > 0] / counts.sum()
    assert last.loss < -(shares * np.log(shares)).sum()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("clip_norm", [0.0, 0.5])
def test_reports_say_what_happened(data: TrainingData, dtype: str, clip_norm: float) -> None:
    trainer, reports = run(data, steps=7, eval_interval=3, dtype=dtype, clip_norm=clip_norm)
    assert [report.step for report in reports] == [1, 2, 3, 4, 5, 6, 7]
    assert [report.tokens for report in reports] == [48 * step for step in range(1, 8)]
    assert [report.step for report in reports if report.validation] == [3, 6, 7]
    assert trainer.step == 7
    rates = [
        learning_rate_at(step, peak=0.01, minimum=0.001, warmup_steps=2, total_steps=7) for step in range(7)
    ]
    assert [report.learning_rate for report in reports] == rates
    for report in reports:
        assert type(report.train_loss) is float
        assert type(report.gradient_norm) is float
        assert report.gradient_norm > 0.5  # before clipping
        assert report.tokens_per_second > 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_training_stays_in_its_dtype(data: TrainingData, dtype: type) -> None:
    trainer, _ = run(data, steps=2, dtype=np.dtype(dtype).name)
    optimizer = trainer.optimizer
    vectors = (trainer.model.parameters, optimizer.first_moment, optimizer.second_moment)
    assert {vector.dtype for vector in vectors} == {np.dtype(dtype)}
    token_ids, target_ids = training_batch(
        data.training_ids, step=0, seed=0, batch_size=2, sequence_length=12
    )
    _, gradients = trainer.model.loss_and_gradients(token_ids, target_ids)
    assert gradients.dtype == dtype
    assert trainer.model(token_ids).dtype == dtype


def torch_run(config: TrainConfig, data: TrainingData) -> tuple[list[float], list[float], dict[str, Array]]:
    """Return losses, gradient norms and final weights of the same training in torch."""
    start = Trainer.start(config, data).model
    twin = torch_gpt.from_numpy(start)
    groups = [
        {"params": [p for p in twin.parameters() if p.ndim == 2], "weight_decay": config.weight_decay},
        {"params": [p for p in twin.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(config.beta1, config.beta2))
    losses, norms = [], []
    for step in range(config.steps):
        token_ids, target_ids = training_batch(
            data.training_ids,
            step=step,
            seed=config.seed,
            batch_size=config.batch_size,
            sequence_length=start.config.max_sequence_length,
        )
        optimizer.zero_grad()
        logits = twin(torch.tensor(token_ids))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(target_ids).flatten())
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(twin.parameters(), config.clip_norm or math.inf).item())
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(
                step,
                peak=config.learning_rate,
                minimum=config.min_learning_rate,
                warmup_steps=config.warmup_steps,
                total_steps=config.steps,
            )
        optimizer.step()
        losses.append(loss.item())
    return losses, norms, {name: p.detach().numpy() for name, p in twin.named_parameters()}


@pytest.mark.parametrize("clip_norm", [0.0, 0.3, 1e6])
def test_training_is_torchs_step_for_step(data: TrainingData, clip_norm: float) -> None:
    settings = {"dtype": "float64", "clip_norm": clip_norm, "seed": 5, "beta1": 0.8, "weight_decay": 0.3}
    trainer, reports = run(data, **settings)
    losses, norms, weights = torch_run(trainer.config, data)
    assert_close([r.train_loss for r in reports], losses, "losses", tolerance=FLOAT64_AGREEMENT)
    assert_close([r.gradient_norm for r in reports], norms, "gradient norms", tolerance=FLOAT64_AGREEMENT)
    for name, view in trainer.model.named_parameters():
        if "W_key.bias" in name:
            continue  # its gradient is zero by symmetry, and Adam makes steps of the rounding noise
        assert_close(
            view, weights[name], name, tolerance=FLOAT64_AGREEMENT, floor=trainer.config.learning_rate
        )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_evaluating_more_or_less_often_changes_no_bit(data: TrainingData, dtype: str) -> None:
    never, often = (run(data, eval_interval=interval, dtype=dtype) for interval in (1000, 1))
    assert_same_bits(often[0].model.parameters.flat, never[0].model.parameters.flat, "parameters")
    assert [report.train_loss for report in often[1]] == [report.train_loss for report in never[1]]
    assert often[1][-1].validation == never[1][-1].validation
    for name, array in never[0].optimizer.state_dict().items():
        assert_same_bits(often[0].optimizer.state_dict()[name], array, name)


def test_equal_seeds_give_equal_bits_and_other_seeds_do_not(data: TrainingData) -> None:
    first, again, other = (run(data, seed=seed)[0].model.parameters.flat for seed in (3, 3, 4))
    assert_same_bits(again, first, "parameters")
    assert not np.array_equal(other, first)


def test_looking_at_a_run_midway_changes_no_bit(data: TrainingData) -> None:
    undisturbed, _ = run(data)
    trainer = Trainer.start(TrainConfig(**SMALL), data)
    for report in trainer.run():
        assert report.step == trainer.step
        trainer.evaluate()
        list(ng.generate(trainer.model, data.validation_ids[:3], max_new_tokens=2, seed=report.step))
    assert_same_bits(trainer.model.parameters.flat, undisturbed.model.parameters.flat, "parameters")


def test_threads_are_limited_for_a_while_only() -> None:
    def used() -> set[int]:
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    if not used():
        pytest.skip("NumPy's matrix products come from a library that cannot be steered")
    before = used()
    with blas_threads(2):
        with blas_threads(1):
            assert used() == {1}
        assert used() == {2}
        with blas_threads(None):
            assert used() == {2}
    assert used() == before


# ---- evaluation --------------------------------------------------------------------------------------------


def slow_total(model: ng.GPT, token_ids: Array) -> float:
    """Return the surprise at every token but the first, in nats: one at a time, from the window it is in."""
    T, total = model.config.max_sequence_length, 0.0
    for i in range(1, len(token_ids)):
        start = (i - 1) // T * T
        logits = model(token_ids[None, start:i])[0, -1].astype(np.float64)  # (V,)
        total += float(np.logaddexp.reduce(logits) - logits[token_ids[i]])
    return total


@given(
    config=configs(),
    num_windows=st.integers(1, 4),
    rest=st.integers(0, 5),
    batch_size=st.integers(1, 3),
    seed=st.integers(0, 999),
)
def test_the_loss_is_the_mean_surprise_over_the_whole_text(
    config: ng.GPTConfig, num_windows: int, rest: int, batch_size: int, seed: int
) -> None:
    drawn = np.random.default_rng(seed)
    length = num_windows * config.max_sequence_length + rest % config.max_sequence_length + 1
    token_ids = drawn.integers(config.vocabulary_size, size=length)
    bytes_per_token = drawn.integers(1, 9, size=config.vocabulary_size)
    model = ng.GPT(config, dtype=np.float64, seed=seed)
    model.parameters.flat[...] += 0.3 * drawn.standard_normal(model.parameters.flat.size)

    result = evaluate(model, token_ids, bytes_per_token, batch_size=batch_size)
    total = slow_total(model, token_ids)
    num_bytes = sum(int(bytes_per_token[token]) for token in token_ids[1:])
    assert_close(result.loss, total / (length - 1), "loss", tolerance=FLOAT64_AGREEMENT, floor=1.0)
    expected_bits = total / math.log(2) / num_bytes
    assert_close(result.bits_per_byte, expected_bits, "bits", tolerance=FLOAT64_AGREEMENT, floor=1.0)
    assert str(result) == f"{result.loss:.4f} nats/token {result.bits_per_byte:.4f} bits/byte"


@pytest.mark.parametrize(("tokenizer", "vocabulary_size"), [("bytes", None), ("bpe", 300)])
def test_bits_are_per_byte_of_the_validation_text(
    text_file: Path, tokenizer: Any, vocabulary_size: int | None
) -> None:
    config = TrainConfig(
        **(SMALL | {"text": (text_file,), "tokenizer": tokenizer, "vocabulary_size": vocabulary_size})
    )
    data = load_data(config)
    whole = text_file.read_text(encoding="utf-8")
    assert whole.endswith(data.validation_text)
    assert len(data.validation_text) == math.ceil(len(whole) / 10)
    assert data.num_bytes == len(text_file.read_bytes())
    assert data.tokenizer.decode(data.training_ids.tolist()) + data.validation_text == whole

    result = Trainer.start(config, data).evaluate()
    first_token = data.tokenizer.decode_single_token_bytes(int(data.validation_ids[0]))
    num_bytes = len(data.validation_text.encode("utf-8")) - len(first_token)
    nats = result.loss * (len(data.validation_ids) - 1)
    assert result.bits_per_byte == pytest.approx(nats / math.log(2) / num_bytes, rel=1e-12)
    assert data.validation_ids.max() < data.tokenizer.n_vocab


@pytest.mark.parametrize(
    ("num_characters", "part"), [(10, "training"), (100, "validation"), (120, "validation")]
)
def test_a_text_too_short_for_a_window_is_refused_before_training(
    tmp_path: Path, num_characters: int, part: str
) -> None:
    (tmp_path / "short.txt").write_text("x" * num_characters)
    found = num_characters * 9 // 10 if part == "training" else num_characters // 10
    with pytest.raises(ValueError, match=rf"short\.txt.*{part}.* {found} tokens.* 13") as caught:
        load_data(TrainConfig(text=(tmp_path / "short.txt",), **SMALL))
    assert "\n" not in str(caught.value)


def test_one_window_is_enough(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("x" * 130)  # 13 for validation, T + 1
    data = load_data(TrainConfig(text=(tmp_path / "short.txt",), **SMALL))
    assert len(data.validation_ids) == 13
    _, reports = run(data, steps=1)
    assert reports[0].validation is not None


# ---- what is not finite ------------------------------------------------------------------------------------


def trainer_with(data: TrainingData, ops: Ops, **settings: Any) -> Trainer:
    """Return a trainer whose model computes with a table of one's own."""
    fresh = Trainer.start(TrainConfig(**(SMALL | settings)), data)
    model = ng.GPT.from_parameters(fresh.model.parameters, ops=ops)
    return Trainer(fresh.config, data, model, fresh.optimizer)


def spoil_final_norm(step: int, poison: float) -> Ops:
    """Return a table whose gradient of final_norm.bias is spoilt at one step."""
    calls = itertools.count(1)

    def backward(d_out: Array, saved: Any, *, out: Any = None) -> tuple[Any, ...]:
        gradients = book.layer_norm.backward(d_out, saved, out=out)
        if next(calls) == 3 * (step - 1) + 1:  # the final norm's turn, then those of the only block
            gradients[2][1] = poison
        return gradients

    return book._replace(layer_norm=Op(book.layer_norm.forward, backward))


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_gradient_that_is_not_finite_stops_training_and_changes_nothing(
    data: TrainingData, poison: float, dtype: str
) -> None:
    trainer = trainer_with(data, spoil_final_norm(3, poison), dtype=dtype)
    steps = trainer.run()
    next(steps), next(steps)
    before = trainer.model.parameters.flat.copy(), trainer.optimizer.state_dict()
    with pytest.raises(NotFiniteError, match=r"step 3\b.*final_norm\.bias"):
        next(steps)
    assert_same_bits(trainer.model.parameters.flat, before[0], "parameters")
    for name, array in trainer.optimizer.state_dict().items():
        assert_same_bits(array, before[1][name], name)
    assert trainer.step == 2


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_training_without_a_warning(
    data: TrainingData, poison: float
) -> None:
    trainer = Trainer.start(TrainConfig(**SMALL), data)
    steps = trainer.run()
    next(steps)
    trainer.model.parameters["final_norm.weight"][3] = poison
    before = trainer.model.parameters.flat.tobytes()
    with pytest.raises(NotFiniteError, match=r"step 2\b.*loss"):  # pytest makes errors of warnings
        next(steps)
    assert trainer.model.parameters.flat.tobytes() == before


@pytest.mark.parametrize("eval_interval", [1, 100])
def test_a_step_that_ruins_the_weights_never_reaches_a_checkpoint(
    data: TrainingData, tmp_path: Path, eval_interval: int
) -> None:
    settings = {"warmup_steps": 0, "learning_rate": 1e30, "eval_interval": eval_interval}
    trainer = Trainer.start(TrainConfig(**(SMALL | settings)), data)
    folder = RunFolder.create(tmp_path / "run")
    folder.save(folder.last, trainer)
    before = folder.last.read_bytes()

    def train() -> None:
        for report in trainer.run():
            folder.record(report, trainer)

    with pytest.raises(NotFiniteError, match=r"step \d.*loss"):
        train()
    assert folder.last.read_bytes() == before
    assert not folder.best.exists()


# ---- the folder of a run -----------------------------------------------------------------------------------


def test_last_is_the_latest_and_best_the_lowest(data: TrainingData, tmp_path: Path) -> None:
    trainer = Trainer.start(TrainConfig(**(SMALL | {"steps": 4, "eval_interval": 1})), data)
    folder = RunFolder.create(tmp_path / "run")
    losses = [3.0, 2.0, math.nextafter(2.0, 3), 2.5]
    for report, loss in zip(trainer.run(), losses, strict=True):
        assert report.validation is not None
        planted = report.validation._replace(loss=loss)
        folder.record(dataclasses.replace(report, validation=planted), trainer)
        assert ng.load_checkpoint(folder.last).step == trainer.step
    last, best = ng.load_checkpoint(folder.last), ng.load_checkpoint(folder.best)
    assert (last.step, best.step) == (4, 2)
    assert_same_bits(last.model.parameters.flat, trainer.model.parameters.flat, "parameters")
    assert last.tokenizer is not None
    assert last.metadata["train_config"]["steps"] == 4


@pytest.mark.parametrize("threads", [1, 2])
def test_model_and_optimizer_work_on_the_run_s_threads(
    data: TrainingData, tmp_path: Path, threads: int
) -> None:
    fresh = Trainer.start(TrainConfig(**SMALL, threads=3), data)
    RunFolder.create(tmp_path / "run").save(tmp_path / "a.safetensors", fresh)
    config = dataclasses.replace(fresh.config, threads=threads)
    resumed = Trainer.resume(config, data, ng.load_checkpoint(tmp_path / "a.safetensors"))
    assert [each.threads for each in (fresh.model, fresh.optimizer)] == [3, 3]
    assert [each.threads for each in (resumed.model, resumed.optimizer)] == [threads, threads]


@pytest.mark.parametrize("tie_weights", [True, False])
def test_a_run_goes_on_from_its_checkpoint_bit_for_bit(
    data: TrainingData, tmp_path: Path, tie_weights: bool
) -> None:
    config = TrainConfig(**SMALL)
    fresh = Trainer.start(config, data)
    shape = dataclasses.replace(fresh.model.config, tie_weights=tie_weights)

    def start() -> Trainer:
        model = ng.GPT(shape, seed=1)
        return Trainer(config, data, model, ng.AdamW(model.parameters))

    uninterrupted = start()
    list(uninterrupted.run())
    trainer = start()
    for _ in range(config.steps):
        next(trainer.run())
        ng.save_checkpoint(
            tmp_path / "a.safetensors", trainer.model, optimizer=trainer.optimizer, step=trainer.step
        )
        saved = ng.load_checkpoint(tmp_path / "a.safetensors")
        assert saved.optimizer is not None
        trainer = Trainer(config, data, saved.model, saved.optimizer, saved.step)
    assert list(trainer.run()) == []
    state = uninterrupted.model.state_dict()
    for name, array in trainer.model.state_dict().items():
        assert_same_bits(array, state[name], name)
    assert (TIED in dict(trainer.model.named_parameters())) is not tie_weights
