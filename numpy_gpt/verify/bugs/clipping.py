"""Bugs of gradient clipping."""

from __future__ import annotations

import math

import numpy as np

from numpy_gpt.parameters import Parameters
from numpy_gpt.verify.bugs.bug import Bug
from numpy_gpt.verify.bugs.subject import RIGHT


def clip_each_tensor(gradients: Parameters, max_norm: float) -> float:
    """Wrong: every tensor has a limit of its own."""
    total = 0.0
    for _, view in gradients.named_parameters():
        wide = view.astype(np.float64).ravel()
        norm = math.sqrt(wide @ wide)
        total += norm * norm
        if norm > max_norm:
            view[...] = view * (max_norm / (norm + 1e-6))
    return math.sqrt(total)


def clip_in_own_dtype(gradients: Parameters, max_norm: float) -> float:
    """Wrong in float32: squares overflow above 1e19 and vanish below 1e-23."""
    norm = float(np.sqrt(gradients.flat @ gradients.flat))
    factor = max_norm / (norm + 1e-6)
    if factor < 1 and math.isfinite(norm):
        gradients.flat *= factor
    return norm


def always_rescale(gradients: Parameters, max_norm: float) -> float:
    """Wrong: short gradients are lengthened."""
    wide = gradients.flat.astype(np.float64)
    norm = math.sqrt(wide @ wide)
    gradients.flat *= max_norm / (norm + 1e-6)
    return norm


def clip_elements(gradients: Parameters, max_norm: float) -> float:
    """Wrong: limits every number instead of the length."""
    wide = gradients.flat.astype(np.float64)
    np.clip(gradients.flat, -max_norm, max_norm, out=gradients.flat)
    return math.sqrt(wide @ wide)


BUGS = (
    Bug(
        name="clipping-per-tensor",
        where="clipping",
        title="Every tensor is clipped on its own",
        line="if norm > max_norm:",
        lesson="The loop over parameters is at hand, and so the norm is taken inside it. But then each "
        "tensor is shortened by a factor of its own, and the step no longer points along the gradient. The "
        "length that matters is that of all numbers together, known only after the loop.",
        in_practice="The loss falls as with right code. The reported norm is right too, so that a curve of "
        "it shows nothing; the clipped gradients are no multiple of the old ones.",
        fools=("loss_falls",),
        subject=RIGHT._replace(clip_gradients=clip_each_tensor),
    ),
    Bug(
        name="clipping-norm-in-float32",
        where="clipping",
        title="The norm is summed in the gradients' own precision",
        line="norm = float(np.sqrt(gradients.flat @ gradients.flat))",
        lesson="A square needs twice the exponent. In float32 that of 1e20 is infinite and that of 1e-23 "
        "is zero, so clipping fails exactly where it is needed, when a gradient explodes: the norm is "
        "infinite, the factor zero or skipped. Sums over millions of numbers also want more digits than "
        "their terms.",
        in_practice="In ordinary training the norm is right to six digits and the loss the same. A "
        "gradient of 1e30 in float32 has the norm infinity and is let through as it is.",
        fools=("loss_falls",),
        subject=RIGHT._replace(clip_gradients=clip_in_own_dtype),
    ),
    Bug(
        name="clipping-lengthens",
        where="clipping",
        title="Short gradients are stretched to the limit",
        line="gradients.flat *= max_norm / (norm + 1e-6)",
        lesson="The formula is min(1, max_norm / norm), and the min was lost. Every step now has the same "
        "length, near the end of training too, where gradients get small because little is left to learn. "
        "Adam, which divides the scale out again, covers it up.",
        in_practice="The loss falls as with right code, Adam taking the length out again. A short gradient "
        "does not survive clipping unchanged, which is the first thing to test.",
        fools=("loss_falls",),
        subject=RIGHT._replace(clip_gradients=always_rescale),
    ),
    Bug(
        name="clipping-elements",
        where="clipping",
        title="Every number is clipped instead of the length",
        line="np.clip(gradients.flat, -max_norm, max_norm, out=gradients.flat)",
        lesson="`clip` is the name of the NumPy function, which limits each number. Also a known method, "
        "but another one: it bends the direction, and a limit of 1 that is strict for a norm over millions "
        "of numbers never touches any of them.",
        in_practice="The loss falls as with right code, and the reported norm is right. After clipping, "
        "the norm is still above the limit.",
        fools=("loss_falls",),
        subject=RIGHT._replace(clip_gradients=clip_elements),
    ),
)
