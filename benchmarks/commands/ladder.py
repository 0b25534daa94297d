"""`ladder`: from the book to the kernels, one operation after the other, then threads; what each gains."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from benchmarks.cases import CASES
from benchmarks.opponents import OURS
from benchmarks.opponents.ours import table
from benchmarks.options import MeasureOptions, check_among
from benchmarks.results import Comparison, Skipped
from benchmarks.runner import Runner, Side
from numpy_gpt.ops import Ops, book

ORDER = ("linear", "attention", "gelu", "layer_norm", "linear_cross_entropy", "embedding")
"""All that a model calls; first what takes most of the time."""


@dataclass(frozen=True, kw_only=True)
class LadderOptions(MeasureOptions):
    """Race each step from the book to the kernels against the one before; on one thread up to the last.

    Args:
        cases: what to train: nano, small, gpt2, gpt2-long. small, or nano with --quick, unless given.
        phase: step, or forward-backward to leave clipping and optimizer out.
    """

    cases: tuple[str, ...] = ()
    phase: Literal["step", "forward-backward"] = "step"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_among("cases", self.cases, CASES)

    def compare(self, runner: Runner) -> Iterator[Comparison | Skipped]:
        """Yield every rung against the one below it."""
        rungs = climb(table("fast"), runner.threads)
        for name in self.cases or (("nano",) if self.quick else ("small",)):
            case = CASES[name]
            for (_, below), (label, above) in itertools.pairwise(rungs):
                yield runner.compare_steps(
                    case,
                    above,
                    below,
                    phase=self.phase,
                    subject=f"{name}: {label}",
                    products=False,
                )


def climb(fast: Ops, threads: int) -> list[tuple[str, Side]]:
    """Return every rung with what is new on it; the first is the book.

    A model that has all of the kernels does more than compute with them: where its matrices are tied it looks
    tokens up in a compact table of those in use, and on several threads it takes shards of the batch. So the
    rung that completes the table is not the last operation's alone.

    Args:
        fast: the kernels; an operation that is the book's own makes no rung.
        threads: of the last rung, which there is when they are more than one.
    """
    rungs = [("the book", Side("numpy:book", 1))]
    taken: list[str] = []
    for operation in ORDER:
        if getattr(fast, operation) != getattr(book, operation):
            taken.append(operation)
            mixed = book._replace(**{name: getattr(fast, name) for name in taken})
            label = f"+ {operation} and compact lookup" if mixed == fast else f"+ {operation}"
            rungs.append((label, Side(f"numpy:{'+'.join(taken)}", 1)))
    if threads > 1:
        rungs.append((f"+ {threads} threads and shards", Side(OURS, threads)))
    return rungs
