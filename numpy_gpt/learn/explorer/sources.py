"""The source of a forward and a backward pass, and which lines of one undo which of the other.

The book's backwards say in comments what they undo: `# weights = softmax(scores / √D)`. These citations are
the links. Where a backward calls another's backward, that line is linked to the call of its forward.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy_gpt.learn.explorer.statements import Statement, statements_of

CITATION = re.compile(r"^\s*# (?P<text>(?P<names>[a-z_]\w*(?:, [a-z_]\w*)*) \+?= .*)")
PLAIN_RETURN = re.compile(r"^\s*return ([\w, ]+|\(\w+,\))$")
"""Hands over what is there already, and so undoes nothing."""


@dataclass(frozen=True)
class Source:
    """A function as it stands in its file, without its docstring.

    Attributes:
        name: the function's.
        path: of the file, below the package's parent.
        lines: (number, text) of each line.
        statements: its simple statements, in order.
    """

    name: str
    path: str
    lines: tuple[tuple[int, str], ...]
    statements: tuple[Statement, ...]

    def comment_of(self, statement_line: int) -> str:
        """Return what follows the hash at the end of the statement that starts at a line; "" for nothing."""
        last = {s.first: s.last for s in self.statements}[statement_line]
        comments = (text.partition("  # ")[2] for n, text in self.lines if statement_line <= n <= last)
        return next(filter(None, comments), "")


@dataclass(frozen=True)
class Link:
    """Lines of a backward pass, and the lines of the forward pass that they undo.

    Attributes:
        citation: how the backward names them; for a call, the operation.
        forward, backward: line numbers.
    """

    citation: str
    forward: frozenset[int]
    backward: frozenset[int]


def read_source(function: Callable[..., Any], paragraphs: slice = slice(None)) -> Source:
    """Return the source of a function that has a docstring.

    Args:
        function: of this package.
        paragraphs: which of the stretches between blank lines to take; the signature is always there.
    """
    raw, first_line = inspect.getsourcelines(function)
    lines = list(enumerate(textwrap.dedent("".join(raw)).splitlines(), first_line))
    docstring, *statements = statements_of(function)
    head = [line for line in lines if line[0] < docstring.first]
    body = [line for line in lines if line[0] > docstring.last]
    chosen = [line for paragraph in _split_at_blanks(body)[paragraphs] for line in paragraph]
    while not chosen[-1][1].strip():
        chosen.pop()
    shown = {number for number, _ in chosen}
    return Source(
        name=function.__qualname__,
        path=f"{function.__module__.replace('.', '/')}.py",
        lines=tuple(head + chosen),
        statements=tuple(statement for statement in statements if statement.first in shown),
    )


def _split_at_blanks(lines: list[tuple[int, str]]) -> list[list[tuple[int, str]]]:
    """Return the paragraphs; each but the last keeps the blank line after it."""
    paragraphs: list[list[tuple[int, str]]] = [[]]
    for line in lines:
        paragraphs[-1].append(line)
        if not line[1].strip():
            paragraphs.append([])
    return paragraphs


def find_links(forward: Source, backward: Source) -> tuple[Link, ...]:
    """Return what undoes what, in the order of the backward pass.

    Raises:
        ValueError: for a citation of a line that forward does not have.
    """
    links = []
    for citation, names, lines in _cited_stretches(backward):
        undone = _cited_statements(forward, citation, names)
        if not undone:
            raise ValueError(f"{backward.name} cites {citation!r}, which {forward.name} does not have")
        links.append(Link(citation, _lines_of(undone), lines))
    for statement in backward.statements:
        for op in sorted(statement.calls):
            undone = [s for s in forward.statements if op in s.calls]
            already = any(statement.first in link.backward for link in links)
            if undone and not already:
                links.append(Link(op, _lines_of(undone), _lines_of([statement])))
    return tuple(links)


def _cited_stretches(backward: Source) -> list[tuple[str, frozenset[str], frozenset[int]]]:
    """Return each citation's text and names, and its lines: up to the next citation or blank line."""
    stretches: list[tuple[str, frozenset[str], set[int]]] = []
    is_open = False
    for number, text in backward.lines:
        match = CITATION.match(text)
        if match:
            stretches.append((match["text"], frozenset(match["names"].split(", ")), set()))
            is_open = True
        elif not text.strip() or PLAIN_RETURN.match(text):
            is_open = False
        if is_open:
            stretches[-1][2].add(number)
    return [(text, names, frozenset(lines)) for text, names, lines in stretches]


def _cited_statements(forward: Source, citation: str, names: frozenset[str]) -> list[Statement]:
    """Return the statements that a citation quotes; where it paraphrases, those that set what it names."""
    quoted = [s for s in forward.statements if citation.startswith(s.text)]
    return quoted or [s for s in forward.statements if s.assigned & names]


def _lines_of(statements: list[Statement]) -> frozenset[int]:
    return frozenset(n for s in statements for n in range(s.first, s.last + 1))
