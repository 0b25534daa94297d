"""An operation at one point, and what it first answered there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.operation import Operation, OperationRaisedError, Run

EPS = float(np.finfo(np.float64).eps)

ROUNDING = 1e-9
"""Two float64 computations of one gradient that sum in another order differ by less than this of its size."""

FACTORS = (3.0, 0.7, 1.3)
"""Upstream gradients are scaled by these to see rounding: no powers of two, which do not round."""


@dataclass(frozen=True)
class Subject:
    """An operation at one point: its inputs, and what it first answered to a few upstream gradients.

    Args:
        operation: the pair under test.
        names: one per input.
        inputs: floats as C-ordered float64 arrays, the rest as given. Never handed out, only copied.
        run: the first call of forward.
        values: its outputs, (M,).
        upstreams: random upstream gradients, (K, M): one for all outputs together, and one more per output.
        claims: backward's answers to them, each after a forward of its own, copied; per upstream gradient and
            input, float64 or None.
    """

    operation: Operation
    names: tuple[str, ...]
    inputs: tuple[Any, ...]
    run: Run
    values: Array
    upstreams: Array
    claims: tuple[tuple[Array | None, ...], ...]

    @classmethod
    def observe(
        cls,
        operation: Operation,
        names: tuple[str, ...],
        inputs: tuple[Any, ...],
        random: np.random.Generator,
    ) -> Subject:
        """Run the operation once per upstream gradient and note its answers.

        Raises:
            OperationRaisedError: when forward or backward raises.
            ValueError: when either returns what cannot be checked.
        """
        run = operation.run(copies(inputs))
        values = run.values
        upstreams = _upstreams(run, random)
        claims = []
        for upstream in upstreams:
            fresh = operation.run(copies(inputs))
            gradients = operation.gradients(fresh, fresh.shaped(upstream))
            claims.append(tuple(map(as_gradient, gradients)))
        return cls(operation, names, inputs, run, values, upstreams, tuple(claims))

    @cached_property
    def tensors(self) -> tuple[int, ...]:
        """Positions of the inputs that have a gradient."""
        return tuple(i for i, value in enumerate(self.inputs) if is_float_array(value))

    @cached_property
    def sizes(self) -> dict[int, float]:
        """Per input the size of a gradient that counts: the largest claimed, or what rounding makes of zero.

        A gradient that is zero by symmetry is computed as rounding noise; against itself it always looks
        wrong. It is held against 1e-3 of the largest gradient among the inputs, each times its input's size
        so that they are of one unit, and against what rounding of outputs and gradients amounts to.
        """
        outputs = float(
            np.max(np.abs(self.upstreams * self.values), initial=0.0, where=np.isfinite(self.values))
        )
        scaled = {
            i: max((largest(claim[i]) for claim in self.claims), default=0.0) * typical_size(self.inputs[i])
            for i in self.tensors
        }
        floor = max(1e-3 * max(scaled.values(), default=0.0), 1e-6 * outputs)
        return {
            i: max(max(size, floor) / typical_size(self.inputs[i]), self.rounding[i] / ROUNDING)
            for i, size in scaled.items()
        }

    @cached_property
    def rounding(self) -> dict[int, float]:
        """Per input how far its gradient is off by rounding.

        That is what scaling the upstream gradient, and the answer back again, changes; but no more than 1000
        eps of the upstream gradient, lest a backward that answers at random excuse itself.
        """
        gaps = dict.fromkeys(self.tensors, 0.0)
        for (upstream, claims), factor in product(
            zip(self.upstreams[:2], self.claims, strict=False), FACTORS
        ):
            try:
                scaled = self.answer(self.inputs, factor * upstream)[1]
            except (OperationRaisedError, ValueError):
                break  # that is for the check of linearity to report
            for i in self.tensors:
                claim, other = claims[i], scaled[i]
                if claim is not None and other is not None and claim.shape == other.shape:
                    gaps[i] = max(gaps[i], largest(other / factor - claim))
        most = 1000 * EPS * largest(self.upstreams[0])
        return {i: min(16 * gap, most) for i, gap in gaps.items()}

    def answer(self, inputs: tuple[Any, ...], upstream: Array) -> tuple[Array, tuple[Array | None, ...]]:
        """Return the outputs (M,) and the gradients for other inputs, from calls of their own.

        Raises:
            OperationRaisedError: when forward or backward raises.
        """
        run = self.operation.run(copies(inputs))
        gradients = self.operation.gradients(run, run.shaped(upstream))
        return run.values, tuple(map(as_gradient, gradients))

    def worst_difference(
        self, gradients: Sequence[Any], wanted: Sequence[Any], scale: float = 1.0
    ) -> tuple[str, float] | None:
        """Return the input whose gradients differ most, and by how much of their size.

        Args:
            gradients: one per input, as backward returned them.
            wanted: what they should equal.
            scale: how many times the first claims' size these gradients have.

        Returns:
            None if rounding explains every difference.
        """
        gaps = {
            self.names[i]: disagreement(
                as_gradient(gradients[i]), as_gradient(wanted[i]), self.sizes[i] * scale
            )
            for i in self.tensors
        }
        name = max(gaps, key=gaps.__getitem__)
        return (name, gaps[name]) if gaps[name] > ROUNDING else None


def _upstreams(run: Run, random: np.random.Generator) -> Array:
    together = random.standard_normal(run.values.size)
    rows = [together]
    # One output at a time: a fault in the path of a small output would drown in the gradient of a large one.
    start = 0
    for output in run.outputs:
        row = np.zeros_like(together)
        row[start : start + np.size(output)] = random.standard_normal(np.size(output))
        rows.append(row)
        start += np.size(output)
    return np.stack(rows)  # (K, M)


def copies(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Copy every array: an operation that writes into its inputs must not reach ours."""
    return tuple(value.copy() if isinstance(value, np.ndarray) else value for value in inputs)


def as_gradient(gradient: Any) -> Array | None:
    """Copy what backward returned to float64; None stays, and what is no array of reals is an empty one."""
    if gradient is None:
        return None
    try:
        return np.array(gradient, dtype=np.float64)
    except (TypeError, ValueError):
        return np.zeros((0, 0))


def is_float_array(value: Any) -> bool:
    """Whether an input has a gradient."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def typical_size(value: Array) -> float:
    """Return the median of the finite, non-zero absolute values, 1.0 when there are none.

    The median, since a few outliers must not choose the step for all others.
    """
    sizes = np.abs(value[np.isfinite(value) & (value != 0.0)])
    return float(np.median(sizes)) if sizes.size else 1.0


def largest(gradient: Array | None) -> float:
    """Return the largest finite size, 0.0 when there is none."""
    if gradient is None:
        return 0.0
    return float(np.max(np.abs(gradient[np.isfinite(gradient)]), initial=0.0))


def disagreement(values: Array | None, wanted: Array | None, size: float) -> float:
    """Return max|values - wanted| over max(max|wanted|, size).

    It is infinite if the shapes differ, or what is infinite or NaN.
    """
    if values is None or wanted is None:
        return 0.0 if values is wanted else float("inf")
    if values.shape != wanted.shape:
        return float("inf")
    same = (values == wanted) | (np.isnan(values) & np.isnan(wanted))
    gap = np.where(same, 0.0, np.abs(values - wanted))
    if not np.isfinite(gap).all():
        return float("inf")
    worst, scale = float(np.max(gap, initial=0.0)), max(largest(wanted), size)
    if worst == 0.0:
        return 0.0
    return worst / scale if scale else float("inf")
