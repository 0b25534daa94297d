"""Parameters: one flat vector, named views into it, and state dicts that go in and out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import numpy_gpt as ng
from tests.comparison import assert_same_bits
from tests.models import TIED, Problem, configs, draw_weights, parameter_shapes, problems
from tests.strategies import DTYPES

TOKEN = "embedding.token_embedding.weight"


@given(config=configs(), dtype=DTYPES)
def test_names_shapes_and_order_are_the_promised_ones(config: ng.GPTConfig, dtype: type) -> None:
    model = ng.GPT(config, dtype=dtype)
    named = list(model.named_parameters())
    assert [(name, view.shape) for name, view in named] == list(parameter_shapes(config).items())
    assert {view.dtype for _, view in named} == {np.dtype(dtype)}
    assert [name for name, _ in model.parameters.named_parameters()] == [name for name, _ in named]


@given(config=configs())
def test_every_parameter_is_a_view_of_one_vector_matrices_first(config: ng.GPTConfig) -> None:
    parameters = ng.GPT(config).parameters
    views = dict(parameters.named_parameters())
    assert parameters.flat.ndim == 1
    assert parameters.flat.size == sum(view.size for view in views.values())

    parameters.flat[...] = np.arange(parameters.flat.size)
    seen = np.concatenate([view.ravel() for view in views.values()])
    assert np.array_equal(np.sort(seen), parameters.flat), "some number has no view, or two"
    last_matrix = max(view.max() for view in views.values() if view.ndim == 2)
    first_vector = min(view.min() for view in views.values() if view.ndim == 1)
    assert last_matrix < first_vector


@given(config=configs())
def test_query_key_and_value_matrices_lie_side_by_side(config: ng.GPTConfig) -> None:
    parameters = ng.GPT(config).parameters
    parameters.flat[...] = np.arange(parameters.flat.size)
    for block in parameters.transformer_blocks:
        attention = block.attention
        matrices = [layer.weight for layer in (attention.W_query, attention.W_key, attention.W_value)]
        together = np.concatenate(matrices).ravel()
        assert np.array_equal(together, together[0] + np.arange(3 * config.embedding_dim**2))


def test_the_tree_and_the_names_are_the_same_arrays() -> None:
    config = ng.GPTConfig(5, 4, embedding_dim=4, num_heads=2, num_layers=2, tie_weights=False)
    parameters = ng.GPT(config).parameters
    for name, view in parameters.named_parameters():
        node = parameters
        for step in name.split("."):
            node = node[int(step)] if step.isdigit() else getattr(node, step)
        assert np.shares_memory(node, view), name
        assert node.shape == view.shape, name


@given(config=configs(), seed=st.integers(0, 2**16))
def test_the_initial_weights_depend_on_the_seed_alone(config: ng.GPTConfig, seed: int) -> None:
    first, second = (ng.GPT(config, seed=seed).parameters.flat for _ in range(2))
    assert_same_bits(second, first, "parameters")
    assert not np.array_equal(first, ng.GPT(config, seed=seed + 1).parameters.flat)


@pytest.mark.parametrize("tie_weights", [True, False])
def test_the_initial_weights_have_the_promised_spread(tie_weights: bool) -> None:
    config = ng.GPTConfig(500, 100, embedding_dim=96, num_heads=4, num_layers=8, tie_weights=tie_weights)
    for name, view in ng.GPT(config, seed=3).named_parameters():
        if view.ndim == 1:
            assert np.all(view == (1.0 if "norm.weight" in name else 0.0)), name
            continue
        shrunk = name.endswith(("out_proj.weight", "down_proj.weight"))
        std = 0.02 / math.sqrt(2 * config.num_layers) if shrunk else 0.02
        # Five standard errors of a mean and of a standard deviation.
        assert abs(view.mean()) < 5 * std / math.sqrt(view.size), name
        assert abs(view.std() / std - 1) < 5 / math.sqrt(2 * view.size), name


@given(problem=problems(), dtype=DTYPES)
def test_a_state_dict_holds_copies_under_all_names(problem: Problem, dtype: type) -> None:
    model = problem.model(dtype)
    state = model.state_dict()
    shapes = parameter_shapes(problem.config)
    assert state.keys() == shapes.keys() | {TIED}
    for name, view in model.named_parameters():
        assert_same_bits(state[name], view, name)
    if problem.config.tie_weights:
        assert_same_bits(state[TIED], state[TOKEN], TIED)

    before = model.parameters.flat.copy()
    for array in state.values():
        assert not np.shares_memory(array, model.parameters.flat)
        array[...] = 0
    assert_same_bits(model.parameters.flat, before, "parameters")


@given(config=configs(), dtype=DTYPES, seed=st.integers(0, 2**16))
def test_loading_copies_every_array_into_place(config: ng.GPTConfig, dtype: type, seed: int) -> None:
    weights = {name: array.astype(dtype) for name, array in draw_weights(config, seed).items()}
    model = ng.GPT(config, dtype=dtype)
    vector = model.parameters.flat
    model.load_state_dict(weights)
    assert model.parameters.flat is vector
    for name, view in model.named_parameters():
        assert_same_bits(view, weights[name], name)
        assert not np.shares_memory(view, weights[name])


@given(config=configs(), dtype=DTYPES, seed=st.integers(0, 2**16))
def test_a_state_dict_gives_the_same_model_back(config: ng.GPTConfig, dtype: type, seed: int) -> None:
    model, other = ng.GPT(config, dtype=dtype, seed=seed), ng.GPT(config, dtype=dtype, seed=seed + 1)
    other.load_state_dict(model.state_dict())
    assert_same_bits(other.parameters.flat, model.parameters.flat, "parameters")


@pytest.fixture
def model() -> ng.GPT:
    return ng.GPT(ng.GPTConfig(5, 4, embedding_dim=4, num_heads=2, num_layers=1))


def test_a_tied_head_may_be_absent(model: ng.GPT) -> None:
    state = model.state_dict()
    del state[TIED]
    model.load_state_dict(state)


def test_a_tied_head_must_equal_the_embedding(model: ng.GPT) -> None:
    state = model.state_dict()
    state[TIED][2, 1] += 1
    with pytest.raises(ValueError, match=TIED):
        model.load_state_dict(state)


def test_an_untied_head_may_not_be_absent() -> None:
    untied = ng.GPT(ng.GPTConfig(5, 4, embedding_dim=4, num_heads=2, num_layers=1, tie_weights=False))
    state = untied.state_dict()
    del state[TIED]
    with pytest.raises(ValueError, match=TIED):
        untied.load_state_dict(state)


def test_every_fault_of_a_state_dict_is_listed_and_nothing_is_loaded(model: ng.GPT) -> None:
    before = model.parameters.flat.copy()
    state = {name: array + 1 for name, array in model.state_dict().items()}
    missing = ["final_norm.bias", "transformer_blocks.0.attention.W_key.weight"]
    for name in missing:
        del state[name]
    unexpected = ["transformer_blocks.1.attention_norm.weight", "lm_head.weight"]
    state |= dict.fromkeys(unexpected, np.zeros(4))
    misshapen = ["embedding.position_embedding.weight", "transformer_blocks.0.feed_forward.up_proj.bias"]
    state |= dict.fromkeys(misshapen, np.zeros((3, 4)))

    with pytest.raises(ValueError, match="final_norm") as caught:
        model.load_state_dict(state)
    for name in (*missing, *unexpected, *misshapen):
        assert name in str(caught.value)
    assert_same_bits(model.parameters.flat, before, "parameters")
