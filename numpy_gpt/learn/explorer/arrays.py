"""Arrays as the page's script gets them: every number once, with the meaning of each axis."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.learn.explorer.views import Tensor

SHAPE = re.compile(r"\(([^()]*)\)")
AXES_OF_RANK: tuple[tuple[str, ...], ...] = ((), ("n",), ("n", "n"), ("B", "T", "C"), ("B", "H", "Tq", "Tk"))
"""What the axes are where nothing says: those of a batch on its way through the model."""


def axes_in(text: str, rank: int) -> tuple[str, ...]:
    """Return the letters of the first shape in a text such as `# (B, H, Tq, D)`, for an array of a rank.

    An ellipsis stands for the batch and its tokens. A text without a shape of that rank says nothing.
    """
    for found in SHAPE.findall(text):
        axes = [axis for part in found.split(",") if (axis := part.strip())]
        if "..." in axes:
            place, missing = axes.index("..."), rank - len(axes) + 1
            axes[place : place + 1] = AXES_OF_RANK[max(rank, 3)][: max(missing, 0)]
        if len(axes) == rank and all(re.fullmatch(r"\w+", axis) for axis in axes):
            return tuple(axes)
    return AXES_OF_RANK[rank]


class ArrayStore:
    """Collects the arrays that a page shows, and gives each an id; equal ones share it."""

    def __init__(self) -> None:
        self._ids: dict[tuple[Any, ...], str] = {}
        self.entries: dict[str, dict[str, Any]] = {}

    def tensor(
        self,
        name: str,
        value: Array | float,
        axes: tuple[str, ...] | str = "",
        remark: str = "",
        *,
        rows: tuple[str, ...] = (),
        renamed: Mapping[str, str] | None = None,
    ) -> Tensor:
        """Keep an array and return how to show it.

        Args:
            name: as the code calls it.
            value: of at most four axes; floats, integers or booleans.
            axes: what each axis counts; or a text that gives the shape, such as a comment.
            remark: what it is.
            rows: names for the entries of the first axis, where that has no meaning of its own.
            renamed: axes that have another meaning here than the text gives them.
        """
        array = np.asarray(value)
        if isinstance(axes, str):
            axes = tuple((renamed or {}).get(axis, axis) for axis in axes_in(axes, array.ndim))
        assert len(axes) == array.ndim, f"{name} has axes {axes} and shape {array.shape}"
        key = (axes, rows, array.shape, array.dtype.str, array.tobytes())
        if key not in self._ids:
            self._ids[key] = f"a{len(self._ids)}"
            self.entries[self._ids[key]] = {
                "shape": list(array.shape),
                "axes": list(axes),
                "rows": list(rows),
                "kind": array.dtype.kind,
                "data": [_json_number(number) for number in array.ravel().tolist()],
            }
        return Tensor(name, _shape(axes, array.shape), self._ids[key], remark)


def _shape(axes: tuple[str, ...], shape: tuple[int, ...]) -> str:
    if not shape:
        return "one number"
    sizes = "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
    if "n" in axes:
        return sizes
    letters = ", ".join("C" if axis == "HD" else axis for axis in axes)
    return f"({letters}{',' if len(shape) == 1 else ''}) = {sizes}"


def _json_number(number: Any) -> Any:
    """Return a number that JSON can hold; what is not finite becomes its name."""
    if isinstance(number, float) and not math.isfinite(number):
        return str(number)
    return int(number) if isinstance(number, bool) else number
