"""Which number is this? Recognises factors that come from shapes, counts and common constants."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

import numpy as np

from numpy_gpt.verify.gradcheck.subject import Subject
from numpy_gpt.verify.gradcheck.suspects.observed import MAX_SAVED
from numpy_gpt.verify.gradcheck.suspects.saved import leaves

CLOSE = 3e-6
"""Relative: as far as a measured factor may be from the number it is taken for."""


def recognise(factor: float, subject: Subject) -> tuple[float, str] | None:
    """Return the exact number that a factor is, and what it stands for; None for a stranger."""
    for value, text in _candidates(subject):
        for sign in (1.0, -1.0):
            if abs(factor - sign * value) <= CLOSE * abs(value):
                return sign * value, text if sign > 0 else f"minus {text}"
    return None


def _candidates(subject: Subject) -> Iterator[tuple[float, str]]:
    """Yield numbers and their names, plain ones first."""
    yield 1.0, "1"
    sizes = _sizes(subject)
    yield from _forms(sizes)
    yield from _forms({number: str(number) for number in (2, 3, 4) if number not in sizes})
    yield from _roots(sizes)
    yield from _roots({2: "2"})
    lengths = _lengths(subject)
    yield from _roots(dict.fromkeys(_head_widths(subject), "a head's width"))
    products = {
        first * second: f"{first} * {second}, {lengths[first]} times {lengths[second]}"
        for first in lengths
        for second in lengths
        if first * second not in sizes
    }
    yield from _forms(products)
    yield from _roots(products)
    for number, name in sizes.items():
        for other, other_name in sizes.items():
            if number != other:
                yield number / other, f"{number}/{other}, {name} over {other_name}"
    yield from _scalars(subject, sizes)
    for number in lengths:
        for other in (number - 1, number + 1):
            if other > 0:
                yield number / other, f"{number}/{other}, with {number} {lengths[number]}"
                yield other / number, f"{other}/{number}, with {number} {lengths[number]}"
    for value, text in ((math.pi, "π"), (math.sqrt(2 / math.pi), "√(2/π)"), (math.log(2), "ln 2")):
        yield value, text
        yield 1 / value, f"1/{text}"


def _forms(numbers: dict[int, str]) -> Iterator[tuple[float, str]]:
    for number, name in numbers.items():
        where = "" if name == str(number) else f", {name}" if name.startswith("the") else f" = {name}"
        yield float(number), f"{number}{where}"
        yield 1 / number, f"1/{number}{where}"


def _roots(numbers: dict[int, str]) -> Iterator[tuple[float, str]]:
    for number, name in numbers.items():
        where = "" if name == str(number) else f", where {number} is {name}"
        for value, text in (
            (math.sqrt(number), f"√{number}"),
            (1 / math.sqrt(number), f"1/√{number}"),
            (float(number**2), f"{number}²"),
            (float(number) ** -2, f"1/{number}²"),
        ):
            yield value, text + where


def _lengths(subject: Subject) -> dict[int, str]:
    """Return the lengths of all axes above one, and whose they are."""
    arrays = [
        *zip(subject.names, subject.inputs, strict=True),
        *(("the output", output) for output in subject.run.outputs),
    ]
    found: dict[int, str] = {}
    for name, value in arrays:
        for axis, length in enumerate(np.shape(value)):
            if length > 1:
                found.setdefault(length, f"the length of axis {axis} of {name}")
    return found


def _sizes(subject: Subject) -> dict[int, str]:
    """Return lengths of axes, numbers of rows, sizes of arrays, and numbers of targets that count."""
    found = _lengths(subject)
    arrays = [
        *zip(subject.names, subject.inputs, strict=True),
        *(("the output", output) for output in subject.run.outputs),
    ]
    for name, value in arrays:
        rows = math.prod(np.shape(value)[:-1])
        if rows > 1:
            found.setdefault(rows, f"the number of rows of {name}")
        size = int(np.size(value)) if value is not None else 0
        if size > 1:
            found.setdefault(size, f"the size of {name}")
        if isinstance(value, np.ndarray) and value.dtype.kind in "ib":
            counted = int(np.count_nonzero(value >= 0 if value.dtype.kind == "i" else value))
            if counted > 1:
                found.setdefault(counted, f"the number of {name} that count")
    return found


def _head_widths(subject: Subject) -> list[int]:
    """Return the widths that heads may have, if the last axis of an input is cut into heads."""
    widths = {
        width
        for value in subject.inputs
        for length in np.shape(value)[-1:]
        for width in range(2, length)
        if length % width == 0
    }
    return sorted(widths)


def _scalars(subject: Subject, sizes: dict[int, str]) -> Iterator[tuple[float, str]]:
    """Yield the numbers among inputs and saved values, and what they are often confused with."""
    inputs = zip(subject.names, subject.inputs, strict=True)
    for name, value in (*inputs, *islice(leaves("saved", subject.run.saved), MAX_SAVED)):
        if isinstance(value, bool) or not isinstance(value, float | int | np.number | np.ndarray):
            continue
        number = abs(float(value)) if np.ndim(value) == 0 else 0.0
        if number in (0.0, 1.0) or not math.isfinite(number):
            continue
        text = f"with {name} = {number:g}"
        yield number, f"{name} = {number:g}"
        yield 1 / number, f"1/{name}, {text}"
        yield number**2, f"{name}², {text}"
        yield number**-2, f"1/{name}², {text}"
        if number < 1:
            yield 1 - number, f"1 - {name}, {text}"
            yield 1 / (1 - number), f"1/(1 - {name}), {text}"
        for size, size_name in sizes.items():
            yield number / size, f"{name} over {size}, {text} and {size} {size_name}"
            yield size / number, f"{size} over {name}, {text} and {size} {size_name}"
