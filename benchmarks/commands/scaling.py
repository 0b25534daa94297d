"""`scaling`: how the ratio changes as one size grows and the others stay."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from benchmarks.cases import CASES, Case
from benchmarks.opponents import MAIN_OPPONENT, OURS
from benchmarks.options import MeasureOptions, check_among
from benchmarks.results import Comparison, Skipped
from benchmarks.runner import Runner, Side

SIZES = {
    "T": (16, 64, 256, 1024),
    "B": (1, 4, 12, 32),
    "V": (256, 4096, 50257),
    "L": (1, 4, 16),
}
"""The values of each axis; those of threads are the powers of two below what the run has, and that."""

QUICK_AXES = ("T",)
QUICK_VALUES = 2


@dataclass(frozen=True, kw_only=True)
class ScalingOptions(MeasureOptions):
    """Race training steps against torch-eager while T, B, V, L or the number of threads grows.

    Args:
        axes: what grows: T, B, V, L, threads. All of them, or a few T with --quick, unless given.
        case: what stays the same: nano, small, gpt2 or gpt2-long.
        phase: step, or forward-backward to leave clipping and optimizer out.
    """

    axes: tuple[str, ...] = ()
    case: str = "nano"
    phase: Literal["step", "forward-backward"] = "step"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_among("axes", self.axes, (*SIZES, "threads"))
        check_among("case", (self.case,), CASES)

    def compare(self, runner: Runner) -> Iterator[Comparison | Skipped]:
        """Yield every comparison as soon as it is made."""
        base = CASES[self.case]
        for axis in self.axes or (QUICK_AXES if self.quick else (*SIZES, "threads")):
            values = thread_counts(runner.threads) if axis == "threads" else SIZES[axis]
            for value in values[:QUICK_VALUES] if self.quick else values:
                case = base if axis == "threads" else with_size(base, axis, value)
                threads = value if axis == "threads" else runner.threads
                yield from runner.race(
                    case,
                    Side(OURS, threads),
                    Side(MAIN_OPPONENT, threads),
                    phase=self.phase,
                    subject=f"{base.name}, {axis} {value}",
                )


def with_size(case: Case, axis: str, value: int) -> Case:
    """Return the case with another T, B, V or L; a longer T gets a model that has the positions."""
    config = case.config
    if axis == "B":
        return dataclasses.replace(case, batch_size=value)
    if axis == "T":
        longest = max(value, config.max_sequence_length)
        config = dataclasses.replace(config, max_sequence_length=longest)
        return dataclasses.replace(case, config=config, num_tokens=value)
    if axis == "V":
        return dataclasses.replace(case, config=dataclasses.replace(config, vocabulary_size=value))
    return dataclasses.replace(case, config=dataclasses.replace(config, num_layers=value))


def thread_counts(most: int) -> tuple[int, ...]:
    """Return 1, 2, 4 and so on below `most`, and `most`."""
    return (*(2**i for i in range(most.bit_length()) if 2**i < most), most)
