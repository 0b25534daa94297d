"""One number moved through a range, and the loss at each place: what a gradient is the slope of."""

from __future__ import annotations

import numpy as np

from numpy_gpt.learn.explorer.experiment import Experiment
from numpy_gpt.learn.explorer.recording import Call
from numpy_gpt.learn.explorer.views import Nudge

POINTS = 41


def nudge(experiment: Experiment, call: Call, name: str, label: str) -> Nudge:
    """Move the number of one input of one call whose gradient is largest, as far as that array's largest.

    Args:
        experiment: the model and its batch.
        call: which use of an operation.
        name: which of its inputs.
        label: what to call that input.
    """
    values, gradient = call.inputs[name], call.gradients[name]
    index = np.unravel_index(int(np.argmax(np.abs(gradient))), gradient.shape)
    here = float(values[index])
    places = here + float(np.abs(values).max()) * np.linspace(-1, 1, POINTS)
    moved = values.copy()
    replay, losses = experiment.replay, []
    for place in places:
        moved[index] = place
        losses.append(replay.loss_with(call, name, moved))
    return Nudge(
        label=f"{label}[{', '.join(map(str, index))}]",
        value=here,
        gradient=float(gradient[index]),
        values=tuple(places.tolist()),
        losses=tuple(losses),
    )
