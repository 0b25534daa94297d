"""`op`: every operation of the table, the kernels against the book and against torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.cases import CASES
from benchmarks.checking import require_right
from benchmarks.opponents import OURS
from benchmarks.options import MeasureOptions, check_among
from benchmarks.processes import run_job
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
            case = CASES[name].to_json()
            runner.tell(f"{name}: checking operations against torch")
            errors = run_job("check_ops", threads=runner.threads, case=case, names=[OURS, BOOK])
            require_right(CASES[name], [OURS, BOOK], errors)
            worst = {OURS: errors[0][1], BOOK: errors[1][1], TORCH: 0.0}
            for other in (BOOK, TORCH):
                samples, load = runner.measure(
                    name, ours, Side(other, runner.threads), "ops", case=case, seconds=runner.plan.seconds
                )
                for operation, series in samples.items():
                    yield Comparison(
                        subject=f"{name}: {operation}",
                        first=OURS,
                        second=other,
                        threads=(runner.threads, runner.threads),
                        samples={SECONDS: series},
                        load=load,
                        errors=(worst[OURS], worst[other]),
                    )
