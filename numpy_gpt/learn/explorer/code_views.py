"""A step's lessons and source: each line with the numbers that it made and the lines that it undoes."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping

import numpy as np

from numpy_gpt.learn.explorer.arrays import ArrayStore
from numpy_gpt.learn.explorer.highlighting import highlight_lines
from numpy_gpt.learn.explorer.lessons import read_lesson
from numpy_gpt.learn.explorer.recording import Call
from numpy_gpt.learn.explorer.sources import Source, find_links, read_source
from numpy_gpt.learn.explorer.steps import RESIDUALS, Step
from numpy_gpt.learn.explorer.views import Code, CodeLine, Part, Tensor
from numpy_gpt.learn.explorer.watching import Execution
from numpy_gpt.model import GPT
from numpy_gpt.ops import book
from numpy_gpt.training import adamw, clipping

RESIDUAL_LESSON = """Residual addition: what a branch found is added to the stream it started from.

Equation
    y_btc = x_btc + z_btc            z is the branch, itself a function of x

Derivation
    Both x and z enter y as they are, so both get d_y unchanged:
        d_z_btc = d_y_btc
    But x is used twice, directly and by the branch, and a sum over uses is the rule: where the branch began,
    what came back through it is added to what came past it.
"""


class PartWriter:
    """Writes the parts of one step.

    Args:
        step: which box of the map.
        store: takes the arrays that lines made.
    """

    def __init__(self, step: Step, store: ArrayStore) -> None:
        self.step = step
        self.store = store

    def of_operation(self, call: Call) -> tuple[Part, ...]:
        """Return the step's operation, and then those that it is made of, as they ran in this call."""
        assert call.backward is not None
        forward, backward = call.forward, call.backward
        runs = [(call.op, forward, backward)]
        runs += [
            (op, forward.within(f"{op}_forward"), backward.within(f"{op}_backward")) for op in self.step.inner
        ]
        return tuple(self._part(*run) for run in runs)

    def of_residual(self) -> Part:
        """Return the lines of the model that add a branch to the stream, and send gradients down both."""
        places = RESIDUALS[self.step.key]
        forward = read_source(GPT._block_forward, places.forward)
        backward = read_source(GPT._block_backward, places.backward)
        return Part("residual", read_lesson(RESIDUAL_LESSON), self._codes(forward, backward))

    def of_update(self) -> Part:
        """Return clipping and the optimizer's step."""
        sources = read_source(clipping.clip_gradients), read_source(adamw.AdamW.step)
        codes = tuple(self._code(source, None, {}) for source in sources)
        return Part("adamw", read_lesson(adamw.__doc__ or ""), codes)

    def _part(self, op: str, forward_run: Execution, backward_run: Execution) -> Part:
        lesson = read_lesson(inspect.getdoc(importlib.import_module(f"numpy_gpt.ops.{op}")) or "")
        forward, backward = (read_source(function) for function in getattr(book, op))
        return Part(op, lesson, self._codes(forward, backward, forward_run, backward_run))

    def _codes(
        self,
        forward: Source,
        backward: Source,
        forward_run: Execution | None = None,
        backward_run: Execution | None = None,
    ) -> tuple[Code, Code]:
        links = {f"{self.step.key}-{i}": link for i, link in enumerate(find_links(forward, backward))}
        return (
            self._code(forward, forward_run, {word: link.forward for word, link in links.items()}),
            self._code(backward, backward_run, {word: link.backward for word, link in links.items()}),
        )

    def _code(self, source: Source, run: Execution | None, links: Mapping[str, frozenset[int]]) -> Code:
        html = highlight_lines("\n".join(text for _, text in source.lines))
        return Code(
            source.name,
            source.path,
            tuple(
                CodeLine(
                    number=number,
                    html=line,
                    indent=len(text) - len(text.lstrip()),
                    values=tuple(self._values(source, run, number)) if run else (),
                    links=" ".join(word for word, lines in links.items() if number in lines),
                )
                for (number, text), line in zip(source.lines, html, strict=True)
            ),
        )

    def _values(self, source: Source, run: Execution, number: int) -> Iterator[Tensor]:
        """Yield the numbers that the statement at a line computed."""
        if any(statement.first == number and statement.computes for statement in source.statements):
            for name, value in run.lines.get(number, {}).items():
                if isinstance(value, np.ndarray | float):
                    shape = source.comment_of(number)
                    yield self.store.tensor(name, value, shape, renamed=self.step.axes)
