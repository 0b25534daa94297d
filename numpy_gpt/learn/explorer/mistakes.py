"""The catalogue's mistakes, planted in the very step that the page shows: what changes, and what sees it."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.learn.explorer.experiment import CLIP_NORM, Experiment
from numpy_gpt.learn.explorer.views import Check
from numpy_gpt.learn.explorer.watching import Execution, copied
from numpy_gpt.ops import Op, book
from numpy_gpt.parameters import Parameters
from numpy_gpt.verify.bugs import CATALOGUE, RIGHT, Bug
from numpy_gpt.verify.kill_matrix import PROPERTIES, weak
from numpy_gpt.verify.measure import CANCELLED_SHARE, largest, relative_error

NOTICED = 1e-9
"""A difference above this is no rounding in float64."""

WRITTEN_TO = "its caller's array is written to"
GARBAGE = 7.0
"""What stands in an `out=` that is to be overwritten."""


@dataclass(frozen=True)
class Effect:
    """What a mistake does to one array of the step.

    Attributes:
        name: the array's.
        situation: "" for an ordinary call, or what is special about the one in which it shows.
        error: how far off it is, relative to its largest number; infinite for another shape.
        right, wrong: the numbers.
    """

    name: str
    situation: str
    error: float
    right: Array
    wrong: Array


@dataclass(frozen=True)
class Mistake:
    """One bug of the catalogue and what it does here.

    Attributes:
        bug: what the catalogue says of it.
        effects: on this step's arrays, largest first; none where it takes another case.
        raises: the error that the step ends in, if it does.
        check: a property that finds it.
        fooled: the claims of weaker checks that it passes.
    """

    bug: Bug
    effects: tuple[Effect, ...]
    raises: str
    check: Check
    fooled: tuple[str, ...]


def bugs_of(*places: str) -> list[Bug]:
    """Return the bugs of the given operations, files, or of the given names."""
    return [bug for place in places for bug in CATALOGUE if place in (bug.where, bug.name)]


def plant_in_op(bug: Bug, forward: Execution, backward: Execution) -> Mistake:
    """Run the bug's operation on what one call of the right one was given.

    Args:
        bug: of an operation.
        forward, backward: how the right operation ran.
    """
    assert bug.op is not None
    op: Op = getattr(bug.subject.ops, bug.op)
    parameters = inspect.signature(getattr(book, bug.op).forward).parameters.values()
    options = {p.name: forward.arguments[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY}
    names = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    right = {"out": forward.returned[0]}
    right |= {f"d_{n}": g for n, g in zip(names, backward.returned, strict=True) if g is not None}

    def effects() -> Iterator[Effect]:
        arrays = tuple(copied(forward.arguments[name]) for name in names)
        d_out = copied(next(iter(backward.arguments.values())))
        out, saved = op.forward(*arrays, **options)
        first = op.backward(d_out, saved)
        yield from _compare({"out": out}, right)
        yield from _compare(_named(names, first), right)
        for name, array in zip(names, arrays, strict=True):
            yield from _compare({name: array}, forward.arguments, WRITTEN_TO)
        arrived = {"d_out": next(iter(backward.arguments.values()))}
        yield from _compare({"d_out": d_out}, arrived, WRITTEN_TO)
        again = op.backward(copied(arrived["d_out"]), saved)
        yield from _compare(_named(names, again), right, "in a second backward with the same saved")
        places = tuple(None if g is None else np.full_like(g, GARBAGE) for g in backward.returned)
        op.backward(copied(arrived["d_out"]), saved, out=places)
        yield from _compare(_named(names, places), right, "written into an out= that held something")

    return _mistake(bug, effects)


def plant_in_model(bug: Bug, experiment: Experiment) -> Mistake:
    """Compute the step's loss and gradients with the bug's model."""
    floor = CANCELLED_SHARE * largest(experiment.gradients)

    def effects() -> Iterator[Effect]:
        model = bug.subject.build(copy.deepcopy(experiment.model.parameters))
        loss, gradients = model.loss_and_gradients(*experiment.ids)
        yield from _compare({"loss": np.array(loss)}, {"loss": np.array(experiment.loss)})
        yield from _compare(_of_parameters(gradients), _of_parameters(experiment.gradients), floor=floor)
        _, again = model.loss_and_gradients(*experiment.ids, out=gradients)
        situation = "in a second step that writes into the same gradients"
        yield from _compare(_of_parameters(again), _of_parameters(experiment.gradients), situation, floor)

    return _mistake(bug, effects)


def plant_in_clipping(bug: Bug, experiment: Experiment) -> Mistake:
    """Clip the step's gradients with the bug's function."""

    def effects() -> Iterator[Effect]:
        clipped = copy.deepcopy(experiment.gradients)
        bug.subject.clip_gradients(clipped, CLIP_NORM)
        yield from _compare(_of_parameters(clipped), _of_parameters(experiment.clipped))

    return _mistake(bug, effects)


def plant_in_optimizer(bug: Bug, experiment: Experiment) -> Mistake:
    """Make the step with the bug's optimizer."""

    def effects() -> Iterator[Effect]:
        before, gradients = copy.deepcopy(experiment.optimizer_before), copy.deepcopy(experiment.clipped)
        optimizer = bug.subject.optimizer(
            before.parameters,
            learning_rate=before.learning_rate,
            betas=before.betas,
            eps=before.eps,
            weight_decay=before.weight_decay,
        )
        optimizer.load_state_dict(before.state_dict())
        optimizer.step(gradients)
        right = experiment.optimizer_after.parameters
        here = experiment.model.parameters

        def moves(after: Parameters) -> dict[str, Array]:
            return {f"step of {name}": value - here[name] for name, value in after.named_parameters()}

        largest_move = float(np.abs(right.flat - here.flat).max())
        yield from _compare(moves(before.parameters), moves(right), floor=CANCELLED_SHARE * largest_move)
        yield from _compare(_of_parameters(gradients), _of_parameters(experiment.clipped), WRITTEN_TO)

    return _mistake(bug, effects)


