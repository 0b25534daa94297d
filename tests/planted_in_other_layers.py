"""Mistakes planted in the layers of other models than GPT-2: rotary embedding, grouped queries, gates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.kinds import Kind
from tests.planted_mistakes import normal, planted, sigmoid
from tests.right_operations import Pair, Random, layer_norm_forward, softmax_rows, tanh_gelu

# --- factors of the chain rule ----------------------------------------------------------------------------


@planted(Kind.MISSING_FACTOR)
def layer_norm_without_its_inverse_deviation(random: Random) -> Pair:
    def backward(d_out: Array, saved: Any) -> tuple[Array, Array, Array]:
        n, _, weight = saved
        d_n = d_out * weight
        d_x = d_n - d_n.mean(axis=-1, keepdims=True) - n * (d_n * n).mean(axis=-1, keepdims=True)
        return d_x, (d_out * n).sum(axis=(0, 1)), d_out.sum(axis=(0, 1))

    return Pair(layer_norm_forward, backward, (normal(random, 2, 4, 6), normal(random, 6), normal(random, 6)))


@planted(Kind.MISSING_FACTOR)
def vector_divided_by_its_length_once(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Array, Array]:
        return x / np.linalg.norm(x, axis=-1, keepdims=True), x

    def backward(d_out: Array, x: Array) -> tuple[Array]:
        unit = x / np.linalg.norm(x, axis=-1, keepdims=True)
        return (d_out - unit * (d_out * unit).sum(axis=-1, keepdims=True),)

    return Pair(forward, backward, (normal(random, 3, 5),))


@planted(Kind.MISSING_FACTOR)
def gelu_without_the_slope_of_its_cubic(random: Random) -> Pair:
    def backward(d_out: Array, x: Array) -> tuple[Array]:
        tanh = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
        slope = 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * math.sqrt(2 / math.pi)
        return (d_out * slope,)

    return Pair(lambda x: (tanh_gelu(x), x), backward, (2 * normal(random, 4, 5),))


@planted(Kind.MISSING_FACTOR)
def gate_without_the_slope_of_its_sigmoid(random: Random) -> Pair:
    def forward(x: Array, gate: Array) -> tuple[Array, Any]:
        return x * sigmoid(gate), (x, sigmoid(gate))

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array]:
        x, opened = saved
        return d_out * opened, d_out * x

    return Pair(forward, backward, (normal(random, 4, 5), normal(random, 4, 5)))


@planted(Kind.MISSING_FACTOR)
def log_sum_exp_not_normalised(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Array, Array]:
        return np.log(np.exp(x).sum(axis=-1)), x

    return Pair(forward, lambda d_out, x: (d_out[..., None] * np.exp(x),), (normal(random, 4, 5),))


@planted(Kind.MISSING_FACTOR)
def rms_norm_whose_weight_learns_from_x(random: Random) -> Pair:
    def forward(x: Array, weight: Array) -> tuple[Array, Any]:
        scale = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6)
        return x * scale * weight, (x, scale, weight)

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array]:
        x, scale, weight = saved
        n, d_n = x * scale, d_out * weight
        d_x = (d_n - n * (d_n * n).mean(axis=-1, keepdims=True)) * scale
        return d_x, (d_out * x).sum(axis=(0, 1))

    return Pair(forward, backward, (normal(random, 2, 4, 6), normal(random, 6)))


def network_with(slope: Any) -> Any:
    """Return a maker of a network whose tanh has this slope in backward."""

    def make(random: Random) -> Pair:
        def forward(x: Array, first: Array, second: Array) -> tuple[Array, Any]:
            hidden = np.tanh(x @ first)
            return hidden @ second, (x, first, second, hidden)

        def backward(d_out: Array, saved: Any) -> tuple[Array, Array, Array]:
            x, first, second, hidden = saved
            d_hidden = (d_out @ second.T) * slope(hidden)
            return d_hidden @ first.T, x.T @ d_hidden, hidden.T @ d_out

        return Pair(forward, backward, (normal(random, 4, 3), normal(random, 3, 5), normal(random, 5, 2)))

    return make


@planted(Kind.MISSING_FACTOR)
def network_without_the_slope_of_tanh(random: Random) -> Pair:
    return network_with(np.ones_like)(random)


@planted(Kind.MISSING_FACTOR)
def network_with_a_slope_not_squared(random: Random) -> Pair:
    return network_with(lambda hidden: 1 - hidden)(random)


@planted(Kind.MISSING_FACTOR)
def network_of_tanh_with_the_slope_of_the_sigmoid(random: Random) -> Pair:
    return network_with(lambda hidden: hidden * (1 - hidden))(random)


def swiglu_with(mistake: str) -> Any:
    """Return a maker of SwiGLU with one of the mistakes in its backward pass."""

    def forward(x: Array, gate_weight: Array, up_weight: Array) -> tuple[Array, Any]:
        gate, up = x @ gate_weight, x @ up_weight
        return gate * sigmoid(gate) * up, (x, gate_weight, up_weight, gate, up)

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array, Array]:
        x, gate_weight, up_weight, gate, up = saved
        opened = sigmoid(gate)
        slope = opened * (1 - opened) if mistake == "slope" else opened * (1 + gate * (1 - opened))
        d_gate = d_out * slope * (1 if mistake == "no up" else up)
        d_up = d_out * opened * (1 if mistake == "no gate" else gate)
        return d_gate @ gate_weight.T + d_up @ up_weight.T, x.T @ d_gate, x.T @ d_up

    def make(random: Random) -> Pair:
        return Pair(forward, backward, (normal(random, 4, 3), normal(random, 3, 5), normal(random, 3, 5)))

    return make


@planted(Kind.MISSING_FACTOR)
def swiglu_whose_gate_does_not_see_up(random: Random) -> Pair:
    return swiglu_with("no up")(random)


@planted(Kind.MISSING_FACTOR)
def swiglu_whose_up_sees_the_sigmoid_alone(random: Random) -> Pair:
    return swiglu_with("no gate")(random)


@planted(Kind.MISSING_PATH)
def swiglu_with_the_slope_of_the_sigmoid(random: Random) -> Pair:
    return swiglu_with("slope")(random)


def tied_table_with(path: str) -> Any:
    """Return a maker of a tied table whose gradient has both paths, or one, or no slope in between."""

    def forward(ids: Array, table: Array) -> tuple[Array, Any]:
        hidden = np.tanh(table[ids])
        return hidden @ table.T, (ids, table, hidden)

    def backward(d_out: Array, saved: Any) -> tuple[None, Array]:
        ids, table, hidden = saved
        d_table = np.einsum("btv,btc->vc", d_out, hidden)
        if path != "head":
            d_hidden = d_out @ table
            np.add.at(d_table, ids, d_hidden if path == "no slope" else d_hidden * (1 - hidden**2))
        return None, d_table

    def make(random: Random) -> Pair:
        return Pair(forward, backward, (random.integers(0, 5, (3, 6)), normal(random, 5, 3)))

    return make


@planted(Kind.MISSING_FACTOR)
def tied_table_without_the_slope_in_between(random: Random) -> Pair:
    return tied_table_with("no slope")(random)


@planted(Kind.MISSING_PATH)
def tied_table_as_a_head_behind_tanh(random: Random) -> Pair:
    return tied_table_with("head")(random)


# --- the derivative the wrong way round -------------------------------------------------------------------


def rotated(x: Array, direction: float) -> Array:
    """Rotate pairs of a head's channels (..., T, D) by angles that grow with the position."""
    T, D = x.shape[-2:]
    angles = direction * np.arange(T)[:, None] * 10.0 ** (-np.arange(D // 2) / 2)  # (T, D / 2)
    cosine, sine = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    left, right = x[..., : D // 2], x[..., D // 2 :]
    return np.concatenate([left * cosine - right * sine, left * sine + right * cosine], axis=-1)


@planted(Kind.TRANSPOSED)
def rotary_embedding_not_turned_back(random: Random) -> Pair:
    return Pair(
        lambda x: (rotated(x, 1.0), None),
        lambda d_out, saved: (rotated(d_out, 1.0),),
        (normal(random, 2, 5, 6),),
    )


@planted(Kind.TRANSPOSED)
def running_sum_of_the_gradient_from_the_left(random: Random) -> Pair:
    return Pair(
        lambda x: (np.cumsum(x, axis=1), None),
        lambda d_out, saved: (np.cumsum(d_out, axis=1),),
        (normal(random, 3, 6),),
    )


# --- what goes astray -------------------------------------------------------------------------------------


def grouped_queries_with(group: Any) -> Any:
    """Return a maker of causal attention with four heads of queries, two of keys and values."""

    def forward(queries: Array, keys: Array, values: Array) -> tuple[Array, Any]:
        keys, values = np.repeat(keys, 2, axis=1), np.repeat(values, 2, axis=1)
        T, D = queries.shape[-2:]
        scores = queries @ keys.swapaxes(-1, -2) * (1 / math.sqrt(D))
        weights = softmax_rows(np.where(np.triu(np.ones((T, T), bool), k=1), -np.inf, scores))
        return weights @ values, (queries, keys, values, weights)

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array, Array]:
        queries, keys, values, weights = saved
        d_values = weights.swapaxes(-1, -2) @ d_out
        d_weights = d_out @ values.swapaxes(-1, -2)
        d_scores = weights * (d_weights - (d_weights * weights).sum(axis=-1, keepdims=True))
        d_scores *= 1 / math.sqrt(queries.shape[-1])
        return d_scores @ keys, group(d_scores.swapaxes(-1, -2) @ queries), group(d_values)

    def make(random: Random) -> Pair:
        shapes = (2, 4, 5, 3), (2, 2, 5, 3), (2, 2, 5, 3)
        return Pair(forward, backward, tuple(normal(random, *shape) for shape in shapes))

    return make


@planted(Kind.PERMUTED_AXES)
def grouped_queries_of_every_second_head(random: Random) -> Pair:
    def group(d: Array) -> Array:
        B, H, T, D = d.shape
        return d.reshape(B, 2, H // 2, T, D).sum(axis=1)

    return grouped_queries_with(group)(random)


@planted(Kind.MISSING_REDUCTION)
def grouped_queries_of_one_head_per_group(random: Random) -> Pair:
    return grouped_queries_with(lambda d: d[:, ::2].copy())(random)


@planted(Kind.MISSING_REDUCTION)
def batched_product_summed_over_its_batch(random: Random) -> Pair:
    def backward(d_out: Array, saved: Any) -> tuple[Array, Array]:
        a, b = saved
        return d_out @ b.swapaxes(-1, -2), np.einsum("bij,bik->jk", a, d_out)[None].repeat(len(b), axis=0)

    inputs = (normal(random, 3, 4, 5), normal(random, 3, 5, 2))
    return Pair(lambda a, b: (a @ b, (a, b)), backward, inputs)


# --- masks ------------------------------------------------------------------------------------------------


def window_with(hidden_in_backward: Any) -> Any:
    """Return a maker of attention that sees three tokens back, and may see others in backward."""

    def mask(T: int, window: int) -> Array:
        distance = np.arange(T)[:, None] - np.arange(T)
        return (distance < 0) | (distance >= window)

    def weights_of(queries: Array, keys: Array, window: int) -> Array:
        T, D = queries.shape[-2:]
        scores = queries @ keys.swapaxes(-1, -2) * (1 / math.sqrt(D))
        return softmax_rows(np.where(mask(T, window), -np.inf, scores))

    def forward(queries: Array, keys: Array, values: Array) -> tuple[Array, Any]:
        return weights_of(queries, keys, 3) @ values, (queries, keys, values)

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array, Array]:
        queries, keys, values = saved
        weights = weights_of(queries, keys, hidden_in_backward)
        d_weights = d_out @ values.swapaxes(-1, -2)
        d_scores = weights * (d_weights - (d_weights * weights).sum(axis=-1, keepdims=True))
        d_scores *= 1 / math.sqrt(queries.shape[-1])
        return d_scores @ keys, d_scores.swapaxes(-1, -2) @ queries, weights.swapaxes(-1, -2) @ d_out

    def make(random: Random) -> Pair:
        return Pair(forward, backward, tuple(normal(random, 2, 6, 3) for _ in range(3)))

    return make


@planted(Kind.MASK)
def window_forgotten_in_backward(random: Random) -> Pair:
    return window_with(6)(random)


@planted(Kind.MASK)
def window_one_wider_in_backward(random: Random) -> Pair:
    return window_with(4)(random)


@planted(Kind.MASK)
def dropout_with_its_mask_upside_down(random: Random) -> Pair:
    kept = np.array([[1, 0, 1, 1, 0], [1, 1, 0, 1, 1], [0, 1, 1, 0, 1], [1, 1, 1, 0, 0]], bool)
    return Pair(
        lambda x: (x * kept * 2, None),
        lambda d_out, saved: (d_out * kept[::-1] * 2,),
        (normal(random, 4, 5),),
    )


# --- norms ------------------------------------------------------------------------------------------------


def batch_norm_with(mean: Any) -> Any:
    """Return a maker of a norm over the first axis with other means in its backward pass."""

    def forward(x: Array, weight: Array, bias: Array) -> tuple[Array, Any]:
        centred = x - x.mean(axis=0)
        scale = 1 / np.sqrt((centred**2).mean(axis=0) + 1e-5)
        return centred * scale * weight + bias, (centred * scale, scale, weight)

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array, Array]:
        n, scale, weight = saved
        d_n = d_out * weight
        d_x = (d_n - mean(d_n) - n * mean(d_n * n)) * scale
        return d_x, (d_out * n).sum(axis=0), d_out.sum(axis=0)

    def make(random: Random) -> Pair:
        return Pair(forward, backward, (normal(random, 6, 4), normal(random, 4), normal(random, 4)))

    return make


@planted(Kind.LAYER_NORM_MEAN_TERM)
def batch_norm_with_the_means_of_layer_norm(random: Random) -> Pair:
    return batch_norm_with(lambda d: d.mean(axis=-1, keepdims=True))(random)


@planted(Kind.LAYER_NORM_PROJECTION_TERM)
def batch_norm_with_sums_for_means(random: Random) -> Pair:
    return batch_norm_with(lambda d: d.sum(axis=0))(random)
