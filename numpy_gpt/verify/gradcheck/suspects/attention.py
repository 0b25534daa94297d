"""Attention between inputs, recognised by its output: each usual mistake is made on purpose and compared."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.gradcheck.suspects.attention_core import MISTAKES, Core, Gradients
from numpy_gpt.verify.gradcheck.suspects.fault import Fault
from numpy_gpt.verify.gradcheck.suspects.suspicion import Suspicion
from numpy_gpt.verify.kinds import Kind

MAX_SCORES = 200_000
"""Larger attention is not tried: recognising it takes several forward passes."""

MAX_WINDOWED = 32
"""Longer sequences have too many windows to try."""


@dataclass(frozen=True)
class Guess:
    """What forward may compute from its inputs.

    Args:
        roles: the positions of the inputs that are queries, keys and values.
        heads: into how many the last axis is cut.
        core: the rest.
    """

    roles: tuple[int, int, int]
    heads: int
    core: Core

    def gradients(self, upstream: Array, i: int, mistake: str = "") -> Array:
        """Return the gradient of an input, of all its roles together."""
        parts = self.core.backward(split(upstream, self.heads), mistake)
        gradient: Array = np.sum(
            [join(part) for part, role in zip(parts, self.roles, strict=True) if role == i], axis=0
        )
        return gradient


def attention_mistakes(fault: Fault) -> Iterator[Suspicion]:
    """Compare the claim with attention's gradient with each mistake made on purpose."""
    guess = recognised(fault) if fault.fitting is not None else None
    if fault.fitting is None or guess is None or fault.i not in guess.roles:
        return
    upstreams = [parts[0] for parts in fault.upstreams]
    right = np.stack([guess.gradients(upstream, fault.i) for upstream in upstreams])
    for mistake in guess.core.possible():
        kind, text = MISTAKES[mistake]
        wrong = np.stack([guess.gradients(upstream, fault.i, mistake) for upstream in upstreams])
        words = f"forward is attention with {guess.heads} heads, and {text}; put right in {fault.gradient}"
        yield Suspicion(kind, fault.i, words, 1.0, fault.fitting + right - wrong)
    if guess.roles.count(fault.i) > 1:
        for role, name in enumerate(Gradients._fields):
            if guess.roles[role] == fault.i:
                parts = [guess.core.backward(split(upstream, guess.heads))[role] for upstream in upstreams]
                missing = np.stack([join(part) for part in parts])
                words = f"{fault.gradient} lacks what its use as {name} of attention sends back; with that"
                yield Suspicion(Kind.MISSING_PATH, fault.i, words, 1.0, fault.fitting + missing)


def recognised(fault: Fault) -> Guess | None:
    """Return the attention that gives forward's output, None if there is none."""
    subject = fault.subject
    if len(subject.run.outputs) != 1:
        return None
    output = np.asarray(subject.run.outputs[0])
    return next((guess for guess in _guesses(fault, output) if _gives(guess, output)), None)


def split(x: Array, heads: int) -> Array:
    """Return (..., T, C) as (..., H, T, D)."""
    return x.reshape(*x.shape[:-1], heads, -1).swapaxes(-2, -3)


def join(x: Array) -> Array:
    """Return (..., H, T, D) as (..., T, C)."""
    x = x.swapaxes(-2, -3)
    return x.reshape(*x.shape[:-2], -1)


def masks(fault: Fault, shape: tuple[int, ...]) -> Iterator[Array]:
    """Yield masks for scores (..., Tq, Tk): causal to the last key, none, causal from the first, inputs.

    At last, causal with a window, beyond which the past is hidden as well.
    """
    Tq, Tk = shape[-2:]
    ones = np.ones((Tq, Tk), dtype=bool)
    yield np.triu(ones, k=1 + Tk - Tq)
    yield ~ones
    if Tq != Tk:
        yield np.triu(ones, k=1)
    for value in fault.subject.inputs:
        if isinstance(value, np.ndarray) and value.dtype.kind in "bi" and value.shape[-1:] == (Tk,):
            hidden = value.astype(bool)
            for each in (hidden, hidden[..., None, None, :]):
                if each.ndim <= len(shape) and each.shape[-2:-1] in ((), (1,), (Tq,)):
                    yield np.broadcast_to(each, (*each.shape[:-2], Tq, Tk))
                    yield np.broadcast_to(~each, (*each.shape[:-2], Tq, Tk))
    if Tq == Tk <= MAX_WINDOWED:
        for window in range(1, Tq):
            yield np.triu(ones, k=1) | np.tril(ones, k=-window)


def scales(width: int, total: int) -> Iterator[float]:
    """Yield what scores are multiplied by."""
    yield from dict.fromkeys((1 / math.sqrt(width), 1.0, 1 / math.sqrt(total)))


def _gives(guess: Guess, output: Array) -> bool:
    core = guess.core
    if output.ndim > 2 and core.mask.ndim == 2:  # one sequence tells most wrong guesses
        first = replace(core, q=core.q[:1], k=core.k[:1], v=core.v[:1])
        if not np.allclose(join(first.forward()), output[:1], rtol=1e-8, atol=1e-10):
            return False
    context = join(core.forward())
    return context.shape == output.shape and np.allclose(context, output, rtol=1e-8, atol=1e-10)


def _guesses(fault: Fault, output: Array) -> Iterator[Guess]:
    inputs = fault.subject.inputs
    if output.ndim < 2:
        return
    fitting = [i for i in fault.subject.tensors if inputs[i].ndim == output.ndim]
    for roles in (*permutations(fitting, 3), *((i, i, i) for i in fitting)):
        q, k, v = (inputs[role] for role in roles)
        if not _fit(q, k, v, output):
            continue
        C = q.shape[-1]
        for heads in range(1, C + 1):
            scores = (*q.shape[:-2], heads, q.shape[-2], k.shape[-2])
            if C % heads or v.shape[-1] % heads or math.prod(scores) > MAX_SCORES:
                continue
            for mask in masks(fault, scores):
                for scale in scales(C // heads, C):
                    if fault.is_late:
                        return
                    yield Guess(
                        (roles[0], roles[1], roles[2]),
                        heads,
                        Core(split(q, heads), split(k, heads), split(v, heads), scale, mask),
                    )


def _fit(q: Array, k: Array, v: Array, output: Array) -> bool:
    """Whether the shapes are (..., Tq, C), (..., Tk, C), (..., Tk, E) and (..., Tq, E)."""
    leading = {each.shape[:-2] for each in (q, k, v, output)}
    return (
        len(leading) == 1
        and q.shape[-1] == k.shape[-1]
        and k.shape[-2] == v.shape[-2]
        and output.shape[-2:] == (q.shape[-2], v.shape[-1])
    )
