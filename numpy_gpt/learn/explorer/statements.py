"""The statements of a function: where they stand, what they set, and what they call."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

CALL = re.compile(r"(\w+)_(?:forward|backward)\(")


@dataclass(frozen=True)
class Statement:
    """A statement that holds no other.

    Attributes:
        first, last: its lines in the file.
        text: in Python's own normal form.
        assigned: the variables that it sets.
        calls: the operations that it calls, forward or backward.
        computes: whether it makes numbers: it neither unpacks what is there nor only asks for memory.
    """

    first: int
    last: int
    text: str
    assigned: frozenset[str]
    calls: frozenset[str]
    computes: bool


@functools.cache
def statements_of(function: Callable[..., Any] | CodeType) -> tuple[Statement, ...]:
    """Return a function's statements in order; the first is its docstring, where it has one."""
    source, first_line = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(source)))
    found = [
        _read(node, first_line - 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and not hasattr(node, "body")
    ]
    return tuple(sorted(found, key=lambda statement: statement.first))


def _read(node: ast.stmt, lines_above: int) -> Statement:
    text = ast.unparse(node)
    stored = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    unpacks = isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.BoolOp)
    return Statement(
        first=node.lineno + lines_above,
        last=(node.end_lineno or node.lineno) + lines_above,
        text=text,
        assigned=frozenset(stored),
        calls=frozenset(CALL.findall(text)),
        computes=not unpacks and "np.empty(" not in text,
    )
