"""Properties of what surrounds the gradient: accumulation, optimizer, clipping, schedule, resuming."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from numpy_gpt.config import GPTConfig
from numpy_gpt.model import GPT
from numpy_gpt.ops import IGNORED_TARGET
from numpy_gpt.parameters import Parameters
from numpy_gpt.verify.bugs.subject import Subject
from numpy_gpt.verify.cases import revealing_parameters
from numpy_gpt.verify.kill_matrix import reference
from numpy_gpt.verify.kill_matrix.cases import model_cases
from numpy_gpt.verify.kill_matrix.comparison import difference, other_bits
from numpy_gpt.verify.kill_matrix.property import looks_at


@looks_at("ops", "model", "accumulate_gradients")
def accumulation_law(subject: Subject, seed: int) -> Iterator[str]:
    """Micro-batches give the large batch's loss and gradients, also with unequal numbers of targets."""
    for case in model_cases(seed):
        model = case.model(subject)
        ids, targets = case.batch()
        targets[0, :-1] = IGNORED_TARGET  # one target in the first micro-batch, more in the second
        targets[0, -1] = 0
        loss, gradients = model.loss_and_gradients(ids, targets)
        accumulated = Parameters(model.config, np.full_like(gradients.flat, np.nan))
        parts = [(ids[:1], targets[:1]), (ids[1:], targets[1:])]
        accumulated_loss = subject.accumulate_gradients(model, parts, out=accumulated)
        yield from difference("accumulated loss", accumulated_loss, loss)
        yield from difference("accumulated gradients", accumulated.flat, gradients.flat)


def _small_parameters(seed: int, tie_weights: bool, dtype: DTypeLike = np.float64) -> Parameters:
    config = GPTConfig(3, 2, embedding_dim=2, num_heads=1, num_layers=1, tie_weights=tie_weights)
    return Parameters(config, revealing_parameters(config, seed).flat.astype(dtype))


@looks_at("optimizer")
def optimizer_steps(subject: Subject, seed: int) -> Iterator[str]:
    """Each step of the optimizer is AdamW's, number by number, tied or not, at any learning rate."""
    settings: dict[str, Any] = {"betas": (0.9, 0.95), "eps": 1e-3, "weight_decay": 0.2}
    own_rate = 0.05
    for tie_weights in (True, False):
        parameters = _small_parameters(seed, tie_weights)
        gradients = [_small_parameters(seed + 1 + i, tie_weights) for i in range(4)]
        for gradient, scale in zip(gradients, (1.0, 1e-3, 0.0, 10.0), strict=True):
            gradient.flat[...] *= scale
        rates = [own_rate, 0.1, 0.0, own_rate]
        expected = reference.adamw(parameters, gradients, rates, **settings)
        optimizer = subject.optimizer(parameters, learning_rate=own_rate, **settings)
        for gradient, rate in zip(gradients, rates, strict=True):
            optimizer.step(gradient, None if rate == own_rate else rate)
        for name, view in parameters.named_parameters():
            yield from difference(f"{name} after four steps", view, expected[name])


@looks_at("clip_gradients")
def clipping_keeps_direction(subject: Subject, seed: int) -> Iterator[str]:
    """Clipping returns the joint norm, scales all gradients by one factor, and leaves short ones alone."""
    for dtype, scale in itertools.product(("float32", "float64"), (1e-30, 1.0, 1e30)):
        before = _small_parameters(seed, True, dtype)
        before.flat[...] *= scale
        true_norm = math.sqrt(math.fsum(float(g) ** 2 for g in before.flat))
        for share in (0.5, 2.0):
            gradients = Parameters(before.config, before.flat.copy())
            max_norm = share * true_norm
            # The 1e-6 that torch adds to the norm counts where the norm itself is that small.
            expected = before.flat * np.asarray(min(1.0, max_norm / (true_norm + 1e-6)), dtype)
            norm = subject.clip_gradients(gradients, max_norm)
            what = f"{dtype} gradients of norm {true_norm:.0e} clipped to {max_norm:.0e}"
            yield from difference(f"norm of {what}", norm, true_norm, tolerance=1e-9)
            yield from difference(
                what, gradients.flat, expected, tolerance=4 * float(np.finfo(np.dtype(dtype)).eps)
            )


@looks_at("learning_rate_at")
def schedule_has_no_off_by_one(subject: Subject, seed: int) -> Iterator[str]:
    """The learning rate climbs evenly to the peak from above zero, and is at the minimum at the last step."""
    random = np.random.default_rng([seed, 40])
    peak, minimum = 2.0, 0.25
    for warmup_steps in (0, int(random.integers(1, 6))):
        total_steps = warmup_steps + int(random.integers(3, 9))
        rates = [
            subject.learning_rate_at(
                step, peak=peak, minimum=minimum, warmup_steps=warmup_steps, total_steps=total_steps
            )
            for step in range(total_steps)
        ]
        climb = [peak * (step + 1) / (warmup_steps + 1) for step in range(warmup_steps + 1)]
        yield from difference(
            f"rates up to the peak at step {warmup_steps}", rates[: warmup_steps + 1], climb
        )
        angles = np.linspace(0, math.pi, total_steps - warmup_steps)
        fall = minimum + (peak - minimum) * (1 + np.cos(angles)) / 2
        yield from difference(f"rates from the peak to step {total_steps - 1}", rates[warmup_steps:], fall)


@looks_at("run")
def resume_is_exact(subject: Subject, seed: int) -> Iterator[str]:
    """A run that is stopped and resumed ends with the bits of one that was not, float32 and float64."""
    random = np.random.default_rng([seed, 41])
    config = GPTConfig(5, 4, embedding_dim=4, num_heads=2, num_layers=1)
    text = random.integers(0, 5, 200)
    total_steps = 12
    for dtype in ("float32", "float64"):
        through, stopped = (
            subject.run.start(GPT(config, seed=seed, dtype=dtype), text, total_steps=total_steps)
            for _ in range(2)
        )
        through.train(total_steps)
        stop = int(random.integers(1, total_steps))
        stopped.train(stop)
        kept = stopped.keep()
        stopped.train(total_steps)  # what was kept must not notice
        resumed = subject.run.resume(kept, text, total_steps=total_steps)
        resumed.train(total_steps)
        for what, run in ((f"resumed after step {stop}", resumed), (f"kept at step {stop}", stopped)):
            if run.optimizer.steps_taken != total_steps:
                yield f"{what}: {run.optimizer.steps_taken} steps taken instead of {total_steps}"
            for name in ("parameters", "first_moment", "second_moment"):
                tensors = (getattr(one.optimizer, name).flat for one in (run, through))
                yield from other_bits(f"{dtype} {name}, {what}", *tensors)
