"""What an exercise is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from numpy_gpt.arrays import Array

Function = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """One call that a learner's function must get right.

    Args:
        inputs: the arrays, in the order of the parameters.
        options: the keywords.
        label: how this call differs from the others, for "wrong {label}".
    """

    inputs: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""


@dataclass(frozen=True)
class Exercise:
    """One function to write, with everything that is said and checked about it.

    The file that is handed out is cut from the solution's own module: the forward pass and what it needs as
    they stand there, and the solution without its body. So the two cannot disagree.

    Args:
        name: of the exercise, its file and its commands.
        statement: the text of the handed-out file: a title, the why, the shapes, the task.
        solution: the function to write; `backward(d_out, saved)` where there is a forward.
        cases: makes the calls to check with.
        hints: three, each giving more away than the one before, none the solution.
        forward: what is given; None where the task is no backward pass.
        given: more functions to hand out as they are.
        tools: names of the solution's module that a learner will want to have imported.
        steps: called as the solution, returns the gradients of variables that a longer way to it passes.
        names: for a task without a forward, the variables to compare, the returned ones last.
        look: the next thing to look at, by the name of the first wrong variable or by the case that is wrong.
        op: the operation of a model that the solved pair can take the place of.
        main: a function to call when the handed-out file is run.
    """

    name: str
    statement: str
    solution: Function
    cases: Callable[[np.random.Generator], Sequence[Case]]
    hints: tuple[str, ...]
    forward: Function | None = None
    given: tuple[Function, ...] = ()
    tools: tuple[str, ...] = ()
    steps: Function | None = None
    names: tuple[str, ...] = ()
    look: Mapping[str, str] = field(default_factory=dict)
    op: str | None = None
    main: Function | None = None

    @property
    def title(self) -> str:
        """The statement's first line, without its full stop."""
        return self.statement.splitlines()[0].removesuffix(".")

    @property
    def module(self) -> ModuleType:
        """Where the solution and what is given stand."""
        module = inspect.getmodule(self.solution)
        assert module is not None
        return module

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of forward's arrays, in order; empty without a forward."""
        if self.forward is None:
            return ()
        parameters = inspect.signature(self.forward).parameters.values()
        return tuple(each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD)

    def returned(self, case: Case) -> tuple[str | None, ...]:
        """The names of what the function returns; None where there is no gradient."""
        if self.forward is None:
            return returned_names(self.solution)
        pairs = zip(self.inputs, case.inputs, strict=True)
        return tuple(f"d_{name}" if has_gradient(value) else None for name, value in pairs)

    def all_cases(self) -> list[Case]:
        """The calls to check with, the same every time."""
        return list(self.cases(np.random.default_rng(0)))


def has_gradient(value: Any) -> bool:
    """Whether an input is a float or an array of floats."""
    return isinstance(value, float | np.ndarray) and np.asarray(value).dtype.kind == "f"


def returned_names(function: Function) -> tuple[str | None, ...]:
    """The names in the `return` of a function that returns a tuple of variables."""
    last = inspect.getsource(function).rstrip().splitlines()[-1]
    return tuple(name.strip() for name in last.strip().removeprefix("return ").split(","))


def normal(random: np.random.Generator, *shape: int, fan_in: int = 1) -> Array:
    """N(0, 1/fan_in) of a shape: with these weights no term of a gradient is too small to be seen."""
    return random.normal(0, fan_in**-0.5, shape)


def paragraphs(text: str) -> tuple[str, ...]:
    """Return the paragraphs of a text, each as one line."""
    return tuple(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
