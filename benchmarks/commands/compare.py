"""`compare`: two result files side by side, and what else differs between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.report import ratio_text
from benchmarks.results import SECONDS, Comparison, Results
from benchmarks.statistics import Ratio, ratio_of_medians


@dataclass(frozen=True)
class CompareOptions:
    """Compare two result files: of two machines, two versions, two settings.

    Args:
        first: the file whose times are divided.
        second: the file by whose times they are divided.
    """

    first: Annotated[Path, tyro.conf.Positional]
    second: Annotated[Path, tyro.conf.Positional]

    def run(self, console: Console) -> None:
        """Print what differs, and the ratios of everything that both files measured.

        Raises:
            OSError, ValueError: when a file cannot be read, or they have nothing in common.
        """
        first, second = Results.load(self.first), Results.load(self.second)
        for line in differences(first, second):
            console.print(f"differs: {line}")
        table = Table(title="ratios of times, with 95% intervals", title_justify="left", box=SIMPLE_HEAD)
        for heading in ("", "A", "B", "A / B, first file", "A / B, second file", "A, first / second", "B"):
            table.add_column(heading)
        found = list(matches(first, second))
        if not found:
            raise ValueError(f"{self.first} and {self.second} have measured nothing in common")
        for one, other in found:
            table.add_row(
                one.subject,
                one.first,
                one.second,
                ratio_text(one.ratios["as installed"]),
                ratio_text(other.ratios["as installed"]),
                *(ratio_text(change(one, other, side)) for side in (0, 1)),
            )
        console.print(table)


def matches(first: Results, second: Results) -> Iterator[tuple[Comparison, Comparison]]:
    """Yield the comparisons of equal subject and contestants."""
    others = {(c.subject, c.first, c.second): c for c in second.comparisons}
    for one in first.comparisons:
        if other := others.get((one.subject, one.first, one.second)):
            yield one, other


def change(one: Comparison, other: Comparison, side: int) -> Ratio | None:
    """Return one side's time in the first file over that in the second; their samples are no pairs."""
    return ratio_of_medians(one.samples[SECONDS][side], other.samples[SECONDS][side], paired=False)


def differences(first: Results, second: Results) -> Iterator[str]:
    """Yield each setting, and each fact about the machine, in which two runs differ."""
    yield from _differing("command", first.command, second.command)
    yield from _differing("settings", first.settings, second.settings)
    for name in sorted({*first.machine, *second.machine} - {"peak", "date"}):
        yield from _differing(name, first.machine.get(name), second.machine.get(name))


def _differing(name: str, one: Any, other: Any) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            yield from _differing(f"{name} {key}", one.get(key), other.get(key))
    elif one != other:
        yield f"{name}: {_short(one)} | {_short(other)}"


def _short(value: Any) -> str:
    """Return a value on one line; of torch's long description of its build only that there is one."""
    text = str(value)
    return text if "\n" not in text else f"{len(text.splitlines())} lines"
