"""`step`: a whole training step, numpy_gpt against every opponent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from benchmarks.cases import CASES, Case
from benchmarks.opponents import MAIN_OPPONENT, OPPONENTS, contestant
from benchmarks.options import MeasureOptions
from benchmarks.processes import WorkerError
from benchmarks.results import Comparison, Skipped
from benchmarks.session import Session, Side

OURS = "numpy"

QUICK_CASES = ("nano",)


@dataclass(frozen=True, kw_only=True)
class StepOptions(MeasureOptions):
    """Race whole training steps: forward, backward, clipping, AdamW.

    Args:
        cases: what to train: nano, small, gpt2, gpt2-long. All of them, or nano with --quick, unless given.
        opponents: torch-eager, torch-shards, torch-compile, jax. All that can run here, or torch-eager with
            --quick, unless given.
        phase: step, or forward-backward to leave clipping and optimizer out.
    """

    cases: tuple[str, ...] = ()
    opponents: tuple[str, ...] = ()
    phase: Literal["step", "forward-backward"] = "step"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, given, known in (("cases", self.cases, CASES), ("opponents", self.opponents, OPPONENTS)):
            if unknown := [value for value in given if value not in known]:
                raise ValueError(f"{name} must be among {', '.join(known)}, not {unknown[0]!r}")

    def compare(self, session: Session) -> Iterator[Comparison | Skipped]:
        """Yield every comparison as soon as it is made."""
        cases = self.cases or (QUICK_CASES if self.quick else tuple(CASES))
        opponents = self.opponents or ((MAIN_OPPONENT,) if self.quick else tuple(OPPONENTS))
        for name in cases:
            yield from race(CASES[name], opponents, session, phase=self.phase)


def race(
    case: Case, opponents: tuple[str, ...], session: Session, *, phase: str
) -> Iterator[Comparison | Skipped]:
    """Yield numpy_gpt against each opponent on one case; those that cannot run it with the reason."""
    ours = session.check(case, [OURS])
    for name in opponents:
        if reason := contestant(name).obstacle(case):
            yield Skipped(case.name, name, reason)
            continue
        try:
            errors = ours | session.check(case, [name])
            yield session.compare_steps(
                case, Side(OURS, session.threads), Side(name, session.threads), phase=phase, errors=errors
            )
        except WorkerError as error:
            yield Skipped(case.name, name, str(error))
