"""The kill matrix: every bug planted in turn, every property tried on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from numpy_gpt.verify.bugs import CATALOGUE, RIGHT, Bug, Subject
from numpy_gpt.verify.kill_matrix.properties import PROPERTIES
from numpy_gpt.verify.kill_matrix.property import Property

KILLED, SURVIVED, OUT_OF_SIGHT = "x", ".", " "


@dataclass(frozen=True)
class Cell:
    """What one property makes of one bug.

    Attributes:
        evidence: of the fault that the property found; None where it found none.
        in_sight: whether the property looks at the part that the bug is in. Where it does not, the code it is
            shown is the right code to the last function, and there is nothing to run.
    """

    evidence: str | None
    in_sight: bool = True

    @property
    def killed(self) -> bool:
        """Whether the property found the bug."""
        return self.evidence is not None

    def __str__(self) -> str:
        if not self.in_sight:
            return OUT_OF_SIGHT
        return KILLED if self.killed else SURVIVED


@dataclass(frozen=True)
class KillMatrix:
    """Which property kills which bug.

    Attributes:
        bugs: the rows.
        properties: the columns.
        cells: one row per bug, aligned with `properties`.
        on_right_code: what each property says of the right code, aligned with `properties`.
    """

    bugs: tuple[Bug, ...]
    properties: tuple[Property, ...]
    cells: tuple[tuple[Cell, ...], ...]
    on_right_code: tuple[Cell, ...]

    @property
    def survivors(self) -> tuple[Bug, ...]:
        """The bugs that no property kills."""
        return tuple(
            bug
            for bug, row in zip(self.bugs, self.cells, strict=True)
            if not any(cell.killed for cell in row)
        )

    @property
    def idle_properties(self) -> tuple[Property, ...]:
        """The properties that kill no bug."""
        columns = zip(*self.cells, strict=True)
        return tuple(
            tried
            for tried, column in zip(self.properties, columns, strict=True)
            if not any(cell.killed for cell in column)
        )

    @property
    def every_bug_killed(self) -> bool:
        """Whether each bug is found by at least one property."""
        return not self.survivors

    @property
    def every_property_kills(self) -> bool:
        """Whether each property finds at least one bug."""
        return not self.idle_properties

    @property
    def right_code_survives(self) -> bool:
        """Whether no property finds a fault in the right code."""
        return not any(cell.killed for cell in self.on_right_code)

    @property
    def passed(self) -> bool:
        """Whether the properties tell right from wrong: all three of the above."""
        return self.every_bug_killed and self.every_property_kills and self.right_code_survives

    def killers(self, bug: Bug) -> dict[str, str]:
        """Return the evidence of each property that kills a bug, by the property's name."""
        row = self.cells[self.bugs.index(bug)]
        return {
            tried.name: cell.evidence
            for tried, cell in zip(self.properties, row, strict=True)
            if cell.evidence is not None
        }

    def __str__(self) -> str:
        width = max(len(bug.name) for bug in self.bugs)
        numbers = [f"{i:>2}" for i in range(1, len(self.properties) + 1)]
        lines = [" ".join(["bug".ljust(width), *numbers])]
        for bug, row in zip(self.bugs, self.cells, strict=True):
            lines.append(" ".join([bug.name.ljust(width), *(f"{cell!s:>2}" for cell in row)]).rstrip())
        lines.append(" ".join(["right code".ljust(width), *(f"{cell!s:>2}" for cell in self.on_right_code)]))
        lines.append("")
        lines += [
            f"{n} {tried.name}: {tried.claim}" for n, tried in zip(numbers, self.properties, strict=True)
        ]
        lines.append(f"{KILLED} killed, {SURVIVED} survived, blank: looks at other parts")
        lines += [f"SURVIVES: {bug.name}" for bug in self.survivors]
        lines += [f"KILLS NOTHING: {tried.name}" for tried in self.idle_properties]
        lines += [
            f"FAILS ON RIGHT CODE: {tried.name}: {cell.evidence}"
            for tried, cell in zip(self.properties, self.on_right_code, strict=True)
            if cell.killed
        ]
        return "\n".join(lines)


def kill_matrix(
    seeds: Iterable[int] = range(3),
    *,
    bugs: Sequence[Bug] = CATALOGUE,
    properties: Sequence[Property] = PROPERTIES,
) -> KillMatrix:
    """Plant each bug in turn and try every property on it, with the cases of each seed until one kills.

    Args:
        seeds: of the random cases.
        bugs: what to plant.
        properties: what to try.
    """
    seeds = tuple(seeds)

    def cell(tried: Property, subject: Subject) -> Cell:
        evidence = (tried.check(subject, seed) for seed in seeds)
        return Cell(next((line for line in evidence if line is not None), None))

    def row(bug: Bug) -> tuple[Cell, ...]:
        return tuple(
            Cell(None, in_sight=False) if tried.view(bug.subject) == RIGHT else cell(tried, bug.subject)
            for tried in properties
        )

    return KillMatrix(
        tuple(bugs),
        tuple(properties),
        tuple(row(bug) for bug in bugs),
        tuple(cell(tried, RIGHT) for tried in properties),
    )
