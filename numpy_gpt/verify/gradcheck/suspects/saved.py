"""Looking into what forward saved, however it is nested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

DEPTH = 4
"""How deep tuples, mappings and objects inside one another are opened."""


def leaves(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the arrays and numbers inside a saved value, with names as one would write them."""
    if isinstance(value, np.ndarray | np.number | float | int) and not isinstance(value, bool):
        yield name, value
    elif depth < DEPTH:
        for key, member in _members(value).items():
            inner = f"{name}.{key}" if isinstance(key, str) else f"{name}[{key}]"
            yield from leaves(inner, member, depth + 1)


def _members(value: Any) -> Mapping[Any, Any]:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        named: Mapping[Any, Any] = value._asdict()
        return named
    if isinstance(value, tuple | list):
        return dict(enumerate(value))
    if isinstance(value, dict):
        return value
    members: Mapping[Any, Any] = getattr(value, "__dict__", {}) if not callable(value) else {}
    return members
