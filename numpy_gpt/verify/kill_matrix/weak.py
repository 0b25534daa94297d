"""Checks that many people stop at, each of which lets some bugs through.

They have the form of properties, and right code has them all. What they lack shows when the catalogue is
tried on them: a bug's `fools` lists those that it passes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from numpy_gpt.arrays import Array, deliver
from numpy_gpt.config import GPTConfig
from numpy_gpt.model import GPT, initial_parameters
from numpy_gpt.ops import Op, book, causal_mask, join_heads, linear_backward, linear_forward, split_heads
from numpy_gpt.parameters import Parameters
from numpy_gpt.verify.bugs.subject import Subject
from numpy_gpt.verify.kill_matrix.cases import OpCases, op_cases
from numpy_gpt.verify.kill_matrix.comparison import slope
from numpy_gpt.verify.kill_matrix.numbers import model_gradients, op_gradients, wrong_op_slopes
from numpy_gpt.verify.kill_matrix.property import Property, looks_at

STEPS = 60


@looks_at(
    "ops",
    "model",
    "optimizer",
    "clip_gradients",
    "learning_rate_at",
    "accumulate_gradients",
    "training_batch",
)
def loss_falls(subject: Subject, seed: int) -> Iterator[str]:
    """The loss that training reports goes down.

    softmax and cross_entropy reach the model inside larger operations, and so do their bugs here.
    """
    losses = training_losses(subject, seed)
    if not np.mean(losses[-10:]) < 0.88 * np.mean(losses[:3]):
        yield f"the loss goes from {losses[0]:.2f} to {losses[-1]:.2f} in {STEPS} steps"


def training_losses(subject: Subject, seed: int, steps: int = STEPS) -> list[float]:
    """Return the loss of each step of a small training run, in which everything is the subject's."""
    config = GPTConfig(11, 8, embedding_dim=16, num_heads=2, num_layers=2)
    model = _with_parts_in_use(subject).build(initial_parameters(config, seed, np.float32))
    optimizer = subject.optimizer(model.parameters, learning_rate=1e-2, betas=(0.9, 0.99), weight_decay=0.1)
    gradients = Parameters.zeros(config, np.float32)
    text = _predictable_text(seed)
    losses = []
    for step in range(steps):
        ids, targets = subject.training_batch(text, step=step, seed=seed, batch_size=6, sequence_length=8)
        parts = [(ids[:2], targets[:2]), (ids[2:], targets[2:])]
        losses.append(subject.accumulate_gradients(model, parts, out=gradients))
        subject.clip_gradients(gradients, 1.0)
        rate = subject.learning_rate_at(step, peak=1e-2, minimum=1e-3, warmup_steps=5, total_steps=steps)
        optimizer.step(gradients, rate)
    return losses


def _predictable_text(seed: int) -> Array:
    """Return 600 ids of 0..10 in which each token leaves two equally likely successors: ln 2 nats each."""
    coins = np.random.default_rng([seed, 70]).integers(0, 2, 600)
    text = [0]
    for coin in coins:
        text.append(int(3 * text[-1] + coin) % 11)
    return np.array(text)


def _with_parts_in_use(subject: Subject) -> Subject:
    """Return the subject with attention made of its softmax and the head of its cross_entropy, if wrong."""
    ops = subject.ops
    if ops.softmax != book.softmax:
        ops = ops._replace(attention=_attention_with(ops.softmax))
    if ops.cross_entropy != book.cross_entropy:
        ops = ops._replace(linear_cross_entropy=_head_with(ops.cross_entropy))
    return subject._replace(ops=ops)


class _Saved(NamedTuple):
    """What the operations below keep: their factors, and what the part they are made with keeps."""

    factors: Any
    part: Any


def _attention_with(softmax: Op) -> Op:
    """Return attention as the book has it, around another softmax."""

    def forward(queries: Array, keys: Array, values: Array, *, num_heads: int) -> tuple[Array, _Saved]:
        q, k, v = (split_heads(x, num_heads) for x in (queries, keys, values))  # (B, H, T, D)
        scores = q @ k.swapaxes(-2, -1) / math.sqrt(q.shape[-1])  # (B, H, Tq, Tk)
        scores = np.where(causal_mask(q.shape[2], k.shape[2]), -math.inf, scores)
        weights, saved = softmax.forward(scores)  # (B, H, Tq, Tk)
        return join_heads(weights @ v), _Saved((q, k, v, weights), saved)

    def backward(d_context: Array, saved: _Saved, *, out: tuple[Array, ...]) -> tuple[Array, ...]:
        (q, k, v, weights), softmax_saved = saved
        d_heads = split_heads(d_context, q.shape[1])  # (B, H, Tq, D)
        (d_scaled,) = softmax.backward(d_heads @ v.swapaxes(-2, -1), softmax_saved)  # (B, H, Tq, Tk)
        d_scores = d_scaled / math.sqrt(q.shape[-1])  # (B, H, Tq, Tk)
        d_split = (d_scores @ k, d_scores.swapaxes(-2, -1) @ q, weights.swapaxes(-2, -1) @ d_heads)
        return tuple(deliver(join_heads(d), place) for d, place in zip(d_split, out, strict=True))

    return Op(forward, backward)


