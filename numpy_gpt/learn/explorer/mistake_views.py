"""The classic mistakes of a step, in words and numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.learn.explorer.arrays import ArrayStore
from numpy_gpt.learn.explorer.experiment import Experiment
from numpy_gpt.learn.explorer.lessons import inline
from numpy_gpt.learn.explorer.mistakes import (
    Effect,
    Mistake,
    bugs_of,
    plant_in_clipping,
    plant_in_model,
    plant_in_op,
    plant_in_optimizer,
)
from numpy_gpt.learn.explorer.steps import Step
from numpy_gpt.learn.explorer.views import MistakeView

EFFECTS_NAMED = 3
PLANTERS = {"optimizer": plant_in_optimizer, "clipping": plant_in_clipping, "model": plant_in_model}
"""How to plant what is no operation's bug, by where it is."""


def mistakes_of(step: Step, experiment: Experiment, store: ArrayStore) -> Iterator[MistakeView]:
    """Yield the mistakes of a step's operation, of those it is made of, and what else belongs to it."""
    for mistake in _planted(step, experiment):
        right = wrong = None
        if mistake.effects and mistake.effects[0].right.shape == mistake.effects[0].wrong.shape:
            worst = mistake.effects[0]
            right = store.tensor(f"{worst.name}, right", worst.right)
            wrong = store.tensor(f"{worst.name}, with the mistake", _rounded(worst.wrong))
        yield MistakeView(
            title=mistake.bug.title,
            line=mistake.bug.line,
            lesson=tuple(inline(mistake.bug.lesson)),
            in_practice=tuple(inline(mistake.bug.in_practice)),
            verdict=_verdict(mistake),
            right=right,
            wrong=wrong,
            check=mistake.check,
            fooled=mistake.fooled,
        )


def _planted(step: Step, experiment: Experiment) -> Iterator[Mistake]:
    if step.place is not None:
        call = experiment.calls[step.place]
        assert call.backward is not None
        for bug in bugs_of(call.op):
            yield plant_in_op(bug, call.forward, call.backward)
        for name in step.inner:
            runs = call.forward.within(f"{name}_forward"), call.backward.within(f"{name}_backward")
            for bug in bugs_of(name) if name != "linear" else ():  # which has steps of its own
                yield plant_in_op(bug, *runs)
    for bug in bugs_of(*step.bugs):
        yield PLANTERS[bug.where](bug, experiment)


def _verdict(mistake: Mistake) -> str:
    """Say in one line what a mistake does to the step's numbers."""
    sentences = []
    if mistake.effects:
        situation = mistake.effects[0].situation
        sentences.append("; ".join(_effect(effect) for effect in mistake.effects[:EFFECTS_NAMED]))
        if situation:
            sentences[0] = f"An ordinary step is right, but {situation}: {sentences[0]}"
    if mistake.raises:
        sentences.append(f"The step ends in {mistake.raises}")
    if not sentences:
        return "No number of this step changes: it takes another case to see it."
    return ". ".join(sentences) + "."


def _effect(effect: Effect) -> str:
    if effect.right.shape != effect.wrong.shape:
        return f"{effect.name} has shape {effect.wrong.shape} instead of {effect.right.shape}"
    if not math.isfinite(effect.error):
        return f"{effect.name} is not finite"
    if effect.error >= 2:
        return f"{effect.name} is off by {effect.error:.0f} times its largest number"
    if effect.error >= 0.001:
        return f"{effect.name} is off by {round(100 * effect.error, 1):g} % of its largest number"
    return f"{effect.name} is off by only {effect.error:.0e} of its largest number"


def _rounded(array: Array) -> Array:
    """Return six digits of each number: a wrong one is looked at, not computed with."""
    return np.array([float(f"{number:.6g}") for number in array.ravel()]).reshape(array.shape)
