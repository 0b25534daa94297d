"""Properties of the numbers: forward passes against a slow reference, backward passes against differences."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.model import GPT
from numpy_gpt.ops import IGNORED_TARGET
from numpy_gpt.parameters import Parameters
from numpy_gpt.verify.bugs.subject import Subject
from numpy_gpt.verify.kill_matrix import reference
from numpy_gpt.verify.kill_matrix.cases import (
    ModelCase,
    OpCase,
    model_answers,
    model_cases,
    op_answers,
    op_cases,
)
from numpy_gpt.verify.kill_matrix.comparison import difference, wrong_slope
from numpy_gpt.verify.kill_matrix.property import looks_at


@looks_at("ops")
def op_values(subject: Subject, seed: int) -> Iterator[str]:
    """Each operation's output equals that of an independent, slow float64 reference.

    Only this finds a forward pass that computes something else, with a backward pass true to it.
    """
    for case, expected in zip(op_cases(seed), op_answers(seed), strict=True):
        out, _ = case.fresh().forward(subject.ops)
        yield from difference(f"{case.name} out", out, expected)


@looks_at("ops")
def op_gradients(subject: Subject, seed: int) -> Iterator[str]:
    """Each operation's backward is the derivative of its forward: every input, along a random direction.

    A wrong gradient is right along a given direction by accident only, so one direction does; for the
    smallest inputs it is one number's derivative.
    """
    random = np.random.default_rng([seed, 30])
    for case in op_cases(seed):
        yield from wrong_op_slopes(subject, case, random)


def wrong_op_slopes(subject: Subject, case: OpCase, random: np.random.Generator) -> Iterator[str]:
    """Yield evidence for each gradient of a case that is not the slope of Σ out · d_out."""
    out, gradients = case.fresh().run(subject.ops)
    size = float(np.sum(np.abs(out * case.d_out)))
    for i, name in case.trained():
        if gradients[i].shape != case.arrays[i].shape:
            yield f"{name}: shape {gradients[i].shape} instead of {case.arrays[i].shape}"
            continue
        direction = _unit(random.standard_normal(case.arrays[i].shape))
        terms = gradients[i] * direction
        along = functools.partial(_value_along, subject, case, i, direction)
        yield from wrong_slope(name, float(terms.sum()), along, summed=size + float(np.abs(terms).sum()))


def _unit(direction: Array) -> Array:
    return direction / max(float(np.linalg.norm(direction)), 1e-3)


def _value_along(subject: Subject, case: OpCase, i: int, direction: Array, step: float) -> float:
    """Return Σ out · d_out with one input moved."""
    fresh = case.fresh()
    moved = (*fresh.arrays[:i], fresh.arrays[i] + step * direction, *fresh.arrays[i + 1 :])
    out, _ = fresh._replace(arrays=moved).forward(subject.ops)
    return float(np.sum(out * case.d_out))


@looks_at("ops")
def backward_is_linear(subject: Subject, seed: int) -> Iterator[str]:
    """Each backward is linear in the upstream gradient: 2a - 3b gives twice a's gradients less thrice b's.

    At a fixed input the backward pass is a product with the transposed Jacobian, whatever the operation.
    """
    random = np.random.default_rng([seed, 31])
    for case in op_cases(seed):
        a = case.fresh().d_out
        b = random.standard_normal(np.shape(a)) if np.ndim(a) else float(random.standard_normal())
        _, from_a = case.fresh().run(subject.ops)
        _, from_b = case.fresh()._replace(d_out=b).run(subject.ops)
        _, from_both = case.fresh()._replace(d_out=2 * a - 3 * b).run(subject.ops)
        parts = {name: (2 * from_a[i], -3 * from_b[i]) for i, name in case.trained()}
        sizes = {name: max(float(np.abs(part).max()) for part in pair) for name, pair in parts.items()}
        for i, name in case.trained():
            floor = max(sizes[name], 1e-3 * max(sizes.values()))  # one key alone leaves queries no gradient
            yield from difference(f"{name}, of a sum", from_both[i], sum(parts[name]), floor=floor)


@looks_at("ops", "model")
def model_values(subject: Subject, seed: int) -> Iterator[str]:
    """Logits and loss equal those of the slow reference, for every choice of the configuration."""
    for case, (logits, loss) in zip(model_cases(seed), model_answers(seed), strict=True):
        model = case.model(subject)
        yield from difference("logits", model(case.token_ids), logits)
        yield from difference("loss", model.loss(*case.batch()), loss)


@looks_at("ops", "model")
def model_gradients(subject: Subject, seed: int) -> Iterator[str]:
    """The gradient of every parameter is the derivative of the loss, along random directions.

    One direction leads through all parameters at once. Where it finds a fault, directions through one
    parameter at a time tell which is wrong.
    """
    random = np.random.default_rng([seed, 32])
    for case in model_cases(seed):
        model = case.model(subject)
        _, gradients = model.loss_and_gradients(*case.batch())
        through_all = Parameters(model.config, random.standard_normal(gradients.flat.shape))
        if any(_wrong_model_slope("d_parameters", model, case, gradients, through_all)):
            for name, view in through_all.named_parameters():
                through_one = Parameters.zeros(model.config, np.float64)
                through_one[name][...] = view
                yield from _wrong_model_slope(f"d_{name}", model, case, gradients, through_one)
            yield "d_parameters: wrong along a direction through all of them"


def _wrong_model_slope(
    what: str, model: GPT, case: ModelCase, gradients: Parameters, direction: Parameters
) -> Iterator[str]:
    """Yield evidence if the gradients' slope along a direction is not the loss's."""
    unit = _unit(direction.flat)

    def loss_at(step: float) -> float:
        model.parameters.flat[...] = case.parameters.flat + step * unit
        loss = model.loss(*case.batch())
        model.parameters.flat[...] = case.parameters.flat
        return loss

    predicted = float(gradients.flat @ unit)
    summed = abs(loss_at(0.0)) + float(np.abs(gradients.flat) @ np.abs(unit))
    yield from wrong_slope(what, predicted, loss_at, summed=summed)


@looks_at("ops", "model")
def one_gradient_two_ways(subject: Subject, seed: int) -> Iterator[str]:
    """Sending the loss's gradient back through the logits gives the same as loss_and_gradients."""
    for case in model_cases(seed):
        model = case.model(subject)
        logits, saved = model.forward(case.token_ids)
        loss, through_loss = model.loss_and_gradients(*case.batch())
        yield from difference("loss", loss, reference.cross_entropy(logits, case.target_ids, divisor=None))
        counted = case.target_ids != IGNORED_TARGET  # (B, T)
        one_hot = np.arange(logits.shape[-1]) == case.target_ids[..., None]  # (B, T, V)
        d_logits = (reference.softmax(logits) - one_hot) * counted[..., None] / counted.sum()
        through_logits = model.backward(d_logits, saved)
        yield from difference("gradients", through_logits.flat, through_loss.flat)
