"""`op`: every operation of the table, the kernels against the book and against torch."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.cases import CASES, Case
from benchmarks.opponents import OURS
from benchmarks.options import MeasureOptions, check_among
from benchmarks.results import SECONDS, Comparison, Skipped
from benchmarks.runner import Runner, Side

BOOK, TORCH = "numpy:book", "torch"


@dataclass(frozen=True, kw_only=True)
class OpOptions(MeasureOptions):
    """Race single operations, forward and backward; on one thread, as in a shard, unless threads are given.

    Args:
        cases: whose shapes: nano, small, gpt2, gpt2-long. All of them, or nano with --quick, unless given.
    """

    cases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_among("cases", self.cases, CASES)

    @property
    def chosen_threads(self) -> int:
        """How many threads every contestant gets."""
        return self.threads or 1

    def compare(self, runner: Runner) -> Iterator[Comparison | Skipped]:
        """Yield every comparison as soon as it is made."""
        ours = Side(OURS, runner.threads)
        for name in self.cases or (("nano",) if self.quick else tuple(CASES)):
            for other in (BOOK, TORCH):
                theirs = Side(other, runner.threads)
                race = functools.partial(race_operations, runner, CASES[name], ours, theirs)
                yield from runner.attempt(name, other, None, race)


def race_operations(runner: Runner, case: Case, ours: Side, theirs: Side) -> Iterator[Comparison]:
    """Yield how two contestants compare on every operation, forward and backward, both checked.

    torch's own functions are the truth of that check. They are fused, where the check of whole models spells
    attention out.

    Raises:
        OpponentError, ArithmeticError, WorkerError: as `Runner.check` and `Runner.run`.
    """
    errors = [0.0 if side.name == TORCH else runner.check(case, side, "check_ops") for side in (ours, theirs)]
    samples, load = runner.measure(
        case.name, ours, theirs, "ops", case=case.to_json(), seconds=runner.plan.seconds
    )
    for operation, series in samples.items():
        yield Comparison(
            subject=f"{case.name}: {operation}",
            first=ours.name,
            second=theirs.name,
            threads=(ours.threads, theirs.threads),
            samples={SECONDS: series},
            load=load,
            errors=(errors[0], errors[1]),
        )
