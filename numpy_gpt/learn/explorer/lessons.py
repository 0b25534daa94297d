"""An operation's docstring as a lesson: its sections, with equations told from prose."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from numpy_gpt.learn.explorer.mathml import formula, is_formula, symbol

_CODE = re.compile(r"`([^`]+)`")
_SYMBOL = re.compile(
    r"(?<![\w`.])(?:d_)?[A-Za-zμσ]_(?:\{[^}]*\}|(?!key)[a-z]{1,3})(?![\w(])|(?<![\w`])\w\u0302(?!\w)"
)


@dataclass(frozen=True)
class Piece:
    """A stretch of one line.

    Attributes:
        kind: "text", "code", or "math", whose text is the content of a `<math>` element.
        text: as it stands in the docstring, or as MathML.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of prose, or a line that is all formula.

    Attributes:
        is_display: whether it is a line of formulas, set apart, each followed by its remark.
        pieces: what it is made of.
        indent: how far it is set in, in blanks of the docstring.
    """

    is_display: bool
    pieces: tuple[Piece, ...]
    indent: int


@dataclass(frozen=True)
class Lesson:
    """A module's docstring.

    Attributes:
        title: its first sentence.
        sections: the paragraphs under each heading, in order.
    """

    title: str
    sections: dict[str, tuple[Paragraph, ...]]


def read_lesson(docstring: str) -> Lesson:
    """Read a docstring of the book: a title, then headings with indented text."""
    title, *lines = inspect.cleandoc(docstring).splitlines()
    sections: dict[str, list[str]] = {}
    heading = ""
    for line in lines:
        if line and not line.startswith(" "):
            heading = line
        elif heading:
            sections.setdefault(heading, []).append(line)
    return Lesson(title, {name: tuple(_paragraphs(body)) for name, body in sections.items()})


def _paragraphs(lines: list[str]) -> Iterator[Paragraph]:
    """Yield formulas line by line, and prose joined into paragraphs of one indentation."""
    kinds = [(line, len(line) - len(line.lstrip()), _display(line)) for line in lines]
    for (is_prose, indent), group in itertools.groupby(
        kinds, key=lambda item: (item[2] is None and item[0].strip() != "", item[1])
    ):
        if is_prose:
            text = " ".join(line.strip() for line, _, _ in group)
            yield Paragraph(False, tuple(inline(text)), indent)
            continue
        for _, _, pieces in group:
            if pieces:
                yield Paragraph(True, pieces, indent)


def _display(line: str) -> tuple[Piece, ...] | None:
    """Return the pieces of a line of formulas and their remarks, or None for prose."""
    chunks = re.split(r" {2,}", re.sub(r" {2,}=", " =", line.strip()))
    formulas = [chunk.rstrip(".:;") for chunk in chunks]
    if not any(map(is_formula, formulas)):
        return None
    pieces: list[Piece] = []
    for chunk, text in zip(chunks, formulas, strict=True):
        pieces += [Piece("math", formula(text))] if is_formula(text) else inline(chunk)
    return tuple(pieces)


def inline(text: str) -> Iterator[Piece]:
    """Yield prose in pieces, with symbols such as x_ni typeset and what stands in backticks as code."""
    for i, part in enumerate(_CODE.split(text)):
        if i % 2:
            yield Piece("code", part)
            continue
        position = 0
        for match in _SYMBOL.finditer(part):
            if match.start() > position:
                yield Piece("text", part[position : match.start()])
            yield Piece("math", symbol(match[0]))
            position = match.end()
        if position < len(part):
            yield Piece("text", part[position:])
