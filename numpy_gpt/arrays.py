"""What every module may assume about arrays: their type's name, and NumPy's `out=` idiom."""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
"""A NumPy array of any dtype and shape; docstrings say which."""


def deliver(value: Array, out: Array | None) -> Array:
    """Return `value`, copied into `out` when the caller gave a place for it.

    For results that no single ufunc writes, so that they too follow NumPy's `out=` idiom.
    """
    if out is None:
        return value
    out[...] = value
    return out
