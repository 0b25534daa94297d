"""The folder of a run: checkpoints, metrics, and a picture of the losses."""

from __future__ import annotations

import csv
import importlib.util
import io
import math
from datetime import datetime
from pathlib import Path

from numpy_gpt.training.checkpoint import Checkpoint, read_description, save_checkpoint
from numpy_gpt.training.trainer import StepReport, Trainer
from numpy_gpt.whole_files import write_whole

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
BEST_SO_FAR = "best_validation_loss"
THREADS = "threads"
"""Under these names a checkpoint's metadata say the lowest loss so far, and how many threads computed."""


class RunFolder:
    """Writes what a run leaves behind, as it happens; made by `create` or `reopen`.

    Attributes:
        last, best: the checkpoints of the latest step and of the lowest validation loss.
        metrics: a CSV file with one line per step; validation columns are empty where there was none.
        picture: the losses over the steps, made when matplotlib is installed.
        metadata: what its checkpoints say beside what they always say, as JSON values.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last = path / "last.safetensors"
        self.best = path / "best.safetensors"
        self.metrics = path / "metrics.csv"
        self.picture = path / "loss.png"
        self.metadata: dict[str, object] = {}
        self._best_loss = math.inf
        self._rows: list[dict[str, str]] = []

    @classmethod
    def create(cls, path: Path | None) -> RunFolder:
        """Return a new folder; None means runs/<date-time>.

        Raises:
            FileExistsError: when the folder holds something already.
            OSError: when it cannot be made.
        """
        folder = cls(path or Path("runs") / datetime.now().astimezone().strftime("%Y-%m-%d-%H%M%S"))
        folder.path.mkdir(parents=True, exist_ok=True)
        if any(folder.path.iterdir()):
            raise FileExistsError(
                f"{folder.path} is not empty, and a run never overwrites another; choose another --out"
            )
        folder._rewrite_metrics()
        return folder

    @classmethod
    def reopen(cls, checkpoint_path: Path, checkpoint: Checkpoint) -> RunFolder:
        """Return the folder that a checkpoint lies in, its metrics as they were at the checkpoint's step.

        Raises:
            FileExistsError: when the folder's last checkpoint is further along, and would be lost.
            OSError: when the folder cannot be written.
        """
        folder = cls(checkpoint_path.parent)
        last_step = read_description(folder.last).step if folder.last.exists() else 0
        if last_step > checkpoint.step:
            raise FileExistsError(
                f"{folder.last} is at step {last_step}, further along than step {checkpoint.step} of "
                f"{checkpoint_path.name}; to branch off, choose another --out"
            )
        folder._best_loss = float(checkpoint.metadata.get(BEST_SO_FAR) or math.inf)
        if folder.metrics.exists():
            with folder.metrics.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            # A run that was killed has written lines past its last checkpoint, the last one perhaps in part.
            folder._rows = [row for row in rows if _is_whole(row) and int(row["step"]) <= checkpoint.step]
        folder._rewrite_metrics()
        return folder

    def record(self, report: StepReport, trainer: Trainer) -> None:
        """Keep one step's numbers, and after a validation, the checkpoints."""
        validation = report.validation
        row = {
            "step": report.step,
            "tokens": report.tokens,
            "learning_rate": report.learning_rate,
            "train_loss": report.train_loss,
            "gradient_norm": report.gradient_norm,
            "validation_loss": validation.loss if validation else "",
            "validation_bits_per_byte": validation.bits_per_byte if validation else "",
            "tokens_per_second": round(report.tokens_per_second),
        }
        self._rows.append({name: str(value) for name, value in row.items()})
        with self.metrics.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, COLUMNS).writerow(row)
        if validation is None:
            return
        is_best = validation.loss < self._best_loss
        self._best_loss = min(self._best_loss, validation.loss)
        self.save(self.last, trainer)
        if is_best:
            self.save(self.best, trainer)

    def save(self, path: Path, trainer: Trainer) -> None:
        """Write a checkpoint of the trainer as it stands."""
        save_checkpoint(
            path,
            trainer.model,
            optimizer=trainer.optimizer,
            tokenizer=trainer.data.tokenizer,
            step=trainer.step,
            metadata={
                "train_config": trainer.config.to_json(),
                THREADS: trainer.model.threads,
                "text_fingerprint": trainer.data.text_fingerprint,
                "tokenizer_fingerprint": trainer.data.tokenizer_fingerprint,
                **self.metadata,
                BEST_SO_FAR: None if math.isinf(self._best_loss) else self._best_loss,
            },
        )

    def draw(self) -> bool:
        """Draw the losses so far; return False where matplotlib is missing or there is nothing to draw."""
        if not self._rows or importlib.util.find_spec("matplotlib") is None:
            return False
        from matplotlib.figure import Figure

        steps = [int(row["step"]) for row in self._rows]
        losses = [float(row["train_loss"]) for row in self._rows]
        checked = [
            (int(row["step"]), float(row["validation_loss"])) for row in self._rows if row["validation_loss"]
        ]
        figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
        axes = figure.subplots()
        axes.plot(steps, losses, linewidth=0.6, color="#9aa5b1")
        axes.plot(steps, running_mean(losses), color="#0072b2", label="training, running mean")
        if checked:
            axes.plot(*zip(*checked, strict=True), "o-", color="#d55e00", label="validation")
        axes.set(xlabel="step", ylabel="loss (nats per token)")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        picture = io.BytesIO()
        figure.savefig(picture, format="png")
        write_whole(self.picture, [picture.getbuffer()])
        return True

    def _rewrite_metrics(self) -> None:
        table = io.StringIO(newline="")
        writer = csv.DictWriter(table, COLUMNS)
        writer.writeheader()
        writer.writerows(self._rows)
        write_whole(self.metrics, [table.getvalue().encode()])


def running_mean(values: list[float], weight: float = 0.05) -> list[float]:
    """Return the exponential running mean, each new value counting for `weight` of it."""
    means: list[float] = []
    for value in values:
        means.append(value if not means else means[-1] + weight * (value - means[-1]))
    return means


def _is_whole(row: dict[str, str]) -> bool:
    return set(row) == set(COLUMNS) and None not in row.values()
