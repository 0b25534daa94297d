"""The tuned operations: equal to the book at every cut and on every number of threads, in memory used again.

That each is right, small, is tested beside the book's in `test_ops.py`. Here it is what tuning brings:
chunks, tiles, pieces of the vocabulary, threads, and buffers.
"""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import numpy_gpt as ng
from numpy_gpt.arrays import Array
from numpy_gpt.kernels import Workspace, empty, fast, linear_cross_entropy
from numpy_gpt.ops import IGNORED_TARGET, book
from numpy_gpt.parallel import Team
from tests.comparison import FLOAT64_ROUNDING, assert_close, assert_same_bits
from tests.models import problems

TWINS = [name for name in book._fields if getattr(fast, name) != getattr(book, name)]
every_twin = pytest.mark.parametrize("name", TWINS)
every_team = pytest.mark.parametrize("threads", [1, 2, 3, 5])


def cut_fine(threads: int) -> Team:
    """Return a team that cuts whatever it is given, however small, and shares it."""
    return Team(threads, worth_a_thread=1, cache_bytes=2048)


class Input(NamedTuple):
    """What an operation is called with."""

    arrays: tuple[Any, ...]
    options: dict[str, Any]


def draw_input(name: str, seed: int, dtype: type = np.float64) -> Input:
    """Return arrays large enough for several chunks, tiles and pieces, and no multiple of any."""
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> Array:
        return random.standard_normal(shape).astype(dtype)

    B, T, C = (int(random.integers(*bounds)) for bounds in ((1, 5), (1, 70), (1, 40)))
    if name == "embedding":
        return Input((random.integers(0, 9, (B, T)), normal(11, C), normal(T + 3, C)), {})
    if name == "linear":
        width = int(random.integers(1, 90))
        return Input((normal(B, T, C), normal(width, C), normal(width) if seed % 2 else None), {})
    if name == "layer_norm":
        return Input((normal(B, T, C), normal(C), normal(C)), {"eps": 1e-4})
    if name == "gelu":
        return Input((4 * normal(B, T, C),), {"approximate": "tanh" if seed % 4 else "none"})
    if name == "attention":
        H, D, Tk = (int(random.integers(*bounds)) for bounds in ((1, 6), (1, 9), (1, 400)))
        Tq = Tk - int(random.integers(0, Tk))
        return Input((normal(B, Tq, H * D), normal(B, Tk, H * D), normal(B, Tk, H * D)), {"num_heads": H})
    assert name == "linear_cross_entropy"
    V = int(random.integers(1, 1000))
    targets = random.integers(0, V, (B, T))
    targets[random.random((B, T)) < 0.2] = IGNORED_TARGET
    return Input((normal(B, T, C), normal(V, C) / C, targets), {"divisor": 7.0 if seed % 2 else None})


def run(table: ng.Ops, name: str, given: Input, d_out: Any) -> list[Any]:
    """Return the operation's output and gradients; `d_out` is made from the output where it is a function."""
    pair = getattr(table, name)
    out, saved = pair.forward(*given.arrays, **given.options)
    return [out, *pair.backward(d_out(out) if callable(d_out) else d_out, saved)]


def upstream(out: Any) -> Any:
    """Return a random upstream gradient for an output."""
    if isinstance(out, float):
        return 1.7
    return np.random.default_rng(5).standard_normal(out.shape).astype(out.dtype)


@every_twin
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_twin_has_the_signature_of_the_book(name: str, direction: str) -> None:
    theirs, ours = (inspect.signature(getattr(getattr(table, name), direction)) for table in (book, fast))
    assert ours.parameters == theirs.parameters


@every_twin
@every_team
@given(seed=st.integers(0, 2**16))
def test_a_twin_equals_the_book_however_it_is_cut(name: str, threads: int, seed: int) -> None:
    drawn = draw_input(name, seed)
    expected = run(book, name, drawn, upstream)
    with cut_fine(threads).at_work():
        actual = run(fast, name, drawn, upstream)
    largest = max(np.abs(array).max() for array in expected if array is not None)
    for what, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        if theirs is None:
            assert ours is None
        else:
            assert_close(ours, theirs, f"{name} {what}", tolerance=1e-11, floor=1e-3 * largest)


