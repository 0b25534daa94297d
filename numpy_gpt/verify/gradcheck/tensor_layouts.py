"""The layouts of `layouts.py` for torch tensors: equal values, other strides."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any


def same_values(tensor: Any) -> Iterator[tuple[str, Any]]:
    """Yield a tensor's values in other layouts, each with its name."""
    if tensor.ndim >= 2:
        yield "transposed", tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if tensor.ndim >= 1:
        wide = _filled(tensor, [2 * length for length in tensor.shape])
        strided = wide[(slice(None, None, 2),) * tensor.ndim]
        yield "a strided slice", strided.copy_(tensor)


def expansions(tensor: Any) -> Iterator[tuple[str, Any]]:
    """Yield tensors of this shape that repeat values of `tensor` by strides of zero, each with its name."""
    if tensor.numel() == 0:
        return
    for axis, length in enumerate(tensor.shape):
        if length > 1:
            row = tensor.narrow(axis, 0, 1)
            yield f"expanded with stride 0 along axis {axis}", _repeated(row, tensor.shape)
    if tensor.ndim > 1:
        one = tensor[(slice(1),) * tensor.ndim]
        yield "one value expanded with stride 0", _repeated(one, tensor.shape)


def variants(value: Any, tensor_type: type) -> Iterator[tuple[str, Any, Any]]:
    """Yield a name, a tensor in that layout, and its values in a contiguous tensor, for what is a tensor."""
    if isinstance(value, tensor_type):
        yield from ((layout, odd, value) for layout, odd in same_values(value))
        yield from ((layout, odd, odd.contiguous()) for layout, odd in expansions(value))


def _filled(tensor: Any, shape: list[int]) -> Any:
    """Return memory that shows a kernel which reads straight on: NaN, or zero among integers."""
    return tensor.new_full(shape, float("nan") if tensor.is_floating_point() else 0)


def _repeated(row: Any, shape: Any) -> Any:
    """Repeat `row` along its axes of length 1, in memory as large as if it were repeated in earnest."""
    memory = _filled(row, [math.prod(shape)])
    memory[: row.numel()] = row.reshape(-1)
    start = memory[: row.numel()].view(row.shape)
    strides = [0 if length == 1 else stride for length, stride in zip(row.shape, start.stride(), strict=True)]
    return start.as_strided(list(shape), strides)
