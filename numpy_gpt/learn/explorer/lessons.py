"""An operation's docstring as a lesson: its sections, with equations told from prose."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from numpy_gpt.learn.explorer.mathml import formula, is_formula, symbol

_CODE = re.compile(r"`([^`]+)`")
_SUBSCRIPT = r"_(?:\{[^}]*\}|(?!key)[a-z]{1,3})"
_SYMBOL = re.compile(rf"(?<![\w`.])(?:d_[A-Za-z](?:{_SUBSCRIPT})?|[A-Za-zμσΣ]{_SUBSCRIPT}|\w\u0302)(?![\w(])")
_TYPOGRAPHY = {"->": "→", "<=": "≤", "-∞": "−∞"}  # as plain text, and as set


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
        is_display: whether it is a line of formulas, set apart.
        chunks: of such a line, its formulas and remarks one by one; of prose, all of it.
    """

    is_display: bool
    chunks: tuple[tuple[Piece, ...], ...]


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
    for (kind, _), group in itertools.groupby(lines, key=lambda line: (_kind(line), _indent(line))):
        stripped = [line.strip() for line in group]
        if kind == "prose":
            yield Paragraph(False, (tuple(inline(" ".join(stripped))),))
        elif kind == "signature":
            for line in stripped:
                yield Paragraph(False, (tuple(inline(re.sub(r" {2,}", " ", line))),))
        elif kind == "display":
            for line in stripped:
                yield Paragraph(True, _chunks(line))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _kind(line: str) -> str:
    if not line.strip():
        return "blank"
    if "  ->  " in line:  # what goes in and what comes out, on a line of its own
        return "signature"
    return "display" if any(is_formula(_bare(chunk)) for chunk in _split(line)) else "prose"


def _split(line: str) -> list[str]:
    """Return what wide gaps set apart; before an equals sign or a verb a gap only lines it up with others."""
    return re.split(r" {2,}", re.sub(r" {2,}(?==|is )", " ", line.strip()))


def _bare(chunk: str) -> str:
    return chunk.rstrip(".:;")


def _chunks(line: str) -> tuple[tuple[Piece, ...], ...]:
    return tuple(
        (Piece("math", formula(_bare(chunk))),) if is_formula(_bare(chunk)) else tuple(inline(chunk))
        for chunk in _split(line)
    )


def inline(text: str) -> Iterator[Piece]:
    """Yield prose in pieces, with symbols such as x_ni typeset and what stands in backticks as code."""
    for i, stretch in enumerate(_CODE.split(text)):
        if i % 2:
            yield Piece("code", stretch)
            continue
        part = stretch
        for plain, typeset in _TYPOGRAPHY.items():
            part = part.replace(plain, typeset)
        position = 0
        for match in _SYMBOL.finditer(part):
            if match.start() > position:
                yield Piece("text", part[position : match.start()])
            yield Piece("math", symbol(match[0]))
            position = match.end()
        if position < len(part):
            yield Piece("text", part[position:])
