"""A property of right code, and how it is tried on code that may be wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from numpy_gpt.verify.bugs.subject import RIGHT, Subject

Faults: TypeAlias = Callable[[Subject, int], Iterator[str]]
"""Draws random cases from the seed, tries the subject on them, and yields a line of evidence per fault."""


@dataclass(frozen=True)
class Property:
    """Something that right code has for every input.

    Attributes:
        name: short and unique.
        claim: the property in one sentence.
        looks_at: the fields of the subject that it tries; it is shown no other.
        faults: what finds violations.
    """

    name: str
    claim: str
    looks_at: tuple[str, ...]
    faults: Faults

    def view(self, subject: Subject) -> Subject:
        """Return what this property gets to see: the fields it looks at, and the right ones for the rest."""
        return RIGHT._replace(**{field: getattr(subject, field) for field in self.looks_at})

    def check(self, subject: Subject, seed: int) -> str | None:
        """Return None if the property holds for the seed's cases, or else evidence of the first fault.

        Code that raises on valid input has a fault; floating-point warnings are left to the numbers.
        """
        try:
            with np.errstate(all="ignore"):
                return next(self.faults(self.view(subject), seed), None)
        except Exception as error:
            return f"raises {type(error).__name__}: {' '.join(str(error).split())}"


def looks_at(*fields: str) -> Callable[[Faults], Property]:
    """Turn a generator of faults into the property of its name, with its docstring as the claim."""

    def decorate(faults: Faults) -> Property:
        claim = " ".join((faults.__doc__ or "").split("\n\n")[0].split())
        return Property(faults.__name__, claim, fields, faults)

    return decorate
