"""What the page says, as plain data: the template turns it into HTML and adds nothing of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numpy_gpt.learn.explorer.lessons import Lesson, Piece


@dataclass(frozen=True)
class Tensor:
    """An array to look at.

    Attributes:
        name: as the code calls it.
        shape: letters and sizes, `(B, T, C) = (2, 6, 8)`.
        array: its id among the page's arrays.
        remark: what it is, or why it is kept; may be empty.
        mark: the id of an array of places to outline, one in each row; "" for none.
    """

    name: str
    shape: str
    array: str
    remark: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Comparison:
    """A second opinion on a gradient.

    Attributes:
        source: whose it is, "finite differences" or "torch".
        array: its id.
        error: the largest difference, relative to the gradient's largest number.
    """

    source: str
    array: str
    error: float


@dataclass(frozen=True)
class Gradient:
    """A gradient, and what others make of it.

    Attributes:
        tensor: the gradient itself.
        belongs_to: the parameters that it is for; "" for an activation.
        comparisons: second opinions; empty for what is neither measured nor in torch's sight.
        is_zero: whether all of it is zero but for rounding.
    """

    tensor: Tensor
    belongs_to: str
    comparisons: tuple[Comparison, ...]
    is_zero: bool


@dataclass(frozen=True)
class CodeLine:
    """A line of source.

    Attributes:
        number: in its file.
        html: highlighted.
        indent: how many blanks it begins with.
        values: what this statement computed.
        links: the links that this line is part of, as words.
    """

    number: int
    html: str
    indent: int
    values: tuple[Tensor, ...]
    links: str


@dataclass(frozen=True)
class Code:
    """A function's source."""

    name: str
    path: str
    lines: tuple[CodeLine, ...]


@dataclass(frozen=True)
class Part:
    """An operation with its lesson and its two passes; a step has one, and those that it is made of.

    Attributes:
        title: the operation's name.
        lesson: its docstring.
        codes: forward and backward, or for the update its two functions.
    """

    title: str
    lesson: Lesson
    codes: tuple[Code, ...]


@dataclass(frozen=True)
class Nudge:
    """One number moved through a range, and what the loss did.

    Attributes:
        label: which number.
        value: where it stands.
        gradient: what backward says of it.
        values, losses: the range, and the loss at each of its points.
    """

    label: str
    value: float
    gradient: float
    values: tuple[float, ...]
    losses: tuple[float, ...]


@dataclass(frozen=True)
class Note:
    """Where gradients add, or vanish, and why, with the numbers.

    Attributes:
        kind: "adds", "vanishes" or "look".
        title: the fact in a few words.
        text: the reason.
        tensors: arrays that show it.
    """

    kind: str
    title: str
    text: tuple[Piece, ...]
    tensors: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Check:
    """A property that right code has and a mistake's does not.

    Attributes:
        name, claim: the property's.
        evidence: what it found.
    """

    name: str
    claim: str
    evidence: str


@dataclass(frozen=True)
class MistakeView:
    """A classic mistake.

    Attributes:
        title, line, lesson, in_practice: the catalogue's words.
        verdict: what it does to these numbers, in one line.
        right, wrong: the array that it changes most, before and after; None where shapes differ or no number
            changes.
        check: the property that finds it, with its evidence.
        fooled: the claims of weaker checks that it passes.
    """

    title: str
    line: str
    lesson: tuple[Piece, ...]
    in_practice: tuple[Piece, ...]
    verdict: str
    right: Tensor | None
    wrong: Tensor | None
    check: Check
    fooled: tuple[str, ...]


@dataclass(frozen=True)
class StepView:
    """One step of the page.

    Attributes:
        key: its anchor; those of its backward pass and its title end in "-backward" and "-title".
        title, summary, in_branch: as in `steps`.
        number: its place in the order of the forward pass.
        op: the operation's name; "add" for a residual addition, "adamw" for the update.
        out_shape, back_shape: what the map says leaves it, forward and backward.
        parts: its lessons and source.
        notes, mistakes: what there is to say about it.
        inputs, outputs, saved: of the forward pass.
        arrives, leaves: of the backward pass.
        nudges: one for each of its inputs that has a gradient.
    """

    key: str
    title: str
    summary: str
    in_branch: bool
    number: int
    op: str
    out_shape: str
    back_shape: str
    parts: tuple[Part, ...]
    notes: tuple[Note, ...]
    mistakes: tuple[MistakeView, ...]
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    saved: tuple[Tensor, ...] = ()
    arrives: tuple[Gradient, ...] = ()
    leaves: tuple[Gradient, ...] = ()
    nudges: tuple[Nudge, ...] = ()


@dataclass(frozen=True)
class BatchView:
    """The batch as tokens, and what the model makes of it.

    Attributes:
        unit: "word" or "character".
        rows: for each sequence, (token, id, next token, its id, its probability) at each position.
        is_whole: whether the rows hold all of the text.
        probabilities: of every token at every position, with the one that came marked.
    """

    unit: str
    rows: tuple[tuple[tuple[str, int, str, int, float], ...], ...]
    is_whole: bool
    probabilities: Tensor


@dataclass(frozen=True)
class Page:
    """All of it.

    Attributes:
        sizes: each shape letter with its meaning and size.
        num_parameters, steps_before, loss, loss_after: of the model and the step shown.
        even_guess: the loss of a model that knows nothing.
        has_torch: whether torch's gradients are beside ours.
        worst: the largest error of each kind of comparison.
        batch: what goes in.
        steps: in the order of the forward pass.
        arrays, labels: for the script.
    """

    sizes: tuple[tuple[str, str, int], ...]
    num_parameters: int
    steps_before: int
    loss: float
    loss_after: float
    even_guess: float
    has_torch: bool
    worst: dict[str, float]
    batch: BatchView
    steps: tuple[StepView, ...]
    arrays: dict[str, Any] = field(repr=False)
    labels: dict[str, Any] = field(repr=False)
