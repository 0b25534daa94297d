"""The file that an exercise hands out, cut from the module in which its solution stands."""

from __future__ import annotations

import ast
import copy
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence

from numpy_gpt.learn.exercises.exercise import Exercise

INVITATION = "# Your lines go here: undo forward's lines one by one, its last line first."
INVITATION_WITHOUT_FORWARD = "# Your lines go here."
MOST_NAMES_IN_A_LINE = 4


def handout(exercise: Exercise, position: str) -> str:
    """Return the text of the file to hand out.

    Args:
        exercise: which.
        position: its place in the course, such as "Exercise 5 of 14".
    """
    source = _Source(exercise)
    check = f"numpy-gpt exercise check {exercise.name}"
    parts = [
        f'"""{position}. {exercise.statement.rstrip()}\n\nCheck\n    {check}\n"""',
        "\n".join(["from __future__ import annotations", "", *source.imports()]),
        "\n".join(source.constants()),
        *(f"\n{piece}" for piece in source.definitions()),
        f"\n{source.blank()}",
    ]
    if exercise.main:
        parts.append(f'\nif __name__ == "__main__":\n    {exercise.main.__name__}()')
    return "\n\n".join(part for part in parts if part) + "\n"


def blank_function(exercise: Exercise) -> ast.FunctionDef:
    """Return the function to write, as it is handed out."""
    (function,) = ast.parse(_Source(exercise).blank()).body
    assert isinstance(function, ast.FunctionDef)
    return function


class _Source:
    """The module of a solution, in pieces."""

    def __init__(self, exercise: Exercise) -> None:
        self.exercise = exercise
        self.text = inspect.getsource(exercise.module)
        self.tree = ast.parse(self.text)
        self.imported = {
            alias.asname or alias.name.partition(".")[0]: (node, alias)
            for node in self.tree.body
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        self.assigned = {
            node.targets[0].id: node
            for node in self.tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        self.defined = {
            node.name: node
            for node in self.tree.body
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
        }
        given = [*exercise.given, exercise.forward, exercise.main]
        self.handed = {function.__name__ for function in given if function is not None}
        self.needed = self._closure()

    def _closure(self) -> set[str]:
        """Return every name of the module that the handed-out functions need, and theirs in turn."""
        blank = ast.parse(self.blank())
        needed: set[str] = set(self.exercise.tools) | self.handed
        waiting: list[ast.AST] = [blank, *(self.defined[name] for name in self.handed)]
        while waiting:
            names = {node.id for node in ast.walk(waiting.pop()) if isinstance(node, ast.Name)} - needed
            needed |= names
            waiting += [self.assigned[name] for name in names if name in self.assigned]
            waiting += [node for name in names if isinstance(node := self.defined.get(name), ast.ClassDef)]
        return needed - {self.exercise.solution.__name__}

    def imports(self) -> list[str]:
        """Return the import lines, those of the standard library first."""
        lines: dict[str, set[str]] = {}
        whole: list[str] = []
        for name in self.needed & self.imported.keys():
            node, alias = self.imported[name]
            if isinstance(node, ast.ImportFrom):
                lines.setdefault(str(node.module), set()).add(alias.name)
            else:
                whole.append(f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else ""))
        own = {
            name for name in self.needed - self.handed if isinstance(self.defined.get(name), ast.FunctionDef)
        }
        if own:
            lines.setdefault(self.exercise.module.__name__, set()).update(own)
        found = whole + [
            f"from {module} import {', '.join(sorted(names))}" for module, names in lines.items()
        ]
        groups = [
            sorted((line for line in found if _group(line) == group), key=_rank)
            for group in ("standard", "numpy", "ours")
        ]
        separated: list[str] = []
        for group in filter(None, groups):
            separated += ["", *group] if separated else group
        return separated

    def constants(self) -> list[str]:
        """Return the lines that set constants."""
        return [
            self._text_of(self.assigned[name])
            for name in self.assigned
            if name in self.needed and name not in self.handed
        ]

    def definitions(self) -> Iterator[str]:
        """Yield classes and functions in their order, each a blank line after the one before."""
        for name, node in self.defined.items():
            if name in self.handed:
                yield self._text_of(node)
            elif name in self.needed and isinstance(node, ast.ClassDef):
                yield _without_reasons(self._text_of(node))

    def blank(self) -> str:
        """Return the solution's first and last lines: all but what it computes."""
        exercise = self.exercise
        node = self.defined[exercise.solution.__name__]
        assert isinstance(node, ast.FunctionDef)
        document = inspect.cleandoc(ast.get_docstring(node) or "")
        parameters = {argument.arg for argument in node.args.args}
        unpacking = [self._text_of(each) for each in node.body if _unpacks(each, parameters)]
        names = [name or "None" for name in exercise.returned(exercise.all_cases()[0])]
        invitation = INVITATION if exercise.forward else INVITATION_WITHOUT_FORWARD
        lines = [*_quoted(document), *unpacking, "", invitation, "", *_returning(names)]
        return "\n".join([self._signature(node), *(f"    {line}".rstrip() for line in lines)])

    def _signature(self, node: ast.FunctionDef) -> str:
        """Return a function's first line or lines, without the `out=` that only a model hands in."""
        if "out" not in {argument.arg for argument in node.args.kwonlyargs}:
            return "\n".join(self.text.splitlines()[node.lineno - 1 : node.body[0].lineno - 1])
        bare = copy.deepcopy(node)
        bare.args.kwonlyargs, bare.args.kw_defaults = [], []
        bare.body = [ast.Pass()]
        return ast.unparse(bare).removesuffix("\n    pass")

    def _text_of(self, node: ast.stmt) -> str:
        segment = ast.get_source_segment(self.text, node)
        assert segment is not None
        rest = self.text.splitlines()[(node.end_lineno or 1) - 1][node.end_col_offset :]
        return segment + rest  # with the comment that ends its last line


def _unpacks(statement: ast.stmt, parameters: Iterable[str]) -> bool:
    """Whether a statement takes a parameter apart: `x, weight = saved`."""
    return (
        isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Tuple)
        and isinstance(statement.value, ast.Name)
        and statement.value.id in parameters
    )


def _quoted(document: str) -> list[str]:
    lines = document.splitlines()
    lines[0] = f'"""{lines[0]}'
    if len(lines) == 1:
        return [f'{lines[0]}"""']
    return [*lines, '"""']


def _returning(names: Sequence[str]) -> list[str]:
    """Return the lines of a `return`: one, or one for each name where they are many."""
    if len(names) == 1:
        return [f"return ({names[0]},)"]
    if len(names) <= MOST_NAMES_IN_A_LINE:
        return [f"return {', '.join(names)}"]
    return ["return (", *(f"    {name}," for name in names), ")"]


def _rank(line: str) -> tuple[bool, str]:
    """As is usual: whole modules before parts of them."""
    return line.startswith("from"), line


def _group(line: str) -> str:
    package = line.split()[1].partition(".")[0]
    return {"numpy": "numpy", "numpy_gpt": "ours"}.get(package, "standard")


def _without_reasons(text: str) -> str:
    """Return a class of saved values without the remarks on what each is for, half of the solution."""
    return re.sub(r"(# .*?\)):.*", r"\1", text)
