"""Every operation as one row of a table: how to draw its arrays, and its meaning in torch.

The generic tests of `test_ops.py` run over this table; an operation is tested by having its row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from numpy_gpt.arrays import Array
from numpy_gpt.kernels import fast
from numpy_gpt.ops import Op, book
from tests import magnitudes
from tests.comparison import assert_close
from tests.strategies import IGNORED, LEADING_SHAPES, divisors, matrices, sizes, targets, token_ids, values

torch.set_num_threads(1)  # in arrays this small, threads would only wait for one another


class Example(NamedTuple):
    """One input of an operation, in float32, so that both precisions start from equal numbers."""

    arrays: tuple[Array | None, ...]  # in the forward's order
    options: dict[str, Any]
    d_out: Any  # an array like the output, or a float where that is a loss


class Case(NamedTuple):
    """One operation: its pair of functions, the names of its arrays, and what it is to be compared with."""

    name: str
    op: Op
    names: tuple[str, ...]
    examples: st.SearchStrategy[Example]
    torch: Callable[..., Tensor]
    magnitudes: Callable[..., magnitudes.Magnitudes]


class Answer(NamedTuple):
    """What an operation makes of an example, from NumPy or from torch."""

    out: Any
    gradients: tuple[Array | None, ...]


@st.composite
def embeddings(draw: st.DrawFn) -> Example:
    B, T, V, C = draw(sizes(3)), draw(sizes(4)), draw(sizes(6)), draw(sizes(5))
    longest = T + draw(st.integers(0, 2))
    arrays = (draw(token_ids((B, T), V)), draw(values((V, C))), draw(values((longest, C))))
    return Example(arrays, {}, draw(values((B, T, C))))


@st.composite
def linears(draw: st.DrawFn) -> Example:
    rows, width_in, width_out = draw(LEADING_SHAPES), draw(sizes(5)), draw(sizes(5))
    bias = draw(values((width_out,))) if draw(st.booleans()) else None
    arrays = (draw(values((*rows, width_in))), draw(matrices(width_out, width_in)), bias)
    return Example(arrays, {}, draw(values((*rows, width_out))))


@st.composite
def layer_norms(draw: st.DrawFn) -> Example:
    rows, C = draw(LEADING_SHAPES), draw(sizes(6))
    # Far from zero, a variance computed as mean(x²) − mean(x)² is lost.
    x = draw(values((*rows, C))) + np.float32(draw(st.sampled_from([0, 100])))
    arrays = (x, draw(values((C,))), draw(values((C,))))
    return Example(arrays, {"eps": draw(st.sampled_from([1e-5, 1e-2]))}, draw(values((*rows, C))))


@st.composite
def gelus(draw: st.DrawFn) -> Example:
    shape, scale = (*draw(LEADING_SHAPES), draw(sizes(6))), draw(st.sampled_from([1.0, 4.0]))
    approximate = draw(st.sampled_from(["tanh", "none"]))
    return Example((draw(values(shape, scale)),), {"approximate": approximate}, draw(values(shape)))


@st.composite
def softmaxes(draw: st.DrawFn) -> Example:
    shape, scale = (*draw(LEADING_SHAPES), draw(sizes(6))), draw(st.sampled_from([1.0, 4.0]))
    return Example((draw(values(shape, scale)),), {}, draw(values(shape)))


@st.composite
def attentions(draw: st.DrawFn) -> Example:
    B, Tk, H, D = draw(sizes(3)), draw(sizes(5)), draw(sizes(3)), draw(sizes(3))
    Tq = draw(st.integers(1, Tk))
    queries, d_out = draw(values((B, Tq, H * D))), draw(values((B, Tq, H * D)))
    keys, summed = draw(values((B, Tk, H * D))), draw(values((B, Tk, H * D)))
    return Example((queries, keys, summed), {"num_heads": H}, d_out)


@st.composite
def cross_entropies(draw: st.DrawFn) -> Example:
    rows, V = draw(LEADING_SHAPES), draw(sizes(6))
    arrays = (draw(values((*rows, V), 2.0)), draw(targets(rows, V)))
    return Example(arrays, {"divisor": draw(divisors())}, float(draw(values((1,)))[0]))


@st.composite
def linear_cross_entropies(draw: st.DrawFn) -> Example:
    B, T, C, V = draw(sizes(3)), draw(sizes(4)), draw(sizes(4)), draw(sizes(6))
    arrays = (draw(values((B, T, C))), draw(matrices(V, C)), draw(targets((B, T), V)))
    return Example(arrays, {"divisor": draw(divisors())}, float(draw(values((1,)))[0]))


def torch_embedding(ids: Tensor, token_weight: Tensor, position_weight: Tensor) -> Tensor:
    return functional.embedding(ids, token_weight) + position_weight[: ids.shape[1]]


def torch_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias, eps)


def torch_softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)


def torch_attention(queries: Tensor, keys: Tensor, summed: Tensor, *, num_heads: int) -> Tensor:
    q, k, v = (
        x.unflatten(-1, (num_heads, -1)).transpose(1, 2) for x in (queries, keys, summed)
    )  # (B, H, T, D)
    visible = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    return functional.scaled_dot_product_attention(q, k, v, visible).transpose(1, 2).flatten(-2)


def torch_cross_entropy(logits: Tensor, target_ids: Tensor, *, divisor: float | None) -> Tensor:
    rows, flat_targets = logits.reshape(-1, logits.shape[-1]), target_ids.reshape(-1)
    total = functional.cross_entropy(rows, flat_targets, ignore_index=IGNORED, reduction="sum")
    return total / (max(int((target_ids != IGNORED).sum()), 1) if divisor is None else divisor)


def torch_linear_cross_entropy(
    x: Tensor, weight: Tensor, target_ids: Tensor, *, divisor: float | None
) -> Tensor:
    return torch_cross_entropy(functional.linear(x, weight), target_ids, divisor=divisor)


BOOK_CASES = [
    Case(
        "embedding",
        book.embedding,
        ("token_ids", "token_weight", "position_weight"),
        embeddings(),
        torch_embedding,
        magnitudes.embedding,
    ),
    Case("linear", book.linear, ("x", "weight", "bias"), linears(), functional.linear, magnitudes.linear),
    Case(
        "layer_norm",
        book.layer_norm,
        ("x", "weight", "bias"),
        layer_norms(),
        torch_layer_norm,
        magnitudes.layer_norm,
    ),
    Case("gelu", book.gelu, ("x",), gelus(), functional.gelu, magnitudes.gelu),
    Case("softmax", book.softmax, ("x",), softmaxes(), torch_softmax, magnitudes.softmax),
    Case(
        "attention",
        book.attention,
        ("queries", "keys", "values"),
        attentions(),
        torch_attention,
        magnitudes.attention,
    ),
    Case(
        "cross_entropy",
        book.cross_entropy,
        ("logits", "targets"),
        cross_entropies(),
        torch_cross_entropy,
        magnitudes.cross_entropy,
    ),
    Case(
        "linear_cross_entropy",
        book.linear_cross_entropy,
        ("x", "weight", "targets"),
        linear_cross_entropies(),
        torch_linear_cross_entropy,
        magnitudes.linear_cross_entropy,
    ),
]

TUNED_CASES = [
    case._replace(name=f"tuned {case.name}", op=getattr(fast, case.name))
    for case in BOOK_CASES
    if getattr(fast, case.name) != case.op
]
CASES = BOOK_CASES + TUNED_CASES


def cast(value: Any, dtype: type) -> Any:
    """Return a read-only copy: floating arrays in the given dtype, integers, floats and None as they are."""
    if not isinstance(value, np.ndarray):
        return value
    array = value.astype(dtype if value.dtype.kind == "f" else value.dtype)
    array.flags.writeable = False
    return array


def run_forward(case: Case, example: Example, dtype: type) -> tuple[Any, Any]:
    """Return the operation's output and what it saved; its inputs are read-only, in the given precision."""
    return case.op.forward(*[cast(array, dtype) for array in example.arrays], **example.options)