def _head_with(cross_entropy: Op) -> Op:
    """Return linear_cross_entropy as the book has it, around another cross_entropy."""

    def forward(x: Array, weight: Array, targets: ArrayLike, **options: Any) -> tuple[float, _Saved]:
        logits, linear_saved = linear_forward(x, weight, None)  # (B, T, V)
        loss, saved = cross_entropy.forward(logits, np.asarray(targets), **options)
        return loss, _Saved(linear_saved, saved)

    def backward(d_loss: float, saved: _Saved, *, out: tuple[Array, ...]) -> tuple[Any, ...]:
        d_logits, _ = cross_entropy.backward(d_loss, saved.part)  # (B, T, V)
        return linear_backward(d_logits, saved.factors, out=out)

    return Op(forward, backward)


@looks_at("ops", "model")
def gradient_check(subject: Subject, seed: int) -> Iterator[str]:
    """Every gradient is the derivative of the forward pass that was written, in float64 and on sound cases.

    Nothing less than `op_gradients` and `model_gradients`, and blind to a wrong forward pass, to float32, and
    to all that happens on a second call.
    """
    yield from op_gradients.faults(subject, seed)
    yield from model_gradients.faults(subject, seed)


@looks_at("ops")
def ones_upstream(subject: Subject, seed: int) -> Iterator[str]:
    """Every operation's gradients are right for an upstream gradient of ones, as `.sum()` sends back."""
    random = np.random.default_rng([seed, 71])
    for case in op_cases(seed):
        ones = np.ones_like(case.d_out) if np.ndim(case.d_out) else 1.0
        yield from wrong_op_slopes(subject, case._replace(d_out=ones), random)


@looks_at("ops")
def one_of_everything(subject: Subject, seed: int) -> Iterator[str]:
    """Every operation's gradients are right for one sequence, one head, equal widths and distinct tokens."""
    random = np.random.default_rng([seed, 72])
    draw = OpCases(seed)
    T, C = 4, 5
    for case in (
        draw.embedding(1, T, 8, C, unused=0, repeats=False),
        draw.linear((T,), C, C, bias=True),
        draw.layer_norm((T,), C, eps=1e-5),
        draw.gelu(T, C, approximate="tanh"),
        draw.softmax(T, C),
        draw.attention(1, T, T, 1, C),
        draw.cross_entropy((T,), C, divisor=None, ignore=False),
        draw.linear_cross_entropy(1, T, C, C, divisor=None, ignore=False),
    ):
        yield from wrong_op_slopes(subject, case, random)


@looks_at("ops", "model")
def fresh_weights(subject: Subject, seed: int) -> Iterator[str]:
    """The gradients of a fresh model are within 0.001 of finite differences, number by number.

    At N(0, 0.02), with unit norms and zero biases, much of a gradient is zero or smaller than that.
    """
    random = np.random.default_rng([seed, 73])
    config = GPTConfig(7, 6, embedding_dim=8, num_heads=2, num_layers=2)
    model = _with_parts_in_use(subject).build(initial_parameters(config, seed, np.float64))
    ids, targets = (random.integers(0, config.vocabulary_size, (2, 6)) for _ in range(2))
    _, gradients = model.loss_and_gradients(ids, targets)
    for name, view in model.named_parameters():
        for index in (tuple(random.integers(0, view.shape)) for _ in range(2)):
            measured = slope(functools.partial(_loss_with, model, (ids, targets), view, index))
            if not abs(gradients[name][index] - measured) < 1e-3:
                yield f"d_{name} at {index}: {gradients[name][index]:.4f} instead of {measured:.4f}"


def _loss_with(
    model: GPT, batch: tuple[Array, Array], view: Array, index: tuple[int, ...], step: float
) -> float:
    """Return the loss with one parameter moved."""
    original = view[index]
    view[index] = original + step
    loss = model.loss(*batch)
    view[index] = original
    return loss


WEAK_CHECKS: tuple[Property, ...] = (
    loss_falls,
    gradient_check,
    ones_upstream,
    one_of_everything,
    fresh_weights,
)
