"""The folder of a run: checkpoints, metrics, and a picture of the losses."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from numpy_gpt.training.checkpoint import save_checkpoint
from numpy_gpt.training.trainer import StepReport, Trainer

COLUMNS = (
    "step",
    "tokens",
    "learning_rate",
    "train_loss",
    "gradient_norm",
    "validation_loss",
    "validation_bits_per_byte",
    "tokens_per_second",
)


class RunFolder:
    """Writes what a run leaves behind, as it happens.

    Args:
        path: a folder that does not exist yet or is empty; None means runs/<date-time>.

    Attributes:
        last, best: the checkpoints of the latest step and of the lowest validation loss.
        metrics: a CSV file with one line per step; validation columns are empty where there was none.
        picture: the losses over the steps, made when matplotlib is installed.

    Raises:
        FileExistsError: when the folder holds something already.
        OSError: when it cannot be made.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path or Path("runs") / datetime.now().astimezone().strftime("%Y-%m-%d-%H%M%S")
        self.path.mkdir(parents=True, exist_ok=True)
        if any(self.path.iterdir()):
            raise FileExistsError(
                f"{self.path} is not empty, and a run never overwrites another; choose another --out"
            )
        self.last = self.path / "last.safetensors"
        self.best = self.path / "best.safetensors"
        self.metrics = self.path / "metrics.csv"
        self.picture = self.path / "loss.png"
        self._reports: list[StepReport] = []
        self._best_loss = float("inf")
        self._write_lines([COLUMNS])

    def record(self, report: StepReport, trainer: Trainer) -> None:
        """Keep one step's numbers, and after a validation, the checkpoints."""
        self._reports.append(report)
        validation = report.validation
        loss, bits = (validation.loss, validation.bits_per_byte) if validation else ("", "")
        self._write_lines(
            [
                (
                    report.step,
                    report.tokens,
                    report.learning_rate,
                    report.train_loss,
                    report.gradient_norm,
                    loss,
                    bits,
                    round(report.tokens_per_second),
                )
            ]
        )
        if validation is None:
            return
        self.save(self.last, trainer)
        if validation.loss < self._best_loss:
            self._best_loss = validation.loss
            self.save(self.best, trainer)

    def save(self, path: Path, trainer: Trainer) -> None:
        """Write a checkpoint of the trainer as it stands."""
        config = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in asdict(trainer.config).items()
        }
        save_checkpoint(
            path,
            trainer.model,
            optimizer=trainer.optimizer,
            tokenizer=trainer.data.tokenizer,
            step=trainer.step,
            metadata={"train_config": config, "text_fingerprint": trainer.data.fingerprint},
        )

    def draw(self) -> bool:
        """Draw the losses so far; return False where matplotlib is missing or there is nothing to draw."""
        if not self._reports or importlib.util.find_spec("matplotlib") is None:
            return False
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
        axes = figure.subplots()
        axes.plot(
            [r.step for r in self._reports], [r.train_loss for r in self._reports], lw=0.6, color="#9aa5b1"
        )
        smooth = running_mean([r.train_loss for r in self._reports])
        axes.plot([r.step for r in self._reports], smooth, color="#0072b2", label="training, running mean")
        checked = [(r.step, r.validation.loss) for r in self._reports if r.validation]
        if checked:
            axes.plot(*zip(*checked, strict=True), "o-", color="#d55e00", label="validation")
        axes.set(xlabel="step", ylabel="loss (nats per token)")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        figure.savefig(self.picture)
        return True

    def _write_lines(self, lines: Iterable[Iterable[object]]) -> None:
        with self.metrics.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(lines)


def running_mean(values: list[float], weight: float = 0.05) -> list[float]:
    """Return the exponential running mean, each new value counting for `weight` of it."""
    means: list[float] = []
    for value in values:
        means.append(value if not means else means[-1] + weight * (value - means[-1]))
    return means
