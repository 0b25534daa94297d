"""Small operations whose backward is right, each with random inputs: what a gradient check must never fail.

Among them is what confuses such checks: kinks, ties, gradients of zero, sums that cancel, inputs of extreme
size, inputs that do not matter, scalars, tuples, integers, and nothing at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numpy_gpt.arrays import Array

Random = np.random.Generator


class Pair(NamedTuple):
    """An operation at a point."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    inputs: tuple[Any, ...]


RIGHT: dict[str, Callable[[Random], Pair]] = {}


def right(make: Callable[[Random], Pair]) -> Callable[[Random], Pair]:
    RIGHT[make.__name__] = make
    return make


def shape(random: Random, axes: int = 3) -> tuple[int, ...]:
    return tuple(int(length) for length in random.integers(1, 6, axes))


def elementwise(
    name: str, function: Callable[[Array], Array], slope: Callable[[Array], Array], draw: Any
) -> None:
    def forward(x: Array) -> tuple[Array, Array]:
        return function(x), x.copy()

    def backward(d_out: Array, x: Array) -> tuple[Array]:
        return (d_out * slope(x),)

    RIGHT[name] = lambda random: Pair(forward, backward, (draw(random),))


def normal(scale: float = 1.0) -> Callable[[Random], Array]:
    return lambda random: scale * random.standard_normal(shape(random))


def integers(random: Random) -> Array:
    return random.integers(-3, 4, shape(random)).astype(float)


def spread(random: Random) -> Array:
    """Positive numbers of very different size."""
    return np.exp(5 * random.standard_normal(shape(random)))


def tanh_gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def tanh_gelu_slope(x: Array) -> Array:
    tanh = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)


def normal_cdf(x: Array) -> Array:
    return np.array([0.5 * math.erfc(-each / math.sqrt(2)) for each in x.ravel()], x.dtype).reshape(x.shape)


def normal_pdf(x: Array) -> Array:
    return np.exp(-0.5 * x**2) * (1 / math.sqrt(2 * math.pi))


elementwise("tanh", np.tanh, lambda x: 1 - np.tanh(x) ** 2, normal())
elementwise("tanh_of_zeros", np.tanh, lambda x: 1 - np.tanh(x) ** 2, lambda random: np.zeros(shape(random)))
elementwise("tanh_of_nothing", np.tanh, lambda x: 1 - np.tanh(x) ** 2, lambda random: np.zeros((0, 3)))
elementwise(
    "tanh_of_a_scalar", np.tanh, lambda x: 1 - np.tanh(x) ** 2, lambda random: np.array(random.normal())
)
elementwise("gelu_tanh", tanh_gelu, tanh_gelu_slope, normal(2.0))
elementwise("gelu", lambda x: x * normal_cdf(x), lambda x: normal_cdf(x) + x * normal_pdf(x), normal(2.0))
elementwise("relu", lambda x: np.maximum(x, 0), lambda x: np.where(x > 0, x.dtype.type(1), 0), normal())
elementwise(
    "relu_at_kinks", lambda x: np.maximum(x, 0), lambda x: np.where(x > 0, x.dtype.type(1), 0), integers
)
elementwise(
    "relu_beside_kinks",
    lambda x: np.maximum(x, 0),
    lambda x: np.where(x > 0, x.dtype.type(1), 0),
    lambda random: random.standard_normal(20) * 10.0 ** random.uniform(-14, 0, 20),
)
elementwise("abs", np.abs, np.sign, integers)
elementwise("clip", lambda x: np.clip(x, -1, 1), lambda x: (np.abs(x) < 1).astype(x.dtype), normal())
elementwise(
    "clip_at_bounds", lambda x: np.clip(x, -1, 1), lambda x: (np.abs(x) <= 1).astype(x.dtype), integers
)
elementwise("log", np.log, lambda x: 1 / x, spread)
elementwise("log_of_unlike_sizes", np.log, lambda x: 1 / x, lambda random: 10.0 ** np.array([-8, 0, 1, 2, 3]))
elementwise("sqrt", np.sqrt, lambda x: 0.5 / np.sqrt(x), spread)
elementwise("reciprocal", lambda x: 1 / x, lambda x: -1 / x**2, normal())
elementwise("fast_sine", lambda x: np.sin(1000 * x), lambda x: 1000 * np.cos(1000 * x), normal())
elementwise("cube_of_tiny", lambda x: x**3, lambda x: 3 * x**2, normal(1e-9))
elementwise("square_of_huge", lambda x: x**2, lambda x: 2 * x, normal(1e12))
elementwise("tiny_beside_one", lambda x: x + 1, np.ones_like, normal(1e-9))
elementwise(
    "bump_far_from_zero",
    lambda x: np.exp(-1e6 * (x - 1000) ** 2),
    lambda x: -2e6 * (x - 1000) * np.exp(-1e6 * (x - 1000) ** 2),
    lambda random: 1000 + 1e-3 * random.standard_normal(shape(random)),
)
elementwise("steps", lambda x: x + np.sign(x), np.ones_like, normal())


