"""The same mathematics once more, slowly: loops over single numbers, written without a look at the fast code.

Everything is float64. What these functions lack in speed they have in distance: no reshape, no broadcast over
batch or heads, no shared helper, so that a mistake in the fast code has nowhere to be copied to.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.ops import IGNORED_TARGET
from numpy_gpt.parameters import Parameters


def embedding(token_ids: Array, token_weight: Array, position_weight: Array) -> Array:
    """Return (B, T, C)."""
    return np.array([[token_weight[i] + position_weight[t] for t, i in enumerate(row)] for row in token_ids])


def linear(x: Array, weight: Array, bias: Array | None) -> Array:
    """Return (..., out)."""
    y: Array = np.einsum("...i,oi->...o", x, weight)
    return y if bias is None else y + bias


def layer_norm(x: Array, weight: Array, bias: Array, *, eps: float) -> Array:
    """Return (..., C)."""

    def normalized(token: Array) -> list[float]:
        mean = math.fsum(token) / len(token)
        variance = math.fsum((c - mean) ** 2 for c in token) / len(token)
        return [(c - mean) / math.sqrt(variance + eps) for c in token]

    return np.apply_along_axis(normalized, -1, x) * weight + bias


def gelu(x: Array, *, approximate: str) -> Array:
    """Return like x."""

    def exact(c: float) -> float:
        return c * (1 + math.erf(c / math.sqrt(2))) / 2

    def tanh(c: float) -> float:
        return c * (1 + math.tanh(math.sqrt(2 / math.pi) * (c + 0.044715 * c**3))) / 2

    result: Array = np.vectorize(exact if approximate == "none" else tanh, otypes=[np.float64])(x)
    return result


def softmax(x: Array) -> Array:
    """Return (..., n)."""
    return np.apply_along_axis(_shares, -1, x)


def _shares(scores: Sequence[float] | Array) -> list[float]:
    """Return exp(score) of each over their sum."""
    exponentials = [math.exp(score - max(scores)) for score in scores]
    return [e / math.fsum(exponentials) for e in exponentials]


def attention(queries: Array, keys: Array, values: Array, *, num_heads: int) -> Array:
    """Return (B, Tq, C); query i stands at position i + Tk - Tq and sees the keys up to there."""
    context = np.zeros_like(queries)
    (B, Tq, C), Tk = queries.shape, keys.shape[1]
    D = C // num_heads
    for b in range(B):
        for h in range(num_heads):
            head = slice(h * D, (h + 1) * D)
            for i in range(Tq):
                seen = range(i + Tk - Tq + 1)
                scores = [math.fsum(queries[b, i, head] * keys[b, j, head]) / math.sqrt(D) for j in seen]
                for j, share in zip(seen, _shares(scores), strict=True):
                    context[b, i, head] += share * values[b, j, head]
    return context


def cross_entropy(logits: Array, targets: Array, *, divisor: float | None) -> float:
    """Return the summed surprise at the targets that count, over the divisor."""
    surprises = []
    for index in np.ndindex(targets.shape):
        if targets[index] != IGNORED_TARGET:
            row = logits[index]
            highest = max(row)
            log_sum = highest + math.log(math.fsum(math.exp(z - highest) for z in row))
            surprises.append(log_sum - row[targets[index]])
    return math.fsum(surprises) / (max(len(surprises), 1) if divisor is None else divisor)


def linear_cross_entropy(x: Array, weight: Array, targets: Array, *, divisor: float | None) -> float:
    """Return the loss of predicting each position's target."""
    return cross_entropy(linear(x, weight, None), targets, divisor=divisor)


def logits(parameters: Parameters, token_ids: Array) -> Array:
    """Return (B, T, V) from the state dict's names, one projection at a time."""
    config, state = parameters.config, parameters.state_dict()

    def norm(x: Array, name: str) -> Array:
        return layer_norm(x, state[f"{name}.weight"], state[f"{name}.bias"], eps=config.layer_norm_eps)

    def project(x: Array, name: str) -> Array:
        return linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))

    x = embedding(
        token_ids, state["embedding.token_embedding.weight"], state["embedding.position_embedding.weight"]
    )
    for i in range(config.num_layers):
        block = f"transformer_blocks.{i}"
        normed = norm(x, f"{block}.attention_norm")
        q, k, v = (project(normed, f"{block}.attention.{name}") for name in ("W_query", "W_key", "W_value"))
        x = x + project(attention(q, k, v, num_heads=config.num_heads), f"{block}.attention.out_proj")
        wide = project(norm(x, f"{block}.feed_forward_norm"), f"{block}.feed_forward.up_proj")
        form = {"gelu_tanh": "tanh", "gelu": "none"}[config.activation]
        x = x + project(gelu(wide, approximate=form), f"{block}.feed_forward.down_proj")
    return project(norm(x, "final_norm"), "vocabulary_projection")


def adamw(
    parameters: Parameters,
    gradients: Sequence[Parameters],
    rates: Sequence[float],
    *,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> dict[str, Array]:
    """Return every parameter after one step per gradient and learning rate, number by number."""
    beta1, beta2 = betas
    after = {}
    for name, view in parameters.named_parameters():
        decay = weight_decay if view.ndim == 2 else 0.0
        after[name] = np.empty(view.shape)
        for index in np.ndindex(view.shape):
            theta, m, v = float(view[index]), 0.0, 0.0
            for t, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
                g = float(gradient[name][index])
                theta -= rate * decay * theta
                m = beta1 * m + (1 - beta1) * g
                v = beta2 * v + (1 - beta2) * g**2
                theta -= rate * (m / (1 - beta1**t)) / (math.sqrt(v / (1 - beta2**t)) + eps)
            after[name][index] = theta
    return after


def next_token_probabilities(
    logits: Array, *, temperature: float, top_k: int | None, top_p: float | None
) -> Array:
    """Return (V,): the tokens in order of likelihood, cut by top_k, then by top_p, and shared out anew."""
    order = sorted(range(len(logits)), key=lambda v: (-logits[v], v))
    kept = order[: 1 if temperature == 0 else top_k]
    shares = _shares([logits[v] / (temperature or 1.0) for v in kept])
    if top_p is not None:
        total, crossing = 0.0, 0
        while crossing < len(kept) and total < top_p:
            total += shares[crossing]
            crossing += 1
        kept = kept[:crossing]
        shares = [share / total for share in shares[:crossing]]
    probabilities = np.zeros(len(logits))
    probabilities[kept] = shares
    return probabilities


def windows_of(token_ids: Sequence[int], length: int) -> Iterator[tuple[Any, Any]]:
    """Yield (inputs, targets) of consecutive windows, the last as short as it comes."""
    for start in range(0, len(token_ids) - 1, length):
        targets = token_ids[start + 1 : start + 1 + length]
        yield token_ids[start : start + len(targets)], targets
