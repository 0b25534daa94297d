"""AdamW and clipping: torch's own, number by number, and what they refuse."""

from __future__ import annotations

import copy
import dataclasses
import math
import re
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import numpy_gpt as ng
from numpy_gpt.arrays import Array
from numpy_gpt.parameters import Parameters
from tests.comparison import FLOAT64_AGREEMENT, assert_close, assert_float32, assert_same_bits
from tests.models import TIED, configs
from tests.strategies import DTYPES

CONFIG = ng.GPTConfig(5, 4, embedding_dim=4, num_heads=2, num_layers=1)


def random_parameters(
    config: ng.GPTConfig, seed: int, dtype: type = np.float64, scale: float = 1.0
) -> Parameters:
    """Return normal numbers that float32 holds exactly, in the given dtype."""
    parameters = Parameters.zeros(config, dtype)
    drawn = np.random.default_rng(seed).standard_normal(parameters.flat.size)
    parameters.flat[...] = (scale * drawn).astype(np.float32)
    return parameters


class Course(NamedTuple):
    """A start, the optimizer's settings, and for every step a learning rate and the size of the gradient."""

    config: ng.GPTConfig
    settings: dict[str, Any]
    steps: list[tuple[float | None, float]]
    seed: int

    def start(self, dtype: type = np.float64) -> tuple[Parameters, ng.AdamW]:
        """Return fresh parameters and their optimizer."""
        parameters = random_parameters(self.config, self.seed, dtype)
        return parameters, ng.AdamW(parameters, **self.settings)

    def gradients(self, dtype: type = np.float64) -> list[Parameters]:
        """Return every step's gradient, some of its numbers zero."""
        result = []
        for i, (_, scale) in enumerate(self.steps):
            gradients = random_parameters(self.config, self.seed + 1 + i, dtype, scale)
            gradients.flat[i::7] = 0
            result.append(gradients)
        return result

    def by_numpy(self, dtype: type) -> dict[str, Array]:
        """Return the parameters after the last step."""
        parameters, optimizer = self.start(dtype)
        for (rate, _), gradients in zip(self.steps, self.gradients(dtype), strict=True):
            optimizer.step(gradients, rate)
        return parameters.state_dict()

    def by_torch(self, dtype: type) -> dict[str, Array]:
        """Return what torch.optim.AdamW makes of the same course, decay on 2-D tensors only."""
        tensors = {
            name: torch.tensor(view, requires_grad=True)
            for name, view in random_parameters(self.config, self.seed, dtype).named_parameters()
        }
        groups = [
            {"params": [t for t in tensors.values() if t.ndim == 2]},
            {"params": [t for t in tensors.values() if t.ndim == 1], "weight_decay": 0.0},
        ]
        names = {"learning_rate": "lr"}
        settings = {names.get(name, name): value for name, value in self.settings.items()}
        optimizer = torch.optim.AdamW(groups, **settings)
        for (rate, _), gradients in zip(self.steps, self.gradients(dtype), strict=True):
            for name, tensor in tensors.items():
                tensor.grad = torch.tensor(gradients[name])
            for group in optimizer.param_groups:
                group["lr"] = self.settings["learning_rate"] if rate is None else rate
            optimizer.step()
        state = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
        if self.config.tie_weights:
            state[TIED] = state["embedding.token_embedding.weight"]
        return state

    @property
    def distance(self) -> float:
        """How far a parameter is moved in all, at most about: what its rounding errors are measured by."""
        return sum(self.settings["learning_rate"] if rate is None else rate for rate, _ in self.steps)


@st.composite
def courses(draw: st.DrawFn) -> Course:
    rates = st.sampled_from([0.0, 1e-4, 1e-2, 0.3])
    settings = {
        "learning_rate": draw(rates),
        "betas": draw(st.sampled_from([(0.9, 0.999), (0.9, 0.95), (0.0, 0.5), (0.5, 0.0)])),
        "eps": draw(st.sampled_from([1e-8, 1e-3])),
        "weight_decay": draw(st.sampled_from([0.0, 0.01, 0.5])),
    }
    step = st.tuples(st.none() | rates, st.sampled_from([1.0, 0.0, 1e-4, 1e3]))
    return Course(
        draw(configs()), settings, draw(st.lists(step, min_size=1, max_size=6)), draw(st.integers(0, 999))
    )


@given(course=courses())
def test_adamw_is_torchs_in_float64(course: Course) -> None:
    ours, theirs = course.by_numpy(np.float64), course.by_torch(np.float64)
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        assert_close(ours[name], expected, name, tolerance=FLOAT64_AGREEMENT, floor=course.distance)


@given(course=courses())
def test_adamw_in_float32_errs_no_more_than_torchs(course: Course) -> None:
    ours, theirs, exact = (
        course.by_numpy(np.float32),
        course.by_torch(np.float32),
        course.by_torch(np.float64),
    )
    for name, expected in exact.items():
        assert ours[name].dtype == np.float32
        assert_float32(ours[name], theirs[name], expected, name, floor=course.distance)