@right
def linear(random: Random) -> Pair:
    B, T, C = shape(random)
    weight = random.normal(0, 1 / math.sqrt(C), (int(random.integers(1, 6)), C))
    inputs = (random.standard_normal((B, T, C)), weight, random.standard_normal(len(weight)))
    return Pair(linear_forward, linear_backward, inputs)


def linear_forward(x: Array, weight: Array, bias: Array | None) -> tuple[Array, Any]:
    out = x @ weight.T
    return out if bias is None else out + bias, (x, weight, bias is None)


def linear_backward(d_out: Array, saved: Any) -> tuple[Array | None, ...]:
    x, weight, no_bias = saved
    rows = d_out.reshape(-1, d_out.shape[-1])
    d_weight = rows.T @ x.reshape(-1, x.shape[-1])
    return d_out @ weight, d_weight, None if no_bias else rows.sum(axis=0)


@right
def linear_without_bias(random: Random) -> Pair:
    pair = linear(random)
    return pair._replace(inputs=(*pair.inputs[:2], None))


def softmax_rows(x: Array) -> Array:
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def softmax_forward(x: Array) -> tuple[Array, Array]:
    out = softmax_rows(x)
    return out, out.copy()


def softmax_backward(d_out: Array, out: Array) -> tuple[Array]:
    return (out * (d_out - (d_out * out).sum(axis=-1, keepdims=True)),)


@right
def softmax(random: Random) -> Pair:
    return Pair(softmax_forward, softmax_backward, (random.standard_normal(shape(random)),))


@right
def softmax_of_mask(random: Random) -> Pair:
    def forward(x: Array, mask: Array) -> tuple[Array, Array]:
        return softmax_forward(x + mask)

    def backward(d_out: Array, out: Array) -> tuple[Array, Array]:
        (d_x,) = softmax_backward(d_out, out)
        return d_x, d_x.sum(axis=0)

    return Pair(forward, backward, (random.standard_normal((2, 4, 4)), np.triu(np.full((4, 4), -np.inf), 1)))


@right
def log_sum_exp(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Array, Array]:
        top = x.max(axis=-1)
        return top + np.log(np.exp(x - top[..., None]).sum(axis=-1)), softmax_rows(x)

    def backward(d_out: Array, weights: Array) -> tuple[Array]:
        return (weights * d_out[..., None],)

    return Pair(forward, backward, (3 * random.standard_normal(shape(random)),))