def _mistake(bug: Bug, effects: Callable[[], Iterator[Effect]]) -> Mistake:
    """Run what yields effects, which code with a bug in it may end with any error."""
    found: list[Effect] = []
    raises = ""
    try:
        with np.errstate(all="ignore"):
            for effect in effects():
                found.append(effect)
    except Exception as error:
        raises = f"{type(error).__name__}: {' '.join(str(error).split())}"
    ordinary = [effect for effect in found if not effect.situation]
    ranked = sorted(ordinary or found, key=lambda effect: -effect.error)
    return Mistake(bug, tuple(ranked), raises, check_that_sees(bug), claims_of_weak_checks(bug))


def _compare(
    found: dict[str, Any], right: dict[str, Any], situation: str = "", floor: float = 0.0
) -> Iterator[Effect]:
    for name, value in found.items():
        wrong, truth = np.asarray(value), np.asarray(right[name])
        error = relative_error(wrong, truth, floor)
        if error > NOTICED:
            yield Effect(name, situation, error, truth.copy(), wrong.copy())


def _named(names: list[str], gradients: tuple[Any, ...]) -> dict[str, Array]:
    pairs = zip(names, gradients, strict=True)
    return {f"d_{name}": gradient for name, gradient in pairs if gradient is not None}


def _of_parameters(gradients: Parameters) -> dict[str, Array]:
    return {f"d_{name}": gradient for name, gradient in gradients.named_parameters()}


@functools.cache
def check_that_sees(bug: Bug) -> Check:
    """Return the first property of the kill matrix that finds the bug."""
    for tried in PROPERTIES:
        if tried.view(bug.subject) != RIGHT:
            evidence = tried.check(bug.subject, seed=0)
            if evidence is not None:
                return Check(tried.name.replace("_", " "), tried.claim, evidence)
    raise AssertionError(f"no property finds {bug.name}: the kill matrix would say so")


def claims_of_weak_checks(bug: Bug) -> tuple[str, ...]:
    """Return what the weak checks claim that the bug passes."""
    return tuple(getattr(weak, name).claim for name in bug.fools)
