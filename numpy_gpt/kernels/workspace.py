"""Memory that is used again: a fresh large array costs as much as the arithmetic that fills it.

The operating system hands out a fresh array page by page, each cleared first, when it is written to. In a
training step that can take half the time of an element-wise operation, and every step asks for the same
shapes again. So a kernel asks `empty` for its arrays:

    workspace = Workspace()
    with workspace.in_use():
        y = empty((4, 8), np.float32)       # memory that nobody uses any more, if the workspace has some

    y = empty((4, 8), np.float32)           # outside: fresh, from NumPy
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

import numpy as np
from numpy.typing import DTypeLike

from numpy_gpt.arrays import Array

_SHELF = [np.empty(0)]
_UNUSED = sys.getrefcount(_SHELF[0])
"""How many references Python counts to an array that only a list holds."""

_current = threading.local()  # .workspace: what `empty` takes from, on this thread


class Workspace:
    """Arrays by shape and dtype, each lent out for as long as anything refers to it or to a view of it.

    Python's own reference counts say when that ends, so nothing need be given back: what a forward pass
    saved keeps its arrays until it is collected. What the latest use did not ask for is let go at its end. A
    workspace is for one thread at a time.
    """

    def __init__(self) -> None:
        self._arrays: dict[tuple[tuple[int, ...], np.dtype], list[Array]] = {}
        self._asked: set[tuple[tuple[int, ...], np.dtype]] = set()

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return an array that nobody else uses, with anything in it."""
        key = (shape, np.dtype(dtype))
        self._asked.add(key)
        arrays = self._arrays.setdefault(key, [])
        for i in range(len(arrays)):
            # No name may hold the array while its references are counted, for a name is one more.
            if sys.getrefcount(arrays[i]) == _UNUSED:
                return arrays[i]
        arrays.append(np.empty(shape, dtype))
        return arrays[-1]

    @property
    def num_bytes(self) -> int:
        """The size of all arrays, lent out or not."""
        return sum(array.nbytes for arrays in self._arrays.values() for array in arrays)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Within the context, on this thread, `empty` takes from this workspace."""
        before = getattr(_current, "workspace", None)
        _current.workspace = self
        self._asked = set()
        try:
            yield
        finally:
            _current.workspace = before
            self._arrays = {key: arrays for key, arrays in self._arrays.items() if key in self._asked}

    def __reduce__(self) -> tuple[type[Workspace], tuple[()]]:
        """A copy of a workspace, or one from a file, begins empty."""
        return Workspace, ()


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return an array with anything in it: from the workspace in use on this thread, otherwise fresh."""
    workspace: Workspace | None = getattr(_current, "workspace", None)
    if workspace is None:
        return np.empty(shape, dtype)
    return workspace.empty(shape, dtype)