def heads(x: Array, num_heads: int) -> Array:
    B, T, C = x.shape
    return x.reshape(B, T, num_heads, C // num_heads).transpose(0, 2, 1, 3)


def joined(x: Array) -> Array:
    B, H, T, D = x.shape
    return x.transpose(0, 2, 1, 3).reshape(B, T, H * D)


def attention_forward(queries: Array, keys: Array, values: Array, num_heads: int = 2) -> tuple[Array, Any]:
    q, k, v = (heads(x, num_heads) for x in (queries, keys, values))
    scores = q @ k.swapaxes(-1, -2) * (1 / math.sqrt(q.shape[-1]))
    past = np.tril(np.ones(scores.shape[-2:], dtype=bool))
    weights = softmax_rows(np.where(past, scores, -np.inf))
    return joined(weights @ v), (q, k, v, weights)


def attention_backward(d_out: Array, saved: Any) -> tuple[Array, Array, Array]:
    q, k, v, weights = saved
    d_context = heads(d_out, q.shape[1])
    (d_scores,) = softmax_backward(d_context @ v.swapaxes(-1, -2), weights)
    d_scores = d_scores * (1 / math.sqrt(q.shape[-1]))
    d_values = weights.swapaxes(-1, -2) @ d_context
    return joined(d_scores @ k), joined(d_scores.swapaxes(-1, -2) @ q), joined(d_values)


def attention_inputs(random: Random, *shape: int) -> tuple[Array, ...]:
    return tuple(random.standard_normal(shape) for _ in range(3))


@right
def attention(random: Random) -> Pair:
    return Pair(attention_forward, attention_backward, attention_inputs(random, 2, 5, 6))


@right
def attention_of_one_token(random: Random) -> Pair:
    return Pair(attention_forward, attention_backward, attention_inputs(random, 2, 1, 4))


@right
def attention_with_key_bias(random: Random) -> Pair:
    def forward(queries: Array, keys: Array, values: Array, key_bias: Array) -> tuple[Array, Any]:
        return attention_forward(queries, keys + key_bias, values)

    def backward(d_out: Array, saved: Any) -> tuple[Array, ...]:
        d_queries, d_keys, d_values = attention_backward(d_out, saved)
        return d_queries, d_keys, d_values, d_keys.sum(axis=(0, 1))

    return Pair(forward, backward, (*attention_inputs(random, 2, 4, 4), random.standard_normal(4)))


def layer_norm_forward(x: Array, weight: Array, bias: Array) -> tuple[Array, Any]:
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    return centred * scale * weight + bias, (centred * scale, scale, weight)


def layer_norm_backward(d_out: Array, saved: Any) -> tuple[Array, Array, Array]:
    n, scale, weight = saved
    d_n = d_out * weight
    d_x = d_n - d_n.mean(axis=-1, keepdims=True) - n * (d_n * n).mean(axis=-1, keepdims=True)
    return d_x * scale, (d_out * n).sum(axis=(0, 1)), d_out.sum(axis=(0, 1))


@right
def layer_norm(random: Random) -> Pair:
    B, T, C = shape(random)
    x = random.standard_normal((B, T, C + 2))
    return Pair(layer_norm_forward, layer_norm_backward, (x, *random.standard_normal((2, C + 2))))


@right
def layer_norm_far_from_zero(random: Random) -> Pair:
    pair = layer_norm(random)
    return pair._replace(inputs=(0.01 * pair.inputs[0] + 1000, *pair.inputs[1:]))


@right
def embedding(random: Random) -> Pair:
    def forward(token_ids: Array, weight: Array) -> tuple[Array, Any]:
        return weight[token_ids], (token_ids, weight)

    def backward(d_out: Array, saved: Any) -> tuple[None, Array]:
        token_ids, weight = saved
        d_weight = np.zeros_like(weight)
        np.add.at(d_weight, token_ids, d_out)
        return None, d_weight

    return Pair(forward, backward, (random.integers(0, 5, (3, 4)), random.standard_normal((9, 3))))


@right
def cross_entropy(random: Random) -> Pair:
    def forward(logits: Array, targets: Array) -> tuple[float, Any]:
        counted = targets >= 0
        weights = softmax_rows(logits)
        picked = np.take_along_axis(weights, np.where(counted, targets, 0)[..., None], -1)[..., 0]
        return float(-np.log(picked[counted]).mean()), (weights, targets, counted)

    def backward(d_loss: float, saved: Any) -> tuple[Array, None]:
        weights, targets, counted = saved
        d_logits = weights.copy()
        d_logits[counted, targets[counted]] -= 1
        return d_logits * counted[..., None] * (d_loss / int(counted.sum())), None

    targets = random.integers(0, 6, (2, 5))
    targets[0, 1] = -100
    return Pair(forward, backward, (random.standard_normal((2, 5, 6)), targets))


@right
def mean(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Any, Any]:
        return x.mean(), x.shape

    def backward(d_out: Any, shape: Any) -> tuple[Array]:
        return (np.full(shape, d_out / math.prod(shape)),)

    return Pair(forward, backward, (random.standard_normal(shape(random)),))


@right
def residual(random: Random) -> Pair:
    def forward(x: Array, branch: Array) -> tuple[Array, None]:
        return x + branch, None

    def backward(d_out: Array, saved: None) -> tuple[Array, Array]:
        return d_out, d_out

    return Pair(forward, backward, tuple(random.standard_normal((2, *shape(random)))))


@right
def tiny_bias(random: Random) -> Pair:
    def forward(x: Array, bias: Array) -> tuple[Array, None]:
        return x + bias, None

    def backward(d_out: Array, saved: None) -> tuple[Array, Array]:
        return d_out, d_out.sum(axis=0)

    return Pair(forward, backward, (random.standard_normal((4, 3)), 1e-8 * random.standard_normal(3)))


@right
def product_of_unlike_sizes(random: Random) -> Pair:
    def forward(a: Array, b: Array) -> tuple[Array, Any]:
        return a * b, (a, b)

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array]:
        return d_out * saved[1], d_out * saved[0]

    a, b = random.standard_normal((2, *shape(random)))
    return Pair(forward, backward, (1e-6 * a, 1e6 * b))