def test_attention_without_queries_gives_gradients_of_zero() -> None:
    none, keys = np.ones((2, 0, 4)), np.ones((2, 3, 4))
    for table in (book, fast):
        context, *gradients = run(table, "attention", Input((none, keys, keys), {"num_heads": 2}), upstream)
        assert context.shape == none.shape
        assert [gradient.shape for gradient in gradients] == [none.shape, keys.shape, keys.shape]
        assert not any(gradient.any() for gradient in gradients)


@every_twin
@every_team
def test_equal_inputs_give_equal_bits_on_threads(name: str, threads: int) -> None:
    drawn = draw_input(name, 1, np.float32)
    with cut_fine(threads).at_work():
        first, second = (run(fast, name, drawn, upstream) for _ in range(2))
    for ours, again in zip(first, second, strict=True):
        if ours is not None:
            assert_same_bits(np.asarray(ours), np.asarray(again), name)


@every_team
@pytest.mark.parametrize("kept_bytes", [0, 3000, 10_000, 30_000])
def test_the_vocabulary_projection_equals_the_book_however_much_of_it_is_kept(
    threads: int, kept_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_cross_entropy, "KEPT_BYTES", kept_bytes)
    random = np.random.default_rng(2)
    x, weight = random.standard_normal((2, 3, 5)), 9 * random.standard_normal((2600, 5))
    weight[:300] *= 100  # the largest logits come first, by more than the exponential function can bear
    targets = np.array([[0, 2599, 1300], [IGNORED_TARGET, 7, 255]])
    drawn = Input((x, weight, targets), {})
    with cut_fine(threads).at_work():
        _, saved = fast.linear_cross_entropy.forward(*drawn.arrays)
        first = fast.linear_cross_entropy.backward(1.7, saved)
        again = fast.linear_cross_entropy.backward(1.7, saved)
    kept = [piece.exponentials for piece in saved.pieces if piece.exponentials is not None]
    assert sum(array.nbytes for array in kept) <= kept_bytes
    assert (len(kept) > 0) == (kept_bytes >= 2600 * 6 * 8 / len(saved.pieces) + 48)
    for ours, repeated, theirs in zip(
        first, again, run(book, "linear_cross_entropy", drawn, upstream)[1:], strict=True
    ):
        if theirs is not None:
            assert_close(ours, theirs, "gradient", tolerance=1e-12, floor=1e-3 * np.abs(theirs).max())
            assert_same_bits(ours, repeated, "gradient, a second time")


