"""What a result file must look like, so that whatever loads can also be shown and compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

DEEPEST = 12
"""Levels of objects and lists, one in the other; `save` writes six."""

SMALLEST, LARGEST = 1e-30, 1e30
"""Of numbers other than zero: no ratio or sum of such numbers overflows."""


class Leaf(NamedTuple):
    """A value that is no object."""

    what: str
    fits: Callable[[Any], bool]


class Each(NamedTuple):
    """An object with any names, all of whose values have one shape."""

    shape: Any


def optional(leaf: Leaf) -> Leaf:
    """Return a leaf that may be null too."""
    return Leaf(f"{leaf.what} or null", lambda value: value is None or leaf.fits(value))


def is_number(value: Any) -> bool:
    """Return whether a value is zero or a number of reasonable size."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return value == 0 or SMALLEST <= abs(value) <= LARGEST


def is_positive(value: Any) -> bool:
    """Return whether a value is a number above zero of reasonable size."""
    return is_number(value) and value > 0


ANYTHING = Leaf("anything", lambda _: True)
FLAG = Leaf("true or false", lambda value: isinstance(value, bool))
LINE = Leaf("a line of text", lambda value: isinstance(value, str) and value.isprintable())
POSITIVE = Leaf("a positive number", is_positive)
NUMBER = Leaf("a number", is_number)
COUNT = Leaf("a whole number above zero", lambda value: is_positive(value) and isinstance(value, int))
LIST = Leaf("a list", lambda value: isinstance(value, list))
OBJECT = Each(ANYTHING)


def pair_of(leaf: Leaf) -> Leaf:
    """Return a list of two such leaves."""
    return Leaf(
        f"a list of two, each {leaf.what}",
        lambda value: isinstance(value, list) and len(value) == 2 and all(map(leaf.fits, value)),
    )


BLAS = {"blas": LINE, "kernel": optional(LINE), "threads": optional(COUNT)}

MACHINE = {
    **dict.fromkeys(("processor", "system", "python", "date"), LINE),
    **dict.fromkeys(("usable_cores", "usable_processors", "logical_processors", "threads"), COUNT),
    "quota": optional(POSITIVE),
    "libraries": Each(LINE),
    "blas": Each(BLAS),
    "peak": Each(POSITIVE),
}

DOCUMENT = {
    "command": LINE,
    "settings": {"quick": FLAG},
    "machine": MACHINE,
    "comparisons": LIST,
    "skipped": LIST,
}

DECODE_SETTINGS = {"prompt_tokens": COUNT, "new_tokens": COUNT}

COMPARISON = {
    **dict.fromkeys(("subject", "first", "second"), LINE),
    "threads": pair_of(COUNT),
    "samples": OBJECT,
    "load": NUMBER,
    "tokens": optional(COUNT),
    "flops": optional(POSITIVE),
    "errors": optional(pair_of(NUMBER)),
}

SKIPPED = dict.fromkeys(("subject", "name", "reason"), LINE)


def require(value: Any, shape: Any, where: str) -> None:
    """Raise ValueError, naming the place, unless a value has a shape; an object may have more names."""
    if isinstance(shape, Leaf):
        if not shape.fits(value):
            raise ValueError(f"{where} must be {shape.what}, not {shown(value)}")
        return
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must be an object, not {shown(value)}")
    shapes = dict.fromkeys(value, shape.shape) if isinstance(shape, Each) else shape
    for name, inner in shapes.items():
        if name not in value:
            raise ValueError(f"{where}: {name} is missing")
        require(value[name], inner, f"{where}: {name}")


def require_plain(value: Any, depth: int = DEEPEST) -> None:
    """Raise ValueError for JSON that nests too deeply, or whose text no file could hold."""
    if depth == 0:
        raise ValueError(f"it nests more than {DEEPEST} levels deep")
    if isinstance(value, str):
        value.encode()  # half a surrogate pair has no code, which is a ValueError
    elif isinstance(value, dict):
        for name, inner in value.items():
            name.encode()
            require_plain(inner, depth - 1)
    elif isinstance(value, list):
        for inner in value:
            require_plain(inner, depth - 1)


def shown(value: Any) -> str:
    """Return a value in few characters."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "such a list"
    if isinstance(value, int) and not is_number(value) and not isinstance(value, bool):
        return "so large a number"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
