"""What every operation owes its caller beside right numbers, each property tried by calling it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.operation import OperationRaisedError, Run
from numpy_gpt.verify.gradcheck.report import Finding, Property
from numpy_gpt.verify.gradcheck.subject import ROUNDING, Subject, copies, disagreement, is_float_array


def broken_properties(subject: Subject) -> list[Finding]:
    """Try every property but the layouts, and return what is broken."""
    return [
        *shapes_right(subject),
        *values_finite(subject),
        *_tried(Property.INPUTS_UNTOUCHED, inputs_untouched, subject),
        *_tried(Property.ALIASING, outputs_not_aliased, subject),
        *_tried(Property.REPEATABLE, backward_repeatable, subject),
        *_tried(Property.SAVED_REUSABLE, saved_reusable, subject),
        *_tried(Property.RESULTS_KEPT, results_kept, subject),
        *_tried(Property.LINEAR, backward_linear, subject),
        *_tried(Property.DTYPE, float32_kept, subject),
    ]


def _tried(kind: Property, trial: Callable[[Subject], Iterator[Finding]], subject: Subject) -> list[Finding]:
    """Collect a trial's findings; an operation that raises only then has broken the property tried."""
    try:
        return list(trial(subject))
    except (OperationRaisedError, ValueError) as error:
        return [Finding(kind, f"{error}, though the first calls went well")]


def forward_repeatable(subject: Subject) -> bool:
    """Whether a second forward of the same inputs gives the same outputs; if not, nothing can be measured."""
    again = subject.operation.run(copies(subject.inputs)).values
    return disagreement(again, subject.values, size=0.0) <= ROUNDING


def shapes_right(subject: Subject) -> Iterator[Finding]:
    """Every gradient has its input's shape, and integers have none."""
    for i, (name, value) in enumerate(zip(subject.names, subject.inputs, strict=True)):
        gradient = subject.claims[0][i]
        if gradient is None:
            continue
        if is_float_array(value):
            if gradient.shape != value.shape:
                yield Finding(Property.SHAPE, f"gradient {gradient.shape} for an input {value.shape}", name)
        elif value is not None and gradient.any():
            yield Finding(Property.SHAPE, "a gradient for an input that is not floating: None is right", name)


def values_finite(subject: Subject) -> Iterator[Finding]:
    """Finite inputs give finite outputs and gradients; infinite ones must at least give numbers."""
    finite = all(np.isfinite(subject.inputs[i]).all() for i in subject.tensors)
    is_fine = np.isfinite if finite else _is_number
    if not is_fine(subject.values).all():
        bad = np.flatnonzero(~is_fine(subject.values))
        yield Finding(
            Property.FINITE,
            f"{bad.size} of {subject.values.size} outputs are {subject.values[bad[0]]} or the like",
            "output",
        )
    for i in subject.tensors:
        gradient = subject.claims[0][i]
        if gradient is not None and not np.isfinite(gradient).all():
            at = tuple(int(place[0]) for place in np.nonzero(~np.isfinite(gradient)))
            yield Finding(Property.FINITE, f"gradient is {gradient[at]} at {at}", subject.names[i])


def _is_number(values: Array) -> Array:
    return ~np.isnan(values)


def inputs_untouched(subject: Subject) -> Iterator[Finding]:
    """Neither call writes into what it was given. It could: the arrays are writable, so that it shows."""
    run = subject.operation.run(copies(subject.inputs))
    yield from _written_inputs(subject, run, "forward")
    run = subject.operation.run(copies(subject.inputs))
    before = copies(run.inputs)
    d_outputs = run.shaped(subject.upstreams[0])
    outputs = run.values
    subject.operation.gradients(run, d_outputs)
    yield from (
        Finding(Property.INPUTS_UNTOUCHED, "backward writes into this input", name)
        for name, value, kept in zip(subject.names, run.inputs, before, strict=True)
        if not _same(value, kept)
    )
    if not all(map(_same, d_outputs, run.shaped(subject.upstreams[0]))):
        yield Finding(Property.INPUTS_UNTOUCHED, "backward writes into the upstream gradient", "output")
    if not _same(run.values, outputs):
        yield Finding(Property.RESULTS_KEPT, "backward writes into what forward returned", "output")


