"""`decode`: the time of each new token, numpy_gpt against Hugging Face's cached `generate`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.cases import Case
from benchmarks.opponents import OURS, missing
from benchmarks.options import MeasureOptions
from benchmarks.results import Comparison, Skipped
from benchmarks.runner import Runner, Side
from numpy_gpt import GPTConfig
from numpy_gpt.config import PresetName

THEIRS = "hugging-face"


@dataclass(frozen=True, kw_only=True)
class DecodeOptions(MeasureOptions):
    """Race generation at batch 1: a prompt, then one token after the other, greedily, with a cache.

    The time of a token is that of the whole, prompt included, over the number of new tokens.

    Args:
        preset: the model's; gpt2, or small with --quick, unless given.
        prompt_tokens: the length of the prompt.
        new_tokens: how many follow.
    """

    preset: PresetName | None = None
    prompt_tokens: int = 8
    new_tokens: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("prompt_tokens", "new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        longest = self.case.config.max_sequence_length
        if self.prompt_tokens + self.new_tokens > longest:
            raise ValueError(
                f"prompt and new tokens must fit {longest} positions, not {self.prompt_tokens} + "
                f"{self.new_tokens}"
            )

    @property
    def case(self) -> Case:
        """The model, with the prompt as its batch."""
        preset = self.preset or ("small" if self.quick else "gpt2")
        return Case(preset, GPTConfig.preset(preset), batch_size=1, num_tokens=self.prompt_tokens)

    def compare(self, runner: Runner) -> Iterator[Comparison | Skipped]:
        """Yield the one comparison."""
        obstacle = missing("torch") or missing("transformers")
        yield from runner.attempt(self.case.name, THEIRS, obstacle, lambda: [self.race(runner)])

    def race(self, runner: Runner) -> Comparison:
        """Return how both generate, both checked.

        Raises:
            OpponentError, ArithmeticError, WorkerError: as `Runner.check` and `Runner.run`.
        """
        case, ours, theirs = self.case, Side(OURS, runner.threads), Side(THEIRS, runner.threads)
        # The opponent first: when Hugging Face is broken, that is nothing to blame numpy_gpt for.
        their_error, our_error = (
            runner.check(case, side, "check_decode", new_tokens=self.new_tokens) for side in (theirs, ours)
        )
        samples, load = runner.measure(
            case.name,
            ours,
            theirs,
            "decode",
            seconds=runner.plan.seconds,
            case=case.to_json(),
            new_tokens=self.new_tokens,
        )
        return Comparison(
            subject=f"{case.name}: one token",
            first=ours.name,
            second=theirs.name,
            threads=(ours.threads, theirs.threads),
            samples=samples,
            load=load,
            tokens=1,
            errors=(our_error, their_error),
        )
