"""Every operation of the book: what it returns, that it is right, and how it treats what it is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numpy_gpt.ops
from numpy_gpt.arrays import Array
from numpy_gpt.kernels import fast
from numpy_gpt.ops import Op, Ops, book
from tests.cases import (
    BOOK_CASES,
    CASES,
    Answer,
    Case,
    Example,
    assert_answers_close,
    attentions,
    cast,
    objective,
    run,
    run_forward,
    run_magnitudes,
    run_torch,
    tensors,
)
from tests.comparison import (
    FLOAT64_AGREEMENT,
    FLOAT64_ROUNDING,
    assert_close,
    assert_float32,
    assert_same_bits,
    assert_zero,
)
from tests.differences import assert_slope
from tests.layouts import LAYOUTS
from tests.strategies import DTYPES, sizes, token_ids, values

many_examples = settings(max_examples=2 * settings.default.max_examples)
every_table = pytest.mark.parametrize("table", [book, fast], ids=["book", "fast"])
every_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


@every_case
@given(data=st.data(), dtype=DTYPES)
def test_results_have_the_promised_shapes_and_dtypes(case: Case, data: st.DataObject, dtype: type) -> None:
    example = data.draw(case.examples)
    out, gradients = run(case, example, dtype)

    if isinstance(example.d_out, float):
        assert type(out) is float
    else:
        assert (out.shape, out.dtype) == (example.d_out.shape, dtype), f"{case.name} out"

    assert type(gradients) is tuple
    for name, array, gradient in zip(case.names, example.arrays, gradients, strict=True):
        if array is None or array.dtype.kind == "i":
            assert gradient is None, f"{case.name} d_{name}: integers and absent arrays have no gradient"
        else:
            assert (gradient.shape, gradient.dtype) == (array.shape, dtype), f"{case.name} d_{name}"


@every_case
@many_examples
@given(data=st.data())
def test_values_and_gradients_equal_torch(case: Case, data: st.DataObject) -> None:
    example = data.draw(case.examples)
    ours, theirs = run(case, example, np.float64), run_torch(case, example, np.float64)
    assert_answers_close(case, example, ours, theirs, FLOAT64_AGREEMENT)


@every_case
@many_examples
@given(data=st.data())
def test_float32_is_as_exact_as_torch(case: Case, data: st.DataObject) -> None:
    example = data.draw(case.examples)
    ours = tensors(case, run(case, example, np.float32))
    theirs = tensors(case, run_torch(case, example, np.float32))
    floors = tensors(case, run_magnitudes(case, example))
    for what, exact in tensors(case, run_torch(case, example, np.float64)).items():
        assert_float32(ours[what], [theirs[what]], exact, what, floor=floors[what])


@every_case
@many_examples
@given(data=st.data(), seed=st.integers(0, 2**16))
def test_gradients_are_slopes_of_the_forward_pass(case: Case, data: st.DataObject, seed: int) -> None:
    example = data.draw(case.examples)
    arrays = [cast(array, np.float64) for array in example.arrays]
    summed = run_magnitudes(case, example)
    random = np.random.default_rng(seed)

    for moved, gradient in enumerate(run(case, example, np.float64).gradients):
        if gradient is None:
            continue
        direction = random.standard_normal(gradient.shape)

        def along(distance: float, moved: int = moved, direction: Array = direction) -> float:
            shifted = arrays[moved] + distance * direction
            return objective(case, example, [*arrays[:moved], shifted, *arrays[moved + 1 :]])

        assert_slope(
            float(np.vdot(gradient, direction)),
            along,
            f"{case.name} d_{case.names[moved]} {gradient.shape} {gradient.dtype}",
            summed=np.vdot(summed.gradients[moved], abs(direction))
            + np.sum(summed.out * np.abs(example.d_out)),
        )


@every_case
@many_examples
@given(data=st.data(), layout=st.sampled_from(list(LAYOUTS)))
def test_inputs_may_lie_in_memory_in_any_way(case: Case, data: st.DataObject, layout: str) -> None:
    example = data.draw(case.examples)

    def lay_out(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        array = LAYOUTS[layout](cast(value, np.float64))
        array.flags.writeable = False
        return array

    out, saved = case.op.forward(*[lay_out(array) for array in example.arrays], **example.options)
    actual = Answer(out, case.op.backward(lay_out(example.d_out), saved))
    assert_answers_close(case, example, actual, run(case, example, np.float64), FLOAT64_ROUNDING)


@every_case
@given(data=st.data(), dtype=DTYPES)
def test_equal_inputs_give_equal_bits(case: Case, data: st.DataObject, dtype: type) -> None:
    example = data.draw(case.examples)
    again = tensors(case, run(case, example, dtype))
    for what, expected in tensors(case, run(case, example, dtype)).items():
        assert_same_bits(again[what], expected, what)


@every_case
@many_examples
@given(data=st.data(), layout=st.sampled_from(list(LAYOUTS)))
def test_out_is_overwritten_and_returned(case: Case, data: st.DataObject, layout: str) -> None:
    example = data.draw(case.examples)
    expected = run(case, example, np.float64)

    # NaN shows what is not overwritten. An entry may be None, also where there is a gradient.
    out = tuple(
        LAYOUTS[layout](np.full_like(gradient, np.nan))
        if gradient is not None and data.draw(st.booleans())
        else None
        for gradient in expected.gradients
    )
    forward_out, saved = run_forward(case, example, np.float64)
    results = case.op.backward(cast(example.d_out, np.float64), saved, out=out)

    for name, result, place in zip(case.names, results, out, strict=True):
        assert place is None or result is place, f"{case.name} d_{name} is not the array handed in"
    assert_answers_close(case, example, Answer(forward_out, results), expected, FLOAT64_ROUNDING)


def negative(example: Example) -> Example:
    arrays = (a if a is None or a.dtype.kind == "i" else -a for a in example.arrays)
    return example._replace(arrays=tuple(arrays))


@every_case
@given(data=st.data(), dtype=DTYPES)
def test_saved_gives_the_same_answer_again(case: Case, data: st.DataObject, dtype: type) -> None:
    example = data.draw(case.examples)
    out, saved = run_forward(case, example, dtype)
    d_out = cast(example.d_out, dtype)

    first = tensors(case, Answer(out, case.op.backward(d_out, saved)))
    remembered = {what: np.copy(array) for what, array in first.items()}
    case.op.backward(d_out * 2, saved)
    run_forward(case, negative(example), dtype)
    for what, expected in remembered.items():
        assert_same_bits(first[what], expected, f"{what}, after later calls")

    second = tensors(case, Answer(out, case.op.backward(d_out, saved)))
    for what, expected in remembered.items():
        assert_same_bits(second[what], expected, f"{what}, from the same saved")


@every_case
@given(data=st.data(), dtype=DTYPES)
def test_results_belong_to_the_caller(case: Case, data: st.DataObject, dtype: type) -> None:
    example = data.draw(case.examples)
    arrays, d_out = [cast(array, dtype) for array in example.arrays], cast(example.d_out, dtype)
    out, saved = case.op.forward(*arrays, **example.options)
    handed_in = [array for array in (*arrays, d_out) if isinstance(array, np.ndarray)]

    for what, result in tensors(case, Answer(out, case.op.backward(d_out, saved))).items():
        if isinstance(result, np.ndarray):
            assert result.flags.writeable, f"{what} is read-only"
            assert not any(np.shares_memory(result, array) for array in handed_in), f"{what} is an input"


def test_the_book_is_the_table_of_the_plain_functions() -> None:
    names = [case.name for case in BOOK_CASES]
    assert list(Ops._fields) == names
    for name, pair in zip(names, book, strict=True):
        assert isinstance(pair, Op)
        assert pair.forward is getattr(numpy_gpt.ops, f"{name}_forward")
        assert pair.backward is getattr(numpy_gpt.ops, f"{name}_backward")


@every_table
@given(data=st.data(), length=sizes(4), unused=sizes(3))
def test_embedding_gradients_are_zero_where_nothing_was_read(
    table: Ops, data: st.DataObject, length: int, unused: int
) -> None:
    ids, d_out = data.draw(token_ids((2, length), 4)), data.draw(values((2, length, 3)))
    weights = np.zeros((4 + unused, 3), np.float32), np.zeros((length + unused, 3), np.float32)
    _, saved = table.embedding.forward(ids, *weights)
    _, d_token, d_position = table.embedding.backward(d_out, saved)
    assert_zero(np.delete(d_token, np.unique(ids), axis=0), "embedding d_token_weight, unread rows")
    assert_zero(d_position[length:], "embedding d_position_weight, unread rows")


@every_table
@pytest.mark.parametrize("value", [0.1, -3.0, 1e6])
def test_layer_norm_of_equal_numbers_is_its_bias(table: Ops, value: float) -> None:
    bias = np.array([1.0, -2.0, 3.0])
    out, saved = table.layer_norm.forward(np.full((2, 3), value), np.ones(3), bias)
    assert_close(out, np.stack([bias, bias]), "layer_norm out", tolerance=1e-6)
    assert np.isfinite(table.layer_norm.backward(np.ones((2, 3)), saved)[0]).all()


@every_table
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_gelu_ends_in_zero_and_in_the_identity(table: Ops, approximate: str, dtype: type) -> None:
    x = np.array([-1e4, -50.0, 0.0, 50.0, 1e4], dtype)
    out, saved = table.gelu.forward(x, approximate=approximate)
    (d_x,) = table.gelu.backward(np.ones_like(x), saved)
    assert_close(out, np.maximum(x, 0), f"gelu {approximate} out", tolerance=0.0)
    assert_close(d_x, np.array([0, 0, 0.5, 1, 1]), f"gelu {approximate} d_x", tolerance=1e-7)


@every_table
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_softmax_survives_huge_numbers(table: Ops, dtype: type) -> None:
    out, _ = table.softmax.forward(np.array([[1e30, 1e30, -1e30], [-1e30, -1e30, -1e30]], dtype))
    expected = np.array([[1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]])
    assert_close(out, expected, "softmax out", tolerance=1e-6)


@every_table
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_cross_entropy_survives_huge_logits(table: Ops, dtype: type) -> None:
    logits, targets = np.array([[[1e4, 0.0], [1e4, 0.0]]], dtype), np.array([[0, 1]])
    loss, saved = table.cross_entropy.forward(logits, targets)
    d_logits, _ = table.cross_entropy.backward(1.0, saved)
    assert_close(loss, 5e3, "cross_entropy out", tolerance=1e-7)
    assert_close(d_logits, np.array([[[0, 0], [0.5, -0.5]]]), "cross_entropy d_logits", tolerance=0.0)


@every_table
@given(data=st.data())
def test_the_last_queries_see_what_they_see_among_all(table: Ops, data: st.DataObject) -> None:
    example = data.draw(attentions())
    queries, keys, summed = (cast(array, np.float64) for array in example.arrays)
    absent = keys.shape[1] - queries.shape[1]
    all_queries = np.concatenate([keys[:, :absent], queries], axis=1)  # (B, Tk, C): any queries will do

    every, _ = table.attention.forward(all_queries, keys, summed, **example.options)
    last, _ = table.attention.forward(queries, keys, summed, **example.options)
    floor = abs(summed).max()
    assert_close(last, every[:, absent:], "attention out", tolerance=FLOAT64_ROUNDING, floor=floor)
