"""A wrong gradient, and the experiments that may explain it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.measurement import NEGLIGIBLE
from numpy_gpt.verify.gradcheck.operation import OperationRaisedError
from numpy_gpt.verify.gradcheck.subject import copies
from numpy_gpt.verify.gradcheck.suspects.observed import MAX_ENTRIES, Observed

Found = TypeVar("Found")

STEP = 2.0**-16
"""Of an element's size: curvature and rounding then both err by some 1e-10, enough to tell mistakes apart."""

SECONDS = 0.5
"""What one further measurement may cost."""

RIGHT, NOTICEABLE = 1e-6, 1e-4
"""Errors along a few directions: backward is right below the first, and seen to be wrong above the second."""


class Fault(Observed):
    """One input whose gradient is wrong, with further measurements and calls, each made when asked for."""

    def with_claims(self, claims: Array) -> Fault:
        """Return the same fault, but as if backward had given these gradients (K, ...) for this input."""
        others = [
            (*given[: self.i], claim, *given[self.i + 1 :])
            for given, claim in zip(self.subject.claims, claims, strict=True)
        ]
        changed = replace(self, subject=replace(self.subject, claims=tuple(others)))
        for name in ("_seen", "error", "known", "memory", "truth", "upstreams"):  # not to be found out again
            changed.__dict__[name] = getattr(self, name)
        return changed

    @cached_property
    def memory(self) -> dict[str, Any]:
        """What suspects found out about the operation, whatever is claimed: see `remembered`."""
        return {}

    def remembered(self, name: str, find_out: Callable[[], Found]) -> Found:
        """Return what was found out under this name, finding it out the first time."""
        if name not in self.memory:
            self.memory[name] = find_out()
        found: Found = self.memory[name]
        return found

    @cached_property
    def jacobian(self) -> Array | None:
        """All derivatives of all outputs (size, M), None where they are too many or forward too slow."""
        differences = self.measurement.differences
        calls, entries = 2 * self.value.size, self.value.size * self.subject.values.size
        if calls * differences.seconds_per_call > SECONDS or entries > MAX_ENTRIES:
            return None
        steps = differences.unit_steps[self.i]
        rows = []
        for index in np.ndindex(self.shape):
            step = np.zeros(self.shape)
            step[index] = steps[index]
            if not step[index]:
                return None
            rows.append(self.slopes({self.i: step}) / steps[index])
        jacobian = np.stack(rows)
        return jacobian if np.isfinite(jacobian).all() else None

    def parts(self, k: int, output: int) -> Array | None:
        """Return what each element of an output contributes to the gradient (size, *output's shape)."""
        if self.jacobian is None:
            return None
        sizes = [np.size(each) for each in self.subject.run.outputs]
        start = sum(sizes[:output])
        chosen = slice(start, start + sizes[output])
        parts: Array = self.jacobian[:, chosen] * self.subject.upstreams[k][chosen]
        return parts.reshape(self.value.size, *np.shape(self.subject.run.outputs[output]))

    @cached_property
    def right(self) -> Array | None:
        """The right gradients (K, ...) by the Jacobian."""
        if self.jacobian is None:
            return None
        right: Array = (self.subject.upstreams @ self.jacobian.T).reshape(-1, *self.shape)
        return right

    def answers(self, inputs: tuple[Any, ...], upstreams: Array | None = None) -> Array | None:
        """Return what backward gives for this input at other inputs, or for other upstream gradients (K, M).

        It is (K, ...), or None if backward then raises or gives nothing of the input's shape.
        """
        answers = []
        for upstream in self.subject.upstreams if upstreams is None else upstreams:
            try:
                answer = self.subject.answer(inputs, upstream)[1][self.i]
            except (OperationRaisedError, ValueError):
                return None
            if answer is None or answer.shape != self.shape:
                return None
            answers.append(answer)
        return np.stack(answers)

    def sent(self, axis: int) -> Array | None:
        """Return what backward sends from each index along an axis of the only output (K, n, ...).

        None if it takes too long, or backward cannot say.
        """
        return self.remembered(f"sent along {axis}", lambda: self._sent_from_each(axis))

    def _sent_from_each(self, axis: int) -> Array | None:
        sent = []
        for (upstream,) in self.upstreams:
            for at in range(upstream.shape[axis]):
                if self.is_late:
                    return None
                chosen = (slice(None),) * axis + (at,)
                part = np.zeros_like(upstream)
                part[chosen] = upstream[chosen]
                answer = self.answers(self.subject.inputs, part.reshape(1, -1))
                if answer is None or not np.isfinite(answer).all():
                    return None
                sent.append(answer[0])
        return np.stack(sent).reshape(len(self.upstreams), -1, *self.shape)

    def due(self, axis: int) -> Array | None:
        """Return what each index along an axis of the only output should send (K, n, ...), as measured."""
        due = []
        for k in range(len(self.upstreams)):
            parts = self.parts(k, 0)
            if parts is None:
                return None
            others = tuple(other + 1 for other in range(parts.ndim - 1) if other != axis)
            due.append(parts.sum(axis=others).T.reshape(-1, *self.shape))
        return np.stack(due)

    def with_input(self, j: int, value: Array) -> tuple[Any, ...]:
        """Return copies of the inputs with one replaced."""
        inputs = list(copies(self.subject.inputs))
        inputs[j] = np.ascontiguousarray(value)
        return tuple(inputs)

    def error_at(self, inputs: tuple[Any, ...], directions: int = 4) -> float:
        """Return how wrong backward is at other inputs along a few random directions; infinite if unknown."""
        try:
            claims = self.answers(inputs)
            if claims is None:
                return math.inf
            random = np.random.default_rng(0)
            worst = 0.0
            for _ in range(directions):
                signs = random.choice([-1.0, 1.0], size=self.shape)
                steps = self.measurement.differences.unit_steps[self.i] * signs
                ends = []
                for h in (STEP, -STEP):
                    moved = list(copies(inputs))
                    moved[self.i] = moved[self.i] + h * steps
                    ends.append(self.subject.operation.run(moved).values)
                slopes = self.subject.upstreams @ ((ends[0] - ends[1]) / (2 * STEP))  # (K,)
                terms = (claims * steps).reshape(len(claims), -1)
                scale = np.maximum(np.abs(slopes), np.linalg.norm(terms, axis=1))
                scale = np.maximum(scale, NEGLIGIBLE * np.max(scale, initial=1e-300))
                worst = max(worst, float(np.max(np.abs(terms.sum(axis=1) - slopes) / scale)))
        except (OperationRaisedError, ValueError):
            return math.inf
        return worst if math.isfinite(worst) else math.inf

    def slopes(self, steps: Mapping[int, Array]) -> Array:
        """Return the central differences of all outputs (M,) with inputs moved along `steps`."""
        differences, inputs = self.measurement.differences, self.subject.inputs
        ends = [
            differences.values({i: inputs[i] + h * step for i, step in steps.items()}) for h in (STEP, -STEP)
        ]
        with np.errstate(all="ignore"):
            return differences.change(ends[0], ends[1]) / (2 * STEP)