@given(config=configs(), dtype=DTYPES)
def test_decay_shrinks_matrices_once_and_spares_vectors(config: ng.GPTConfig, dtype: type) -> None:
    parameters = random_parameters(config, 1, dtype)
    before = parameters.state_dict()
    optimizer = ng.AdamW(parameters, learning_rate=0.5, weight_decay=0.25)
    optimizer.step(Parameters.zeros(config, dtype))
    for name, after in parameters.state_dict().items():
        factor = 1 - 0.5 * 0.25 if after.ndim == 2 else 1.0
        assert_same_bits(after, before[name] * dtype(factor), name)


@given(course=courses(), dtype=DTYPES)
def test_a_step_leaves_the_gradients_and_every_dtype_alone(course: Course, dtype: type) -> None:
    parameters, optimizer = course.start(dtype)
    vector = parameters.flat
    for gradients in course.gradients(dtype):
        before = gradients.flat.copy()
        gradients.flat.flags.writeable = False
        optimizer.step(gradients)
        assert_same_bits(gradients.flat, before, "gradients")
    assert parameters.flat is vector
    assert {optimizer.first_moment.dtype, optimizer.second_moment.dtype} == {np.dtype(dtype)}


@given(course=courses(), dtype=DTYPES, data=st.data())
def test_an_optimizer_restored_midway_continues_bit_for_bit(
    course: Course, dtype: type, data: st.DataObject
) -> None:
    midway = data.draw(st.integers(0, len(course.steps)), label="midway")
    parameters, optimizer = course.start(dtype)
    for i, ((rate, _), gradients) in enumerate(zip(course.steps, course.gradients(dtype), strict=True)):
        if i == midway:
            parameters = copy.deepcopy(parameters)
            state = optimizer.state_dict()
            optimizer = ng.AdamW(parameters, **course.settings)
            optimizer.load_state_dict(state)
            for array in state.values():  # copies on the way in, as on the way out
                array[...] = 0
        optimizer.step(gradients, rate)
    for name, expected in course.by_numpy(dtype).items():
        assert_same_bits(parameters.state_dict()[name], expected, name)


@pytest.fixture
def optimizer() -> ng.AdamW:
    """An optimizer that has taken a step."""
    optimizer = ng.AdamW(random_parameters(CONFIG, 0))
    optimizer.step(random_parameters(CONFIG, 1))
    return optimizer


@pytest.mark.parametrize(
    "gradients",
    [
        Parameters.zeros(CONFIG, np.float32),
        Parameters.zeros(dataclasses.replace(CONFIG, num_layers=2), np.float64),
        # As many numbers, under other names.
        Parameters.zeros(dataclasses.replace(CONFIG, vocabulary_size=4, max_sequence_length=5), np.float64),
    ],
    ids=["float32", "two layers", "as many numbers"],
)
def test_gradients_of_another_model_are_refused(optimizer: ng.AdamW, gradients: Parameters) -> None:
    before = optimizer.parameters.flat.copy(), optimizer.state_dict()
    with pytest.raises(ValueError, match="gradients"):
        optimizer.step(gradients)
    assert_same_bits(optimizer.parameters.flat, before[0], "parameters")
    for name, array in optimizer.state_dict().items():
        assert_same_bits(array, before[1][name], name)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("learning_rate", value) for value in (-1e-3, math.inf, math.nan)),
        *(("eps", value) for value in (-1e-8, math.inf, math.nan)),
        *(("weight_decay", value) for value in (-0.1, math.inf, math.nan)),
        *(("betas", value) for value in ((1.0, 0.999), (0.9, 1.0), (-0.1, 0.9), (0.9, math.nan))),
        *(("betas", value) for value in ((0.9,), (0.9, 0.99, 0.999))),
    ],
)
def test_a_setting_out_of_range_is_named(setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=setting):
        ng.AdamW(Parameters.zeros(CONFIG, np.float64), **{setting: value})


@pytest.mark.parametrize("threads", [0, -1, 1.5, math.nan, "two"])
def test_threads_that_cannot_be_are_refused_at_once_as_a_model_refuses_them(threads: Any) -> None:
    with pytest.raises((ValueError, TypeError)) as of_a_model:
        ng.GPT(CONFIG, threads=threads)
    parameters = Parameters.zeros(CONFIG, np.float64)
    for make in (ng.AdamW, ng.AdamW(parameters).on_threads):
        arguments = (parameters,) if make is ng.AdamW else ()
        with pytest.raises(of_a_model.type, match=f"^{re.escape(str(of_a_model.value))}$"):
            make(*arguments, threads=threads)


def test_on_other_threads_it_is_the_same_optimizer(optimizer: ng.AdamW) -> None:
    other = optimizer.on_threads(3)
    assert (other.threads, other.parameters) == (3, optimizer.parameters)
    for name, array in optimizer.named_state():
        assert_same_bits(other.state_dict()[name], array, name)
    assert other.first_moment is optimizer.first_moment


