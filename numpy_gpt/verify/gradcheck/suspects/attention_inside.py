"""Attention inside a layer, recognised by what forward saved; the gradients of its projections tell on it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.suspects.attention import MAX_SCORES, join, masks, scales, split
from numpy_gpt.verify.gradcheck.suspects.attention_core import MISTAKES, Core
from numpy_gpt.verify.gradcheck.suspects.fault import Fault
from numpy_gpt.verify.gradcheck.suspects.inside import corrected_by
from numpy_gpt.verify.gradcheck.suspects.suspicion import Suspicion


def attention_inside(fault: Fault) -> Iterator[Suspicion]:
    """A projection's weight lacks the difference that a mistake makes to queries, keys or values.

    With q = x W the weight's gradient is xᵀ d_q, so what d_q is off by, put between x and the weight, is what
    the weight's gradient is off by.
    """
    if fault.fitting is None:
        return
    for core in _cores(fault):
        for upstreams in _contexts(fault, core):
            if fault.is_late:
                return
            yield from _mistakes(fault, core, upstreams)


def _mistakes(fault: Fault, core: Core, upstreams: list[Array]) -> Iterator[Suspicion]:
    """Make every mistake on purpose, for gradients of the context (K times like v)."""
    right = [core.backward(upstream) for upstream in upstreams]
    for mistake in core.possible():
        wrong = [core.backward(upstream, mistake) for upstream in upstreams]
        off = [
            [_joined(one - other) for one, other in zip(*pair, strict=True)]
            for pair in zip(right, wrong, strict=True)
        ]
        kind, text = MISTAKES[mistake]
        words = f"inside forward is attention, and {text}; put right in {fault.gradient}"
        roles = list(map(list, zip(*off, strict=True)))
        if core.q.shape[-2] == core.k.shape[-2]:  # one weight may project to all three
            roles.append([np.concatenate(parts, axis=-1) for parts in off])
        for gaps in roles:
            yield from corrected_by(fault, kind, words, gaps.__getitem__)


def _cores(fault: Fault) -> Iterator[Core]:
    """Yield the attentions whose weights were saved, with the queries, keys and values beside them."""
    arrays = [array for array in fault.known.values() if array.ndim >= 2 and array.size <= MAX_SCORES]
    for weights in arrays:
        if not (weights >= 0.0).all() or np.max(np.abs(weights.sum(axis=-1) - 1.0)) > 1e-9:
            continue
        beside = [*arrays, *_split_like(weights, arrays)]
        for q, k in permutations(beside, 2):
            if not _fit(q, k, weights) or q.shape[-1] != k.shape[-1]:
                continue
            width = q.shape[-1]
            for mask in masks(fault, weights.shape):
                for scale in scales(width, width * math.prod(weights.shape[1:-2])):
                    core = Core(q, k, k, scale, mask)
                    if np.allclose(core.weights(mask), weights, rtol=1e-8, atol=1e-10):
                        yield from (replace(core, v=v) for v in beside if _fit(q, v, weights))


def _split_like(weights: Array, arrays: list[Array]) -> list[Array]:
    """Cut (B, T, C) into the heads of weights (B, H, Tq, Tk)."""
    if weights.ndim != 4:
        return []
    heads = weights.shape[1]
    return [split(array, heads) for array in arrays if array.ndim == 3 and array.shape[-1] % heads == 0]


def _fit(q: Array, k: Array, weights: Array) -> bool:
    """Whether the shapes are (..., Tq, D), (..., Tk, E) and (..., Tq, Tk)."""
    leading = {each.shape[:-2] for each in (q, k, weights)}
    return len(leading) == 1 and (q.shape[-2], k.shape[-2]) == weights.shape[-2:]


def _contexts(fault: Fault, core: Core) -> Iterator[list[Array]]:
    """Yield what the gradient of the context may be (K times like q): the upstream one, or its projection."""
    heads = core.q.shape[1] if core.q.ndim == 4 else 1
    width = heads * core.v.shape[-1]
    upstreams = [parts[0] for parts in fault.upstreams]
    if np.ndim(upstreams[0]) < 2:
        return
    through = [array for array in fault.known.values() if array.ndim == 2]
    candidates = [
        upstreams,
        *(
            [upstream @ matrix for upstream in upstreams]
            for array in through
            for matrix in (array, array.T)
            if matrix.shape == (upstreams[0].shape[-1], width)
        ),
    ]
    for candidate in candidates:
        if core.q.ndim == 4 and candidate[0].ndim == 3 and candidate[0].shape[-1] == width:
            yield [split(each, heads) for each in candidate]
        elif candidate[0].shape == core.q.shape[:-1] + core.v.shape[-1:]:
            yield candidate


def _joined(part: Array) -> Array:
    return join(part) if part.ndim == 4 else part
