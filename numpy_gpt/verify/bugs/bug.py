"""What the catalogue says about each bug."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from numpy_gpt.arrays import Array
from numpy_gpt.ops import Ops
from numpy_gpt.verify.bugs.subject import Subject
from numpy_gpt.verify.kinds import Kind

Out: TypeAlias = tuple[Array | None, ...] | None
"""The type of a backward's `out=`."""


@dataclass(frozen=True)
class Bug:
    """A classic mistake, planted where people make it.

    Attributes:
        name: short and unique, in kebab-case.
        where: the operation's name, or "model", "optimizer", "data", ...: the file it lives in.
        title: the mistake in a few words.
        line: the wrong line as it stands in the variant's source; for something forgotten, the line where
            it should be.
        lesson: for a learner: what is wrong, why it is tempting, what is right.
        in_practice: what somebody sees who has this bug: how the loss of a small training run behaves, on a
            text in which every token leaves ln 2 nats open, and what else looks right or wrong.
        fools: names of the weak checks that this bug passes; see `numpy_gpt.verify.kill_matrix.weak`, where
            the small training run is too.
        subject: everything right but for this bug.
        kind: what a diagnosis of the wrong gradient should say; None where gradients are right, or wrong in a
            way that has no name.
    """

    name: str
    where: str
    title: str
    line: str
    lesson: str
    in_practice: str
    fools: tuple[str, ...]
    subject: Subject = field(repr=False)
    kind: Kind | None = None

    @property
    def op(self) -> str | None:
        """The operation that is wrong; None for a bug outside the table of operations."""
        return self.where if self.where in Ops._fields else None