def _written_inputs(subject: Subject, run: Run, call: str) -> Iterator[Finding]:
    for name, value, kept in zip(subject.names, run.inputs, subject.inputs, strict=True):
        if not _same(value, kept):
            yield Finding(Property.INPUTS_UNTOUCHED, f"{call} writes into this input", name)


def _same(value: Any, kept: Any) -> bool:
    return not isinstance(value, np.ndarray) or np.array_equal(value, kept, equal_nan=value.dtype.kind == "f")


def outputs_not_aliased(subject: Subject) -> Iterator[Finding]:
    """Outputs own their memory: a caller who adds to one in place changes no input and no other output."""
    run = subject.operation.run(copies(subject.inputs))
    outputs = [(_output_name(run, position), output) for position, output in enumerate(run.outputs)]
    inputs = list(zip(subject.names, run.inputs, strict=True))
    pairs = [*combinations(outputs, 2), *((output, each) for output in outputs for each in inputs)]
    for (name, output), (other, value) in pairs:
        if _share_memory(output, value):
            yield Finding(Property.ALIASING, f"shares memory with {other}", name)


def shared_gradients(subject: Subject) -> list[Finding]:
    """Note gradients that share memory: right, but adding to one in place changes the other.

    A note only: `return d_out, d_out` is how the backward of an addition is usually written.
    """
    run = subject.operation.run(copies(subject.inputs))
    d_outputs = run.shaped(subject.upstreams[0])
    gradients = list(zip(subject.names, subject.operation.gradients(run, d_outputs), strict=True))
    others = [
        *(("the upstream gradient", d_output) for d_output in d_outputs),
        *((f"the input {name}", value) for name, value in zip(subject.names, run.inputs, strict=True)),
    ]
    pairs = [
        *(
            ((name, value), (f"the gradient of {other}", third))
            for (name, value), (other, third) in combinations(gradients, 2)
        ),
        *((gradient, other) for gradient in gradients for other in others),
    ]
    return [
        Finding(
            Property.ALIASING, f"its gradient shares memory with {other}: do not add to it in place", name
        )
        for (name, gradient), (other, value) in pairs
        if _share_memory(gradient, value)
    ]


