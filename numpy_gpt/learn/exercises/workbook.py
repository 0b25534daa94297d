"""A folder of exercises: what is in it, and the four things to do with it. All of them return text."""

from __future__ import annotations

import os
import textwrap
from dataclasses import dataclass
from pathlib import Path

from numpy_gpt.learn.exercises.commands import command
from numpy_gpt.learn.exercises.course import COURSE, find, position
from numpy_gpt.learn.exercises.examination import COLUMN, Outcome
from numpy_gpt.learn.exercises.exercise import Exercise
from numpy_gpt.learn.exercises.handout import handout
from numpy_gpt.learn.exercises.learner_file import read_source
from numpy_gpt.learn.exercises.progress import Progress
from numpy_gpt.learn.exercises.trial import examine_apart
from numpy_gpt.text.printable import printable
from numpy_gpt.whole_files import write_whole

MOST_PRINTED_LINES = 10
WIDTH = 100
HEADLINES = {
    "solved": "solved",
    "wrong": "not right yet",
    "unfinished": "right so far",
    "unwritten": "not begun",
    "broken": "it does not run yet",
}


@dataclass(frozen=True)
class Answer:
    """What to print.

    Args:
        lines: the text.
        solved: whether a check found the exercise solved; None where nothing was checked.
    """

    lines: tuple[str, ...]
    solved: bool | None = None


class Workbook:
    """A learner's folder.

    One exercise is open at a time: the first that is not solved. It is what `start`, `check` and `hint` mean
    when no name is given. Whoever names another may have it all the same: the order is advice.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.progress = Progress.load(folder, [exercise.name for exercise in COURSE])

    @property
    def open_exercise(self) -> Exercise | None:
        """The first exercise that is not solved."""
        return next((e for e in COURSE if e.name not in self.progress.solved), None)

    def path(self, exercise: Exercise) -> Path:
        """Where an exercise's file lies, or would."""
        return self.folder / f"{exercise.name}.py"

    def overview(self) -> Answer:
        """List the exercises in their order, with what is solved, begun and next."""
        lines = []
        width = max(len(exercise.name) for exercise in COURSE)
        for number, exercise in enumerate(COURSE, start=1):
            lines.append(
                f"{number:>3}  {exercise.name:<{width}}  {self._state(exercise):<7}  {exercise.title}"
            )
        lines += ["", f"{len(self.progress.solved)} of {len(COURSE)} solved, in {self.folder}"]
        if self.progress.complaint:
            lines.append(self.progress.complaint)
        return Answer((*lines, *self._next_line()))

    def _state(self, exercise: Exercise) -> str:
        if exercise.name in self.progress.solved:
            return "solved"
        if self.path(exercise).exists():
            return "begun"
        return "next" if exercise is self.open_exercise else ""

    def _next_line(self) -> list[str]:
        exercise = self.open_exercise
        if exercise is None:
            return [f"All are solved. Train with what you wrote: numpy-gpt train --ops {self.folder}"]
        action = "check" if self.path(exercise).exists() else "start"
        return [self._command(action, exercise)]

    def _command(self, action: str, exercise: Exercise) -> str:
        """Return what to type, here, for an exercise of this folder."""
        return command(action, exercise.name, self.folder)

    def start(self, name: str | None) -> Answer:
        """Write an exercise's file; without a name, say how to go on with the open one if it is begun.

        Raises:
            FileExistsError: when the named one is there already; a learner's file is never overwritten.
            OSError: when it cannot be written.
        """
        exercise = self._named(name)
        path = self.path(exercise)
        if name is None and path.exists():
            return Answer(
                (
                    f"{path} is begun and not solved yet. Go on with it, or start another by its name:",
                    self._command("check", exercise),
                )
            )
        if os.path.lexists(path):
            raise FileExistsError(
                f"{path} is there already, and nothing of yours is overwritten; to begin anew, move it away"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, [handout(exercise, position(exercise)).encode()])
        return Answer(
            (
                f"{path}: {exercise.title}",
                "Open it, read it, write, and ask as often as you like:",
                self._command("check", exercise),
            )
        )

    def check(self, name: str | None) -> Answer:
        """Say how far a file is right, and remember it if it is solved.

        Raises:
            OSError, ValueError: when there is no such file, or none that can be read.
        """
        exercise = self._named(name)
        path = self.path(exercise)
        outcome = examine_apart(exercise, read_source(path), str(path))
        solved = outcome.verdict == "solved"
        answer = (wrapped(f"  {line}", indent=COLUMN + 2) for line in outcome.lines)
        lines = [f"{exercise.name}: {HEADLINES[outcome.verdict]}", *answer]
        if solved:
            if exercise.name not in self.progress.solved:
                self.progress.solved.add(exercise.name)
                self.progress.save()
            lines += self._reward(exercise)
        elif outcome.verdict in ("wrong", "broken"):
            lines.append(f"Stuck? {self._command('hint', exercise)}")
        return Answer((*lines, *_printed(outcome)), solved)

    def _reward(self, exercise: Exercise) -> list[str]:
        lines = [f"{len(self.progress.solved)} of {len(COURSE)} solved."]
        if exercise.op:
            lines.append(f"A model can train with it: numpy-gpt train --ops {self.folder}")
        return lines + [line if line.startswith("All") else f"Next: {line}" for line in self._next_line()]

    def hint(self, name: str | None) -> Answer:
        """Give the next of an exercise's three hints, after those given before.

        Raises:
            OSError: when it cannot be remembered how many were given.
        """
        exercise = self._named(name)
        given = min(self.progress.hints.get(exercise.name, 0) + 1, len(exercise.hints))
        lines = [
            wrapped(f"hint {number} of {len(exercise.hints)}: {hint}", indent=2)
            for number, hint in enumerate(exercise.hints[:given], start=1)
        ]
        if self.folder.is_dir():
            self.progress.hints[exercise.name] = given
            self.progress.save()
        if given < len(exercise.hints):
            lines.append(f"Not enough? Ask again: {self._command('hint', exercise)}")
        else:
            lines.append("That was the last one.")
        return Answer(tuple(lines))

    def _named(self, name: str | None) -> Exercise:
        if name is not None:
            return find(name)
        exercise = self.open_exercise
        if exercise is None:
            raise ValueError("all exercises are solved; name the one you mean")
        return exercise


def wrapped(line: str, *, indent: int) -> str:
    """Return a line in as many as it needs, those after the first indented."""
    return textwrap.fill(
        line, WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def _printed(outcome: Outcome) -> list[str]:
    """Return what the learner's code printed, without what would move the cursor about."""
    lines = [printable(line) for line in outcome.printed.splitlines()]
    if not lines:
        return []
    more = ["    ..."] if len(lines) > MOST_PRINTED_LINES else []
    return ["it printed:", *(f"    {line}" for line in lines[:MOST_PRINTED_LINES]), *more]
