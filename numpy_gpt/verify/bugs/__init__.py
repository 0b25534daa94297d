"""The catalogue of bugs: classic mistakes in every part of training and generation, planted and explained.

    from numpy_gpt.verify.bugs import CATALOGUE

    for bug in CATALOGUE:
        print(bug.where, bug.title, bug.line, sep="  ")
    model = CATALOGUE[0].subject.build(parameters)      # a model that has the bug

Nothing is monkeypatched: a bug is a `Subject`, the right one with a part replaced.
"""

from __future__ import annotations

from numpy_gpt.verify.bugs import (
    accumulation,
    attention_backward,
    attention_forward,
    cache,
    clipping,
    cross_entropy,
    data,
    embedding,
    evaluation,
    gelu,
    generation,
    layer_norm,
    linear,
    linear_cross_entropy,
    model,
    optimizer,
    resume,
    sampling,
    schedule,
    softmax,
)
from numpy_gpt.verify.bugs.bug import Bug
from numpy_gpt.verify.bugs.subject import RIGHT, Subject, with_op

CATALOGUE: tuple[Bug, ...] = (
    *linear.BUGS,
    *softmax.BUGS,
    *cross_entropy.BUGS,
    *linear_cross_entropy.BUGS,
    *gelu.BUGS,
    *layer_norm.BUGS,
    *embedding.BUGS,
    *attention_backward.BUGS,
    *attention_forward.BUGS,
    *model.BUGS,
    *cache.BUGS,
    *optimizer.BUGS,
    *clipping.BUGS,
    *schedule.BUGS,
    *accumulation.BUGS,
    *data.BUGS,
    *resume.BUGS,
    *evaluation.BUGS,
    *sampling.BUGS,
    *generation.BUGS,
)
"""Every bug: the operations in the order of the book, the model, then what a run does from first to last."""

__all__ = ["CATALOGUE", "RIGHT", "Bug", "Subject", "with_op"]
