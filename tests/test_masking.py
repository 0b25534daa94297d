"""Nothing looks ahead, and no sequence looks at another: bit for bit, forwards and backwards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_gpt.arrays import Array
from numpy_gpt.kernels import fast
from numpy_gpt.ops import Ops, book
from tests.cases import attentions, cast
from tests.comparison import FLOAT64_ROUNDING, assert_close, assert_same_bits, assert_zero
from tests.models import Problem, problems
from tests.strategies import DTYPES, token_ids, values

every_table = pytest.mark.parametrize("table", [book, fast], ids=["book", "fast"])


@every_table
@given(data=st.data(), dtype=DTYPES, scale=st.sampled_from([1.0, 1e10, -1e30, 1e38]))
def test_attention_is_independent_of_later_positions(
    table: Ops, data: st.DataObject, dtype: type, scale: float
) -> None:
    example = data.draw(attentions())
    queries, keys, summed = (cast(array, dtype) for array in example.arrays)
    t = data.draw(st.integers(0, queries.shape[1] - 1))
    seen = t + keys.shape[1] - queries.shape[1]  # the last key that query t sees

    def change_after(array: Array, position: int, scale: float) -> Array:
        later = array[:, position + 1 :]
        return np.concatenate(
            [array[:, : position + 1], data.draw(values(later.shape, scale)).astype(dtype)], axis=1
        )

    before, _ = table.attention.forward(queries, keys, summed, **example.options)
    with np.errstate(over="ignore", invalid="ignore"):  # the later positions may well overflow
        after, _ = table.attention.forward(
            change_after(queries, t, scale),
            change_after(keys, seen, scale),
            change_after(summed, seen, min(scale, 1e30)),
            **example.options,
        )
    assert_same_bits(after[:, : t + 1], before[:, : t + 1], f"attention out up to position {t}")


@every_table
@given(data=st.data(), dtype=DTYPES)
def test_attention_gradients_of_later_positions_are_zero(
    table: Ops, data: st.DataObject, dtype: type
) -> None:
    example = data.draw(attentions())
    arrays = [cast(array, dtype) for array in example.arrays]
    ahead = arrays[1].shape[1] - arrays[0].shape[1]
    t = data.draw(st.integers(0, arrays[0].shape[1] - 1))
    d_out = example.d_out.astype(dtype)
    d_out[:, t + 1 :] = 0

    _, saved = table.attention.forward(*arrays, **example.options)
    d_queries, d_keys, d_values = table.attention.backward(d_out, saved)
    assert_zero(d_queries[:, t + 1 :], f"attention d_queries after position {t}")
    assert_zero(d_keys[:, t + ahead + 1 :], f"attention d_keys after position {t}")
    assert_zero(d_values[:, t + ahead + 1 :], f"attention d_values after position {t}")


@every_table
@given(data=st.data(), largest=st.sampled_from([1e10, 1e20, 3e38]))
def test_scores_of_the_future_leave_no_trace_even_where_they_overflow(
    table: Ops, data: st.DataObject, largest: float
) -> None:
    example = data.draw(attentions())
    queries, keys, summed = example.arrays
    ahead = keys.shape[1] - queries.shape[1]
    t = data.draw(st.integers(0, queries.shape[1] - 1))
    queries, keys, summed = queries[:, : t + 1], keys[:, : t + ahead + 2].copy(), summed[:, : t + ahead + 2]
    queries = np.concatenate([queries, np.zeros_like(queries[:, :1])], axis=1)[:, : keys.shape[1] - ahead]
    d_out = example.d_out[:, : queries.shape[1]].copy()
    d_out[:, t + 1 :] = 0  # the next query, which sees the next key, is nobody's concern

    def answer() -> list[Array]:
        with np.errstate(over="ignore", invalid="ignore"):
            out, saved = table.attention.forward(queries, keys, summed, **example.options)
            d_queries, d_keys, d_values = table.attention.backward(d_out, saved)
        return [out[:, : t + 1], d_queries[:, : t + 1], d_keys[:, : t + ahead + 1], d_values]

    before = answer()
    keys[:, t + ahead + 1 :] = np.copysign(largest, keys[:, t + ahead + 1 :])
    for name, one, two in zip(("out", "d_queries", "d_keys", "d_values"), before, answer(), strict=True):
        assert_same_bits(two, one, f"attention {name}")


@every_table
def test_a_future_score_that_is_no_number_leaves_no_trace(table: Ops) -> None:
    queries = np.full((1, 2, 2), 2, np.float32)
    keys = np.array([[[1, 1], [3e38, -3e38]]], np.float32)  # infinity minus infinity, of finite numbers
    summed = np.array([[[3, 4], [5, 6]]], np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        out, _ = table.attention.forward(queries, keys, summed, num_heads=1)
    assert out[0, 0].tolist() == [3, 4]


@every_table
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_lowest_visible_score_still_beats_the_future(table: Ops, dtype: type) -> None:
    # The first query scores the first key with the lowest finite number. A mask that is merely large and
    # negative would tie with it, and let the second value through.
    highest = np.finfo(dtype).max
    queries = np.array([[[highest], [0.0]]], dtype)
    keys = np.array([[[-1.0], [1.0]]], dtype)
    summed = np.array([[[3.0], [5.0]]], dtype)

    out, saved = table.attention.forward(queries, keys, summed, num_heads=1)
    d_queries, _, d_values = table.attention.backward(np.array([[[1.0], [0.0]]], dtype), saved)
    assert_close(out, np.array([[[3.0], [4.0]]]), "attention out", tolerance=FLOAT64_ROUNDING)
    assert_close(d_values, np.array([[[1.0], [0.0]]]), "attention d_values", tolerance=0.0)
    assert_zero(d_queries, "attention d_queries")


@every_table
@given(data=st.data(), dtype=DTYPES)
def test_sequences_of_a_batch_never_attend_to_one_another(
    table: Ops, data: st.DataObject, dtype: type
) -> None:
    example = data.draw(attentions())
    arrays = [cast(array, dtype) for array in example.arrays]
    b = data.draw(st.integers(0, len(arrays[0]) - 1))
    others = np.arange(len(arrays[0])) != b

    changed = [array.copy() for array in arrays]
    for array in changed:
        array[others] = data.draw(values(array[others].shape, 100.0))
    d_out = example.d_out.astype(dtype)
    d_out[others] = 0

    before, saved = table.attention.forward(*arrays, **example.options)
    after, saved_after = table.attention.forward(*changed, **example.options)
    assert_same_bits(after[b], before[b], f"attention out of sequence {b}")

    gradients = table.attention.backward(d_out, saved)
    gradients_after = table.attention.backward(d_out, saved_after)
    for name, one, two in zip(("queries", "keys", "values"), gradients, gradients_after, strict=True):
        assert_zero(one[others], f"attention d_{name} of other sequences")
        assert_same_bits(two[b], one[b], f"attention d_{name} of sequence {b}")


@given(data=st.data(), problem=problems(), dtype=DTYPES)
def test_logits_are_independent_of_later_tokens(data: st.DataObject, problem: Problem, dtype: type) -> None:
    B, T = problem.token_ids.shape
    t = data.draw(st.integers(0, T - 1))
    changed = problem.token_ids.copy()
    changed[:, t + 1 :] = data.draw(token_ids((B, T - t - 1), problem.config.vocabulary_size))

    model = problem.model(dtype)
    before, after = model(problem.token_ids), model(changed)
    assert_same_bits(after[:, : t + 1], before[:, : t + 1], f"logits up to position {t}")


@given(data=st.data(), problem=problems(), dtype=DTYPES)
def test_gradients_of_later_positions_are_zero(data: st.DataObject, problem: Problem, dtype: type) -> None:
    t = data.draw(st.integers(0, problem.token_ids.shape[1] - 1))
    d_logits = problem.d_logits(dtype).copy()
    d_logits[:, t + 1 :] = 0

    model = problem.model(dtype)
    _, saved = model.forward(problem.token_ids)
    d_position = model.backward(d_logits, saved).embedding.position_embedding.weight
    assert_zero(d_position[t + 1 :], f"d_embedding.position_embedding.weight after position {t}")


@given(data=st.data(), problem=problems(), dtype=DTYPES)
def test_logits_are_independent_of_other_sequences(
    data: st.DataObject, problem: Problem, dtype: type
) -> None:
    B, T = problem.token_ids.shape
    b = data.draw(st.integers(0, B - 1))
    changed = data.draw(token_ids((B, T), problem.config.vocabulary_size))
    changed[b] = problem.token_ids[b]

    model = problem.model(dtype)
    assert_same_bits(model(changed)[b], model(problem.token_ids)[b], f"logits of sequence {b}")


@given(data=st.data(), problem=problems(tie_weights=False), dtype=DTYPES)
def test_gradients_of_tokens_in_other_sequences_are_zero(
    data: st.DataObject, problem: Problem, dtype: type
) -> None:
    b = data.draw(st.integers(0, len(problem.token_ids) - 1))
    d_logits = problem.d_logits(dtype).copy()
    d_logits[np.arange(len(d_logits)) != b] = 0

    model = problem.model(dtype)
    _, saved = model.forward(problem.token_ids)
    d_token = model.backward(d_logits, saved).embedding.token_embedding.weight
    unread = np.delete(d_token, np.unique(problem.token_ids[b]), axis=0)
    assert_zero(unread, f"d_embedding.token_embedding.weight, ids that sequence {b} lacks")
