"""Random inputs for the properties: small, of odd sizes, and with weights in which no term can hide.

Every seed draws a general case, where all sizes are above one and different, and edge cases: one token, one
head, one sequence, one class, equal widths, scores that overflow a careless exp.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from numpy_gpt.arrays import Array
from numpy_gpt.config import GPTConfig
from numpy_gpt.model import GPT
from numpy_gpt.ops import IGNORED_TARGET, Op, Ops
from numpy_gpt.parameters import Parameters
from numpy_gpt.verify.bugs.subject import Subject
from numpy_gpt.verify.cases import revealing_batch, revealing_parameters
from numpy_gpt.verify.kill_matrix import reference


class OpCase(NamedTuple):
    """An input of one operation, and an upstream gradient."""

    name: str  # the operation's
    array_names: tuple[str, ...]
    arrays: tuple[Any, ...]  # in the forward's order; float64 that float32 holds exactly, ids, or None
    options: dict[str, Any]
    d_out: Any  # random, like the output: an array, or a float where that is a loss

    def fresh(self, dtype: DTypeLike = np.float64, scale: float = 1.0) -> OpCase:
        """Return a copy that nobody else holds, with all floats cast and multiplied by `scale`."""

        def copy(value: Any) -> Any:
            if not isinstance(value, np.ndarray):
                return value
            return (value * scale).astype(dtype) if value.dtype.kind == "f" else value.copy()

        return self._replace(arrays=tuple(map(copy, self.arrays)), d_out=copy(self.d_out))

    def op(self, ops: Ops) -> Op:
        """Return the operation from a table."""
        op: Op = getattr(ops, self.name)
        return op

    def forward(self, ops: Ops) -> tuple[Any, Any]:
        """Return (out, saved)."""
        return self.op(ops).forward(*self.arrays, **self.options)

    def run(self, ops: Ops) -> tuple[Any, tuple[Any, ...]]:
        """Return (out, gradients)."""
        out, saved = self.forward(ops)
        return out, self.op(ops).backward(self.d_out, saved)

    def trained(self) -> Iterator[tuple[int, str]]:
        """Yield the place and the gradient's name of every array that has one."""
        for i, (name, array) in enumerate(zip(self.array_names, self.arrays, strict=True)):
            if isinstance(array, np.ndarray) and array.dtype.kind == "f":
                yield i, f"{self.name} d_{name}"