@given(seed=st.integers(0, 2**16), largest=st.sampled_from([1e3, 1e11, 1e13, 1e25, 3e38, np.inf, np.nan]))
def test_gelu_equals_the_book_on_numbers_of_any_size(seed: int, largest: float) -> None:
    random = np.random.default_rng(seed)
    x = random.standard_normal(200).astype(np.float32)
    x[random.integers(0, 200, 3)] = largest, -largest, 1e12
    with np.errstate(invalid="ignore"):  # of infinity times zero, in both
        fast_and_book = [run(table, "gelu", Input((x,), {}), upstream) for table in (fast, book)]
    for ours, theirs in zip(*fast_and_book, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("elsewhere", [1e3, 1e13, 1e25, 3e38])
def test_gelu_of_a_number_does_not_depend_on_the_others(elsewhere: float) -> None:
    x = np.linspace(-4, 4, 1001, dtype=np.float32)
    changed = np.append(x[:-1], np.float32(elsewhere))
    (y, saved), (y_changed, saved_changed) = (fast.gelu.forward(each) for each in (x, changed))
    assert_same_bits(y[:-1], y_changed[:-1], "y")
    assert_same_bits(saved.slope[:-1], saved_changed.slope[:-1], "slope")


def test_more_threads_than_tokens_in_the_vocabulary_are_too_many_for_it_and_no_error() -> None:
    random = np.random.default_rng(4)
    drawn = Input(
        (random.standard_normal((1, 3, 5)), random.standard_normal((257, 5)), np.array([[1, 256, 0]])), {}
    )
    with Team(300, cache_bytes=2048).at_work():
        actual = run(fast, "linear_cross_entropy", drawn, upstream)
    for ours, theirs in zip(actual, run(book, "linear_cross_entropy", drawn, upstream), strict=True):
        if theirs is not None:
            assert_close(ours, theirs, "linear_cross_entropy", tolerance=1e-12)


def draw_projection(seed: int) -> tuple[Array, Array, Array]:
    """Return float32 x (2, 5, 7), weight (1000, 7) and targets (2, 5), the last of which is ignored."""
    random = np.random.default_rng(seed)
    x, weight = random.standard_normal((2, 5, 7)), random.standard_normal((1000, 7))
    targets = random.integers(0, 1000, (2, 5))
    targets[random.random((2, 5)) < 0.3] = targets[1, 4] = IGNORED_TARGET
    return x.astype(np.float32), weight.astype(np.float32), targets


@pytest.mark.parametrize("table", [book, fast], ids=["book", "fast"])
@pytest.mark.parametrize("kept_bytes", [0, 2**24])
@given(seed=st.integers(0, 2**16), largest=st.sampled_from([1e3, 1e20, 1e38]), everything=st.booleans())
def test_ignored_positions_leave_no_trace_even_where_their_logits_overflow(
    table: ng.Ops, kept_bytes: int, seed: int, largest: float, everything: bool
) -> None:
    x, weight, targets = draw_projection(seed)
    if everything:
        targets[...] = IGNORED_TARGET
    changed = x.copy()
    changed[targets == IGNORED_TARGET] = np.copysign(largest, x[targets == IGNORED_TARGET])
    with pytest.MonkeyPatch.context() as patch, np.errstate(over="ignore", invalid="ignore"):
        patch.setattr(linear_cross_entropy, "KEPT_BYTES", kept_bytes)
        with cut_fine(2).at_work():
            before, after = (
                run(table, "linear_cross_entropy", Input((each, weight, targets), {}), 1.7)
                for each in (x, changed)
            )
    assert not after[1][targets == IGNORED_TARGET].any()
    for name, one, two in zip(("loss", "d_x", "d_weight"), before, after, strict=False):
        assert_same_bits(two, one, name)


@pytest.mark.parametrize("kept_bytes", [0, 2**24])
@every_team
@given(seed=st.integers(0, 2**16), start=st.integers(0, 999), count=st.integers(1, 999))
def test_logits_of_minus_infinity_are_the_book_s_wherever_they_stand(
    kept_bytes: int, threads: int, seed: int, start: int, count: int
) -> None:
    x, weight, targets = draw_projection(seed)
    x[..., 0] = 1e19
    weight[:, 0] = 0
    weight[start : start + count, 0] = -1e20  # times x below the lowest number
    is_impossible = (weight[:, 0] < 0)[targets]
    targets[is_impossible] = IGNORED_TARGET
    drawn = Input((x, weight, targets), {})
    with pytest.MonkeyPatch.context() as patch, np.errstate(over="ignore"):
        patch.setattr(linear_cross_entropy, "KEPT_BYTES", kept_bytes)
        expected = run(book, "linear_cross_entropy", drawn, 1.7)
        with cut_fine(threads).at_work():
            actual = run(fast, "linear_cross_entropy", drawn, 1.7)
    for name, ours, theirs in zip(("loss", "d_x", "d_weight"), actual, expected, strict=False):
        assert_close(ours, theirs, name, tolerance=1e-5)


# ---- memory ------------------------------------------------------------------------------------------------


def growth(function: Callable[[], Any]) -> tuple[Any, int]:
    """Return what function returns, and the most memory that was taken meanwhile, in bytes."""
    gc.collect()
    tracemalloc.start()
    try:
        result = function()
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_attention_keeps_and_uses_memory_that_grows_as_the_text_and_not_as_its_square() -> None:
    def most(T: int) -> int:
        queries = np.ones((1, T, 64), np.float32)

        def step() -> None:
            _, saved = fast.attention.forward(queries, queries, queries, num_heads=4)
            fast.attention.backward(queries, saved)

        return growth(step)[1]

    assert most(2048) < 2.5 * most(1024)
    assert most(2048) < 4 * 2048 * 2048 * 4 / 4  # a quarter of the four heads' weights


def test_logits_never_exist_whole() -> None:
    B, T, C, V = 12, 128, 8, 40_000
    x, weight = np.ones((B, T, C), np.float32), np.ones((V, C), np.float32)
    d_weight = np.empty_like(weight)

    def step() -> None:
        _, saved = fast.linear_cross_entropy.forward(x, weight, np.zeros((B, T), int))
        fast.linear_cross_entropy.backward(1.0, saved, out=(None, d_weight, None))

    logits_bytes = B * T * V * 4
    assert linear_cross_entropy.KEPT_BYTES < logits_bytes / 4
    assert growth(step)[1] < linear_cross_entropy.KEPT_BYTES + logits_bytes / 16


def test_a_workspace_lends_an_array_again_only_when_nobody_has_it_or_a_view_of_it() -> None:
    workspace = Workspace()
    with workspace.in_use():
        first = empty((3, 4), np.float32)
        view = first[1:].reshape(-1)
        second = empty((3, 4), np.float32)
        assert not np.shares_memory(first, second)
        del first
        assert not np.shares_memory(empty((3, 4), np.float32), view)
        address = view.ctypes.data
        del view
        third = empty((3, 4), np.float32)
        assert third.ctypes.data < address < third.ctypes.data + third.nbytes
        assert not np.shares_memory(empty((3, 4), np.float64), third)
        assert not np.shares_memory(empty((4, 3), np.float32), third)


def test_a_workspace_lets_go_of_what_its_latest_use_did_not_ask_for() -> None:
    workspace = Workspace()
    with workspace.in_use():
        kept = empty((100,), np.float32)
        empty((5,), np.float32)
    with workspace.in_use():
        empty((5,), np.float32)
    assert workspace.num_bytes == 20
    kept[...] = 1  # and what was lent out stays its holder's


def test_outside_of_a_workspace_every_array_is_fresh() -> None:
    first = empty((2, 2), np.float64)
    assert first.base is None
    assert not np.shares_memory(first, empty((2, 2), np.float64))


def test_steps_of_one_shape_take_no_more_memory() -> None:
    config = ng.GPTConfig(50, 16, 32, 4, 3)
    ids, gradients = np.arange(64).reshape(4, 16) % 50, ng.Parameters.zeros(config, np.float32)

    def held_after(steps: int, threads: int) -> int:
        model = ng.GPT(config, threads=threads)
        for _ in range(steps):
            model.loss_and_gradients(ids, ids, out=gradients)
        assert 1 <= len(model._spare_workspaces) <= threads
        return sum(workspace.num_bytes for workspace in model._spare_workspaces)

    alone = held_after(1, threads=1)
    assert held_after(9, threads=1) == alone
    # Either workspace may have served either half of the batch, and with it the second's own gradients.
    assert held_after(9, threads=2) <= alone + 2 * gradients.flat.nbytes


def test_copies_of_a_model_carry_none_of_its_memory() -> None:
    config = ng.GPTConfig(50, 16, 32, 4, 3)
    model, ids = ng.GPT(config, threads=2), np.arange(64).reshape(4, 16) % 50
    fresh = len(pickle.dumps(model))
    _, gradients = model.loss_and_gradients(ids, ids)
    assert len(pickle.dumps(model)) <= fresh + 200
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert sum(workspace.num_bytes for workspace in twin._spare_workspaces) == 0
        assert_same_bits(twin.loss_and_gradients(ids, ids)[1].flat, gradients.flat, "gradients of a copy")
        twin.parameters.flat[...] = 0
    assert_same_bits(model.loss_and_gradients(ids, ids)[1].flat, gradients.flat, "gradients")


# ---- whole models ------------------------------------------------------------------------------------------


def model_on(threads: int, config: ng.GPTConfig, **options: Any) -> ng.GPT:
    """Return a model whose threads share even the smallest work."""
    model = ng.GPT(config, dtype=np.float64, threads=threads, **options)
    model._team = cut_fine(threads)
    return model


@every_team
@given(problem=problems())
def test_a_step_is_the_book_s_on_any_number_of_threads(threads: int, problem: Any) -> None:
    model = model_on(threads, problem.config)
    model.load_state_dict(problem.model().state_dict())
    plain = ng.GPT.from_parameters(model.parameters, ops="book")
    batch = problem.token_ids, problem.target_ids
    expected_loss, expected = plain.loss_and_gradients(*batch)
    loss, gradients = model.loss_and_gradients(*batch)
    assert_close(loss, expected_loss, "loss", tolerance=FLOAT64_ROUNDING)
    assert_close(model.loss(*batch), expected_loss, "loss alone", tolerance=FLOAT64_ROUNDING)
    assert_close(model(batch[0]), plain(batch[0]), "logits", tolerance=1e-11)
    assert_close(gradients.flat, expected.flat, "gradients", tolerance=1e-10)
    again_loss, again = model.loss_and_gradients(*batch)
    assert again_loss == loss
    assert_same_bits(again.flat, gradients.flat, "gradients")


@pytest.mark.parametrize("threads", [1, 2, 3])
@given(problem=problems())
def test_accumulated_gradients_are_added_once_on_threads(threads: int, problem: Any) -> None:
    model = model_on(threads, problem.config)
    batch = problem.token_ids, problem.target_ids
    _, gradients = model.loss_and_gradients(*batch)
    once = gradients.flat.copy()
    model.loss_and_gradients(*batch, out=gradients, accumulate=True)
    assert_close(gradients.flat, 2 * once, "gradients", tolerance=FLOAT64_ROUNDING)
    model.loss_and_gradients(*batch, out=gradients)
    assert_same_bits(gradients.flat, once, "gradients")


@given(problem=problems())
def test_recomputed_activations_change_no_bit(problem: Any) -> None:
    batch = problem.token_ids, problem.target_ids
    keeping, forgetting = (ng.GPT(problem.config, recompute=recompute) for recompute in (False, True))
    (loss, gradients), (again, recomputed) = (m.loss_and_gradients(*batch) for m in (keeping, forgetting))
    assert loss == again
    assert_same_bits(recomputed.flat, gradients.flat, "gradients")
    d_logits = problem.d_logits(np.float32)
    first, second = (m.backward(d_logits, m.forward(batch[0])[1]) for m in (keeping, forgetting))
    assert_same_bits(second.flat, first.flat, "gradients of logits")


def test_recomputing_takes_less_memory() -> None:
    config = ng.GPTConfig(10, 64, 32, 2, num_layers=12)
    ids = np.zeros((4, 64), int)
    usual, sparing = (
        growth(lambda recompute=recompute: ng.GPT(config, recompute=recompute).forward(ids))[1]
        for recompute in (False, True)
    )
    assert sparing < usual / 2


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_second_forward_disturbs_no_saved_values(threads: int) -> None:
    config = ng.GPTConfig(7, 5, 8, 2, 2)
    model = model_on(threads, config)
    random = np.random.default_rng(0)
    ids, others = random.integers(0, 7, (2, 4, 5))
    logits, saved = model.forward(ids)
    before = logits.copy()
    d_logits = random.standard_normal(logits.shape)
    expected = model.backward(d_logits, saved).flat
    model.loss_and_gradients(others, others)
    model.forward(others)
    model.backward(d_logits * 2, model.forward(others)[1])
    assert_same_bits(logits, before, "logits")
    assert_same_bits(model.backward(d_logits, saved).flat, expected, "gradients")


@pytest.mark.parametrize("shared", [True, False], ids=["one model", "a model each"])
def test_models_in_step_on_two_threads_do_not_disturb_each_other(shared: bool) -> None:
    config = ng.GPTConfig(30, 16, 24, 3, 2)
    models = [ng.GPT(config, threads=2)]
    models.append(models[0] if shared else ng.GPT(config, seed=1, threads=2))
    batches = np.random.default_rng(0).integers(0, 30, (2, 6, 16))
    alone = [m.loss_and_gradients(ids, ids)[1].flat for m, ids in zip(models, batches, strict=True)]
    wrong: list[int] = []

    def train(which: int) -> None:
        for _ in range(20):
            _, gradients = models[which].loss_and_gradients(batches[which], batches[which])
            if gradients.flat.tobytes() != alone[which].tobytes():
                wrong.append(which)

    threads = [threading.Thread(target=train, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bad_ids_are_named_by_their_place_in_the_whole_batch(threads: int) -> None:
    model, ids = ng.GPT(ng.GPTConfig(9, 4, 8, 2, 1), threads=threads), np.zeros((6, 4), int)
    ids[5, 3] = 9
    with pytest.raises(ValueError, match=r"token id 9 at \(5, 3\)"):
        model.loss_and_gradients(ids, np.zeros((6, 4), int))
    with pytest.raises(ValueError, match=r"target 9 at \(5, 3\)"):
        model.loss(np.zeros((6, 4), int), ids)


def test_what_overflows_on_a_thread_is_treated_as_the_caller_wishes() -> None:
    model = ng.GPT(ng.GPTConfig(9, 4, 8, 2, 1), threads=2)
    model.parameters.flat[...] = 1e30
    ids = np.arange(16).reshape(4, 4) % 9
    with np.errstate(all="ignore"):
        model.loss_and_gradients(ids, ids)  # a warning, here an error, on either thread would end it
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        model.loss_and_gradients(ids, ids)


@pytest.mark.parametrize("threads", [0, -1])
def test_there_is_at_least_one_thread(threads: int) -> None:
    with pytest.raises(ValueError, match="threads must be at least 1"):
        ng.GPT(ng.GPTConfig(9, 4, 8, 2, 1), threads=threads)


# ---- the optimizer's passes --------------------------------------------------------------------------------


@pytest.mark.parametrize("tie_weights", [True, False])
def test_an_update_does_not_depend_on_threads(tie_weights: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ng.GPTConfig(40, 64, 32, 2, 2, tie_weights=tie_weights)
    results = []
    for threads in (1, 2, 3):
        team = cut_fine(threads)
        for module in ("adamw", "clipping"):
            monkeypatch.setattr(f"numpy_gpt.training.{module}.Team", lambda _, team=team: team)
        model = ng.GPT(config)
        gradients = ng.Parameters.zeros(config, np.float32)
        gradients.flat[...] = np.random.default_rng(0).standard_normal(gradients.flat.size)
        decayed = model.parameters.flat.copy()
        decayed[: model.parameters.matrices.size] *= 1 - 1e-3 * 0.5
        optimizer = ng.AdamW(model.parameters, threads=threads, weight_decay=0.5)
        norms = []
        for _ in range(2):
            norms.append(ng.clip_gradients(gradients, 0.5))
            optimizer.step(gradients)
            if len(norms) == 1:  # the first step's moments are the gradient and its square
                expected = decayed - 1e-3 * gradients.flat / (np.abs(gradients.flat) + 1e-8)
                assert_close(model.parameters.flat, expected, "parameters", tolerance=1e-6)
        results.append((norms, model.parameters.flat.copy()))
    for norms, flat in results[1:]:
        assert norms == results[0][0]
        assert_same_bits(flat, results[0][1], "parameters")
