"""What every measuring subcommand can be told."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import usable_processors
from benchmarks.results import Comparison, Skipped
from benchmarks.runner import FULL, QUICK, Plan, Runner
from numpy_gpt.parallel import default_threads


def check_among(option: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise ValueError, naming the option and the first value that is not known, unless all are."""
    if unknown := [value for value in given if value not in known]:
        raise ValueError(f"{option} must be among {', '.join(known)}, not {unknown[0]!r}")


PICTURES = (".png", ".svg", ".pdf")


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """Options of all measuring subcommands.

    Args:
        quick: ten pairs instead of twenty and less of everything, in about two minutes.
        threads: for every library alike; without it, as many as there are cores to use.
        out: the JSON file to write; must not exist yet.
        plot: a picture of the ratios to write, as .png, .svg or .pdf; must not exist yet.
    """

    quick: bool = False
    threads: int | None = None
    out: Path | None = None
    plot: Path | None = None

    def __post_init__(self) -> None:
        most = len(usable_processors())
        if self.threads is not None and not 1 <= self.threads <= most:
            raise ValueError(f"threads must lie in 1..{most}, the processors here, not {self.threads}")
        if self.plot is not None and self.plot.suffix not in PICTURES:
            raise ValueError(f"plot must end in {', '.join(PICTURES)}, not {self.plot.name!r}")
        if self.out and self.plot and self.out.resolve() == self.plot.resolve():
            raise ValueError(f"out and plot must be two files, not both {str(self.out)!r}")

    @property
    def plan(self) -> Plan:
        """How much to measure."""
        return QUICK if self.quick else FULL

    @property
    def chosen_threads(self) -> int:
        """How many threads every contestant gets."""
        return self.threads or default_threads()

    def compare(self, runner: Runner) -> Iterator[Comparison | Skipped]:
        """Yield every comparison as soon as it is made."""
        raise NotImplementedError
