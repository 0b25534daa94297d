"""Small operations of the kind people write, each with one mistake in its backward pass, and its name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.kinds import Kind
from tests.right_operations import (
    Pair,
    Random,
    attention_backward,
    attention_forward,
    attention_inputs,
    heads,
    joined,
    layer_norm_backward,
    layer_norm_forward,
    linear_backward,
    linear_forward,
    normal_cdf,
    normal_pdf,
    softmax_rows,
    tanh_gelu,
)


class Planted(NamedTuple):
    """A wrong operation and what is wrong with it."""

    kind: Kind
    make: Callable[[Random], Pair]


PLANTED: dict[str, Planted] = {}


def planted(kind: Kind) -> Callable[[Callable[[Random], Pair]], Callable[[Random], Pair]]:
    def register(make: Callable[[Random], Pair]) -> Callable[[Random], Pair]:
        PLANTED[make.__name__] = Planted(kind, make)
        return make

    return register


def sizes(random: Random) -> tuple[int, int, int]:
    """Draw B, T and C, all different."""
    B, T, C = (int(each) for each in random.permutation([2, 3, 4, 5, 7])[:3])
    return B, T, C


def normal(random: Random, *shape: int) -> Array:
    return random.standard_normal(shape)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


# --- constant factors -------------------------------------------------------------------------------------


@planted(Kind.CONSTANT_FACTOR)
def squared_error_without_its_two(random: Random) -> Pair:
    def forward(x: Array, target: Array) -> tuple[float, Any]:
        return float(((x - target) ** 2).mean()), x - target

    def backward(d_loss: float, gap: Array) -> tuple[Array, Array]:
        return d_loss * gap / gap.size, -2 * d_loss * gap / gap.size

    return Pair(forward, backward, (normal(random, 3, 4), normal(random, 3, 4)))


@planted(Kind.CONSTANT_FACTOR)
def squared_error_not_divided_by_the_batch(random: Random) -> Pair:
    def forward(x: Array, target: Array) -> tuple[float, Any]:
        return float(((x - target) ** 2).sum() / len(x)), x - target

    def backward(d_loss: float, gap: Array) -> tuple[Array, Array]:
        return 2 * d_loss * gap, -2 * d_loss * gap

    B, T, _ = sizes(random)
    return Pair(forward, backward, (normal(random, B, T), normal(random, B, T)))


@planted(Kind.CONSTANT_FACTOR)
def softmax_without_its_temperature(random: Random) -> Pair:
    def forward(x: Array, temperature: float) -> tuple[Array, Array]:
        y = softmax_rows(x / temperature)
        return y, y

    def backward(d_y: Array, y: Array) -> tuple[Array, Array]:
        return y * (d_y - (d_y * y).sum(axis=-1, keepdims=True)), np.zeros(())

    def fixed(x: Array) -> tuple[Array, Array]:
        return forward(x, 0.8)

    return Pair(fixed, lambda d_y, y: backward(d_y, y)[:1], (normal(random, *sizes(random)),))


@planted(Kind.CONSTANT_FACTOR)
def dropout_without_its_scale(random: Random) -> Pair:
    kept = random.random((4, 5)) < 0.75

    def forward(x: Array) -> tuple[Array, Array]:
        return x * kept / 0.75, kept

    def backward(d_y: Array, kept: Array) -> tuple[Array]:
        return (d_y * kept,)

    return Pair(forward, backward, (normal(random, 4, 5),))


@planted(Kind.CONSTANT_FACTOR)
def difference_with_a_lost_sign(random: Random) -> Pair:
    def forward(a: Array, b: Array) -> tuple[Array, None]:
        return a - b, None

    def backward(d_out: Array, saved: None) -> tuple[Array, Array]:
        return d_out, d_out

    shape = sizes(random)
    return Pair(forward, backward, (normal(random, *shape), normal(random, *shape)))


@planted(Kind.CONSTANT_FACTOR)
def mean_over_tokens_taken_for_a_sum(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Array, int]:
        return x.mean(axis=1), x.shape[1]

    def backward(d_out: Array, T: int) -> tuple[Array]:
        return (np.repeat(d_out[:, None], T, axis=1),)

    return Pair(forward, backward, (normal(random, *sizes(random)),))


# --- transposes and order ---------------------------------------------------------------------------------


@planted(Kind.TRANSPOSED)
def product_with_an_untransposed_matrix(random: Random) -> Pair:
    def forward(x: Array, weight: Array) -> tuple[Array, Any]:
        return x @ weight, (x, weight)

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array]:
        x, weight = saved
        return d_out @ weight, np.einsum("bti,bto->io", x, d_out)

    B, T, C = sizes(random)
    return Pair(forward, backward, (normal(random, B, T, C), normal(random, C, C)))


@planted(Kind.TRANSPOSED)
def weight_gradient_of_the_other_layout(random: Random) -> Pair:
    def forward(x: Array, weight: Array) -> tuple[Array, Any]:
        return x @ weight, (x, weight)

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array]:
        x, weight = saved
        return d_out @ weight.T, d_out.T @ x

    B, T, C = sizes(random)
    return Pair(forward, backward, (normal(random, B, T), normal(random, T, C)))


@planted(Kind.TRANSPOSED)
def batched_product(random: Random) -> Pair:
    def forward(a: Array, b: Array) -> tuple[Array, Any]:
        return a @ b, (a, b)

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array]:
        a, b = saved
        return d_out @ b.swapaxes(-1, -2), d_out.swapaxes(-1, -2) @ a

    B, T, C = sizes(random)
    return Pair(forward, backward, (normal(random, B, T, C), normal(random, B, C, C)))


@planted(Kind.TRANSPOSED)
def two_layers_with_one_untransposed(random: Random) -> Pair:
    def forward(x: Array, first: Array, second: Array) -> tuple[Array, Any]:
        hidden = np.tanh(x @ first)
        return hidden @ second, (x, first, second, hidden)

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array, Array]:
        x, first, second, hidden = saved
        d_hidden = (d_out @ second.T) * (1 - hidden**2)
        return d_hidden @ first, x.T @ d_hidden, hidden.T @ d_out

    return Pair(forward, backward, (normal(random, 3, 4), 0.5 * normal(random, 4, 4), normal(random, 4, 2)))


@planted(Kind.PERMUTED_AXES)
def heads_split_and_joined_by_reshape(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Array, tuple[int, ...]]:
        return np.tanh(heads(x, 2)), np.tanh(heads(x, 2))

    def backward(d_out: Array, y: Array) -> tuple[Array]:
        B, H, T, D = y.shape
        return ((d_out * (1 - y**2)).reshape(B, T, H * D),)

    return Pair(forward, backward, (normal(random, 2, int(random.integers(3, 6)), 6),))


@planted(Kind.PERMUTED_AXES)
def channels_first_gradient_reshaped(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Array, Array]:
        return np.sin(x.transpose(0, 2, 1)), x

    def backward(d_out: Array, x: Array) -> tuple[Array]:
        return (d_out.reshape(x.shape) * np.cos(x.transpose(0, 2, 1)).reshape(x.shape),)

    return Pair(forward, backward, (normal(random, *sizes(random)),))


def convolution_forward(x: Array, kernel: Array, bias: Array) -> tuple[Array, Any]:
    length = x.shape[1] - len(kernel) + 1
    windows = np.stack([x[:, at : at + length] for at in range(len(kernel))])  # (K, B, T', I)
    return np.einsum("kbti,kio->bto", windows, kernel) + bias, (x, kernel)


def convolution_backward(d_out: Array, saved: Any) -> tuple[Array, Array, Array]:
    x, kernel = saved
    length = d_out.shape[1]
    d_x, d_kernel = np.zeros_like(x), np.zeros_like(kernel)
    for at in range(len(kernel)):
        d_x[:, at : at + length] += d_out @ kernel[at].T
        d_kernel[at] = np.einsum("bti,bto->io", x[:, at : at + length], d_out)
    return d_x, d_kernel, d_out.sum(axis=(0, 1))


def convolution_inputs(random: Random) -> tuple[Array, Array, Array]:
    return normal(random, 2, 8, 2), normal(random, 3, 2, 4), normal(random, 4)


@planted(Kind.PERMUTED_AXES)
def convolution_with_a_reversed_kernel_gradient(random: Random) -> Pair:
    def backward(d_out: Array, saved: Any) -> tuple[Array, Array, Array]:
        d_x, d_kernel, d_bias = convolution_backward(d_out, saved)
        return d_x, d_kernel[::-1], d_bias

    return Pair(convolution_forward, backward, convolution_inputs(random))


@planted(Kind.PERMUTED_AXES)
def convolution_back_through_a_reversed_kernel(random: Random) -> Pair:
    def backward(d_out: Array, saved: Any) -> tuple[Array, Array, Array]:
        x, kernel = saved
        d_x = convolution_backward(d_out, (x, kernel[::-1]))[0]
        return d_x, *convolution_backward(d_out, saved)[1:]

    return Pair(convolution_forward, backward, convolution_inputs(random))


@planted(Kind.PERMUTED_AXES)
def shift_not_undone(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Array, None]:
        return np.roll(x, 1, axis=1), None

    def backward(d_out: Array, saved: None) -> tuple[Array]:
        return (np.roll(d_out, 1, axis=1),)

    return Pair(forward, backward, (normal(random, 2, int(random.integers(3, 7)), 3),))


@planted(Kind.PERMUTED_AXES)
def gradients_returned_in_the_wrong_order(random: Random) -> Pair:
    def forward(a: Array, b: Array) -> tuple[Array, Any]:
        return a * b, (a, b)

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array]:
        a, b = saved
        return d_out * a, d_out * b

    shape = sizes(random)
    return Pair(forward, backward, (normal(random, *shape), normal(random, *shape)))


# --- sums -------------------------------------------------------------------------------------------------


@planted(Kind.MISSING_REDUCTION)
def bias_gradient_per_row(random: Random) -> Pair:
    def backward(d_out: Array, saved: Any) -> tuple[Array | None, ...]:
        return *linear_backward(d_out, saved)[:2], d_out

    B, T, C = sizes(random)
    return Pair(linear_forward, backward, (normal(random, B, T), normal(random, C, T), normal(random, C)))


@planted(Kind.MISSING_REDUCTION)
def convolution_bias_summed_over_the_batch_alone(random: Random) -> Pair:
    def backward(d_out: Array, saved: Any) -> tuple[Array, Array, Array]:
        return *convolution_backward(d_out, saved)[:2], d_out.sum(axis=0)

    return Pair(convolution_forward, backward, convolution_inputs(random))


@planted(Kind.MISSING_REDUCTION)
def scale_learns_from_the_last_row(random: Random) -> Pair:
    def forward(x: Array, scale: Array) -> tuple[Array, Any]:
        return x * scale, (x, scale)

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array]:
        x, scale = saved
        d_scale = np.zeros_like(scale)
        for row, d_row in zip(x, d_out, strict=True):
            d_scale[...] = (d_row * row).sum(axis=0)
        return d_out * scale, d_scale

    B, T, C = sizes(random)
    return Pair(forward, backward, (normal(random, B, T, C), normal(random, C)))


@planted(Kind.MISSING_REDUCTION)
def square_bias_summed_over_channels(random: Random) -> Pair:
    def forward(x: Array, bias: Array) -> tuple[Array, None]:
        return x + bias, None

    def backward(d_out: Array, saved: None) -> tuple[Array, Array]:
        return d_out, d_out.sum(axis=1)

    C = int(random.integers(3, 6))
    return Pair(forward, backward, (normal(random, C, C), normal(random, C)))


@planted(Kind.MISSING_REDUCTION)
def first_token_broadcast_and_not_summed(random: Random) -> Pair:
    def forward(x: Array, gain: Array) -> tuple[Array, Any]:
        return x * gain, (x, gain)

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array]:
        x, gain = saved
        return d_out * gain, d_out * x

    B, T, C = sizes(random)
    return Pair(forward, backward, (normal(random, B, T, C), normal(random, B, 1, C)))


@planted(Kind.REPEATED_INDICES)
def rows_gathered_and_added_once(random: Random) -> Pair:
    def forward(table: Array, rows: Array) -> tuple[Array, Any]:
        return np.sin(table[rows]), (table, rows)

    def backward(d_out: Array, saved: Any) -> tuple[Array, None]:
        table, rows = saved
        d_table = np.zeros_like(table)
        d_table[rows] += d_out * np.cos(table[rows])
        return d_table, None

    return Pair(forward, backward, (normal(random, 6, 3), np.array([1, 4, 1, 0, 4, 4, 5])))


@planted(Kind.REPEATED_INDICES)
def bag_of_rows(random: Random) -> Pair:
    def forward(table: Array, bags: Array) -> tuple[Array, Any]:
        return table[bags].sum(axis=1), (table, bags)

    def backward(d_out: Array, saved: Any) -> tuple[Array, None]:
        table, bags = saved
        d_table = np.zeros_like(table)
        d_table[bags] += d_out[:, None]
        return d_table, None

    return Pair(forward, backward, (normal(random, 7, 2), np.array([[0, 1, 2], [3, 1, 4], [1, 5, 5]])))


# --- paths ------------------------------------------------------------------------------------------------


@planted(Kind.MISSING_PATH)
def swish_with_a_constant_gate(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Array, Array]:
        return x * sigmoid(x), x

    def backward(d_out: Array, x: Array) -> tuple[Array]:
        return (d_out * sigmoid(x),)

    return Pair(forward, backward, (normal(random, *sizes(random)),))


@planted(Kind.MISSING_PATH)
def swish_with_its_gate_alone_differentiated(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Array, Array]:
        return x * sigmoid(x), x

    def backward(d_out: Array, x: Array) -> tuple[Array]:
        return (d_out * x * sigmoid(x) * (1 - sigmoid(x)),)

    return Pair(forward, backward, (normal(random, *sizes(random)),))


def residual_forward(x: Array, weight: Array) -> tuple[Array, Any]:
    hidden = np.tanh(x @ weight)
    return x + hidden, (x, weight, hidden)


@planted(Kind.MISSING_PATH)
def residual_without_its_skip(random: Random) -> Pair:
    def backward(d_out: Array, saved: Any) -> tuple[Array, Array]:
        x, weight, hidden = saved
        d_hidden = d_out * (1 - hidden**2)
        return d_hidden @ weight.T, np.einsum("bti,bto->io", x, d_hidden)

    B, T, C = sizes(random)
    return Pair(residual_forward, backward, (normal(random, B, T, C), 0.5 * normal(random, C, C)))


@planted(Kind.MISSING_PATH)
def residual_around_a_linear_branch(random: Random) -> Pair:
    def forward(x: Array, weight: Array) -> tuple[Array, Any]:
        return x + x @ weight, (x, weight)

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array]:
        x, _ = saved
        return d_out, np.einsum("bti,bto->io", x, d_out)

    B, T, C = sizes(random)
    return Pair(forward, backward, (normal(random, B, T, C), normal(random, C, C)))


def tied_forward(token_ids: Array, weight: Array) -> tuple[Array, Any]:
    x = weight[token_ids]
    return x @ weight.T, (token_ids, x, weight)


def tied_inputs(random: Random) -> tuple[Array, Array]:
    return random.integers(0, 6, (2, 4)), normal(random, 6, 3)


@planted(Kind.MISSING_PATH)
def tied_weight_as_a_table_alone(random: Random) -> Pair:
    def backward(d_out: Array, saved: Any) -> tuple[None, Array]:
        token_ids, _, weight = saved
        d_weight = np.zeros_like(weight)
        np.add.at(d_weight, token_ids, d_out @ weight)
        return None, d_weight

    return Pair(tied_forward, backward, tied_inputs(random))


@planted(Kind.MISSING_PATH)
def tied_weight_as_a_head_alone(random: Random) -> Pair:
    def backward(d_out: Array, saved: Any) -> tuple[None, Array]:
        _, x, _ = saved
        return None, np.einsum("btv,btc->vc", d_out, x)

    return Pair(tied_forward, backward, tied_inputs(random))


@planted(Kind.MISSING_PATH)
def second_output_forgotten(random: Random) -> Pair:
    def forward(x: Array) -> tuple[tuple[Array, Array], Array]:
        return (np.sin(x), x.sum(axis=-1)), x

    def backward(d_outs: tuple[Array, Array], x: Array) -> tuple[Array]:
        return (d_outs[0] * np.cos(x),)

    return Pair(forward, backward, (normal(random, *sizes(random)),))


@planted(Kind.MISSING_PATH)
def bias_without_a_gradient(random: Random) -> Pair:
    def backward(d_out: Array, saved: Any) -> tuple[Array | None, ...]:
        return *linear_backward(d_out, saved)[:2], None

    B, T, C = sizes(random)
    return Pair(linear_forward, backward, (normal(random, B, T), normal(random, C, T), normal(random, C)))


@planted(Kind.MISSING_PATH)
def self_attention_without_its_values(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Array, Any]:
        return attention_forward(x, x, x)

    def backward(d_out: Array, saved: Any) -> tuple[Array]:
        d_queries, d_keys, _ = attention_backward(d_out, saved)
        return (d_queries + d_keys,)

    return Pair(forward, backward, (normal(random, 2, 4, 6),))


# --- softmax, norms, activations --------------------------------------------------------------------------


@planted(Kind.SOFTMAX_ROW_TERM)
def log_softmax_without_its_row_term(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Array, None]:
        return np.log(softmax_rows(x)), None

    def backward(d_out: Array, saved: None) -> tuple[Array]:
        return (d_out,)

    return Pair(forward, backward, (normal(random, *sizes(random)),))


@planted(Kind.SOFTMAX_ROW_TERM)
def softmax_over_the_first_axis(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Array, Array]:
        y = softmax_rows(2 * x.T).T
        return y.copy(), y

    def backward(d_out: Array, y: Array) -> tuple[Array]:
        return (2 * y * d_out,)

    return Pair(forward, backward, (normal(random, *sizes(random)[:2]),))


@planted(Kind.SOFTMAX_ROW_TERM)
def softmax_whose_sum_runs_over_the_batch(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Array, Array]:
        return softmax_rows(x), softmax_rows(x)

    def backward(d_out: Array, y: Array) -> tuple[Array]:
        return (y * (d_out - (d_out * y).sum(axis=0, keepdims=True)),)

    return Pair(forward, backward, (normal(random, *sizes(random)),))


@planted(Kind.MISSING_PATH)
def cross_entropy_without_its_ones(random: Random) -> Pair:
    def forward(logits: Array, targets: Array) -> tuple[float, Any]:
        p = softmax_rows(logits)
        return float(-np.log(p[np.arange(len(targets)), targets]).mean()), (p, len(targets))

    def backward(d_loss: float, saved: Any) -> tuple[Array, None]:
        p, count = saved
        return p * (d_loss / count), None

    return Pair(forward, backward, (normal(random, 6, 5), random.integers(0, 5, 6)))


@planted(Kind.SOFTMAX_ROW_TERM)
def pooling_by_attention(random: Random) -> Pair:
    def forward(scores: Array, x: Array) -> tuple[Array, Any]:
        weights = softmax_rows(scores)
        return np.einsum("bt,btc->bc", weights, x), (weights, x)

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array]:
        weights, x = saved
        return weights * np.einsum("bc,btc->bt", d_out, x), weights[..., None] * d_out[:, None]

    B, T, C = sizes(random)
    return Pair(forward, backward, (normal(random, B, T), normal(random, B, T, C)))


def layer_forward(x: Array, qkv: Array, out_proj: Array) -> tuple[Array, Any]:
    queries, keys, values = np.split(x @ qkv, 3, axis=-1)
    context, saved = attention_forward(queries, keys, values)
    return context @ out_proj, (x, qkv, out_proj, context, saved)


def layer_backward(d_out: Array, saved: Any, core: Callable[..., Any]) -> tuple[Array, ...]:
    x, qkv, out_proj, context, inner = saved
    d_qkv = np.concatenate(core(d_out @ out_proj.T, inner), axis=-1)
    return d_qkv @ qkv.T, np.einsum("bti,bto->io", x, d_qkv), np.einsum("bti,bto->io", context, d_out)


def layer_inputs(random: Random) -> tuple[Array, Array, Array]:
    C = 4
    return normal(random, 2, 4, C), normal(random, C, 3 * C) / 2, normal(random, C, C) / 2


@planted(Kind.SOFTMAX_ROW_TERM)
def attention_layer_without_the_row_term(random: Random) -> Pair:
    def core(d_context: Array, saved: Any) -> tuple[Array, Array, Array]:
        q, k, v, weights = saved
        d_context = heads(d_context, q.shape[1])
        d_scores = weights * (d_context @ v.swapaxes(-1, -2)) / math.sqrt(q.shape[-1])
        d_values = weights.swapaxes(-1, -2) @ d_context
        return joined(d_scores @ k), joined(d_scores.swapaxes(-1, -2) @ q), joined(d_values)

    return Pair(layer_forward, lambda d, saved: layer_backward(d, saved, core), layer_inputs(random))


@planted(Kind.MASK)
def attention_layer_without_the_mask(random: Random) -> Pair:
    def core(d_context: Array, saved: Any) -> tuple[Array, Array, Array]:
        q, k, v, _ = saved
        weights = softmax_rows(q @ k.swapaxes(-1, -2) * (1 / math.sqrt(q.shape[-1])))
        return attention_backward(d_context, (q, k, v, weights))

    return Pair(layer_forward, lambda d, saved: layer_backward(d, saved, core), layer_inputs(random))


@planted(Kind.MASK)
def attention_masked_after_the_softmax(random: Random) -> Pair:
    def backward(d_out: Array, saved: Any) -> tuple[Array, Array, Array]:
        q, k, v, _ = saved
        weights = np.tril(softmax_rows(q @ k.swapaxes(-1, -2) * (1 / math.sqrt(q.shape[-1]))))
        return attention_backward(d_out, (q, k, v, weights))

    return Pair(attention_forward, backward, attention_inputs(random, 2, 4, 6))


def single_head(x: Array, query: Array, key: Array, value: Array) -> tuple[Array, Any]:
    q, k, v = x @ query, x @ key, x @ value
    weights = softmax_rows(q @ k.T * (1 / math.sqrt(q.shape[-1])))
    return weights @ v, (x, (query, key, value), (q, k, v), weights)


def single_head_backward(d_out: Array, saved: Any, weights: Array, read: Array) -> tuple[Array, ...]:
    x, projections, (q, k, v), _ = saved
    d_weights = d_out @ v.T
    d_scores = weights * (d_weights - (d_weights * weights).sum(axis=-1, keepdims=True))
    d_scores = d_scores * (1 / math.sqrt(q.shape[-1]))
    d_qkv = (d_scores @ k, d_scores.T @ q, read @ d_out)
    d_x = sum(d @ projection.T for d, projection in zip(d_qkv, projections, strict=True))
    return d_x, *(x.T @ d for d in d_qkv)


def single_head_inputs(random: Random) -> tuple[Array, ...]:
    return normal(random, 5, 4), *(normal(random, 4, 3) / 2 for _ in range(3))


@planted(Kind.MASK)
def mask_in_backward_alone(random: Random) -> Pair:
    def backward(d_out: Array, saved: Any) -> tuple[Array, ...]:
        q, k, _ = saved[2]
        past = np.tril(np.ones((len(q), len(k)), dtype=bool))
        weights = softmax_rows(np.where(past, q @ k.T * (1 / math.sqrt(q.shape[-1])), -np.inf))
        return single_head_backward(d_out, saved, weights, weights.T)

    return Pair(single_head, backward, single_head_inputs(random))


@planted(Kind.TRANSPOSED)
def weights_of_one_head_untransposed(random: Random) -> Pair:
    def backward(d_out: Array, saved: Any) -> tuple[Array, ...]:
        return single_head_backward(d_out, saved, saved[3], saved[3])

    return Pair(single_head, backward, single_head_inputs(random))


@planted(Kind.MASK)
def fewer_queries_than_keys_without_the_mask(random: Random) -> Pair:
    def backward(d_out: Array, saved: Any) -> tuple[Array, Array, Array]:
        q, k, v, _ = saved
        weights = softmax_rows(q @ k.swapaxes(-1, -2) * (1 / math.sqrt(q.shape[-1])))
        return attention_backward(d_out, (q, k, v, weights))

    queries, keys, values = attention_inputs(random, 2, 5, 4)
    return Pair(attention_forward, backward, (queries[:, :3], keys, values))


@planted(Kind.MASK)
def rectifier_that_lets_everything_back(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Array, None]:
        return np.maximum(x, 0), None

    def backward(d_out: Array, saved: None) -> tuple[Array]:
        return (d_out,)

    return Pair(forward, backward, (normal(random, 4, 5),))


@planted(Kind.MASK)
def mean_of_the_past_sent_to_all(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Array, Array]:
        T = x.shape[1]
        average = np.tril(np.ones((T, T))) / np.arange(1, T + 1)[:, None]
        return (average.astype(x.dtype) @ x), average.astype(x.dtype)

    def backward(d_out: Array, average: Array) -> tuple[Array]:
        T = d_out.shape[1]
        everywhere = np.repeat(average[:, :1], T, axis=1)
        return (everywhere.T @ d_out,)

    return Pair(forward, backward, (normal(random, *sizes(random)),))


def rms_norm_forward(x: Array, weight: Array) -> tuple[Array, Any]:
    r = 1 / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6)
    return x * r * weight, (x * r, r, weight)


@planted(Kind.LAYER_NORM_PROJECTION_TERM)
def rms_norm_without_its_projection(random: Random) -> Pair:
    def backward(d_out: Array, saved: Any) -> tuple[Array, Array]:
        n, r, weight = saved
        return d_out * weight * r, (d_out * n).reshape(-1, n.shape[-1]).sum(axis=0)

    B, T, C = sizes(random)
    return Pair(rms_norm_forward, backward, (normal(random, B, T, C), normal(random, C)))


@planted(Kind.LAYER_NORM_WEIGHT)
def rms_norm_without_its_weight(random: Random) -> Pair:
    def backward(d_out: Array, saved: Any) -> tuple[Array, Array]:
        n, r, _ = saved
        d_x = (d_out - n * (d_out * n).mean(axis=-1, keepdims=True)) * r
        return d_x, (d_out * n).reshape(-1, n.shape[-1]).sum(axis=0)

    B, T, C = sizes(random)
    return Pair(rms_norm_forward, backward, (normal(random, B, T, C), normal(random, C)))


@planted(Kind.LAYER_NORM_PROJECTION_TERM)
def vector_of_length_one(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Array, Any]:
        length = np.sqrt((x**2).sum(axis=-1, keepdims=True))
        return x / length, length

    def backward(d_out: Array, length: Array) -> tuple[Array]:
        return (d_out / length,)

    return Pair(forward, backward, (normal(random, *sizes(random)),))


@planted(Kind.LAYER_NORM_MEAN_TERM)
def batch_norm_without_its_mean(random: Random) -> Pair:
    def forward(x: Array, weight: Array) -> tuple[Array, Any]:
        centred = x - x.mean(axis=(0, 1))
        r = 1 / np.sqrt((centred**2).mean(axis=(0, 1)) + 1e-5)
        return centred * r * weight, (centred * r, r, weight)

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array]:
        n, r, weight = saved
        d_n = d_out * weight
        return (d_n - n * (d_n * n).mean(axis=(0, 1))) * r, (d_out * n).sum(axis=(0, 1))

    B, T, C = sizes(random)
    return Pair(forward, backward, (normal(random, B, T, C), normal(random, C)))


def block_forward(x: Array, weight: Array, bias: Array, matrix: Array) -> tuple[Array, Any]:
    n, saved = layer_norm_forward(x, weight, bias)
    return x + np.tanh(n @ matrix), (saved, n, np.tanh(n @ matrix), matrix)


def block_inputs(random: Random) -> tuple[Array, ...]:
    B, T, C = sizes(random)
    C += 1
    return normal(random, B, T, C), normal(random, C), normal(random, C), normal(random, C, C) / math.sqrt(C)


@planted(Kind.LAYER_NORM_WEIGHT)
def block_whose_norm_forgets_its_weight(random: Random) -> Pair:
    def backward(d_out: Array, saved: Any) -> tuple[Array, ...]:
        inner, n, hidden, matrix = saved
        d_hidden = d_out * (1 - hidden**2)
        d_n = d_hidden @ matrix.T
        _, d_weight, d_bias = layer_norm_backward(d_n, inner)
        d_x = d_out + layer_norm_backward(d_n, (*inner[:2], np.ones_like(inner[2])))[0]
        return d_x, d_weight, d_bias, np.einsum("bti,bto->io", n, d_hidden)

    return Pair(block_forward, backward, block_inputs(random))


@planted(Kind.LAYER_NORM_MEAN_TERM)
def block_whose_norm_forgets_its_mean(random: Random) -> Pair:
    def backward(d_out: Array, saved: Any) -> tuple[Array, ...]:
        (normalized, r, weight), n, hidden, matrix = saved
        d_hidden = d_out * (1 - hidden**2)
        d_y = d_hidden @ matrix.T
        d_n = d_y * weight
        d_x = (d_n - normalized * (d_n * normalized).mean(axis=-1, keepdims=True)) * r
        _, d_weight, d_bias = layer_norm_backward(d_y, (normalized, r, weight))
        return d_out + d_x, d_weight, d_bias, np.einsum("bti,bto->io", n, d_hidden)

    return Pair(block_forward, backward, block_inputs(random))


@planted(Kind.MISSING_PATH)
def block_without_its_skip(random: Random) -> Pair:
    def backward(d_out: Array, saved: Any) -> tuple[Array, ...]:
        inner, n, hidden, matrix = saved
        d_hidden = d_out * (1 - hidden**2)
        d_x, d_weight, d_bias = layer_norm_backward(d_hidden @ matrix.T, inner)
        return d_x, d_weight, d_bias, np.einsum("bti,bto->io", n, d_hidden)

    return Pair(block_forward, backward, block_inputs(random))


@planted(Kind.LAYER_NORM_WEIGHT)
def depthwise_scale_left_out(random: Random) -> Pair:
    def forward(x: Array, scale: Array) -> tuple[Array, Any]:
        return x * scale, (x, scale)

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array]:
        x, _ = saved
        return d_out, (d_out * x).sum(axis=(0, 1))

    B, T, C = sizes(random)
    return Pair(forward, backward, (normal(random, B, T, C), normal(random, C)))


@planted(Kind.GELU_FORM)
def feed_forward_with_the_other_slope(random: Random) -> Pair:
    def forward(x: Array, weight: Array) -> tuple[Array, Any]:
        return tanh_gelu(x) @ weight, (x, weight)

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array]:
        x, weight = saved
        slope = normal_cdf(x) + x * normal_pdf(x)
        return (d_out @ weight.T) * slope, np.einsum("bti,bto->io", tanh_gelu(x), d_out)

    B, T, C = sizes(random)
    return Pair(forward, backward, (normal(random, B, T, C), normal(random, C, 3)))


@planted(Kind.GELU_FORM)
def bounded_gelu_with_the_other_slope(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Array, Array]:
        return np.tanh(tanh_gelu(x)), x

    def backward(d_out: Array, x: Array) -> tuple[Array]:
        return (d_out * (1 - np.tanh(tanh_gelu(x)) ** 2) * (normal_cdf(x) + x * normal_pdf(x)),)

    return Pair(forward, backward, (normal(random, *sizes(random)),))


def feed_forward(x: Array, up: Array, down: Array) -> tuple[Array, Any]:
    hidden = x @ up
    return tanh_gelu(hidden) @ down, (x, up, down, hidden)


def feed_forward_inputs(random: Random) -> tuple[Array, Array, Array]:
    B, T, C = sizes(random)
    return normal(random, B, T, C), normal(random, C, 2 * C) / math.sqrt(C), normal(random, 2 * C, C)


def feed_forward_backward(d_out: Array, saved: Any, slope: Array) -> tuple[Array, Array, Array]:
    x, up, down, hidden = saved
    d_hidden = (d_out @ down.T) * slope
    d_up = np.einsum("bti,bto->io", x, d_hidden)
    return d_hidden @ up.T, d_up, np.einsum("bti,bto->io", tanh_gelu(hidden), d_out)


@planted(Kind.GELU_FORM)
def feed_forward_with_the_other_slope_inside(random: Random) -> Pair:
    def backward(d_out: Array, saved: Any) -> tuple[Array, Array, Array]:
        hidden = saved[-1]
        return feed_forward_backward(d_out, saved, normal_cdf(hidden) + hidden * normal_pdf(hidden))

    return Pair(feed_forward, backward, feed_forward_inputs(random))


@planted(Kind.MISSING_PATH)
def feed_forward_with_a_constant_gate(random: Random) -> Pair:
    def backward(d_out: Array, saved: Any) -> tuple[Array, Array, Array]:
        return feed_forward_backward(d_out, saved, tanh_gelu(saved[-1]) / saved[-1])

    return Pair(feed_forward, backward, feed_forward_inputs(random))


@planted(Kind.MASK)
def rectified_network_without_its_mask(random: Random) -> Pair:
    def forward(x: Array, first: Array, second: Array) -> tuple[Array, Any]:
        hidden = x @ first
        return np.maximum(hidden, 0) @ second, (x, first, second, hidden)

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array, Array]:
        x, first, second, hidden = saved
        d_hidden = d_out @ second.T
        return d_hidden @ first.T, x.T @ d_hidden, np.maximum(hidden, 0).T @ d_out

    return Pair(forward, backward, (normal(random, 3, 4), normal(random, 4, 5), normal(random, 5, 2)))


@planted(Kind.SOFTMAX_ROW_TERM)
def gate_over_experts(random: Random) -> Pair:
    def forward(x: Array, router: Array, experts: Array) -> tuple[Array, Any]:
        share = softmax_rows(x @ router)
        return share @ experts, (x, router, experts, share)

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array, Array]:
        x, router, experts, share = saved
        d_scores = share * (d_out @ experts.T)
        return d_scores @ router.T, x.T @ d_scores, share.T @ d_out

    return Pair(forward, backward, (normal(random, 3, 4), normal(random, 4, 5), normal(random, 5, 2)))


# --- calls and places -------------------------------------------------------------------------------------


@planted(Kind.STALE_ACCUMULATION)
def gradient_kept_from_call_to_call(random: Random) -> Pair:
    sums: dict[Any, Array] = {}

    def forward(x: Array, weight: Array) -> tuple[Array, Any]:
        return x @ weight, (x, weight)

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array]:
        x, weight = saved
        d_weight = sums.setdefault((weight.shape, weight.dtype), np.zeros_like(weight))
        d_weight += x.T @ d_out
        return d_out @ weight.T, d_weight

    return Pair(forward, backward, (normal(random, 3, 4), normal(random, 4, 2)))


@planted(Kind.STALE_ACCUMULATION)
def gradient_kept_in_what_forward_saved(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Array, Any]:
        return np.sin(x), (x, np.zeros_like(x))

    def backward(d_out: Array, saved: Any) -> tuple[Array]:
        x, d_x = saved
        d_x += d_out * np.cos(x)
        return (d_x.copy(),)

    return Pair(forward, backward, (normal(random, *sizes(random)),))


@planted(Kind.PARTIAL)
def rows_in_tiles_without_the_last(random: Random) -> Pair:
    def forward(x: Array, weight: Array) -> tuple[Array, Any]:
        return x @ weight, (x, weight)

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array]:
        x, weight = saved
        d_x = np.zeros_like(x)
        for start in range(0, len(x) // 4 * 4, 4):
            d_x[start : start + 4] = d_out[start : start + 4] @ weight.T
        return d_x, x.T @ d_out

    return Pair(forward, backward, (normal(random, int(random.integers(9, 12)), 3), normal(random, 3, 2)))


@planted(Kind.PARTIAL)
def weight_that_misses_the_last_tile(random: Random) -> Pair:
    def forward(x: Array, weight: Array) -> tuple[Array, Any]:
        return x @ weight, (x, weight)

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array]:
        x, weight = saved
        whole = len(x) // 4 * 4
        return d_out @ weight.T, x[:whole].T @ d_out[:whole]

    return Pair(forward, backward, (normal(random, int(random.integers(9, 12)), 3), normal(random, 3, 2)))


@planted(Kind.PARTIAL)
def last_row_off_by_a_tenth(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Array, Array]:
        return np.sin(x), x

    def backward(d_out: Array, x: Array) -> tuple[Array]:
        d_x = d_out * np.cos(x)
        d_x[-1] *= 0.9
        return (d_x,)

    return Pair(forward, backward, (normal(random, 5, 4),))
