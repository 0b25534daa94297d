"""`step`: a whole training step, numpy_gpt against every opponent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from benchmarks.cases import CASES
from benchmarks.opponents import MAIN_OPPONENT, OPPONENTS, OURS
from benchmarks.options import MeasureOptions, check_among
from benchmarks.results import Comparison, Skipped
from benchmarks.runner import Runner, Side

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
        check_among("cases", self.cases, CASES)
        check_among("opponents", self.opponents, OPPONENTS)

    def compare(self, runner: Runner) -> Iterator[Comparison | Skipped]:
        """Yield every comparison as soon as it is made."""
        cases = self.cases or (QUICK_CASES if self.quick else tuple(CASES))
        opponents = self.opponents or ((MAIN_OPPONENT,) if self.quick else tuple(OPPONENTS))
        ours = Side(OURS, runner.threads)
        for case in cases:
            for opponent in opponents:
                theirs = Side(opponent, runner.threads)
                yield from runner.race(CASES[case], ours, theirs, phase=self.phase)
