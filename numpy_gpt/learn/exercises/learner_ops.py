"""A model's operations from a folder of exercises: the learner's where solved, the book's elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy_gpt.arrays import Array, deliver
from numpy_gpt.learn.exercises.commands import command
from numpy_gpt.learn.exercises.course import COURSE
from numpy_gpt.learn.exercises.exercise import Exercise, Function
from numpy_gpt.learn.exercises.learner_file import LearnerFile, read_source
from numpy_gpt.learn.exercises.trial import examine_apart
from numpy_gpt.ops import Op, Ops, book
from numpy_gpt.ops.linear_cross_entropy import LinearCrossEntropySaved

Out = tuple[Array | None, ...] | None

NOT_CALLED = {"softmax": "but a model calls it within attention only, where the book's is imported"}
"""Operations that are in the table and that no model calls: what is solved there is not trained with."""

FINGERPRINT = "ops_fingerprint"
OP_EXERCISES = tuple(exercise for exercise in COURSE if exercise.op)


@dataclass(frozen=True)
class LearnerOps:
    """What a folder gives a model to compute with.

    Attributes:
        table: the learner's operations, and the book's for the rest.
        solved: names of the exercises that were found solved.
        left_out: by the name of the exercise, why a file that is there was not used.
        fingerprint: of the files used; equal fingerprints compute alike.
    """

    table: Ops
    solved: tuple[str, ...]
    left_out: dict[str, str]
    fingerprint: str

    @property
    def metadata(self) -> dict[str, object]:
        """What a checkpoint says of the files."""
        return {FINGERPRINT: self.fingerprint}

    def require_same(self, metadata: Mapping[str, Any]) -> None:
        """Raise ValueError unless a checkpoint was trained with the same files."""
        if metadata.get(FINGERPRINT) != self.fingerprint:
            raise ValueError(
                "the functions in the ops folder are not those of the run: a resumed run keeps them"
            )

    def __str__(self) -> str:
        """What to tell before training, in a few lines."""
        called = [name for name in Ops._fields if name not in NOT_CALLED]
        theirs = [name for name in called if getattr(self.table, name) is getattr(book, name)]
        mine = [name for name in called if name not in theirs]
        yours, books = ", ".join(mine) or "nothing yet", ", ".join(theirs) or "nothing"
        lines = [f"computed by you: {yours}; by the book: {books}"]
        lines += [f"{name}: solved; {why}" for name, why in NOT_CALLED.items() if name in self.solved]
        lines += [f"{name}: {reason}; the book's is used" for name, reason in self.left_out.items()]
        return "\n".join(lines)


def load_learner_ops(folder: Path) -> LearnerOps:
    """Check every file of a folder that an operation can be taken from, and use those that are solved.

    Raises:
        FileNotFoundError: when there is no such folder.
        ValueError: when no exercise lies in it.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"ops must be fast, book or a folder of exercises: there is no folder {folder}"
        )
    replaced: dict[str, Op] = {}
    solved, left_out = [], {}
    fingerprint = hashlib.sha256()
    for exercise in OP_EXERCISES:
        path = folder / f"{exercise.name}.py"
        if not path.exists():
            continue
        try:
            source = read_source(path)
        except (OSError, ValueError) as error:
            left_out[exercise.name] = str(error)
            continue
        outcome = examine_apart(exercise, source, str(path))
        if outcome.verdict != "solved":
            wrong = f"{outcome.wrong} is wrong" if outcome.wrong else outcome.verdict
            left_out[exercise.name] = f"not solved ({wrong})"
            continue
        assert exercise.op is not None
        replaced[exercise.op] = _op_of(exercise, source, path)
        solved.append(exercise.name)
        fingerprint.update(exercise.name.encode() + b"\0" + source + b"\0")
    if not solved and not left_out:
        raise ValueError(
            f"{folder} holds no exercise that a model computes with: {command('start', 'linear', folder)}"
        )
    table = book._replace(**replaced)
    if replaced.keys() & {"linear", "cross_entropy"}:
        table = table._replace(linear_cross_entropy=_one_after_the_other(table.linear, table.cross_entropy))
    return LearnerOps(table, tuple(solved), left_out, fingerprint.hexdigest())


def _op_of(exercise: Exercise, source: bytes, path: Path) -> Op:
    """Return a solved file's pair of functions, its backward with the `out=` that a model hands in."""
    functions = LearnerFile(exercise, source, str(path)).run()
    assert exercise.forward is not None
    backward = functions[exercise.solution.__name__]
    return Op(functions[exercise.forward.__name__], _delivering(backward))


def _delivering(backward: Function) -> Function:
    def delivering_backward(d_out: Any, saved: Any, *, out: Out = None) -> tuple[Any, ...]:
        gradients = tuple(backward(d_out, saved))
        places = out or (None,) * len(gradients)
        pairs = zip(gradients, places, strict=True)
        return tuple(each if each is None else deliver(each, place) for each, place in pairs)

    return delivering_backward


def _one_after_the_other(linear: Op, cross_entropy: Op) -> Op:
    """Return the vocabulary projection with its loss, as the book makes it, of two operations."""

    def forward(x: Array, weight: Array, targets: Any, *, divisor: float | None = None) -> tuple[float, Any]:
        logits, linear_saved = linear.forward(x, weight, None)  # (B, T, V)
        loss, saved = cross_entropy.forward(logits, targets, divisor=divisor)
        return loss, LinearCrossEntropySaved(linear_saved, saved)

    def backward(d_loss: float, saved: LinearCrossEntropySaved, *, out: Out = None) -> tuple[Any, ...]:
        d_x, d_weight, _ = out or (None, None, None)
        d_logits, _ = cross_entropy.backward(d_loss, saved.cross_entropy)  # (B, T, V)
        d_x, d_weight, _ = linear.backward(d_logits, saved.linear, out=(d_x, d_weight, None))
        return d_x, d_weight, None

    return Op(forward, backward)
