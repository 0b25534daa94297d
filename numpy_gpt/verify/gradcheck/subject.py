"""An operation at one point, and what it first answered there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.operation import Operation, OperationRaisedError, Run

EPS = float(np.finfo(np.float64).eps)

ROUNDING = 1e-9
"""Two float64 computations of one gradient that sum in another order differ by less than this of its size."""

FACTORS = (3.0, 0.7, 1.3)
"""Upstream gradients are scaled by these to see rounding: no powers of two, which do not round."""

NUDGES = tuple(4.0**power for power in range(6, -1, -1))
"""Inputs are nudged by so many units in the last place: what rounds to larger units feels no small nudge."""


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
        faults: what calls away from the point did that no domain excuses, in the order seen; see `excuse`.
    """

    operation: Operation
    names: tuple[str, ...]
    inputs: tuple[Any, ...]
    run: Run
    values: Array
    upstreams: Array
    claims: tuple[tuple[Array | None, ...], ...]
    faults: list[str] = field(default_factory=list)

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
            i: max(
                max(size, floor) / typical_size(self.inputs[i]), float(np.max(self.rounding[i])) / ROUNDING
            )
            for i, size in scaled.items()
        }

    @cached_property
    def rounding(self) -> dict[int, Array]:
        """Per input how far its gradient is off by rounding, for each upstream gradient (K,).

        That is what nudging the inputs changes, and scaling the upstream gradient and the answer back again;
        but no more than 1000 eps of the upstream gradient, lest a backward that answers at random excuse
        itself. Nor is it less than what rounding in forward amounts to: where the outputs are nothing else,
        gradients are not.
        """
        gaps = {i: np.zeros(len(self.upstreams)) for i in self.tensors}
        for k, (upstream, claims) in enumerate(zip(self.upstreams, self.claims, strict=True)):
            for inputs, factor in zip(nudged(self.inputs), FACTORS, strict=False):
                try:
                    scaled = self.answer(inputs, factor * upstream)[1]
                except (OperationRaisedError, ValueError) as error:
                    self.excuse(error)
                    break
                for i in self.tensors:
                    claim, other = claims[i], scaled[i]
                    if claim is not None and other is not None and claim.shape == other.shape:
                        gaps[i][k] = max(gaps[i][k], largest(other / factor - claim))
        most = 1000 * EPS * np.max(np.abs(self.upstreams), axis=1, initial=0.0)
        least = 16 * np.max(np.abs(self.upstreams * self.response), axis=1, initial=0.0)
        return {
            i: np.maximum(np.minimum(16 * gap, most), least / typical_size(self.inputs[i]))
            for i, gap in gaps.items()
        }

    @cached_property
    def response(self) -> Array:
        """Per output (M,), the most that it changes when all inputs are nudged; 0.0 where that is unknown."""
        changes = [np.zeros_like(self.values)]
        for inputs in nudged(self.inputs):
            values = self.values_at(inputs)
            if values is not None:
                changes.append(np.abs(values - self.values))
        most: Array = np.nan_to_num(np.max(changes, axis=0), nan=0.0, posinf=0.0)
        return most

    def values_at(self, inputs: Sequence[Any]) -> Array | None:
        """Return the outputs (M,) for other inputs, which forward may write into.

        None where forward refuses them, or gives outputs of another size: a step may leave its domain.
        """
        try:
            values = self.operation.run(inputs).values
        except (OperationRaisedError, ValueError) as error:
            self.excuse(error)
            return None
        return values if values.shape == self.values.shape else None

    def excuse(self, error: OperationRaisedError | ValueError) -> None:
        """Take a call that failed at other inputs for one outside the operation's domain, if it may be that.

        It is a fault if the same call succeeds when repeated, if calls at the point itself no longer do, or
        if what was returned cannot be checked.
        """
        if not isinstance(error, OperationRaisedError):
            self.faults.append(f"{error}, though the first calls went well")
        elif not error.recurs:
            self.faults.append(f"{error}, but not when called again with the same arguments")
        else:
            self.require_answer()

    def require_answer(self) -> None:
        """Note a fault if forward and backward no longer work at the point itself."""
        try:
            self.answer(self.inputs, self.upstreams[0])
        except (OperationRaisedError, ValueError) as error:
            self.faults.append(f"{error}, though the same call went well before")

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


def nudged(inputs: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield copies of the inputs, every float of which is some units in the last place larger or smaller."""
    random = np.random.default_rng(0)
    for units in NUDGES:
        yield tuple(
            value * (1 + units * EPS * random.choice([-1.0, 1.0], size=value.shape))
            if is_float_array(value)
            else value
            for value in copies(inputs)
        )


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