def run(case: Case, example: Example, dtype: type) -> Answer:
    """Return the operation's output and gradients in the given precision; its inputs are read-only."""
    out, saved = run_forward(case, example, dtype)
    return Answer(out, case.op.backward(cast(example.d_out, dtype), saved))


def run_torch(case: Case, example: Example, dtype: type) -> Answer:
    """Return torch's output and gradients in the given precision."""
    arrays = [None if array is None else torch.tensor(cast(array, dtype)) for array in example.arrays]
    trained = [array.requires_grad_() for array in arrays if array is not None and array.is_floating_point()]
    out = case.torch(*arrays, **example.options)
    d_out = torch.tensor(cast(example.d_out, dtype), dtype=out.dtype)
    gradients = iter(torch.autograd.grad(out, trained, d_out))
    is_trained = [array is not None and array.requires_grad for array in arrays]
    return Answer(out.detach().numpy(), tuple(next(gradients).numpy() if t else None for t in is_trained))


def run_magnitudes(case: Case, example: Example) -> Answer:
    """Return the sizes of what is summed to make the output and the gradients."""
    arrays = [cast(array, np.float64) for array in example.arrays]
    d_out = cast(example.d_out, np.float64)
    return Answer(*case.magnitudes(*arrays, **example.options, d_out=d_out))


def tensors(case: Case, answer: Answer) -> dict[str, Any]:
    """Return the output and every gradient that exists, under names for failure texts."""
    named = {f"{case.name} out": answer.out}
    for name, gradient in zip(case.names, answer.gradients, strict=True):
        if gradient is not None:
            named[f"{case.name} d_{name}"] = gradient
    return named


def assert_answers_close(
    case: Case, example: Example, actual: Answer, expected: Answer, tolerance: float
) -> None:
    """Fail unless output and gradients agree in float64, measured against what is summed to make them."""
    ours, floors = tensors(case, actual), tensors(case, run_magnitudes(case, example))
    for what, wanted in tensors(case, expected).items():
        assert_close(ours[what], wanted, what, tolerance=tolerance, floor=floors[what])


def objective(case: Case, example: Example, arrays: list[Any]) -> float:
    """Return the number whose gradient backward computes: the sum of out · d_out."""
    out, _ = case.op.forward(*arrays, **example.options)
    return float(np.sum(out * example.d_out))
