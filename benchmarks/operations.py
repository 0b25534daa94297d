"""The operations of the table, one by one, on a case's shapes: ours from either table, and torch's own."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from benchmarks.cases import Case
from numpy_gpt.arrays import Array
from numpy_gpt.kernels.workspace import Workspace
from numpy_gpt.model import GELU_FORM, TABLES
from numpy_gpt.ops import Op, Ops
from numpy_gpt.parallel import Team, blas_threads
from numpy_gpt.verify.measure import CANCELLED_SHARE, relative_error


class Operands(NamedTuple):
    """What one operation is called with, and what comes back to it."""

    arrays: tuple[Array, ...]
    options: Mapping[str, Any]
    d_out: Any  # an array like the output, or a float for a loss


class OpCall(Protocol):
    """One operation with its operands."""

    def forward(self) -> Any:
        """Compute the output, which is returned, and keep what backward needs."""

    def backward(self) -> tuple[Any, ...]:
        """Return the gradients after the last forward, None for integers."""


def all_operands(case: Case, seed: int = 0) -> Iterator[tuple[str, Operands]]:
    """Yield every operation's name, in the order of the table, and random operands of a case's shapes."""
    random = np.random.default_rng(seed)
    config, B, T = case.config, case.batch_size, case.num_tokens
    C, H, V = config.embedding_dim, config.num_heads, config.vocabulary_size

    def normal(*shape: int, std: float = 1.0) -> Array:
        return random.standard_normal(shape, np.float32) * np.float32(std)

    token_ids, target_ids = case.batch(seed)
    x, wide, heads, logits = (B, T, C), (B, T, 4 * C), (B, H, T, T), (B, T, V)
    std = 1 / math.sqrt(C)
    yield "embedding", Operands((token_ids, normal(V, C), normal(T, C)), {}, normal(*x))
    yield (
        "linear",
        Operands((normal(*x), normal(4 * C, C, std=std), normal(4 * C)), {}, normal(*wide)),
    )
    eps = {"eps": config.layer_norm_eps}
    yield "layer_norm", Operands((normal(*x), normal(C), normal(C)), eps, normal(*x))
    form = {"approximate": GELU_FORM[config.activation]}
    yield "gelu", Operands((normal(*wide),), form, normal(*wide))
    yield "softmax", Operands((normal(*heads),), {}, normal(*heads))
    qkv = (normal(*x), normal(*x), normal(*x))
    yield "attention", Operands(qkv, {"num_heads": H}, normal(*x))
    yield "cross_entropy", Operands((normal(*logits), target_ids), {}, 1.0)
    yield "linear_cross_entropy", Operands((normal(*x), normal(V, C, std=std), target_ids), {}, 1.0)


@contextlib.contextmanager
def op_call(ops: Ops | None, operation: str, operands: Operands, threads: int) -> Iterator[OpCall]:
    """Give an operation with its operands, within a context in which it has what it has in a model.

    That is for the kernels a team and memory that is used again, for other tables BLAS's own threads.

    Args:
        ops: a table; None for torch's own functions.
        operation: its name in the table.
        operands: what it is called with.
        threads: for all of them.
    """
    if ops is None:
        from benchmarks.opponents.torch_ops import TorchCall

        yield TorchCall(operation, operands, threads)
    elif ops == TABLES["fast"]:
        with Team(threads).at_work(), Workspace().in_use():
            yield NumpyCall(getattr(ops, operation), operands)
    else:
        with blas_threads(threads):
            yield NumpyCall(getattr(ops, operation), operands)


class NumpyCall:
    """An operation of a table."""

    def __init__(self, op: Op, operands: Operands) -> None:
        self.op = op
        self.operands = operands

    def forward(self) -> Any:
        """Compute the output, which is returned, and keep what backward needs."""
        self.saved: Any = None  # so that the memory of the last call serves again, as from step to step
        out, self.saved = self.op.forward(*self.operands.arrays, **self.operands.options)
        return out

    def backward(self) -> tuple[Any, ...]:
        """Return the gradients after the last forward, None for integers."""
        return self.op.backward(self.operands.d_out, self.saved)


def worst_op_error(case: Case, ops: Ops, threads: int) -> tuple[str, float]:
    """Return which operation of a table differs most from torch's, and by how much."""
    errors = []
    for operation, operands in all_operands(case):
        right, values = (_answer(table, operation, operands, threads) for table in (None, ops))
        errors.append(_worst(operation, values, right))
    return max(errors, key=lambda found: found[1])


def _answer(ops: Ops | None, operation: str, operands: Operands, threads: int) -> list[Any]:
    with op_call(ops, operation, operands, threads) as call:
        return [call.forward(), *call.backward()]


def _worst(operation: str, values: Sequence[Any], right: Sequence[Any]) -> tuple[str, float]:
    if [value is None for value in values] != [value is None for value in right]:
        return f"which gradients {operation} has", math.inf
    known = [(np.asarray(a), np.asarray(b)) for a, b in zip(values, right, strict=True) if b is not None]
    gradients = [float(np.abs(b).max()) for _, b in known[1:]]
    floors = [0.0, *[CANCELLED_SHARE * max(gradients)] * len(gradients)]
    errors = [relative_error(a, b, floor) for (a, b), floor in zip(known, floors, strict=True)]
    return operation, max(errors)
