"""A torch function beside its plain reference: both run on leaves of their own, their answers in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.report import Finding, Property

Answer = dict[str, Array]
"""Outputs and gradients by name, as float64 arrays; a gradient that is absent is zero."""


class FunctionRaisedError(Exception):
    """The function under test raised, forward or backward."""


class TensorOperation:
    """A function and its reference.

    Args:
        torch: the module, imported by whoever needs it.
        function: what is under test.
        reference: what it should equal.
        names: one per argument.
    """

    def __init__(
        self, torch: Any, function: Callable[..., Any], reference: Callable[..., Any], names: tuple[str, ...]
    ) -> None:
        self.torch = torch
        self.function = function
        self.reference = reference
        self.names = names

    def is_floating(self, value: Any) -> bool:
        """Whether an argument is a tensor with a gradient."""
        return isinstance(value, self.torch.Tensor) and bool(value.is_floating_point())

    def contiguous(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Copy the arguments, tensors in C order and off any graph."""
        return tuple(
            value.detach().clone(memory_format=self.torch.contiguous_format)
            if isinstance(value, self.torch.Tensor)
            else value
            for value in values
        )

    def precision(self, inputs: tuple[Any, ...]) -> tuple[float, bool]:
        """Return the coarsest eps among the inputs, and whether all are float64."""
        dtypes = [value.dtype for value in inputs if self.is_floating(value)]
        return max(self.torch.finfo(dtype).eps for dtype in dtypes), set(dtypes) == {self.torch.float64}

    def as_array(self, value: Any) -> Array:
        """Copy a tensor to a float64 array."""
        array: Array = value.detach().to(device="cpu", dtype=self.torch.float64).numpy().copy()
        return array

    def draw(self, inputs: tuple[Any, ...], random: np.random.Generator) -> tuple[Any, ...]:
        """Draw an upstream gradient per output, in the dtypes that the reference's outputs have."""
        outputs = self._outputs("reference", self.reference, self._leaves(inputs))
        return tuple(
            self.torch.from_numpy(np.asarray(random.standard_normal(tuple(output.shape)))).to(output)
            for output in outputs
        )

    def truth(self, inputs: tuple[Any, ...], upstreams: tuple[Any, ...]) -> Answer:
        """Run the reference in float64.

        Raises:
            ValueError: when the reference raises, or returns another dtype all the same.
        """
        double = self.torch.float64
        inputs, upstreams = (
            tuple(value.to(double) if self.is_floating(value) else value for value in values)
            for values in (inputs, upstreams)
        )
        return self._by_reference(inputs, upstreams, must_be=double)

    def plain(self, inputs: tuple[Any, ...], upstreams: tuple[Any, ...]) -> Answer:
        """Run the reference in the inputs' own dtype.

        In float64 that would be the truth once more: there the inputs are nudged by one eps, to see rounding.
        """
        eps, is_double = self.precision(inputs)
        if is_double:
            inputs = tuple(self._nudged(value, eps) if self.is_floating(value) else value for value in inputs)
        return self._by_reference(inputs, upstreams, must_be=None)

    def _nudged(self, value: Any, eps: float) -> Any:
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=tuple(value.shape))
        return value * (1 + eps * self.torch.from_numpy(np.asarray(signs)).to(value))

    def _by_reference(self, inputs: tuple[Any, ...], upstreams: tuple[Any, ...], must_be: Any) -> Answer:
        leaves = self._leaves(inputs)
        outputs = self._outputs("reference", self.reference, leaves)
        if must_be is not None and any(output.dtype != must_be for output in outputs):
            raise ValueError(
                "reference must compute in the dtype of its inputs, but from float64 it returned less"
            )
        try:
            return self._answer(leaves, outputs, self._gradients(leaves, outputs, upstreams))
        except Exception as error:
            raise ValueError(f"reference cannot be differentiated: {error}") from error

    def answer(self, inputs: tuple[Any, ...], upstreams: tuple[Any, ...], backwards: int = 1) -> Answer:
        """Run the function, and backward so many times, and return what it answered last.

        Tensors in C order are copied first, lest a function that writes into them spoil ours; others are
        handed in as they are, since a copy would lose their layout.

        Raises:
            FunctionRaisedError: when forward or backward raises.
        """
        leaves = self._leaves(self._own(inputs))
        outputs = self._outputs("function", self.function, leaves)
        if len(outputs) != len(upstreams):
            raise FunctionRaisedError(
                f"function returned {len(outputs)} outputs, the reference {len(upstreams)}"
            )
        for _ in range(backwards):
            gradients = self._own_gradients(leaves, outputs, self._own(upstreams))
        return self._answer(leaves, outputs, gradients)

    def broken_properties(self, inputs: tuple[Any, ...], upstreams: tuple[Any, ...]) -> Iterator[Finding]:
        """Yield where the function writes into its arguments or departs from the reference's dtypes."""
        handed = self.contiguous(inputs)
        given = self.contiguous(upstreams)
        leaves = self._leaves(handed)
        outputs = self._outputs("function", self.function, leaves)
        wanted = self._outputs("reference", self.reference, self._leaves(inputs))
        for name, output, other in zip(self._output_names(outputs), outputs, wanted, strict=False):
            if output.dtype != other.dtype:
                yield Finding(Property.DTYPE, f"{output.dtype}, the reference gives {other.dtype}", name)
        self._own_gradients(leaves, outputs, given)
        for name, value, kept in zip(self.names, handed, inputs, strict=True):
            if isinstance(value, self.torch.Tensor) and not self._same(value, kept):
                yield Finding(Property.INPUTS_UNTOUCHED, "the function writes into this input", name)
        if not all(map(self._same, given, upstreams)):
            yield Finding(Property.INPUTS_UNTOUCHED, "backward writes into the upstream gradient", "output")

    def _own(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            value.clone() if isinstance(value, self.torch.Tensor) and value.is_contiguous() else value
            for value in values
        )

    def _same(self, value: Any, kept: Any) -> bool:
        return bool(self.torch.equal(value.detach().nan_to_num(nan=0.5), kept.detach().nan_to_num(nan=0.5)))

    def _leaves(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return leaves of the graph that share memory and layout with the arguments."""
        return tuple(
            value.detach().requires_grad_() if self.is_floating(value) else value for value in values
        )

    def _outputs(self, name: str, function: Callable[..., Any], leaves: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            result = function(*leaves)
        except Exception as cause:
            message = f"{name} raised {type(cause).__name__}: {cause}"
            raise (FunctionRaisedError if name == "function" else ValueError)(message) from cause
        outputs = tuple(result) if isinstance(result, tuple | list) else (result,)
        if not all(map(self.is_floating, outputs)):
            raise ValueError(f"{name} must return floating tensors only")
        return outputs

    def _own_gradients(
        self, leaves: tuple[Any, ...], outputs: tuple[Any, ...], upstreams: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Return the function's gradients, not the reference's.

        Raises:
            FunctionRaisedError: when backward raises.
        """
        try:
            return self._gradients(leaves, outputs, upstreams)
        except Exception as cause:
            raise FunctionRaisedError(f"backward raised {type(cause).__name__}: {cause}") from cause

    def _gradients(
        self, leaves: tuple[Any, ...], outputs: tuple[Any, ...], upstreams: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        graph = [pair for pair in zip(outputs, upstreams, strict=True) if pair[0].requires_grad]
        variables = [leaf for leaf in leaves if self.is_floating(leaf)]
        if not graph:
            return (None,) * len(variables)
        roots, seeds = zip(*graph, strict=True)
        gradients: tuple[Any, ...] = self.torch.autograd.grad(
            roots, variables, seeds, retain_graph=True, allow_unused=True
        )
        return gradients

    def _output_names(self, outputs: tuple[Any, ...]) -> list[str]:
        return ["output"] if len(outputs) == 1 else [f"output {position}" for position in range(len(outputs))]

    def _answer(
        self, leaves: tuple[Any, ...], outputs: tuple[Any, ...], gradients: tuple[Any, ...]
    ) -> Answer:
        answer = {
            name: self.as_array(output)
            for name, output in zip(self._output_names(outputs), outputs, strict=True)
        }
        variables = [
            (name, leaf) for name, leaf in zip(self.names, leaves, strict=True) if self.is_floating(leaf)
        ]
        for (name, leaf), gradient in zip(variables, gradients, strict=True):
            answer[name] = np.zeros(tuple(leaf.shape)) if gradient is None else self.as_array(gradient)
        return answer
