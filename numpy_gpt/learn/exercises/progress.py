"""What a learner has solved, remembered beside the files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy_gpt.whole_files import write_whole

FILE_NAME = "progress.json"
MOST_BYTES = 100_000


@dataclass
class Progress:
    """The solved exercises, and how many hints of each have been given.

    Attributes:
        folder: where the learner's files lie.
        solved: names of exercises.
        hints: by the name of the exercise.
        complaint: why an existing record could not be read, in one line.
    """

    folder: Path
    solved: set[str] = field(default_factory=set)
    hints: dict[str, int] = field(default_factory=dict)
    complaint: str | None = None

    @classmethod
    def load(cls, folder: Path, names: list[str]) -> Progress:
        """Return what is remembered of the named exercises; of a record that cannot be read, nothing."""
        path = folder / FILE_NAME
        progress = cls(folder)
        if not path.exists():
            return progress
        try:
            record = _read(path)
            progress.solved = {name for name in record["solved"] if name in names}
            progress.hints = {
                name: number
                for name, number in record["hints"].items()
                if name in names and type(number) is int and number >= 0
            }
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            progress = cls(folder)
            progress.complaint = (
                f"{path} cannot be read, and nothing counts as solved: check your files again"
            )
        return progress

    def save(self) -> None:
        """Write the record, in place of an earlier one.

        Raises:
            OSError: when the folder cannot be written.
        """
        text = json.dumps({"solved": sorted(self.solved), "hints": self.hints}, indent=2)
        write_whole(self.folder / FILE_NAME, [f"{text}\n".encode()])


def _read(path: Path) -> Any:
    if not path.is_file():
        raise ValueError("not a file")
    with path.open("rb") as file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise ValueError("too long")
    return json.loads(text)