class OpCases:
    """Draws cases of each operation.

    Args:
        seed: of everything drawn.
    """

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng([seed, 10])

    def size(self, low: int, high: int) -> int:
        """Return a length from low to high."""
        return int(self.random.integers(low, high + 1))

    def embedding(self, B: int, T: int, V: int, C: int, *, unused: int, repeats: bool = True) -> OpCase:
        """Token ids with or without repeats; the positions' table has `unused` rows too many."""
        if repeats:
            ids = self.random.integers(0, V, (B, T))
            ids[:, T // 2] = ids[0, 0]  # within a sequence and between sequences
        else:
            ids = self.random.permutation(V)[: B * T].reshape(B, T)
        arrays = (ids, self._normal(V, C), self._normal(T + unused, C))
        names = ("token_ids", "token_weight", "position_weight")
        return OpCase("embedding", names, arrays, {}, self._upstream(B, T, C))

    def linear(self, rows: tuple[int, ...], width_in: int, width_out: int, *, bias: bool) -> OpCase:
        """Rows (..., in) to (..., out)."""
        arrays = (
            self._normal(*rows, width_in),
            self._matrix(width_out, width_in),
            self._normal(width_out) if bias else None,
        )
        return OpCase("linear", ("x", "weight", "bias"), arrays, {}, self._upstream(*rows, width_out))

    def layer_norm(self, rows: tuple[int, ...], C: int, *, eps: float) -> OpCase:
        """Token vectors (..., C) of another mean than zero."""
        arrays = (self._normal(*rows, C) + 0.5, self._normal(C), self._normal(C))
        return OpCase("layer_norm", ("x", "weight", "bias"), arrays, {"eps": eps}, self._upstream(*rows, C))

    def gelu(self, *shape: int, approximate: str) -> OpCase:
        """Numbers on both sides of the bend and in it."""
        arrays = (2 * self._normal(*shape),)
        return OpCase("gelu", ("x",), arrays, {"approximate": approximate}, self._upstream(*shape))

    def softmax(self, *shape: int, largest: float = 0.0) -> OpCase:
        """Scores around `largest`."""
        return OpCase("softmax", ("x",), (self._normal(*shape) + largest,), {}, self._upstream(*shape))

    def attention(self, B: int, Tq: int, Tk: int, H: int, D: int) -> OpCase:
        """Queries for the last Tq of Tk positions."""
        arrays = (self._normal(B, Tq, H * D), self._normal(B, Tk, H * D), self._normal(B, Tk, H * D))
        names = ("queries", "keys", "values")
        return OpCase("attention", names, arrays, {"num_heads": H}, self._upstream(B, Tq, H * D))

    def cross_entropy(
        self, rows: tuple[int, ...], V: int, *, divisor: float | None, lead: float = 0.0, ignore: bool = True
    ) -> OpCase:
        """Logits (..., V), the first of which leads by `lead`; every third target may be ignored."""
        logits = self._normal(*rows, V)
        logits[..., 0] += lead
        arrays = (logits, self._targets(rows, V, ignore))
        return OpCase("cross_entropy", ("logits", "targets"), arrays, {"divisor": divisor}, self._upstream())

    def linear_cross_entropy(
        self, B: int, T: int, C: int, V: int, *, divisor: float | None, ignore: bool = True
    ) -> OpCase:
        """Token vectors (B, T, C); every third target may be ignored."""
        arrays = (self._normal(B, T, C), self._matrix(V, C), self._targets((B, T), V, ignore))
        names = ("x", "weight", "targets")
        return OpCase("linear_cross_entropy", names, arrays, {"divisor": divisor}, self._upstream())

    def _normal(self, *shape: int) -> Array:
        return self.random.standard_normal(shape).astype(np.float32).astype(np.float64)

    def _matrix(self, rows: int, columns: int) -> Array:
        """Return weights of variance 1/fan_in, which keep the size of what they multiply."""
        weights: Array = columns**-0.5 * self.random.standard_normal((rows, columns))
        return weights.astype(np.float32).astype(np.float64)

    def _targets(self, shape: tuple[int, ...], vocabulary_size: int, ignore: bool) -> Array:
        targets = np.asarray(self.random.integers(0, vocabulary_size, shape))
        if ignore:
            targets.flat[0::3] = IGNORED_TARGET
        targets.flat[-1] = vocabulary_size - 1  # one counts, and is not the leading class
        return targets

    def _upstream(self, *out_shape: int) -> Any:
        return self._normal(*out_shape) if out_shape else 2.0 + float(self._normal(1)[0])


@functools.lru_cache(maxsize=16)
def op_cases(seed: int) -> tuple[OpCase, ...]:
    """Return cases of every operation; use them through `fresh`, which copies."""
    draw = OpCases(seed)
    B, T, C, V = draw.size(2, 3), draw.size(3, 5), draw.size(3, 5), draw.size(5, 8)
    H, D = draw.size(2, 3), draw.size(2, 3)
    return (
        draw.embedding(B, T, V, C, unused=2),
        draw.embedding(1, 1, 1, 1, unused=0),
        draw.linear((B, T), C, C + 2, bias=True),
        draw.linear((B, T), C, C, bias=True),  # where a transposed weight fits
        draw.linear((T,), C + 1, 1, bias=False),
        draw.layer_norm((B, T), C, eps=1e-5),
        draw.layer_norm((), C, eps=1e-2),
        draw.gelu(B, T, C, approximate="tanh"),
        draw.gelu(T, C, approximate="none"),
        draw.softmax(B, T, C),
        draw.softmax(T, C, largest=800.0),  # exp(800) is infinite in float64
        draw.softmax(1),
        draw.attention(B, T, T, H, D),
        draw.attention(B, T - 1, T + 1, H, D),
        draw.attention(2, 1, 1, 1, D),
        draw.cross_entropy((B, T), V, divisor=None),
        draw.cross_entropy((T,), V, divisor=3.5, lead=800.0),  # exp(-800) is zero in float64
        draw.cross_entropy((), V, divisor=None),
        draw.linear_cross_entropy(B, T, C, V, divisor=None),
        draw.linear_cross_entropy(1, 2 * T + 1, C, V, divisor=3.5),
    )


@functools.lru_cache(maxsize=16)
def op_answers(seed: int) -> tuple[Any, ...]:
    """Return the slow reference's output for each of the seed's cases."""
    return tuple(getattr(reference, case.name)(*case.arrays, **case.options) for case in op_cases(seed))


class ModelCase(NamedTuple):
    """A model's weights and a batch for it."""

    parameters: Parameters  # float64 that float32 holds exactly
    token_ids: Array  # (B, T)
    target_ids: Array  # (B, T)

    def model(self, subject: Subject, dtype: DTypeLike = np.float64) -> GPT:
        """Return the subject's model around its own copy of the weights."""
        return subject.build(Parameters(self.parameters.config, self.parameters.flat.astype(dtype)))

    def batch(self) -> tuple[Array, Array]:
        """Return the batch, as copies."""
        return self.token_ids.copy(), self.target_ids.copy()


@functools.lru_cache(maxsize=16)
def model_cases(seed: int) -> tuple[ModelCase, ...]:
    """Return models that have every choice of the configuration between them; use them through methods."""
    random = np.random.default_rng([seed, 20])

    def case(num_tokens: int, max_sequence_length: int, **fields: Any) -> ModelCase:
        config = GPTConfig(int(random.integers(5, 9)), max_sequence_length, **fields)
        batch_size, case_seed = int(random.integers(2, 4)), int(random.integers(2**32))
        batch = revealing_batch(config, batch_size, num_tokens, case_seed)
        return ModelCase(revealing_parameters(config, case_seed), *batch)

    T, D = int(random.integers(3, 6)), int(random.integers(2, 4))
    tied = case(T, T + 1, embedding_dim=2 * D, num_heads=2, num_layers=2)
    untied = case(
        T + 1,
        T + 1,
        embedding_dim=6,
        num_heads=int(random.choice([1, 2, 3])),
        num_layers=1,
        qkv_bias=False,
        tie_weights=False,
        activation="gelu",
        layer_norm_eps=1e-3,
    )
    return tied, untied


@functools.lru_cache(maxsize=16)
def model_answers(seed: int) -> tuple[tuple[Array, float], ...]:
    """Return the slow reference's logits (B, T, V) and loss for each of the seed's cases."""
    answers = []
    for case in model_cases(seed):
        logits = reference.logits(case.parameters, case.token_ids)
        answers.append((logits, reference.cross_entropy(logits, case.target_ids, divisor=None)))
    return tuple(answers)
