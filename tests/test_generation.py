"""Generation: what the filters leave, what is drawn, and what the model is asked."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from numpy_gpt.config import GPTConfig
from numpy_gpt.generation import generate, next_token_probabilities
from numpy_gpt.model import GPT
from tests.strategies import token_ids

V, WINDOW = 7, 5
CONFIG = GPTConfig(V, WINDOW, embedding_dim=8, num_heads=2, num_layers=1)

# Few different values, so that ties are as common as they are rare in life.
LOGITS = st.lists(
    st.integers(-6, 6).map(lambda n: n / 2) | st.just(-math.inf), min_size=1, max_size=9
).filter(lambda logits: max(logits) > -math.inf)
TEMPERATURES = st.sampled_from([0.0, 0.3, 1.0, 2.5])
TOP_K = st.none() | st.integers(1, 11)
TOP_P = st.none() | st.sampled_from([1e-9, 0.1, 0.37, 0.5, 0.83, 0.99, 1.0])


class ScriptedCache:
    """In place of a key/value cache: the ids themselves."""

    def __init__(self):
        self.ids = []

    @property
    def length(self):
        return len(self.ids)


class Scripted:
    """In place of a model: logits that a function makes of the window's ids; remembers all the windows.

    A window is all that a prediction sees: what the cache holds, then the ids it is called with.
    """

    config = CONFIG

    def __init__(self, logits_of):
        self.logits_of = logits_of
        self.asked = []

    def new_cache(self):
        return ScriptedCache()

    def __call__(self, ids, *, cache=None):
        (new,) = np.asarray(ids).tolist()
        window = new
        if cache is not None:
            window = cache.ids = cache.ids + new
        self.asked.append(window)
        everything_else = np.full((1, len(new) - 1, V), np.nan)
        return np.concatenate([everything_else, [[self.logits_of(window)]]], axis=1)


def prefers(token):
    """Logits that rise up to one token and fall after it."""
    return -np.abs(np.arange(V) - token % V).astype(float)


def successor(window):
    return prefers(window[-1] + 1)


def reference_probabilities(logits, temperature, top_k, top_p):
    """The slow way, token by token; None where rounding alone decides which token crosses top_p."""
    ids = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if temperature == 0:
        return [float(i == ids[0]) for i in range(len(logits))]
    weights = {i: math.exp((logits[i] - logits[ids[0]]) / temperature) for i in ids[:top_k]}
    total = math.fsum(weights.values())
    kept, reached = {}, 0.0
    for i, weight in weights.items():
        if top_p is not None and top_p < 1 and abs(reached - top_p) < 1e-9:
            return None
        if top_p is None or reached < top_p:
            kept[i] = weight
        reached += weight / total
    return [kept.get(i, 0.0) / math.fsum(kept.values()) for i in range(len(logits))]


# Filters


@given(LOGITS, TEMPERATURES, TOP_K, TOP_P, st.sampled_from([np.float32, np.float64]))
def test_probabilities_are_those_of_a_slow_reference(logits, temperature, top_k, top_p, dtype):
    expected = reference_probabilities(logits, temperature, top_k, top_p)
    assume(expected is not None)
    given_logits = np.array(logits, dtype)
    given_logits.flags.writeable = False
    actual = next_token_probabilities(given_logits, temperature=temperature, top_k=top_k, top_p=top_p)
    assert actual.dtype == np.float64
    assert abs(actual.sum() - 1) < 1e-14
    assert [p > 0 for p in actual] == [p > 0 for p in expected]
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_top_k_keeps_exactly_k_and_the_lower_ids_of_equals():
    for k in range(1, 5):
        kept = next_token_probabilities([2, 2, 2, 2], top_k=k)
        assert kept.tolist() == [1 / k] * k + [0] * (4 - k)
    assert next_token_probabilities([1, 3, 1, 3], top_k=3).nonzero()[0].tolist() == [0, 1, 3]


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint64])
def test_top_k_may_be_any_integer(kind):
    logits = np.random.default_rng(1).normal(size=300)
    expected = next_token_probabilities(logits, top_k=5)
    assert next_token_probabilities(logits, top_k=kind(5)).tolist() == expected.tolist()


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint64])
def test_every_number_of_generate_may_be_any_integer(kind):
    numbers = {"max_new_tokens": 20, "top_k": 3, "seed": 4, "end_of_text": 2, "vocabulary_limit": V - 1}
    expected = list(generate(Scripted(successor), [0], temperature=2.0, **numbers))
    given_numbers = {name: kind(number) for name, number in numbers.items()}
    actual = list(generate(Scripted(successor), [0], temperature=2.0, **given_numbers))
    assert actual == expected
    for name in numbers:
        with pytest.raises(TypeError, match="int"):
            generate(Scripted(successor), [0], **({"max_new_tokens": 1} | {name: 1.5}))


def test_equals_stay_in_order_of_id_in_a_large_vocabulary():
    logits = np.random.default_rng(0).integers(3, size=1000)
    kept = next_token_probabilities(logits, top_k=500).nonzero()[0]
    assert kept.tolist() == sorted(sorted(range(1000), key=lambda i: (-logits[i], i))[:500])


@pytest.mark.parametrize(
    ("top_p", "kept"), [(1e-12, 1), (0.49, 1), (0.5, 1), (0.51, 2), (0.75, 2), (0.76, 3), (0.99, 4), (1, 4)]
)
def test_top_p_keeps_the_token_that_reaches_p(top_p, kept):
    # 1/2, 1/4, 1/8, 1/8 up to rounding: the largest logits are nudged up, so that sums reach p for sure.
    logits = np.log([1 / 8, 1 / 2 + 1e-12, 1 / 8, 1 / 4 + 1e-12])
    assert np.count_nonzero(next_token_probabilities(logits, top_p=top_p)) == kept


def test_top_p_counts_what_top_k_left():
    # 0.4, 0.3, 0.3: the first alone is below 1/2, but above it when it shares with one other only.
    logits = np.log([0.4, 0.3, 0.3])
    assert np.count_nonzero(next_token_probabilities(logits, top_p=0.5)) == 2
    np.testing.assert_allclose(next_token_probabilities(logits, top_k=2, top_p=0.5), [1, 0, 0])


def test_top_p_of_one_drops_not_even_what_rounding_hides():
    assert np.count_nonzero(next_token_probabilities([0.0, -40.0, -41.0], top_p=1.0)) == 3


def test_temperature_comes_before_top_p():
    logits = np.log([0.6, 0.2, 0.2])
    assert np.count_nonzero(next_token_probabilities(logits, top_p=0.5)) == 1
    assert np.count_nonzero(next_token_probabilities(logits, top_p=0.5, temperature=10.0)) == 2


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e300])
def test_extreme_temperatures_are_limits(temperature):
    probabilities = next_token_probabilities([1e308, -1e308, 1e308], temperature=temperature)
    np.testing.assert_allclose(probabilities, [0.5, 0, 0.5], atol=1e-12)


def test_huge_logits_do_not_overflow():
    np.testing.assert_allclose(
        next_token_probabilities(np.array([3e38, 3e38, -3e38], np.float32)), [0.5, 0.5, 0]
    )


@pytest.mark.parametrize("bad", [[0, math.nan], [0, math.inf], [-math.inf, -math.inf]])
@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_that_say_nothing_are_refused(bad, temperature):
    with pytest.raises(ValueError, match="logits hold NaN"):
        next_token_probabilities(bad, temperature=temperature)


@pytest.mark.parametrize("shape", [(), (0,), (1, 3)])
def test_logits_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"logits must have shape \(V,\)"):
        next_token_probabilities(np.zeros(shape))


WRONG_FILTERS = [
    ({"temperature": -1}, "temperature must be"),
    ({"temperature": math.nan}, "temperature must be"),
    ({"temperature": math.inf}, "temperature must be"),
    ({"top_k": 0}, "top_k must be at least 1"),
    ({"top_k": -3}, "top_k must be at least 1"),
    ({"top_p": 0}, "top_p must be"),
    ({"top_p": 1.01}, "top_p must be"),
    ({"top_p": math.nan}, "top_p must be"),
]


@pytest.mark.parametrize(("options", "fault"), WRONG_FILTERS)
def test_filters_outside_their_range_are_refused(options, fault):
    with pytest.raises(ValueError, match=fault):
        next_token_probabilities([0.0, 1.0], **options)
    with pytest.raises(ValueError, match=fault):
        generate(Scripted(successor), [0], max_new_tokens=0, **options)  # at the call, not at the first token


# The loop


@given(
    prompt=st.integers(1, 2 * WINDOW + 1).flatmap(lambda length: token_ids((length,), V)),
    count=st.integers(0, 8),
    filters=st.fixed_dictionaries({"temperature": TEMPERATURES, "top_k": TOP_K, "top_p": TOP_P}),
    seed=st.integers(0, 2**40),
)
def test_every_token_is_predicted_from_the_last_window(prompt, count, filters, seed):
    prompt.flags.writeable = False
    model = Scripted(lambda window: prefers(sum(window)))
    new = list(generate(model, prompt, max_new_tokens=count, seed=seed, **filters))
    assert len(new) == count
    assert all(type(token) is int for token in new)
    everything = prompt.tolist() + new
    assert model.asked == [everything[: len(prompt) + i][-WINDOW:] for i in range(count)]
    for window, token in zip(model.asked, new, strict=True):
        assert next_token_probabilities(prefers(sum(window)), **filters)[token] > 0
    assert list(generate(model, prompt, max_new_tokens=count, seed=seed, **filters)) == new


def test_temperature_zero_takes_the_largest_logit_and_the_lowest_of_equals():
    assert list(generate(Scripted(successor), [4], max_new_tokens=4, temperature=0)) == [5, 6, 0, 1]
    assert (
        list(generate(Scripted(lambda _: [0, 3, 1, 3, 3, 0, 0]), [0], max_new_tokens=3, temperature=0))
        == [1] * 3
    )


def test_draws_follow_the_probabilities():
    count, probabilities = 4000, np.array([0.5, 0.25, 0.125, 0.125, 0, 0, 0])
    with np.errstate(divide="ignore"):
        model = Scripted(lambda _: np.log(probabilities))
        drawn = Counter(generate(model, [0], max_new_tokens=count, seed=3))
    assert set(drawn) == {0, 1, 2, 3}
    for token, times in drawn.items():
        spread = math.sqrt(count * probabilities[token] * (1 - probabilities[token]))
        assert abs(times - count * probabilities[token]) < 4 * spread


def test_seeds_give_different_tokens():
    runs = {
        tuple(generate(Scripted(lambda _: np.zeros(V)), [0], max_new_tokens=20, seed=seed))
        for seed in range(50)
    }
    assert len(runs) == 50


def test_two_iterators_do_not_disturb_each_other():
    def start():
        return generate(Scripted(lambda _: np.zeros(V)), [0], max_new_tokens=10, seed=1)

    alone = list(start())
    assert list(zip(start(), start(), strict=True)) == list(zip(alone, alone, strict=True))


def test_tokens_are_computed_when_they_are_asked_for():
    model = Scripted(successor)
    tokens = generate(model, [0], max_new_tokens=10**9, temperature=0)
    assert model.asked == []
    assert [next(tokens), next(tokens)] == [1, 2]
    assert len(model.asked) == 2


def test_end_of_text_ends_the_text_and_is_not_yielded():
    assert list(generate(Scripted(successor), [4], max_new_tokens=9, temperature=0, end_of_text=0)) == [5, 6]
    assert list(generate(Scripted(successor), [0], max_new_tokens=2, temperature=0, end_of_text=0)) == [1, 2]
    assert (
        list(generate(Scripted(lambda _: prefers(0)), [4], max_new_tokens=9, temperature=0, end_of_text=0))
        == []
    )


@pytest.mark.parametrize("empty", [[], (), np.empty(0), np.empty(0, np.int32)])
def test_an_empty_prompt_starts_from_end_of_text(empty):
    model = Scripted(successor)
    assert list(generate(model, empty, max_new_tokens=2, temperature=0, end_of_text=3)) == [4, 5]
    assert model.asked == [[3], [3, 4]]
    with pytest.raises(ValueError, match="an empty prompt starts from end_of_text, which is None"):
        generate(model, empty, max_new_tokens=0)


@pytest.mark.parametrize(
    ("prompt", "kind", "fault"),
    [
        ([[1, 2]], ValueError, "prompt_ids must be one sequence"),
        (3, ValueError, "prompt_ids must be one sequence"),
        ([[1], [1, 2]], ValueError, "prompt_ids must be one sequence"),
        ("text", ValueError, "prompt_ids must be one sequence"),
        ([1.0], TypeError, "integers"),
        ([True], TypeError, "integers"),
        (["a"], TypeError, "integers"),
        ([0, V], ValueError, rf"{V} at \(0, 1\).*{V - 1}"),
        # Long before the window that the model sees.
        ([-1] + [0] * 3 * WINDOW, ValueError, r"-1 at \(0, 0\)"),
    ],
)
def test_a_wrong_prompt_is_refused_at_the_call(prompt, kind, fault):
    with pytest.raises(kind, match=fault):
        generate(Scripted(successor), prompt, max_new_tokens=0)


@pytest.mark.parametrize(
    ("options", "kind", "fault"),
    [
        ({"max_new_tokens": -1}, ValueError, "max_new_tokens must be at least 0, not -1"),
        ({"max_new_tokens": 1.5}, TypeError, "integer"),
        ({"end_of_text": V}, ValueError, f"end_of_text {V} is outside 0..{V - 1}"),
        ({"end_of_text": -1}, ValueError, "end_of_text -1 is outside"),
        ({"seed": -1}, ValueError, "seed must be at least 0"),
    ],
)
def test_wrong_settings_are_refused_at_the_call(options, kind, fault):
    with pytest.raises(kind, match=fault):
        generate(Scripted(successor), [0], **{"max_new_tokens": 1, **options})


def test_a_real_model_is_asked_again_for_every_token():
    model = GPT(CONFIG, seed=1, dtype=np.float64)
    ids = [3, 1, 4, 1, 5, 2, 6]
    for token in generate(model, ids.copy(), max_new_tokens=6, temperature=0):
        assert token == model([ids[-WINDOW:]])[0, -1].argmax()
        ids.append(token)
    assert len(ids) == 13
