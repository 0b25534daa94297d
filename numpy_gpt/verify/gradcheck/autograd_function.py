"""The check of a torch operation with a backward of its own, such as a compiled kernel, in its own dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.operation import described
from numpy_gpt.verify.gradcheck.report import AxisProfile, Finding, Property, Report, TensorReport, Verdict
from numpy_gpt.verify.gradcheck.tensor_layouts import variants
from numpy_gpt.verify.gradcheck.tensor_run import Answer, FunctionRaisedError, TensorOperation
from numpy_gpt.verify.gradcheck.torch_oracle import require_torch
from numpy_gpt.verify.gradcheck.usage import usable_names, usable_random

ALLOWANCE = 2.0
"""How many times the error of a plain implementation in the same dtype is allowed."""

FLOOR_EPS = 4.0
HALF_FLOOR_EPS = 2.0
"""An error of so many eps of the dtype is allowed in any case: that small, a plain implementation's is luck.
Fewer for the dtypes of 16 bits, whose eps is up to a percent, and which kernels do not sum in."""

FLOAT64_FLOOR_EPS = 256.0
"""The same in float64, where the truth is no more precise than what it is the truth for."""

ZERO = 1e-9
"""A gradient below this part of the largest one, in float64, is zero by symmetry: rounding noise is right."""

DRAWS = 3
"""How many upstream gradients are tried; errors are the largest over them."""


def check_autograd_function(
    function: Any, inputs: Any, reference: Callable[..., Any], *, names: Any = None, seed: int = 0
) -> Report:
    """Check a torch function with its own backward against a plain one, in the inputs' own dtype.

    The reference is run in float64, which gives the truth, and in the inputs' dtype, which gives the error
    that this dtype costs anybody. The function's outputs and gradients may be off by twice that error, or by
    4 eps of the dtype if that is more (2 eps in 16 bits, 256 eps in float64). The same holds when an input or
    the upstream gradient is transposed, a strided slice, or expanded with strides of zero as it is behind
    `.sum().backward()`.

    Args:
        function: a subclass of `torch.autograd.Function`, or any callable on tensors.
        inputs: its arguments: tensors, or whatever else it takes. Floating tensors have a gradient.
        reference: the same operation made of plain torch operations, in whatever dtype it is given.
        names: one per input; the reference's own parameter names by default.
        seed: of the upstream gradients.

    Returns:
        A report on the outputs and on the gradient of each input. Errors are relative to the largest element.

    Raises:
        ValueError: when the check is called wrongly, or the reference does not work; the message says what to
            change.
        ImportError: when torch is not installed.
    """
    torch = require_torch()
    call = _callable(torch, function)
    if not callable(reference):
        raise ValueError(f"reference must be callable, not {described(reference)}")
    if not isinstance(inputs, tuple | list):
        raise ValueError(f"inputs must be a list or tuple of arguments, not {described(inputs)}")
    floating = [value for value in inputs if isinstance(value, torch.Tensor) and value.is_floating_point()]
    if not floating:
        raise ValueError("inputs must hold at least one floating tensor: only those have a gradient to check")
    labels = usable_names(names, reference, tuple(inputs))
    dtypes = sorted({str(value.dtype).removeprefix("torch.") for value in floating})
    title = f"{getattr(function, '__name__', type(function).__name__)} in {' and '.join(dtypes)}"
    operation = TensorOperation(torch, call, reference, labels)
    random = usable_random(seed)
    try:
        trial = _Trial(operation, tuple(inputs), random)
        return Report(title, trial.tensors(), tuple(trial.findings()))
    except FunctionRaisedError as error:
        return Report(title, {}, (Finding(Property.RUNS, str(error)),))


def _callable(torch: Any, function: Any) -> Callable[..., Any]:
    is_class = isinstance(function, type) and issubclass(function, torch.autograd.Function)
    call: Any = function.apply if is_class else function
    if not callable(call):
        raise ValueError(
            f"function must be a torch.autograd.Function or a callable, not {described(function)}"
        )
    checked: Callable[..., Any] = call
    return checked


class _Trial:
    """The function and the reference, in float64 and in the dtype itself, for a few upstream gradients.

    Args:
        operation: the function and its reference.
        inputs: the arguments of both.
        random: draws the upstream gradients.
    """

    def __init__(
        self, operation: TensorOperation, inputs: tuple[Any, ...], random: np.random.Generator
    ) -> None:
        self.operation = operation
        self.inputs = operation.contiguous(inputs)
        self.upstreams = [operation.draw(self.inputs, random) for _ in range(DRAWS)]
        self.truths = [operation.truth(self.inputs, each) for each in self.upstreams]
        plains = [operation.plain(self.inputs, each) for each in self.upstreams]
        self.answers = [operation.answer(self.inputs, each) for each in self.upstreams]
        self.sizes = self._sizes()
        self.plain_errors = {name: self._error(name, plains, self.truths) for name in self.sizes}

    def _sizes(self) -> dict[str, float]:
        """Return the largest element of every output and gradient.

        A gradient that is zero by symmetry is what is left of terms as large as the other gradients, each
        taken times its input's size so that they are of one unit: those are its size.
        """
        sizes = {name: max(_largest(truth[name]) for truth in self.truths) for name in self.truths[0]}
        scales = {
            name: _largest(self.operation.as_array(value)) or 1.0
            for name, value in zip(self.operation.names, self.inputs, strict=True)
            if name in sizes
        }
        largest = max((sizes[name] * scale for name, scale in scales.items()), default=0.0)
        for name, scale in scales.items():
            if sizes[name] * scale <= ZERO * largest:
                sizes[name] = largest / scale
        return sizes

    def _error(self, name: str, answers: Sequence[Answer], truths: Sequence[Answer]) -> float:
        pairs = zip(answers, truths, strict=True)
        return max(float(np.max(self._errors(name, answer, truth), initial=0.0)) for answer, truth in pairs)

    def _errors(self, name: str, answer: Answer, truth: Answer) -> Array:
        """Return |answer - truth| by element, relative to the largest; infinite where either is no number."""
        got, wanted = answer[name], truth[name]
        if got.shape != wanted.shape:
            return np.full(wanted.shape, np.inf)
        with np.errstate(all="ignore"):
            gap = np.where(got == wanted, 0.0, np.abs(got - wanted))
            errors = np.where(gap == 0.0, 0.0, gap / max(self.sizes[name], _largest(wanted)))
        infinite: Array = np.where(np.isnan(errors), np.inf, errors)
        return infinite

    def _allowed(self, name: str, plain_error: float) -> float:
        eps, is_double = self.operation.precision(self.inputs)
        floor = FLOAT64_FLOOR_EPS if is_double else FLOOR_EPS if eps < 1e-6 else HALF_FLOOR_EPS
        return max(ALLOWANCE * max(plain_error, self.plain_errors[name]), floor * eps)

    def tensors(self) -> dict[str, TensorReport]:
        """Judge every output and gradient."""
        return {name: self._judge(name) for name in self.sizes}

    def _judge(self, name: str) -> TensorReport:
        errors = np.stack([self._errors(name, *pair) for pair in zip(self.answers, self.truths, strict=True)])
        error = float(np.max(errors, initial=0.0))
        plain = self.plain_errors[name]
        allowed = self._allowed(name, 0.0)
        verdict: Verdict = "passed" if error <= allowed else "failed"
        checked = f"plain {plain:.1e}, allowed {allowed:.1e}"
        got, wanted = (np.shape(each[0][name]) for each in (self.answers, self.truths))
        if got != wanted or errors.size == 0:
            reason = f"its shape is {got}, the reference's {wanted}" if got != wanted else ""
            return TensorReport(name, wanted, verdict, error, checked=checked, reason=reason)
        draw, *place = (int(at) for at in np.unravel_index(np.argmax(errors), errors.shape))
        return TensorReport(
            name,
            wanted,
            verdict,
            error,
            index=tuple(place),
            claimed=float(self.answers[draw][name][tuple(place)]),
            measured=float(self.truths[draw][name][tuple(place)]),
            checked=checked,
            profile=tuple(_profiles(errors.max(axis=0), allowed)) if verdict == "failed" else (),
        )

    def findings(self) -> list[Finding]:
        """Try what the function owes its caller beside right numbers."""
        return [
            *self.operation.broken_properties(self.inputs, self.upstreams[0]),
            *self._unrepeatable(),
            *self._layouts(),
        ]

    def _unrepeatable(self) -> Iterable[Finding]:
        again = self.operation.answer(self.inputs, self.upstreams[0])
        twice = self.operation.answer(self.inputs, self.upstreams[0], backwards=2)
        for kind, answer, what in (
            (Property.REPEATABLE, again, "the same call once more"),
            (Property.SAVED_REUSABLE, twice, "a second backward of one forward"),
        ):
            for name in self.sizes:
                error = self._error(name, [answer], [self.answers[0]])
                if not error <= self._allowed(name, 0.0):
                    yield Finding(kind, f"{what} changes it by {error:.1e} of its size", name)

    def _layouts(self) -> Iterable[Finding]:
        tensor = self.operation.torch.Tensor
        for i, value in enumerate(self.inputs):
            for layout, odd, plain in variants(value, tensor):
                situation = f"the input {self.operation.names[i]} is {layout}"
                changed = [_with(self.inputs, i, each) for each in (odd, plain)]
                yield from self._compare(situation, changed, [self.upstreams[0]] * 2)
        for i, value in enumerate(self.upstreams[0]):
            for layout, odd, plain in variants(value, tensor):
                situation = f"the upstream gradient is {layout}"
                changed = [_with(self.upstreams[0], i, each) for each in (odd, plain)]
                yield from self._compare(situation, [self.inputs] * 2, changed)

    def _compare(
        self, situation: str, inputs: Sequence[tuple[Any, ...]], upstreams: Sequence[tuple[Any, ...]]
    ) -> Iterable[Finding]:
        """Judge the answer to arguments in an odd layout (first) by the truth for their values (second)."""
        truth = self.operation.truth(inputs[1], upstreams[1])
        plain = self.operation.plain(inputs[1], upstreams[1])
        try:
            own = self.operation.answer(inputs[1], upstreams[1])
            answer = self.operation.answer(inputs[0], upstreams[0])
        except FunctionRaisedError as error:
            yield Finding(Property.LAYOUT, f"{error}, when {situation}")
            return
        for name in self.sizes:
            if not all(np.isfinite(each[name]).all() for each in (truth, plain)):
                continue  # repeated values can be outside the operation's domain
            # Repeated values can be hard for the function in any layout: a variance of zero is.
            usual = max(self._error(name, [each], [truth]) for each in (plain, own))
            off = self._error(name, [answer], [truth])
            if not off <= self._allowed(name, usual):
                yield Finding(Property.LAYOUT, f"is off by {off:.1e} of its size when {situation}", name)


def _with(values: tuple[Any, ...], position: int, value: Any) -> tuple[Any, ...]:
    return (*values[:position], value, *values[position + 1 :])


def _largest(values: Array) -> float:
    return float(np.max(np.abs(values[np.isfinite(values)]), initial=0.0))


def _profiles(errors: Array, allowed: float) -> Iterable[AxisProfile]:
    for axis, length in enumerate(errors.shape):
        worst = errors.max(axis=tuple(other for other in range(errors.ndim) if other != axis))
        wrong = tuple(int(at) for at in np.flatnonzero(~(worst <= allowed)))
        yield AxisProfile(axis, length, {range(at, at + 1): float(e) for at, e in enumerate(worst)}, wrong)
