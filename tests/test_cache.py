"""The key/value cache: feeding a text in parts gives what feeding it whole gives."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import numpy_gpt as ng
from numpy_gpt.cache import Cache
from tests.comparison import FLOAT32_FLOOR, FLOAT32_RATIO, assert_close, relative_error
from tests.models import Problem, problems

CACHED_AGREEMENT = 1e-10  # shapes differ, so BLAS adds in another order


@st.composite
def parts(draw: st.DrawFn, length: int) -> list[int]:
    """A way to cut a text of that length, often into single tokens."""
    cuts: list[int] = []
    while sum(cuts) < length:
        cuts.append(draw(st.integers(1, length - sum(cuts))))
    return cuts


def fed_in_parts(model: ng.GPT, token_ids: np.ndarray, cuts: list[int]) -> tuple[np.ndarray, Cache]:
    cache = model.new_cache(len(token_ids))
    pieces = np.split(token_ids, np.cumsum(cuts)[:-1], axis=1)
    return np.concatenate([model(piece, cache=cache) for piece in pieces], axis=1), cache


@given(problem=problems(), data=st.data())
def test_any_cut_gives_the_logits_of_the_whole(problem: Problem, data: st.DataObject) -> None:
    model = problem.model()
    cuts = data.draw(parts(problem.token_ids.shape[1]))
    logits, cache = fed_in_parts(model, problem.token_ids, cuts)
    assert_close(logits, model(problem.token_ids), f"cached logits {cuts}", tolerance=CACHED_AGREEMENT)
    assert cache.length == problem.token_ids.shape[1]


@given(problem=problems(), data=st.data())
def test_float32_errs_with_the_cache_as_it_errs_without(problem: Problem, data: st.DataObject) -> None:
    exact = problem.model()(problem.token_ids)
    model = problem.model(np.float32)
    plain_error = relative_error(model(problem.token_ids), exact).size
    logits, cache = fed_in_parts(model, problem.token_ids, data.draw(parts(problem.token_ids.shape[1])))
    assert logits.dtype == cache.keys.dtype == cache.values.dtype == np.float32
    tolerance = max(FLOAT32_RATIO * plain_error, FLOAT32_FLOOR * (problem.config.num_layers + 1))
    assert_close(logits, exact, "cached logits", tolerance=tolerance)


@pytest.mark.parametrize("cuts", [[300], [63, 1, 1, 100, 135], [10, 200, 46, 44], [*(60 * [1]), 3, 2, 235]])
def test_a_long_text_gets_the_room_that_it_needs(cuts: list[int]) -> None:
    model = ng.GPT(ng.GPTConfig(11, 300, embedding_dim=4, num_heads=2, num_layers=2), dtype=np.float64)
    token_ids = np.random.default_rng(1).integers(0, 11, (2, 300))
    logits, cache = fed_in_parts(model, token_ids, cuts)
    assert_close(logits, model(token_ids), f"cached logits {cuts}", tolerance=CACHED_AGREEMENT)
    assert cache.keys.shape == cache.values.shape == (2, 2, 300, 4)
    with pytest.raises(ValueError, match="input has 301 tokens, but the maximum is 300"):
        model(token_ids[:, :1], cache=cache)


@pytest.fixture
def model() -> ng.GPT:
    return ng.GPT(ng.GPTConfig(11, 6, embedding_dim=8, num_heads=2, num_layers=2), dtype=np.float64)


@pytest.mark.parametrize(
    ("token_ids", "message"),
    [
        ([[1, 2, 3]], r"^input has 7 tokens, but the maximum is 6$"),
        ([[1], [2]], "batch_size of 1, not 2"),
        ([[11]], "token id 11 at"),
        ([[]], "at least one token"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_the_cache_alone(
    model: ng.GPT, token_ids: list[list[int]], message: str
) -> None:
    cache = model.new_cache()
    model([[1, 2, 3, 4]], cache=cache)
    before = cache.keys[:, :, :4].copy()
    with pytest.raises(ValueError, match=message):
        model(token_ids, cache=cache)
    assert cache.length == 4
    assert np.array_equal(cache.keys[:, :, :4], before)
    assert_close(
        model([[5, 6]], cache=cache), model([[1, 2, 3, 4, 5, 6]])[:, 4:], "logits", tolerance=CACHED_AGREEMENT
    )


def test_a_cache_for_no_sequences_is_refused(model: ng.GPT) -> None:
    with pytest.raises(ValueError, match="batch_size"):
        model.new_cache(0)


OTHER_SETTINGS = {
    "vocabulary_size": 12,
    "max_sequence_length": 7,
    "embedding_dim": 16,
    "num_heads": 4,
    "num_layers": 3,
    "qkv_bias": False,
    "tie_weights": False,
    "activation": "gelu",
    "layer_norm_eps": 1e-6,
}


def test_every_setting_tells_models_apart() -> None:
    assert list(OTHER_SETTINGS) == [field.name for field in dataclasses.fields(ng.GPTConfig)]


@pytest.mark.parametrize("setting", OTHER_SETTINGS)
def test_a_cache_of_another_model_is_refused_by_the_setting_that_differs(model: ng.GPT, setting: str) -> None:
    cache = model.new_cache()
    model([[1, 2]], cache=cache)
    other = dataclasses.replace(model.config, **{setting: OTHER_SETTINGS[setting]})
    message = f"{setting} {getattr(model.config, setting)}, not {OTHER_SETTINGS[setting]}"
    with pytest.raises(ValueError, match=f"^the cache was made for a model with {message}$"):
        ng.GPT(other, dtype=model.dtype)([[3]], cache=cache)
    assert cache.length == 2
    ng.GPT(model.config, seed=1, dtype=model.dtype)([[3]], cache=cache)  # other weights look the same


def test_a_cache_of_another_dtype_is_refused(model: ng.GPT) -> None:
    with pytest.raises(ValueError, match=r"^the cache was made for a model in float64, not float32$"):
        ng.GPT(model.config)([[3]], cache=model.new_cache())


def test_two_caches_do_not_meet(model: ng.GPT) -> None:
    first, second = model.new_cache(), model.new_cache()
    model([[1, 2]], cache=first)
    model([[7, 8, 9]], cache=second)
    assert_close(model([[3]], cache=first), model([[1, 2, 3]])[:, 2:], "logits", tolerance=CACHED_AGREEMENT)


@given(seed=st.integers(0, 2**16), length=st.integers(1, 15))
def test_greedy_tokens_are_those_of_plain_recomputation(seed: int, length: int) -> None:
    random = np.random.default_rng(seed)
    model = ng.GPT(ng.GPTConfig(11, 6, embedding_dim=8, num_heads=2, num_layers=2), dtype=np.float64)
    model.parameters.flat[:] = random.normal(0, 0.5, model.parameters.flat.size)
    prompt = random.integers(0, 11, length)

    ids = prompt.tolist()
    for token in ng.generate(model, prompt, max_new_tokens=12, temperature=0):
        logits = model([ids[-6:]])[0, -1]
        assert logits[token] >= logits.max() - CACHED_AGREEMENT * abs(logits).max()
        ids.append(token)
    assert len(ids) == length + 12
