"""One run of `python -m benchmarks`: how much to measure, who tells the user, and where results go."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.cases import Case
from benchmarks.checking import require_right
from benchmarks.flops import training_flops
from benchmarks.machine import describe_machine
from benchmarks.opponents import OURS, contestant, missing
from benchmarks.pairing import measure_pairs
from benchmarks.processes import WorkerError, run_job
from benchmarks.results import Comparison, Skipped


@dataclass(frozen=True)
class Plan:
    """How much to measure.

    Args:
        pairs: how many of each comparison.
        seconds: how long each process times, at least; never fewer than five steps.
        peak_seconds: likewise for each size of the machine's peak.
    """

    pairs: int
    seconds: float
    peak_seconds: float


FULL = Plan(pairs=20, seconds=2.0, peak_seconds=2.0)
QUICK = Plan(pairs=10, seconds=0.3, peak_seconds=0.2)


@dataclass(frozen=True)
class Side:
    """A contestant with its threads."""

    name: str
    threads: int

    @property
    def is_ours(self) -> bool:
        """Whether it is numpy_gpt, with whatever table."""
        return self.name.partition(":")[0] == OURS


class OpponentError(Exception):
    """An opponent failed or computed wrongly, for the reason given; the run goes on without it."""


@dataclass(frozen=True)
class Runner:
    """What every subcommand works with.

    Args:
        plan: how much to measure.
        threads: for every contestant alike, unless the comparison is about threads.
        tell: shows a line of progress.
        checked: the errors of all that was checked so far, for it is checked once.
    """

    plan: Plan
    threads: int
    tell: Callable[[str], None] = lambda _: None
    checked: dict[tuple[str, Case, Side], float] = field(default_factory=dict)

    def run(self, side: Side, task: str, **arguments: Any) -> Any:
        """Return what a task finds for one contestant, on its own threads in a fresh process.

        Raises:
            OpponentError: when it is an opponent that fails.
            WorkerError: when it is numpy_gpt.
        """
        try:
            return run_job(task, threads=side.threads, name=side.name, **arguments)
        except WorkerError as error:
            kind = WorkerError if side.is_ours else OpponentError
            raise kind(f"{side.name}: {error}") from None

    def check(self, case: Case, side: Side, task: str = "check", **arguments: Any) -> float:
        """Return a contestant's worst error against torch, on the threads that it is timed with.

        Args:
            case: what it computes.
            side: who.
            task: the one that checks.
            arguments: for it, beside the case.

        Raises:
            OpponentError: when it is an opponent that is wrong or fails.
            ArithmeticError, WorkerError: when it is numpy_gpt.
        """
        key = (task, case, side)
        if key not in self.checked:
            self.tell(f"{case.name}: checking {side.name} against torch")
            found = self.run(side, task, case=case.to_json(), **arguments)
            try:
                require_right(case, side.name, **found)
            except ArithmeticError as error:
                if side.is_ours:
                    raise
                raise OpponentError(str(error)) from None
            _, self.checked[key] = found["worst"]
        return self.checked[key]

    def attempt(
        self, subject: str, opponent: str, obstacle: str | None, compare: Callable[[], Iterable[Comparison]]
    ) -> Iterator[Comparison | Skipped]:
        """Yield what a comparison finds; or, in place of what is missing, why the opponent gave nothing.

        What numpy_gpt does wrong is no opponent's fault, and ends the run.

        Args:
            subject: what they do.
            opponent: the name of the one that may be skipped.
            obstacle: why it cannot even start, if so.
            compare: measures.
        """
        if obstacle is not None:
            yield Skipped(subject, opponent, obstacle)
            return
        try:
            yield from compare()
        except OpponentError as error:
            yield Skipped(subject, opponent, str(error))

    def measure(
        self, subject: str, first: Side, second: Side, task: str, **arguments: Any
    ) -> tuple[dict[str, Any], float]:
        """Return samples and load of a task, as `measure_pairs` does."""
        what = f"{subject}: {first.name} against {second.name}"
        self.tell(what)

        def process(side: Side) -> Callable[[], Any]:
            return lambda: self.run(side, task, **arguments)

        return measure_pairs(
            process(first),
            process(second),
            self.plan.pairs,
            on_pair=lambda done: self.tell(f"{what}, pair {done} of {self.plan.pairs}"),
        )

    def race(
        self, case: Case, first: Side, second: Side, *, phase: str, subject: str | None = None
    ) -> Iterator[Comparison | Skipped]:
        """Yield how numpy_gpt and an opponent train a case; or why the opponent did not.

        Args:
            case, first, second, phase, subject: as for `compare_steps`.

        Raises:
            ArithmeticError, WorkerError: when numpy_gpt is wrong or fails.
        """
        yield from self.attempt(
            subject or case.name,
            second.name,
            contestant(second.name).obstacle(case),
            lambda: [self.compare_steps(case, first, second, phase=phase, subject=subject)],
        )

    def compare_steps(
        self,
        case: Case,
        first: Side,
        second: Side,
        *,
        phase: str,
        subject: str | None = None,
        products: bool = True,
    ) -> Comparison:
        """Return how two contestants train a case, both checked.

        Args:
            case: what they train.
            first, second: A and B.
            phase: "step" or "forward-backward".
            subject: what to call it; the case's name unless given.
            products: whether to time the matrix products alone too.

        Raises:
            OpponentError, ArithmeticError, WorkerError: as `check` and `run`.
        """
        subject = subject or case.name
        # The opponent first: when torch itself is broken, that is nothing to blame numpy_gpt for.
        their_error, our_error = self.check(case, second), self.check(case, first)
        samples, load = self.measure(
            subject,
            first,
            second,
            "step",
            case=case.to_json(),
            phase=phase,
            seconds=self.plan.seconds,
            products=products,
        )
        return Comparison(
            subject=subject,
            first=first.name,
            second=second.name,
            threads=(first.threads, second.threads),
            samples=samples,
            load=load,
            tokens=case.tokens_per_step,
            flops=training_flops(case),
            errors=(our_error, their_error),
        )

    def describe(self) -> dict[str, Any]:
        """Return the machine, with each library's BLAS and the best of its matrix products."""
        self.tell("the machine: BLAS and peak of its matrix products")
        machine = describe_machine()
        machine["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
        machine["threads"] = self.threads
        libraries = [library for library in ("numpy", "torch") if not missing(library)]
        machine["blas"] = {name: run_job(f"describe_{name}", threads=self.threads) for name in libraries}
        machine["peak"] = {
            name: run_job("peak", threads=self.threads, library=name, seconds=self.plan.peak_seconds)[
                "flops_per_second"
            ]
            for name in libraries
        }
        return machine
