"""One run of `python -m benchmarks`: how much to measure, who tells the user, and where results go."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cases import Case
from benchmarks.checking import require_right
from benchmarks.flops import training_flops
from benchmarks.machine import describe_machine
from benchmarks.opponents import contestant, missing
from benchmarks.pairing import measure_pairs
from benchmarks.processes import WorkerError, run_job
from benchmarks.results import Comparison, Skipped


@dataclass(frozen=True)
class Plan:
    """How much to measure.

    Args:
        pairs: how many of each comparison.
        seconds: how long each process times, at least; never fewer than two steps.
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


@dataclass(frozen=True)
class Runner:
    """What every subcommand works with.

    Args:
        plan: how much to measure.
        threads: for every contestant alike, unless the comparison is about threads.
        tell: shows a line of progress.
    """

    plan: Plan
    threads: int
    tell: Callable[[str], None] = lambda _: None

    def check(self, case: Case, names: Sequence[str]) -> dict[str, float]:
        """Return every contestant's worst error against torch.

        Raises:
            ArithmeticError: when one is wrong.
            WorkerError: when one fails.
        """
        self.tell(f"{case.name}: checking {', '.join(names)} against torch")
        found = run_job("check", threads=self.threads, case=case.to_json(), names=list(names))
        require_right(case, names, **found)
        return {name: error for name, (_, error) in zip(names, found["worst"], strict=True)}

    def measure(
        self, subject: str, first: Side, second: Side, task: str, **arguments: Any
    ) -> tuple[dict[str, Any], float]:
        """Return samples and load of a task, as `measure_pairs` does."""
        what = f"{subject}: {first.name} against {second.name}"
        self.tell(what)

        def process(side: Side) -> Callable[[], Any]:
            return lambda: run_job(task, threads=side.threads, name=side.name, **arguments)

        return measure_pairs(
            process(first),
            process(second),
            self.plan.pairs,
            on_pair=lambda done: self.tell(f"{what}, pair {done} of {self.plan.pairs}"),
        )

    def race(
        self, case: Case, first: Side, second: Side, *, phase: str, subject: str | None = None
    ) -> Comparison | Skipped:
        """Return how numpy_gpt and an opponent train a case, both checked; or why the opponent did not.

        Args:
            case, first, second, phase, subject: as for `compare_steps`.

        Raises:
            ArithmeticError: when a result is wrong.
        """
        reason = contestant(second.name).obstacle(case)
        if reason is None:
            try:
                errors = self.check(case, [first.name, second.name])
                return self.compare_steps(case, first, second, phase=phase, errors=errors, subject=subject)
            except WorkerError as error:
                reason = str(error)
        return Skipped(subject or case.name, second.name, reason)

    def compare_steps(
        self,
        case: Case,
        first: Side,
        second: Side,
        *,
        phase: str,
        errors: dict[str, float],
        subject: str | None = None,
        products: bool = True,
    ) -> Comparison:
        """Return how two contestants train a case.

        Args:
            case: what they train.
            first, second: A and B, both checked.
            phase: "step" or "forward-backward".
            errors: from `check`.
            subject: what to call it; the case's name unless given.
            products: whether to time the matrix products alone too.
        """
        subject = subject or case.name
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
            errors=(errors[first.name], errors[second.name]),
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
