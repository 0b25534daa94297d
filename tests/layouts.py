"""The same numbers, laid out differently in memory: what a caller's slice or transpose may hand in."""

from __future__ import annotations

import numpy as np

from numpy_gpt.arrays import Array


def contiguous(array: Array) -> Array:
    """Row after row."""
    return np.array(array, order="C")


def fortran(array: Array) -> Array:
    """Column after column."""
    return np.array(array, order="F")


def strided(array: Array) -> Array:
    """Every second number of a larger array, along every axis."""
    larger = np.zeros([2 * length for length in array.shape], array.dtype)
    view = larger[(..., *[np.s_[::2]] * array.ndim)]
    view[...] = array
    return view


def backwards(array: Array) -> Array:
    """Negative strides along every axis."""
    reverse = (..., *[np.s_[::-1]] * array.ndim)
    return np.array(array[reverse], order="C")[reverse]


LAYOUTS = {layout.__name__: layout for layout in (contiguous, fortran, strided, backwards)}
