"""Gradients that can be made of what is at hand: sources near the output, and their images at an input.

A source is the upstream gradient, or its product with something known. Its image is what of it reaches an
input: itself, its sum over broadcast axes, its rows added up by an index, or its product with a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.suspects.fault import Fault

Term = Callable[[int], Array]
"""Computes an array for one of the K upstream gradients."""


def sources(fault: Fault) -> Iterator[tuple[str, Term]]:
    """Yield the upstream gradients, and these times or matrix-times whatever is known."""
    for output, value in enumerate(fault.subject.run.outputs):
        upstream = _upstream(fault, output)
        yield "the upstream gradient", upstream
        shape = np.shape(value)
        for name, array in fault.known.items():
            if broadcasts(array.shape, shape):
                yield f"the upstream gradient times {name}", _times(upstream, array)
            if array.ndim == 2 and shape:
                for matrix, text in ((array, name), (array.T, f"{name} transposed")):
                    if matrix.shape[0] == shape[-1]:
                        yield f"the product of the upstream gradient and {text}", _through(upstream, matrix)


def images(fault: Fault, name: str, source: Term) -> Iterator[tuple[str, Term]]:
    """Yield what of a source may reach the input, all of the input's shape."""
    yield from shaped(fault, name, source)
    for ids_name, ids in fault.integers.items():
        yield from _scattered(fault, f"{name}, added up by {ids_name},", source, ids)
    if len(fault.shape) == 2:
        for other, array in fault.known.items():
            yield from _outer(fault, f"the product of {name} and {other}", source, array)


def images_before(fault: Fault, name: str, source: Term) -> Iterator[tuple[str, Term]]:
    """Yield what of a source may reach the input through one matrix more."""
    yield from images(fault, name, source)
    shape = source(0).shape
    for other, array in fault.known.items():
        if array.ndim == 2 and shape:
            for matrix, text in ((array, other), (array.T, f"{other} transposed")):
                if (*shape[:-1], matrix.shape[1]) == fault.shape and matrix.shape[0] == shape[-1]:
                    yield f"the product of {name} and {text}", _through(source, matrix)


def shaped(fault: Fault, name: str, source: Term) -> Iterator[tuple[str, Term]]:
    """Yield a source that has the input's shape, at once, transposed, or summed over broadcast axes."""
    shape, given = fault.shape, source(0).shape
    extra = len(given) - len(shape)
    if given == shape:
        yield name, source
    if len(given) >= 2 and (*given[:-2], given[-1], given[-2]) == shape:
        yield f"{name} transposed", lambda k: source(k).swapaxes(-1, -2)
    if extra > 0 and given[extra:] == shape:
        yield f"{name}, summed to its shape,", lambda k: source(k).sum(axis=tuple(range(extra)))
    if extra == 0 and given != shape and broadcasts(shape, given):
        axes = tuple(axis for axis in range(len(shape)) if shape[axis] != given[axis])
        yield f"{name}, summed to its shape,", lambda k: source(k).sum(axis=axes, keepdims=True)
    if extra < 0 and broadcasts(given, shape):
        yield f"{name}, spread over its shape,", lambda k: np.broadcast_to(source(k), shape)


def broadcasts(small: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether an array of a shape can be broadcast to another."""
    return len(small) <= len(shape) and all(
        a in (1, b) for a, b in zip(small[::-1], shape[::-1], strict=False)
    )


def fits_first(fault: Fault, attempt: Array) -> bool:
    """Whether a gradient may be right for the first upstream gradient: a quick look at small inputs."""
    if fault.truth is None:
        return True
    gap = np.max(np.abs(attempt - fault.truth[0]), initial=0.0)
    return bool(gap <= 1e-4 * np.max(np.abs(fault.truth[0]), initial=0.0))


def _upstream(fault: Fault, output: int) -> Term:
    return lambda k: fault.upstreams[k][output]


def _times(source: Term, array: Array) -> Term:
    return cache(lambda k: source(k) * array)


def _through(source: Term, matrix: Array) -> Term:
    return cache(lambda k: source(k) @ matrix)


def _scattered(fault: Fault, name: str, source: Term, ids: Array) -> Iterator[tuple[str, Term]]:
    if not fault.shape or source(0).shape != ids.shape + fault.shape[1:] or not ids.size:
        return
    if int(ids.max()) >= fault.shape[0] or int(ids.min()) < 0:
        return

    def scatter(k: int) -> Array:
        table = np.zeros(fault.shape)
        np.add.at(table, ids, source(k))
        return table

    yield name, scatter


def _outer(fault: Fault, name: str, source: Term, other: Array) -> Iterator[tuple[str, Term]]:
    """Yield the product over all rows of a source (..., a) and an array (..., b), as (a, b) or (b, a)."""
    shape = source(0).shape
    if not shape or other.ndim < 2 or other.shape[:-1] != shape[:-1]:
        return
    rows = other.reshape(-1, other.shape[-1])
    if (shape[-1], rows.shape[1]) == fault.shape:
        yield name, lambda k: source(k).reshape(len(rows), -1).T @ rows
    if (rows.shape[1], shape[-1]) == fault.shape:
        yield name, lambda k: rows.T @ source(k).reshape(len(rows), -1)
