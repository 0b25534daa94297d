"""Whole models for tests: configurations, weights in which nothing vanishes, and what both twins answer."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st

import numpy_gpt as ng
import torch_gpt
from numpy_gpt.arrays import Array
from tests.cases import torch_cross_entropy
from tests.strategies import sizes, targets, token_ids

SEED_BATCH = [[1026, 373, 257, 6016, 4692], [1110, 287, 3035, 11, 290], [262, 29906, 547, 8871, 28306]]
TIED = "vocabulary_projection.weight"


def parameter_shapes(config: ng.GPTConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter under its name, in the promised order; a tied matrix once."""
    V, C = config.vocabulary_size, config.embedding_dim
    shapes: dict[str, tuple[int, ...]] = {
        "embedding.token_embedding.weight": (V, C),
        "embedding.position_embedding.weight": (config.max_sequence_length, C),
    }
    for i in range(config.num_layers):
        block = f"transformer_blocks.{i}"
        shapes |= {f"{block}.attention_norm.weight": (C,), f"{block}.attention_norm.bias": (C,)}
        for name in ("W_query", "W_key", "W_value", "out_proj"):
            shapes[f"{block}.attention.{name}.weight"] = (C, C)
            if config.qkv_bias or name == "out_proj":
                shapes[f"{block}.attention.{name}.bias"] = (C,)
        shapes |= {f"{block}.feed_forward_norm.weight": (C,), f"{block}.feed_forward_norm.bias": (C,)}
        shapes[f"{block}.feed_forward.up_proj.weight"] = (4 * C, C)
        shapes[f"{block}.feed_forward.up_proj.bias"] = (4 * C,)
        shapes[f"{block}.feed_forward.down_proj.weight"] = (C, 4 * C)
        shapes[f"{block}.feed_forward.down_proj.bias"] = (C,)
    shapes |= {"final_norm.weight": (C,), "final_norm.bias": (C,)}
    if not config.tie_weights:
        shapes[TIED] = (V, C)
    return shapes


def draw_weights(config: ng.GPTConfig, seed: int) -> dict[str, Array]:
    """Return float32 matrices of variance 1/fan_in and vectors of variance 1, by name.

    At the 0.02 of a fresh model whole terms vanish; at 1 the softmax saturates and hides its gradient.
    """
    random = np.random.default_rng(seed)
    return {
        name: (random.standard_normal(shape) / math.sqrt(math.prod(shape[1:]))).astype(np.float32)
        for name, shape in parameter_shapes(config).items()
    }


class Problem(NamedTuple):
    """A configuration, a batch for it, and the seed of the weights and of the upstream gradient."""

    config: ng.GPTConfig
    token_ids: Array  # (B, T)
    target_ids: Array  # (B, T)
    seed: int

    def model(self, dtype: type = np.float64, nudge: int = 0) -> ng.GPT:
        """Return a NumPy model with the drawn weights, or with those moved to a neighbouring float32."""
        model = ng.GPT(self.config, dtype=dtype)
        weights = draw_weights(self.config, self.seed)
        if nudge:
            random = np.random.default_rng(nudge)
            for name, weight in weights.items():
                towards = random.choice(np.array([-np.inf, np.inf], np.float32), weight.shape)
                weights[name] = np.nextafter(weight, towards)
        model.load_state_dict({name: weight.astype(dtype) for name, weight in weights.items()})
        return model

    def d_logits(self, dtype: type = np.float64) -> Array:
        """Return a random upstream gradient (B, T, V), read-only."""
        shape = (*self.token_ids.shape, self.config.vocabulary_size)
        d_logits = (
            np.random.default_rng(self.seed + 1).standard_normal(shape).astype(np.float32).astype(dtype)
        )
        d_logits.flags.writeable = False
        return d_logits


@st.composite
def configs(draw: st.DrawFn, **fixed: Any) -> ng.GPTConfig:
    """Small models of every kind, of three channels or more.

    Layer norm leaves one channel no slope and two next to none: all gradients below the final norm would be
    rounding noise, up to 1/√eps times as large as elsewhere. `test_ops.py` looks at layer norm that narrow.
    """
    H = draw(sizes(3))
    D = draw(st.integers(math.ceil(3 / H), 4))
    fields: dict[str, Any] = {
        "vocabulary_size": draw(sizes(9)),
        "max_sequence_length": draw(sizes(6)),
        "embedding_dim": H * D,
        "num_heads": H,
        "num_layers": draw(sizes(3)),
        "qkv_bias": draw(st.booleans()),
        "tie_weights": draw(st.booleans()),
        "activation": draw(st.sampled_from(["gelu_tanh", "gelu"])),
        "layer_norm_eps": draw(st.sampled_from([1e-5, 1e-3])),
    }
    return ng.GPTConfig(**(fields | fixed))


@st.composite
def problems(draw: st.DrawFn, **fixed: Any) -> Problem:
    """A small model and a batch with repeated ids and ignored targets."""
    config = draw(configs(**fixed))
    shape = draw(sizes(3)), draw(sizes(config.max_sequence_length))
    ids, target_ids = (draw(array(shape, config.vocabulary_size)) for array in (token_ids, targets))
    for array in (ids, target_ids):
        array.flags.writeable = False
    return Problem(config, ids, target_ids, draw(st.integers(0, 2**16)))


class ModelAnswer(NamedTuple):
    """What a model makes of a batch: everything that training uses."""

    logits: Array
    loss: float
    gradients: dict[str, Array]


def answer(problem: Problem, dtype: type) -> ModelAnswer:
    """Return what the NumPy model makes of the problem's batch."""
    model = problem.model(dtype)
    loss, gradients = model.loss_and_gradients(problem.token_ids, problem.target_ids)
    return ModelAnswer(model(problem.token_ids), loss, dict(gradients.named_parameters()))


def torch_answer(
    problem: Problem, dtype: type, *, attention: str = "explicit", nudge: int = 0
) -> ModelAnswer:
    """Return what the torch model with the same weights makes of it."""
    model = torch_gpt.from_numpy(problem.model(dtype, nudge), attention=attention)
    logits = model(torch.tensor(problem.token_ids))
    loss = torch_cross_entropy(logits, torch.tensor(problem.target_ids), divisor=None)
    loss.backward()
    gradients = {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}
    return ModelAnswer(logits.detach().numpy(), loss.item(), gradients)


def tensors(result: ModelAnswer) -> dict[str, Any]:
    """Return logits, loss and gradients under names for failure texts."""
    gradients = {f"d_{name}": gradient for name, gradient in result.gradients.items()}
    return {"logits": result.logits, "loss": result.loss} | gradients


def floors(result: ModelAnswer) -> dict[str, float]:
    """Return what errors are measured against at least: 1e-3 of the model's largest gradient.

    Some are zero by symmetry (W_key.bias: softmax ignores a shift), and their values are rounding noise.
    """
    largest = max(float(abs(gradient).max()) for gradient in result.gradients.values())
    return {what: 1e-3 * largest if what.startswith("d_") else 0.0 for what in tensors(result)}
