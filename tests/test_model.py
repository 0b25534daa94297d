"""The whole model: equal to its torch twin, right by finite differences, careful with what it is given."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import numpy_gpt as ng
from numpy_gpt.arrays import Array
from numpy_gpt.ops import Op, book
from tests.comparison import (
    FLOAT64_AGREEMENT,
    FLOAT64_ROUNDING,
    assert_close,
    assert_float32,
    assert_same_bits,
    assert_zero,
)
from tests.differences import assert_slope
from tests.models import (
    SEED_BATCH,
    TIED,
    Problem,
    answer,
    floors,
    parameter_shapes,
    problems,
    tensors,
    torch_answer,
)
from tests.strategies import DTYPES, IGNORED, divisors


def assert_equals_torch(problem: Problem) -> None:
    ours, theirs = answer(problem, np.float64), torch_answer(problem, np.float64)
    assert list(ours.gradients) == list(theirs.gradients)
    for what, expected in tensors(theirs).items():
        floor = floors(theirs)[what]
        assert_close(tensors(ours)[what], expected, what, tolerance=FLOAT64_AGREEMENT, floor=floor)


@given(problem=problems())
def test_logits_loss_and_gradients_equal_torch(problem: Problem) -> None:
    assert_equals_torch(problem)


@given(problem=problems())
def test_float32_is_as_exact_as_torch(problem: Problem) -> None:
    # One torch answer may be right by luck. Eight are not: those of weights moved by one rounding err as much
    # and see every cancellation that makes rounding matter.
    theirs = [tensors(torch_answer(problem, np.float32, nudge=nudge)) for nudge in range(8)]
    ours, exact = tensors(answer(problem, np.float32)), torch_answer(problem, np.float64)
    chains = 2 * (2 * problem.config.num_layers + 1)  # two branches a block and the head, there and back
    for what, expected in tensors(exact).items():
        floor = floors(exact)[what]
        answers = [their[what] for their in theirs]
        assert_float32(ours[what], answers, expected, what, floor=floor, chains=chains)


@pytest.mark.parametrize("tie_weights", [True, False])
def test_the_seed_batch_of_gpt2_tokens_equals_torch(tie_weights: bool) -> None:
    config = ng.GPTConfig(50257, 8, embedding_dim=6, num_heads=2, num_layers=2, tie_weights=tie_weights)
    token_ids = np.array(SEED_BATCH)
    target_ids = np.concatenate([token_ids[:, 1:], np.full((3, 1), IGNORED)], axis=1)
    problem = Problem(config, token_ids, target_ids, seed=0)
    assert problem.model()(SEED_BATCH).shape == (3, 5, 50257)
    assert_equals_torch(problem)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu"])
@pytest.mark.parametrize("preset", ["nano", "small"])
def test_presets_equal_torch_at_full_length(preset: str, activation: str) -> None:
    config = dataclasses.replace(ng.GPTConfig.preset(preset), activation=activation)
    random = np.random.default_rng(0)
    shape = (2, config.max_sequence_length)
    token_ids, target_ids = (random.integers(config.vocabulary_size, size=shape) for _ in range(2))
    assert_equals_torch(Problem(config, token_ids, target_ids, seed=0))


@given(problem=problems(), seed=st.integers(0, 2**16))
def test_the_gradient_vector_is_the_slope_of_the_loss(problem: Problem, seed: int) -> None:
    model = problem.model()
    loss, gradients = model.loss_and_gradients(problem.token_ids, problem.target_ids)
    start = model.parameters.flat.copy()
    direction = np.random.default_rng(seed).standard_normal(start.shape)

    def along(distance: float) -> float:
        model.parameters.flat[...] = start + distance * direction
        return model.loss_and_gradients(problem.token_ids, problem.target_ids)[0]

    terms = loss + float(np.vdot(abs(gradients.flat), abs(direction)))
    assert_slope(float(np.vdot(gradients.flat, direction)), along, "gradient of the loss", summed=terms)


@given(problem=problems(), seed=st.integers(0, 2**16))
def test_every_gradient_is_the_slope_along_its_parameter(problem: Problem, seed: int) -> None:
    model, d_logits = problem.model(), problem.d_logits()
    logits, saved = model.forward(problem.token_ids)
    gradients = dict(model.backward(d_logits, saved).named_parameters())
    random = np.random.default_rng(seed)

    for name, parameter in model.named_parameters():
        start, direction = parameter.copy(), random.standard_normal(parameter.shape)

        def along(
            distance: float, parameter: Array = parameter, start: Array = start, direction: Array = direction
        ) -> float:
            parameter[...] = start + distance * direction
            return float(np.vdot(model(problem.token_ids), d_logits))

        gradient = gradients[name]
        terms = float(np.vdot(abs(logits), abs(d_logits)) + np.vdot(abs(gradient), abs(direction)))
        what = f"model d_{name} {gradient.shape} {gradient.dtype}"
        assert_slope(float(np.vdot(gradient, direction)), along, what, summed=terms)
        parameter[...] = start


@given(problem=problems(), dtype=DTYPES)
def test_results_have_the_promised_names_shapes_and_dtypes(problem: Problem, dtype: type) -> None:
    model = problem.model(dtype)
    logits, saved = model.forward(problem.token_ids)
    loss, gradients = model.loss_and_gradients(problem.token_ids, problem.target_ids)

    assert (logits.shape, logits.dtype) == ((*problem.token_ids.shape, problem.config.vocabulary_size), dtype)
    assert type(loss) is float
    for gradient in (gradients, model.backward(problem.d_logits(dtype), saved)):
        assert type(gradient) is type(model.parameters)
        assert gradient.flat.dtype == dtype
        named = {name: array.shape for name, array in gradient.named_parameters()}
        assert list(named.items()) == list(parameter_shapes(problem.config).items())
        assert {array.dtype for _, array in gradient.named_parameters()} == {np.dtype(dtype)}


@given(problem=problems(), divisor=divisors())
def test_loss_and_gradients_are_forward_cross_entropy_and_backward(problem: Problem, divisor: Any) -> None:
    model = problem.model()
    logits, saved = model.forward(problem.token_ids)
    loss, saved_loss = book.cross_entropy.forward(logits, problem.target_ids, divisor=divisor)
    d_logits, _ = book.cross_entropy.backward(1.0, saved_loss)
    expected = model.backward(d_logits, saved).flat

    actual_loss, actual = model.loss_and_gradients(problem.token_ids, problem.target_ids, divisor=divisor)
    assert_close(actual_loss, loss, "loss", tolerance=FLOAT64_AGREEMENT)
    assert_close(actual.flat, expected, "gradients", tolerance=FLOAT64_AGREEMENT)


@given(problem=problems(), dtype=DTYPES)
def test_calling_a_model_is_its_forward_pass(problem: Problem, dtype: type) -> None:
    model = problem.model(dtype)
    assert_same_bits(model(problem.token_ids), model.forward(problem.token_ids)[0], "logits")


@given(problem=problems(), dtype=DTYPES)
def test_no_later_call_changes_an_earlier_result(problem: Problem, dtype: type) -> None:
    model = problem.model(dtype)
    parameters = model.parameters.flat.copy()
    logits, saved = model.forward(problem.token_ids)
    gradients = model.backward(problem.d_logits(dtype), saved)
    _, loss_gradients = model.loss_and_gradients(problem.token_ids, problem.target_ids)
    results = {"logits": logits, "gradients": gradients.flat, "loss gradients": loss_gradients.flat}
    remembered = {what: result.copy() for what, result in results.items()}

    other_ids = (problem.token_ids + 1) % problem.config.vocabulary_size
    other_logits, other_saved = model.forward(other_ids)
    model.backward(other_logits, other_saved)
    model.loss_and_gradients(other_ids, problem.target_ids)

    for what, expected in remembered.items():
        assert_same_bits(results[what], expected, f"{what}, after later calls")
    assert_same_bits(model.parameters.flat, parameters, "parameters, after all calls")


@given(problem=problems(), dtype=DTYPES)
def test_saved_gives_the_same_gradients_again(problem: Problem, dtype: type) -> None:
    model = problem.model(dtype)
    _, saved = model.forward(problem.token_ids)
    d_logits = problem.d_logits(dtype)
    first = model.backward(d_logits, saved).flat
    model.backward(2 * d_logits, saved)
    assert_same_bits(model.backward(d_logits, saved).flat, first, "gradients")


@given(problem=problems(), dtype=DTYPES)
def test_equal_batches_give_equal_bits(problem: Problem, dtype: type) -> None:
    first, second = (tensors(answer(problem, dtype)) for _ in range(2))
    for what, expected in first.items():
        assert_same_bits(second[what], expected, what)


@given(problem=problems(), accumulate=st.booleans())
def test_out_is_overwritten_or_added_to(problem: Problem, accumulate: bool) -> None:
    model = problem.model()
    loss, expected = model.loss_and_gradients(problem.token_ids, problem.target_ids)
    _, out = model.loss_and_gradients(problem.token_ids, problem.target_ids)
    out.flat[...] = 1.0 if accumulate else np.nan

    again, result = model.loss_and_gradients(
        problem.token_ids, problem.target_ids, out=out, accumulate=accumulate
    )
    assert result is out
    assert again == loss
    before = 1.0 if accumulate else 0.0
    assert_close(out.flat, expected.flat + before, "gradients", tolerance=FLOAT64_ROUNDING)


@pytest.mark.parametrize("accumulate", [False, True])
def test_gradients_are_not_written_over_the_weights(accumulate: bool) -> None:
    model = ng.GPT(ng.GPTConfig(5, 4, embedding_dim=4, num_heads=1, num_layers=1))
    before = model.parameters.flat.copy()
    for out in (model.parameters, ng.Parameters(model.config, model.parameters.flat)):
        with pytest.raises(ValueError, match="out must not be the model's own parameters"):
            model.loss_and_gradients([[1, 2]], [[2, 3]], out=out, accumulate=accumulate)
    assert_same_bits(model.parameters.flat, before, "weights")


@given(problem=problems())
def test_accumulated_rows_equal_the_whole_batch(problem: Problem) -> None:
    model = problem.model()
    loss, expected = model.loss_and_gradients(problem.token_ids, problem.target_ids)
    divisor = max(int((problem.target_ids != IGNORED).sum()), 1)

    losses, gradients = [], None
    for ids, target_ids in zip(problem.token_ids, problem.target_ids, strict=True):
        part, gradients = model.loss_and_gradients(
            ids[None], target_ids[None], divisor=divisor, out=gradients, accumulate=gradients is not None
        )
        losses.append(part)

    assert_close(sum(losses), loss, "loss", tolerance=FLOAT64_AGREEMENT)
    assert_close(gradients.flat, expected.flat, "gradients", tolerance=FLOAT64_AGREEMENT)


@given(problem=problems(), dtype=DTYPES)
def test_ignored_targets_alone_give_no_loss_and_no_gradient(problem: Problem, dtype: type) -> None:
    nothing = np.full_like(problem.target_ids, IGNORED)
    loss, gradients = problem.model(dtype).loss_and_gradients(problem.token_ids, nothing)
    assert loss == 0.0
    assert_zero(gradients.flat, "gradients")


@given(problem=problems(tie_weights=True))
def test_a_tied_matrix_gets_both_parts_of_its_gradient(problem: Problem) -> None:
    tied = problem.model()
    untied = ng.GPT(dataclasses.replace(problem.config, tie_weights=False), dtype=np.float64)
    untied.load_state_dict(tied.state_dict())

    _, one = tied.loss_and_gradients(problem.token_ids, problem.target_ids)
    _, two = untied.loss_and_gradients(problem.token_ids, problem.target_ids)
    parts = dict(two.named_parameters())
    token = "embedding.token_embedding.weight"
    assert_close(
        dict(one.named_parameters())[token],
        parts[token] + parts[TIED],
        f"d_{token}",
        tolerance=FLOAT64_ROUNDING,
        floor=abs(parts[token]).max(),
    )


@pytest.mark.parametrize(
    "name", ["embedding", "linear", "layer_norm", "gelu", "attention", "linear_cross_entropy"]
)
def test_a_model_computes_with_the_table_it_is_given(name: str) -> None:
    pair, called = getattr(book, name), set()

    def forward(*arrays: Any, **options: Any) -> tuple[Any, Any]:
        called.add("forward")
        return pair.forward(*arrays, **options)

    def backward(d_out: Any, saved: Any, *, out: Any = None) -> tuple[Array | None, ...]:
        called.add("backward")
        return pair.backward(d_out, saved, out=out)

    config = ng.GPTConfig(5, 4, embedding_dim=4, num_heads=2, num_layers=1)
    model = ng.GPT(config, ops=book._replace(**{name: Op(forward, backward)}))
    model.loss_and_gradients([[0, 1]], [[1, 2]])
    assert called == {"forward", "backward"}


@pytest.mark.parametrize("ops", ["fast", "book", book])
def test_every_table_of_operations_gives_the_same_answer(ops: Any) -> None:
    config = ng.GPTConfig(5, 4, embedding_dim=4, num_heads=2, num_layers=2)
    expected = ng.GPT(config, dtype=np.float64)([[0, 1, 4]])
    actual = ng.GPT(config, dtype=np.float64, ops=ops)([[0, 1, 4]])
    assert_close(actual, expected, f"logits with ops={ops!r}", tolerance=FLOAT64_AGREEMENT)


@pytest.mark.parametrize("ops", ["fast", "book"])
@pytest.mark.parametrize("has_cache", [False, True])
def test_rows_of_unequal_length_are_refused_in_our_words(ops: str, has_cache: bool) -> None:
    model = ng.GPT(ng.GPTConfig(5, 4, embedding_dim=4, num_heads=1, num_layers=1), ops=ops)
    with pytest.raises(ValueError, match="token_ids must have shape"):
        model([[1, 2], [3]], cache=model.new_cache() if has_cache else None)  # type: ignore[arg-type]
