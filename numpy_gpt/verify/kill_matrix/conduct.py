"""Properties of conduct: what a call may touch, what it hands out, and that it says the same thing twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.parameters import Parameters
from numpy_gpt.verify.bugs.subject import Subject
from numpy_gpt.verify.kill_matrix.cases import OpCase, model_cases, op_cases
from numpy_gpt.verify.kill_matrix.comparison import difference, other_bits
from numpy_gpt.verify.kill_matrix.property import looks_at

GARBAGE = 7.0
"""What stands in an array that is to be overwritten."""


@looks_at("ops", "model", "optimizer", "clip_gradients")
def float32_stays_float32(subject: Subject, seed: int) -> Iterator[str]:
    """Given float32, every output, gradient, parameter and moment of a whole training step is float32.

    One float64 scalar of NumPy's own (np.sqrt(64) is one) turns every array that it meets into float64.
    """
    for op_case in op_cases(seed):
        out, gradients = op_case.fresh(np.float32).run(subject.ops)
        yield from _not_float32(_tensors(op_case, out, gradients))
    for case in model_cases(seed):
        model = case.model(subject, np.float32)
        optimizer = subject.optimizer(model.parameters)
        _, model_gradients = model.loss_and_gradients(*case.batch())
        subject.clip_gradients(model_gradients, 0.5)
        optimizer.step(model_gradients)
        yield from _not_float32(
            {
                "logits": model(case.token_ids),
                "gradients": model_gradients.flat,
                "parameters": model.parameters.flat,
                "first moment": optimizer.first_moment.flat,
                "second moment": optimizer.second_moment.flat,
            }
        )


def _tensors(case: OpCase, out: Any, gradients: tuple[Any, ...]) -> dict[str, Array]:
    """Return the arrays that an operation handed out, by name."""
    named = {name: gradients[i] for i, name in case.trained()}
    return {f"{case.name} out": out, **named} if isinstance(out, np.ndarray) else named


def _not_float32(tensors: Mapping[str, Array]) -> Iterator[str]:
    for name, tensor in tensors.items():
        if tensor.dtype != np.float32:
            yield f"{name}: {tensor.dtype} from float32"


@looks_at("ops", "model", "optimizer")
def inputs_are_untouched(subject: Subject, seed: int) -> Iterator[str]:
    """No call writes into what it was given: inputs, upstream gradients, token ids, weights, gradients."""
    for op_case in op_cases(seed):
        given, kept = op_case.fresh(), op_case.fresh()
        given.run(subject.ops)
        names = (
            *(f"{given.name}'s {name}" for name in given.array_names),
            f"{given.name}'s upstream gradient",
        )
        for name, array, before in zip(
            names, (*given.arrays, given.d_out), (*kept.arrays, kept.d_out), strict=True
        ):
            if isinstance(array, np.ndarray):
                yield from other_bits(name, array, before)
    for case in model_cases(seed):
        model = case.model(subject)
        ids, targets = case.batch()
        _, gradients = model.loss_and_gradients(ids, targets)
        yield from other_bits("the model's token ids", ids, case.token_ids)
        yield from other_bits("the model's targets", targets, case.target_ids)
        yield from other_bits("the model's weights", model.parameters.flat, case.parameters.flat)
        before = gradients.flat.copy()
        subject.optimizer(model.parameters).step(gradients)
        yield from other_bits("the optimizer's gradients", gradients.flat, before)


@looks_at("ops", "model")
def results_belong_to_the_caller(subject: Subject, seed: int) -> Iterator[str]:
    """No later call changes what an earlier one returned, and no result shares memory with an input."""
    for op_case in op_cases(seed):
        given = op_case.fresh()
        tensors = _tensors(given, *given.run(subject.ops))
        kept = {name: tensor.copy() for name, tensor in tensors.items()}
        op_case.fresh(scale=2.0).run(subject.ops)
        for name, tensor in tensors.items():
            yield from other_bits(f"{name}, after a later call", tensor, kept[name])
            for array in (*given.arrays, given.d_out):
                if isinstance(array, np.ndarray) and np.shares_memory(array, tensor):
                    yield f"{name}: shares memory with an input"
    for case in model_cases(seed):
        model = case.model(subject)
        ids, targets = case.batch()
        logits, (_, gradients) = model(ids), model.loss_and_gradients(ids, targets)
        kept_logits, kept_gradients = logits.copy(), gradients.flat.copy()
        model(ids[::-1])
        model.loss_and_gradients(ids[::-1], targets)
        yield from other_bits("logits, after a later call", logits, kept_logits)
        yield from other_bits("gradients, after a later call", gradients.flat, kept_gradients)


@looks_at("ops", "model")
def equal_calls_give_equal_bits(subject: Subject, seed: int) -> Iterator[str]:
    """Calling again gives the same bits, and so does using what forward saved again, after other calls."""
    for op_case in op_cases(seed):
        backward = op_case.op(subject.ops).backward
        out, saved = op_case.fresh().forward(subject.ops)
        first = _tensors(op_case, out, backward(op_case.fresh().d_out, saved))
        kept = {name: tensor.copy() for name, tensor in first.items()}
        again = _tensors(op_case, *op_case.fresh().run(subject.ops))
        op_case.fresh(scale=2.0).run(subject.ops)
        reused = _tensors(op_case, kept.get(f"{op_case.name} out"), backward(op_case.fresh().d_out, saved))
        for name, tensor in kept.items():
            yield from other_bits(f"{name}, called again", again[name], tensor)
            yield from other_bits(f"{name}, saved used again", reused[name], tensor)
    for case in model_cases(seed):
        model = case.model(subject)
        loss, gradients = model.loss_and_gradients(*case.batch())
        kept_gradients = gradients.flat.copy()
        loss_again, gradients_again = model.loss_and_gradients(*case.batch())
        if loss != loss_again:
            yield f"loss: {loss!r}, then {loss_again!r}"
        yield from other_bits("gradients, computed again", gradients_again.flat, kept_gradients)


@looks_at("ops", "model")
def out_is_overwritten(subject: Subject, seed: int) -> Iterator[str]:
    """`out=` gets the same numbers as a fresh array, whatever stood in it and however it lies in memory."""
    for op_case in op_cases(seed):
        _, fresh = op_case.fresh().run(subject.ops)
        out = tuple(_sliced_garbage(gradient) for gradient in fresh)
        given = op_case.fresh()
        _, saved = given.forward(subject.ops)
        returned = given.op(subject.ops).backward(given.d_out, saved, out=out)
        for i, name in op_case.trained():
            if returned[i] is not out[i]:
                yield f"{name}: what is returned is not the array handed in"
            yield from difference(f"{name}, in out=", out[i], fresh[i], floor=1.0)
    for case in model_cases(seed):
        model = case.model(subject)
        _, fresh_gradients = model.loss_and_gradients(*case.batch())
        given_gradients = Parameters.zeros(model.config, model.dtype)
        given_gradients.flat[...] = GARBAGE
        _, returned_gradients = model.loss_and_gradients(*case.batch(), out=given_gradients)
        if returned_gradients is not given_gradients:
            yield "gradients: what is returned is not what was handed in"
        yield from difference("gradients, in out=", given_gradients.flat, fresh_gradients.flat)
        model.loss_and_gradients(*case.batch(), out=given_gradients, accumulate=True)
        yield from difference("gradients, accumulated", given_gradients.flat, 2 * fresh_gradients.flat)


def _sliced_garbage(gradient: Array | None) -> Array | None:
    """Return an array like `gradient` that is a slice of a wider one, as the queries' part of d_qkv is."""
    if gradient is None:
        return None
    width = gradient.shape[-1]
    return np.full((*gradient.shape[:-1], width + 2), GARBAGE, gradient.dtype)[..., 1 : width + 1]


@looks_at("ops", "model")
def bad_ids_are_refused(subject: Subject, seed: int) -> Iterator[str]:
    """A token id outside 0..V-1 is a ValueError, at the operation and at the model: never a wrapped index."""
    for case in model_cases(seed):
        model = case.model(subject)
        V = model.config.vocabulary_size
        token_weight, position_weight = (table.weight for table in model.parameters.embedding)
        for bad in (-1, V):
            ids, targets = case.batch()
            ids[-1, -1] = targets[-1, -1] = bad
            calls: tuple[tuple[Callable[..., Any], tuple[Array, ...]], ...] = (
                (subject.ops.embedding.forward, (ids, token_weight, position_weight)),
                (model, (ids,)),
                (model.loss, (case.token_ids, targets)),
            )
            for what, (call, arguments) in zip(("embedding", "model", "loss"), calls, strict=True):
                try:
                    call(*arguments)
                except ValueError:
                    continue
                except IndexError as error:
                    yield f"{what}: IndexError for id {bad}: {error}"
                else:
                    yield f"{what}: takes id {bad} with V = {V}"
