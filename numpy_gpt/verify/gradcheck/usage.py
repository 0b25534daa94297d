"""What `check_backward` may be called with; everything else is a ValueError that says what to change."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from numpy_gpt.verify.gradcheck.operation import Function, Operation, described
from numpy_gpt.verify.gradcheck.subject import is_float_array


def usable_inputs(inputs: Any) -> tuple[Any, ...]:
    """Validate the caller's inputs and promote floats to float64.

    Raises:
        ValueError: saying what to change.
    """
    if not isinstance(inputs, tuple | list):
        raise ValueError(
            "inputs must be a list or tuple with one entry per argument of forward, not "
            f"{described(inputs)}: for a single array, pass (x,)"
        )
    usable = tuple(_usable(position, value) for position, value in enumerate(inputs))
    if not any(is_float_array(value) for value in usable):
        raise ValueError(
            "inputs must hold at least one floating-point array: only those have a gradient to check"
        )
    return usable


def _usable(position: int, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str | bytes | np.integer | np.bool):
        return value
    try:
        array = np.array(value, order="C")
    except ValueError as ragged:
        raise ValueError(f"inputs[{position}] is no array: {ragged}") from None
    if array.dtype.kind in "biu":
        return array
    if array.dtype.kind != "f":
        raise ValueError(
            f"inputs[{position}] must be real numbers, integers or None, not dtype {array.dtype}"
        )
    array = array.astype(np.float64)
    if np.isnan(array).any():
        raise ValueError(f"inputs[{position}] holds NaN: nothing can be measured there")
    return array


def usable_functions(forward: Any, backward: Any, inputs: tuple[Any, ...]) -> Operation:
    """Validate the pair of functions against the number of inputs.

    Raises:
        ValueError: saying what to change.
    """
    for name, function, arguments in (("forward", forward, inputs), ("backward", backward, (None, None))):
        if not callable(function):
            raise ValueError(f"{name} must be callable, not {described(function)}")
        try:
            inspect.signature(function).bind(*arguments)
        except TypeError as mismatch:
            wanted = f"the {len(inputs)} inputs" if name == "forward" else "(d_output, saved)"
            raise ValueError(f"{name} cannot be called with {wanted}: {mismatch}") from None
        except ValueError:
            continue  # some built-in callables have no signature to look at
    return Operation(forward, backward)


def usable_names(names: Any, forward: Function, inputs: tuple[Any, ...]) -> tuple[str, ...]:
    """Return the caller's names, or forward's own parameter names, or "input_0" and so on.

    Raises:
        ValueError: for names that do not fit the inputs one to one.
    """
    if names is not None:
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"names must be a list or tuple of strings, not {names!r}")
        if len(names) != len(inputs):
            raise ValueError(f"names must name each input once: {len(names)} names for {len(inputs)} inputs")
        if len(set(names)) != len(names):
            raise ValueError(f"names must differ from each other, but they are {', '.join(names)}")
        return tuple(names)
    try:
        parameters = list(inspect.signature(forward).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return tuple(
        positional[position] if position < len(positional) else f"input_{position}"
        for position in range(len(inputs))
    )


def usable_random(seed: Any) -> np.random.Generator:
    """Return the generator for a seed.

    Raises:
        ValueError: for what is no seed.
    """
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise ValueError(f"seed must be a non-negative integer, not {seed!r}") from None