@right
def quotient(random: Random) -> Pair:
    def forward(a: Array, b: Array) -> tuple[Array, Any]:
        return a / b, (a, b)

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array]:
        a, b = saved
        return d_out / b, -d_out * a / b**2

    return Pair(forward, backward, tuple(random.standard_normal((2, *shape(random)))))


@right
def two_outputs_of_unlike_sizes(random: Random) -> Pair:
    def forward(x: Array) -> tuple[tuple[Array, Any], Array]:
        return (1e-8 * np.sin(x), 1e5 * x.mean()), x.copy()

    def backward(d_outs: tuple[Array, Any], x: Array) -> tuple[Array]:
        d_sine, d_mean = d_outs
        return (1e-8 * d_sine * np.cos(x) + x.dtype.type(1e5 * d_mean / x.size),)

    return Pair(forward, backward, (random.standard_normal(shape(random)),))


@right
def concatenation_with_nothing(random: Random) -> Pair:
    def forward(a: Array, b: Array) -> tuple[Array, int]:
        return np.concatenate([a, b]), len(a)

    def backward(d_out: Array, cut: int) -> tuple[Array, Array]:
        return d_out[:cut], d_out[cut:]

    return Pair(forward, backward, (random.standard_normal((2, 3)), np.zeros((0, 3))))


@right
def transpose(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Array, None]:
        return x.T.copy(), None

    def backward(d_out: Array, saved: None) -> tuple[Array]:
        return (d_out.T,)

    return Pair(forward, backward, (random.standard_normal(shape(random)),))


@right
def unused_input(random: Random) -> Pair:
    def forward(x: Array, unused: Array) -> tuple[Array, Any]:
        return x**2, (x, unused.shape)

    def backward(d_out: Array, saved: Any) -> tuple[Array, Array]:
        x, shape = saved
        return 2 * x * d_out, np.zeros(shape, x.dtype)

    return Pair(forward, backward, (random.standard_normal((2, 3)), random.standard_normal(4)))


@right
def scaling(random: Random) -> Pair:
    def forward(x: Array, scale: float, times: int, negate: bool) -> tuple[Array, Any]:
        factor = times * (-1 if negate else 1)
        return x * scale * factor, (x, scale, factor)

    def backward(d_out: Array, saved: Any) -> tuple[Any, ...]:
        x, scale, factor = saved
        return d_out * scale * factor, (d_out * x * factor).sum(), None, None

    return Pair(forward, backward, (random.standard_normal((2, 3)), 2.5, 3, True))


@right
def dropout_with_fixed_mask(random: Random) -> Pair:
    kept = random.random((4, 5)) < 0.5

    def forward(x: Array) -> tuple[Array, None]:
        return x * kept * 2, None

    def backward(d_out: Array, saved: None) -> tuple[Array]:
        return (d_out * kept * 2,)

    return Pair(forward, backward, (random.standard_normal((4, 5)),))


@right
def running_sum(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Array, None]:
        return np.cumsum(x, axis=-1), None

    def backward(d_out: Array, saved: None) -> tuple[Array]:
        return (np.cumsum(d_out[..., ::-1], axis=-1)[..., ::-1],)

    return Pair(forward, backward, (random.standard_normal(shape(random)),))


@right
def largest_of_row(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Array, Array]:
        top = x.max(axis=-1)
        return top, x == top[..., None]

    def backward(d_out: Array, ties: Array) -> tuple[Array]:
        return (ties * (d_out / ties.sum(axis=-1).astype(d_out.dtype))[..., None],)

    return Pair(forward, backward, (np.round(random.standard_normal(shape(random))),))


@right
def inverse(random: Random) -> Pair:
    def forward(matrix: Array) -> tuple[Array, Array]:
        out = np.linalg.inv(matrix)
        return out, out.copy()

    def backward(d_out: Array, out: Array) -> tuple[Array]:
        return (-out.T @ d_out @ out.T,)

    return Pair(forward, backward, (random.standard_normal((4, 4)) + 3 * np.eye(4),))


@right
def logarithm_of_the_determinant(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Any, Array]:
        return np.linalg.slogdet(x)[1], x

    def backward(d_out: Array, x: Array) -> tuple[Array]:
        return (d_out * np.linalg.inv(x).T,)  # raises for a singular matrix, as of equal rows

    return Pair(forward, backward, (random.standard_normal((4, 4)) + 3 * np.eye(4),))


