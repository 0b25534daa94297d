"""A table of operations that computes as another does, and remembers every call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.learn.explorer.watching import Execution, watch
from numpy_gpt.model import GPT
from numpy_gpt.ops import Op, Ops


@dataclass
class Call:
    """One use of an operation: forward, and the backward that undid it.

    Attributes:
        op: the operation's name.
        place: how many calls came before it in the forward pass.
        options: forward's keywords.
        forward: how forward ran.
        backward: how backward ran.
    """

    op: str
    place: int
    options: dict[str, Any]
    forward: Execution
    backward: Execution | None = None

    @property
    def inputs(self) -> dict[str, Any]:
        """Forward's arrays by name."""
        return {name: value for name, value in self.forward.arguments.items() if name not in self.options}

    @property
    def out(self) -> Any:
        """What forward computed."""
        return self.forward.returned[0]

    @property
    def saved(self) -> Any:
        """What forward kept for backward."""
        return self.forward.returned[1]

    @property
    def d_out(self) -> Any:
        """The gradient that arrived."""
        return next(iter(self._backward.arguments.values()))

    @property
    def gradients(self) -> dict[str, Array]:
        """The gradients that left, by the names of their inputs; inputs without one are left out."""
        pairs = zip(self.inputs, self._backward.returned, strict=True)
        return {name: gradient for name, gradient in pairs if gradient is not None}

    @property
    def _backward(self) -> Execution:
        assert self.backward is not None, "this call was never sent a gradient"
        return self.backward


def recording(ops: Ops) -> tuple[Ops, list[Call]]:
    """Return a table that computes with `ops`, and the list to which it adds every call."""
    calls: list[Call] = []

    def recorded(name: str, op: Op) -> Op:
        def forward(*arrays: Any, **options: Any) -> tuple[Any, Any]:
            execution = watch(op.forward, *arrays, **options)
            calls.append(Call(name, len(calls), options, execution))
            out, saved = execution.result
            return out, saved

        def backward(d_out: Any, saved: Any, *, out: tuple[Array | None, ...] | None = None) -> Any:
            call = next(call for call in calls if call.forward.result[1] is saved)
            call.backward = watch(op.backward, d_out, saved, out=out)
            return call.backward.result

        return Op(forward, backward)

    return Ops(*(recorded(name, op) for name, op in ops._asdict().items())), calls


class Replay:
    """The forward pass of a recorded step, run again with one input of one operation exchanged.

    Args:
        model: as it was recorded.
        batch: token ids and target ids, (B, T) each.
        calls: every operation of the step, in the order of the forward pass.
    """

    def __init__(self, model: GPT, batch: tuple[Array, Array], calls: Sequence[Call]) -> None:
        self.model = model
        self.batch = batch
        self.calls = calls

    def loss_with(self, changed_call: Call, name: str, value: Array) -> float:
        """Return the loss when one call gets `value` for the input of that name.

        What ran before it is not run again: its results cannot have changed.
        """
        upcoming = iter(self.calls)

        def exchanging(op: Op) -> Op:
            def forward(*arrays: Any, **options: Any) -> tuple[Any, Any]:
                call = next(upcoming)
                if call.place < changed_call.place:
                    return call.out, None
                if call is changed_call:
                    return op.forward(*(call.inputs | {name: value}).values(), **options)
                return op.forward(*arrays, **options)

            return Op(forward, op.backward)

        table = Ops(*(exchanging(op) for op in self.model.ops))
        return GPT.from_parameters(self.model.parameters, ops=table).loss(*self.batch)

    def slopes(self, call: Call, name: str, step: float = 1e-5) -> Array:
        """Return how the loss answers to each number of one input of one call, by central differences.

        Nothing of backward is used: each number is moved up and down, and the model run to its end.
        """
        values = call.inputs[name]
        moved = values.copy()
        found: Array = np.empty_like(values)
        for index in np.ndindex(values.shape):
            losses = []
            for sign in (1, -1):
                moved[index] = values[index] + sign * step
                losses.append(self.loss_with(call, name, moved))
            moved[index] = values[index]
            found[index] = (losses[0] - losses[1]) / (2 * step)
        return found
