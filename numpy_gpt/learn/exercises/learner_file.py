"""A learner's file: read, understood, and run without a traceback of ours."""

from __future__ import annotations

import ast
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from numpy_gpt.learn.exercises.commands import command
from numpy_gpt.learn.exercises.exercise import Exercise
from numpy_gpt.learn.exercises.handout import blank_function
from numpy_gpt.text.printable import printable

MOST_BYTES = 1_000_000
MOST_CHARACTERS = 200
MODULE_NAME = "numpy_gpt_exercise_{}"


class LearnerError(Exception):
    """Something about a learner's file that can be said in a line or two."""


def read_source(path: Path) -> bytes:
    """Return a learner's file.

    Raises:
        OSError: when it cannot be read.
        ValueError: when it cannot be an exercise, in a line that names it.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}: `{command('start', path.stem, path.parent)}` makes it")
    if not path.is_file():  # a pipe would wait for ever
        raise ValueError(f"{path} is not a file")
    with path.open("rb") as file:
        source = file.read(MOST_BYTES + 1)
    if len(source) > MOST_BYTES:
        raise ValueError(f"{path} is longer than any exercise")
    return source


class LearnerFile:
    """The parsed source of an exercise's file.

    Args:
        exercise: which it is for.
        source: the file's bytes.
        path: as it is shown in messages.

    Raises:
        LearnerError: for what is not Python, or lacks the function to write.
    """

    def __init__(self, exercise: Exercise, source: bytes, path: str) -> None:
        self.exercise = exercise
        self.path = path
        try:
            self.tree = ast.parse(source, filename=path)
            self.code = compile(source, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            raise LearnerError(f"this is not Python yet: {describe(error, path)}") from None
        self.lines = source.decode("utf-8", "replace").splitlines()
        name = exercise.solution.__name__
        self.functions = {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}
        if name not in self.functions:
            raise LearnerError(f"there is no function {name} in {path} any more: it is the one to write")
        self.function = self.functions[name]

    @property
    def is_untouched(self) -> bool:
        """Whether nothing but comments and blank lines was written into the function."""
        return ast.dump(self.function) == ast.dump(blank_function(self.exercise))

    @property
    def where_to_start(self) -> str:
        """The line below what the function begins with."""
        return f"{self.path}, line {self.function.body[-1].lineno - 1}"

    def run(self) -> dict[str, Any]:
        """Run the file as a module of its own, and return its functions.

        Raises:
            LearnerError: when the file itself raises.
        """
        module = ModuleType(MODULE_NAME.format(self.exercise.name))
        module.__file__ = self.path
        sys.modules[module.__name__] = module  # dataclasses look their module up
        try:
            exec(self.code, vars(module))  # the learner's own file, which they asked to have checked
        except (Exception, SystemExit) as error:
            raise LearnerError(f"the file stops before its end: {describe(error, self.path)}") from None
        return vars(module)

    def variables_in_order(self) -> list[str]:
        """Return the function's variables in the order in which each gets its last value."""
        last: dict[str, tuple[int, int]] = {}
        for node in ast.walk(self.function):
            name = _assigned(node)
            if name is not None and isinstance(node, ast.expr):
                last[name] = max(last.get(name, (0, 0)), (node.lineno, node.col_offset))
        return sorted(last, key=last.__getitem__)

    def uses(self, name: str) -> list[tuple[int, str]]:
        """Return the lines of forward that compute with a variable, and their numbers."""
        node = self._forward()
        if node is None:
            return []
        numbers = {statement.lineno for statement in _statements(node) if _computes_with(statement, name)}
        return [(number, _without_comment(self.lines[number - 1])) for number in sorted(numbers)]

    def sets_once(self, name: str) -> bool:
        """Whether a variable of forward never gets a second value."""
        node = self._forward()
        return node is not None and sum(_assigned(each) == name for each in ast.walk(node)) <= 1

    def _forward(self) -> ast.FunctionDef | None:
        forward = self.exercise.forward
        return self.functions.get(forward.__name__) if forward else None


def describe(error: BaseException, path: str) -> str:
    """Say in one line what was raised, and where in the learner's own file."""
    text = printable(" ".join(str(error).split()))[:MOST_CHARACTERS]
    if isinstance(error, SyntaxError):
        text = error.msg
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, SystemExit):
        what = f"it calls exit ({what})"
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"{path}, line {error.lineno}: {what}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    if not frames:
        return what
    return f"{path}, line {frames[-1].lineno}, in {frames[-1].name}: {what}"


def _assigned(node: ast.AST) -> str | None:
    """Return the variable that a node sets, whole or in part."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        node = node.value
    elif not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)):
        return None
    return node.id if isinstance(node, ast.Name) else None


def _statements(function: ast.FunctionDef) -> Iterator[ast.stmt]:
    """Yield the statements that compute something, those within `if` and `for` too."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return):
            yield node


def _computes_with(statement: ast.stmt, name: str) -> bool:
    """Whether a statement uses a variable's numbers, not only its shape, or passes it on as it is."""
    value = getattr(statement, "value", None)
    if isinstance(statement, ast.Return):  # (out, saved): only what makes out
        value = value.elts[0] if isinstance(value, ast.Tuple) and value.elts else None
        if isinstance(value, ast.Name):
            return False
    if isinstance(statement, ast.AugAssign) and _assigned(statement.target) == name:
        return True
    return value is not None and _reads(value, name)


def _reads(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Name):
        return node.id == name
    if isinstance(node, ast.Attribute) and node.attr in ("shape", "ndim", "dtype"):
        return False
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
        return False
    return any(_reads(child, name) for child in ast.iter_child_nodes(node))


def _without_comment(line: str) -> str:
    return line.partition("  #")[0].strip()