@right
def relu_network(random: Random) -> Pair:
    def forward(x: Array, first: Array, second: Array) -> tuple[Array, Any]:
        hidden = np.maximum(x @ first, 0)
        return hidden @ second, (x, first, second, hidden)

    def backward(d_out: Array, saved: Any) -> tuple[Array, ...]:
        x, first, second, hidden = saved
        d_hidden = (d_out @ second.T) * (hidden > 0)
        return d_hidden @ first.T, x.T @ d_hidden, hidden.T @ d_out

    return Pair(forward, backward, tuple(random.standard_normal(each) for each in ((4, 5), (5, 7), (7, 3))))


def share_forward(x: Array) -> tuple[Array, Any]:
    total = x.sum(axis=-1, keepdims=True)
    return x / total, (x, total)


def share_backward(d_out: Array, saved: Any) -> tuple[Array]:
    x, total = saved
    return (d_out / total - (d_out * x).sum(axis=-1, keepdims=True) / total**2,)


@right
def share_of_sum(random: Random) -> Pair:
    return Pair(share_forward, share_backward, (np.abs(random.standard_normal(shape(random))) + 0.1,))


@right
def share_of_itself(random: Random) -> Pair:
    return Pair(share_forward, share_backward, (np.abs(random.standard_normal((4, 3, 1))) + 0.1,))


# --- outputs of which rounding alone is left --------------------------------------------------------------


def of_any_size(random: Random, *shape: int) -> tuple[Array]:
    """Draw an input whose sums round at any size."""
    return (random.standard_normal(shape) * 10.0 ** random.integers(-2, 3),)


def centred_sum_backward(d_out: Any, x: Array) -> tuple[Array]:
    d_x = np.full_like(x, d_out)
    return (d_x - d_x.mean(),)


@right
def sum_of_what_is_centred(random: Random) -> Pair:
    return Pair(lambda x: ((x - x.mean()).sum(), x), centred_sum_backward, of_any_size(random, 3, 5))


@right
def sum_of_what_is_centred_known_to_be_zero(random: Random) -> Pair:
    inputs = of_any_size(random, int(random.integers(2, 20)))
    return Pair(lambda x: ((x - x.mean()).sum(), x), lambda d_out, x: (np.zeros_like(x),), inputs)


@right
def sum_of_what_is_centred_beside_squares(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Any, Array]:
        return ((x - x.mean()).sum(), (x * x).sum()), x

    def backward(d_outs: Any, x: Array) -> tuple[Array]:
        return (centred_sum_backward(d_outs[0], x)[0] + (2 * d_outs[1]) * x,)

    return Pair(forward, backward, of_any_size(random, 7))


@right
def softmax_summed_over_its_rows(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Array, Array]:
        out, _ = softmax_forward(x)
        return out.sum() - len(x), out

    def backward(d_out: Array, out: Array) -> tuple[Array]:
        return softmax_backward(np.full_like(out, d_out), out)

    return Pair(forward, backward, of_any_size(random, 4, 7))


@right
def layer_norm_summed_over_its_rows(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Array, Any]:
        ones = np.ones(x.shape[-1], x.dtype)
        out, saved = layer_norm_forward(x, ones, 0 * ones)
        return out.mean(), saved

    def backward(d_out: Array, saved: Any) -> tuple[Array]:
        n, _, _ = saved
        return (layer_norm_backward(np.full_like(n, d_out / n.size), saved)[0],)

    return Pair(forward, backward, of_any_size(random, 2, 3, 7))


@right
def trace_less_squares(random: Random) -> Pair:
    def forward(x: Array) -> tuple[Any, Array]:
        return np.trace(x @ x.T) - (x * x).sum(), x

    return Pair(forward, lambda d_out, x: ((2 * d_out) * x - (2 * d_out) * x,), of_any_size(random, 3, 5))


def sine_and_cosine_backward(d_out: Array, x: Array) -> tuple[Array]:
    return (d_out * (np.sin(2 * x) - 2 * np.cos(x) * np.sin(x)),)


@right
def sine_and_cosine_squared(random: Random) -> Pair:
    return Pair(
        lambda x: (np.sin(x) ** 2 + np.cos(x) ** 2, x), sine_and_cosine_backward, of_any_size(random, 7)
    )


@right
def sine_and_cosine_squared_less_one(random: Random) -> Pair:
    return Pair(
        lambda x: (np.sin(x) ** 2 + np.cos(x) ** 2 - 1, x),
        sine_and_cosine_backward,
        of_any_size(random, 3, 5),
    )