def _share_memory(a: Any, b: Any) -> bool:
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return False
    try:
        # The exact answer can take forever; NumPy's stubs do not know that its work can be limited.
        return np.shares_memory(a, b, max_work=100_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return np.may_share_memory(a, b)


def _output_name(run: Run, position: int) -> str:
    return "output" if run.single else f"output {position}"


def backward_repeatable(subject: Subject) -> Iterator[Finding]:
    """A second forward and backward of the same arrays give the first answer: nothing is left over."""
    again = subject.answer(subject.inputs, subject.upstreams[0])[1]
    if difference := subject.worst_difference(again, subject.claims[0]):
        name, gap = difference
        yield Finding(
            Property.REPEATABLE,
            f"the same calls once more change its gradient by {gap:.1e} of its size",
            name,
        )


def saved_reusable(subject: Subject) -> Iterator[Finding]:
    """Backward may be called twice for one forward, and for an earlier forward than the last one."""
    first, second = subject.upstreams[:2]
    run = subject.operation.run(copies(subject.inputs))
    wanted = copies(subject.operation.gradients(run, run.shaped(first)))
    subject.operation.gradients(run, run.shaped(second))
    again = subject.operation.gradients(run, run.shaped(first))
    if difference := subject.worst_difference(again, wanted):
        name, gap = difference
        yield Finding(
            Property.SAVED_REUSABLE,
            f"backward called again for one forward is off by {gap:.1e} of its size",
            name,
        )
    run = subject.operation.run(copies(subject.inputs))
    if _run_elsewhere(subject) is not None:
        late = subject.operation.gradients(run, run.shaped(first))
        if difference := subject.worst_difference(late, wanted):
            name, gap = difference
            yield Finding(
                Property.SAVED_REUSABLE,
                f"backward after another forward is off by {gap:.1e} of its size",
                name,
            )


def results_kept(subject: Subject) -> Iterator[Finding]:
    """No later call overwrites what an earlier one returned."""
    run = subject.operation.run(copies(subject.inputs))
    values = run.values
    gradients = subject.operation.gradients(run, run.shaped(subject.upstreams[0]))
    kept = copies(gradients)
    other = _run_elsewhere(subject)
    if other is None:
        return
    subject.operation.gradients(other, other.shaped(-subject.upstreams[0]))
    if not _same(run.values, values):
        yield Finding(Property.RESULTS_KEPT, "a later call overwrites what forward returned", "output")
    for name, gradient, before in zip(subject.names, gradients, kept, strict=True):
        if not _same(gradient, before):
            yield Finding(
                Property.RESULTS_KEPT, "a later call overwrites the gradient that backward returned", name
            )


def _run_elsewhere(subject: Subject) -> Run | None:
    """Call forward for inputs slightly smaller, None where it refuses them."""
    smaller = tuple(
        value * (1 - 2.0**-10) if is_float_array(value) else value for value in copies(subject.inputs)
    )
    try:
        run = subject.operation.run(smaller)
    except (OperationRaisedError, ValueError) as error:
        subject.excuse(error)
        return None
    return run if run.values.shape == subject.values.shape else None


def backward_linear(subject: Subject) -> Iterator[Finding]:
    """Backward of a·g + b·h is a times backward of g plus b times that of h."""
    first, second = subject.upstreams[:2]
    for a, b in ((-1.7, 0.6), (1e4, 0.0), (0.0, 0.0)):
        combined = subject.answer(subject.inputs, a * first + b * second)[1]
        wanted = [
            None if one is None or two is None or one.shape != two.shape else a * one + b * two
            for one, two in zip(*subject.claims[:2], strict=True)
        ]
        got = [None if want is None else each for each, want in zip(combined, wanted, strict=True)]
        difference = subject.worst_difference(got, wanted, scale=abs(a) + abs(b) or 1.0)
        if difference:
            name, gap = difference
            formula = f"{a:g}·g + {b:g}·h" if b else f"{a:g}·g"
            yield Finding(Property.LINEAR, f"backward of {formula} is off by {gap:.1e} of its size", name)
            return


def float32_kept(subject: Subject) -> Iterator[Finding]:
    """float32 inputs give float32 outputs and gradients, scalars apart: a loss may be summed in float64."""
    inputs = tuple(
        value.astype(np.float32) if is_float_array(value) else value for value in copies(subject.inputs)
    )
    if not all(
        np.array_equal(np.isfinite(inputs[i]), np.isfinite(subject.inputs[i])) for i in subject.tensors
    ):
        return  # these numbers do not exist in float32
    run = subject.operation.run(inputs)
    for position, output in enumerate(run.outputs):
        if np.ndim(output) and output.dtype != np.float32:
            yield Finding(Property.DTYPE, f"{output.dtype} from float32 inputs", _output_name(run, position))
    gradients = subject.operation.gradients(run, run.shaped(subject.upstreams[0], np.float32))
    for i in subject.tensors:
        gradient = gradients[i]
        if gradient is not None and np.ndim(gradient) and np.asarray(gradient).dtype != np.float32:
            yield Finding(
                Property.DTYPE,
                f"its gradient is {np.asarray(gradient).dtype} though all is float32",
                subject.names[i],
            )