@pytest.mark.parametrize("rate", [-1e-3, -math.inf, math.inf, math.nan])
def test_a_step_at_a_rate_that_cannot_be_is_refused_and_changes_nothing(
    optimizer: ng.AdamW, rate: float
) -> None:
    before = optimizer.parameters.flat.copy(), optimizer.state_dict()
    with pytest.raises(ValueError, match="learning_rate must be zero or a positive finite number"):
        optimizer.step(random_parameters(CONFIG, 2), rate)
    assert_same_bits(optimizer.parameters.flat, before[0], "parameters")
    for name, array in optimizer.state_dict().items():
        assert_same_bits(array, before[1][name], name)


def test_a_state_is_a_copy(optimizer: ng.AdamW) -> None:
    state = optimizer.state_dict()
    before = {name: array.copy() for name, array in state.items()}
    optimizer.step(random_parameters(CONFIG, 2))
    for name, array in state.items():
        assert_same_bits(array, before[name], name)


STATE_FAULTS = {
    "missing a moment": ("first_moment.final_norm.bias", None),
    "missing the other moment": ("second_moment.embedding.token_embedding.weight", None),
    "another shape": ("second_moment.final_norm.bias", np.zeros(5)),
    "unexpected": ("third_moment.final_norm.bias", np.zeros(4)),
    "unexpected in a moment": ("first_moment.lm_head.weight", np.zeros(4)),
    "no steps": ("steps_taken", None),
    "negative steps": ("steps_taken", -1),
    "half a step": ("steps_taken", 0.5),
    "several steps": ("steps_taken", [1, 2]),
}


@pytest.mark.parametrize("fault", STATE_FAULTS)
def test_a_state_that_does_not_fit_is_refused_whole(optimizer: ng.AdamW, fault: str) -> None:
    name, value = STATE_FAULTS[fault]
    before = optimizer.state_dict()
    state: dict[str, Any] = {key: array + 1 for key, array in before.items()} | {name: value}
    if value is None:
        del state[name]
    with pytest.raises(ValueError, match=name.split(".", 1)[-1]):
        optimizer.load_state_dict(state)
    for key, array in optimizer.state_dict().items():
        assert_same_bits(array, before[key], key)


max_norms = st.sampled_from([1e-3, 0.7, 1.0, 50.0, math.inf])


def torch_clip(gradients: Parameters, max_norm: float) -> tuple[float, dict[str, Array]]:
    """Return torch's norm and clipped gradients."""
    tensors = {
        name: torch.zeros(view.shape, dtype=torch.float64) for name, view in gradients.named_parameters()
    }
    for name, tensor in tensors.items():
        tensor.grad = torch.tensor(gradients[name], dtype=torch.float64)
    norm = torch.nn.utils.clip_grad_norm_(list(tensors.values()), max_norm)
    return norm.item(), {
        name: tensor.grad.numpy() for name, tensor in tensors.items() if tensor.grad is not None
    }


@given(config=configs(), dtype=DTYPES, max_norm=max_norms, scale=st.sampled_from([0.0, 1e-6, 0.01, 1.0, 1e3]))
def test_clipping_is_torchs(config: ng.GPTConfig, dtype: type, max_norm: float, scale: float) -> None:
    gradients = random_parameters(config, 3, dtype, scale)
    expected_norm, expected = torch_clip(gradients, max_norm)
    norm = ng.clip_gradients(gradients, max_norm)
    assert type(norm) is float
    assert_close(norm, expected_norm, "norm", tolerance=1e-12)
    for name, view in gradients.named_parameters():
        assert view.dtype == dtype
        assert_close(view, expected[name], name, tolerance=4 * float(np.finfo(dtype).eps))


@given(config=configs(), dtype=DTYPES, exponent=st.integers(-12, 12))
def test_a_gradient_that_is_short_enough_keeps_every_bit(
    config: ng.GPTConfig, dtype: type, exponent: int
) -> None:
    gradients = random_parameters(config, 4, dtype, 10.0**exponent)
    before = gradients.flat.copy()
    norm = ng.clip_gradients(gradients, math.inf)
    assert ng.clip_gradients(gradients, 1.001 * norm + 1e-3) == norm
    assert_same_bits(gradients.flat, before, "gradients")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_norm_holds_where_float32_squares_do_not(dtype: type, scale: float) -> None:
    gradients = Parameters.zeros(CONFIG, dtype)
    gradients.flat[:2] = 3 * scale, 4 * scale
    assert_close(ng.clip_gradients(gradients, math.inf), 5 * scale, "norm", tolerance=1e-6)


@pytest.mark.parametrize("poison", [math.inf, -math.inf, math.nan])
def test_gradients_that_are_not_finite_are_left_as_they_are(poison: float) -> None:
    gradients = random_parameters(CONFIG, 5, np.float32)
    gradients.flat[7] = poison
    before = gradients.flat.tobytes()
    assert not math.isfinite(ng.clip_gradients(gradients, 1.0))
    assert gradients.flat.tobytes() == before


@pytest.mark.parametrize("max_norm", [0.0, -1.0, -math.inf, math.nan])
def test_a_max_norm_that_is_not_positive_is_refused(max_norm: float) -> None:
    with pytest.raises(ValueError, match="max_norm"):
        ng.clip_gradients(random_parameters(CONFIG, 6), max_norm)
