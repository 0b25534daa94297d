"""Bugs of the gelu operation."""

from __future__ import annotations

import math

import numpy as np

from numpy_gpt.arrays import Array, deliver
from numpy_gpt.ops.gelu import CUBIC, SQRT_2_OVER_PI, GeluSaved, gelu_forward
from numpy_gpt.verify.bugs.bug import Bug, Out
from numpy_gpt.verify.bugs.subject import with_op
from numpy_gpt.verify.kinds import Kind


def tanh_slope_backward(d_y: Array, saved: GeluSaved, *, out: Out = None) -> tuple[Array]:
    """Wrong for approximate="none": always the slope of the tanh form."""
    (d_x,) = out or (None,)
    x, _, _ = saved
    tanh = np.tanh(SQRT_2_OVER_PI * (x + CUBIC * x * x * x))
    gate = 0.5 * (1 + tanh)  # (...)
    slope = 0.5 * (1 - tanh * tanh) * SQRT_2_OVER_PI * (1 + 3 * CUBIC * x * x)  # (...)
    return (deliver(d_y * (gate + x * slope), d_x),)


def exact_slope_backward(d_y: Array, saved: GeluSaved, *, out: Out = None) -> tuple[Array]:
    """Wrong for approximate="tanh": the exact form's gate and slope."""
    (d_x,) = out or (None,)
    x, _, _ = saved
    erf = np.vectorize(math.erf, otypes=[x.dtype])
    gate = 0.5 * (1 + erf(x / math.sqrt(2)))
    slope = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)  # (...)
    return (deliver(d_y * (gate + x * slope), d_x),)


def gate_only_backward(d_y: Array, saved: GeluSaved, *, out: Out = None) -> tuple[Array]:
    """Wrong: the gate is taken for a constant."""
    (d_x,) = out or (None,)
    _, gate, _ = saved
    return (deliver(d_y * gate, d_x),)


def inner_slope_backward(d_y: Array, saved: GeluSaved, *, out: Out = None) -> tuple[Array]:
    """Wrong for approximate="tanh": the cubic inside tanh is taken for a straight line."""
    (d_x,) = out or (None,)
    x, gate, approximate = saved
    if approximate == "tanh":
        slope = 2 * gate * (1 - gate) * SQRT_2_OVER_PI  # (...)
    else:
        slope = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)  # (...)
    return (deliver(d_y * (gate + x * slope), d_x),)


def in_place_backward(d_y: Array, saved: GeluSaved, *, out: Out = None) -> tuple[Array]:
    """Wrong: writes into the upstream gradient, and returns it."""
    (d_x,) = out or (None,)
    x, gate, approximate = saved
    if approximate == "tanh":
        slope = 2 * gate * (1 - gate) * SQRT_2_OVER_PI * (1 + 3 * CUBIC * x * x)  # (...)
    else:
        slope = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)  # (...)
    d_y *= gate + x * slope
    return (deliver(d_y, d_x),)


def raveled_out_backward(d_y: Array, saved: GeluSaved, *, out: Out = None) -> tuple[Array]:
    """Wrong for an `out` that is not contiguous: the result goes into a copy of it."""
    (d_x,) = out or (None,)
    x, gate, approximate = saved
    if d_x is None:
        d_x = np.empty_like(x)
    if approximate == "tanh":
        slope = 2 * gate * (1 - gate) * SQRT_2_OVER_PI * (1 + 3 * CUBIC * x * x)  # (...)
    else:
        slope = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)  # (...)
    np.multiply(d_y.ravel(), (gate + x * slope).ravel(), out=d_x.reshape(-1))
    return (d_x,)


def one_form_forward(x: Array, *, approximate: str = "tanh") -> tuple[Array, GeluSaved]:
    """Wrong for approximate="none", which is not looked at."""
    return gelu_forward(x, approximate="tanh")


def float64_constant_forward(x: Array, *, approximate: str = "tanh") -> tuple[Array, GeluSaved]:
    """Wrong in float32: a NumPy scalar makes float64 of it."""
    if approximate == "none":
        return gelu_forward(x, approximate=approximate)
    u = np.sqrt(2 / np.pi) * (x + CUBIC * x**3)
    gate = 0.5 * (1 + np.tanh(u))  # (...)
    return x * gate, GeluSaved(x, gate, approximate)


_workspace: dict[tuple[tuple[int, ...], str], Array] = {}


def shared_workspace_forward(x: Array, *, approximate: str = "tanh") -> tuple[Array, GeluSaved]:
    """Wrong when called twice before backward: both calls keep their gate in one array."""
    y, saved = gelu_forward(x, approximate=approximate)
    gate = _workspace.setdefault((x.shape, x.dtype.name), np.empty_like(x))
    gate[...] = saved.gate
    return y, GeluSaved(x, gate, approximate)


BUGS = (
    Bug(
        name="gelu-tanh-slope-behind-exact-form",
        where="gelu",
        title="The tanh form's slope behind the exact form",
        line="tanh = np.tanh(SQRT_2_OVER_PI * (x + CUBIC * x * x * x))",
        lesson="There are two GELUs, and most code on the web differentiates the one of GPT-2. Behind an "
        "exact forward it is a derivative of another function. The two functions nowhere differ by more "
        "than 0.0005, and their slopes by no more than 0.001, so that eyes and tolerances glide over it.",
        in_practice="With the exact form the loss curve is that of right code to the fourth digit, and "
        "GPT-2's form is not touched. A comparison that allows an error of 0.001 passes.",
        fools=("loss_falls", "one_of_everything", "fresh_weights"),
        subject=with_op("gelu", backward=tanh_slope_backward),
        kind=Kind.GELU_FORM,
    ),
    Bug(
        name="gelu-exact-slope-behind-tanh-form",
        where="gelu",
        title="The exact form's slope behind the tanh form",
        line="gate = 0.5 * (1 + erf(x / math.sqrt(2)))",
        lesson="The exact derivative Φ(x) + x φ(x) is so much shorter than that of the approximation that "
        "one would like it to serve both. The approximation is close to the function and its slope is "
        "close to the function's slope, but a backward pass belongs to the forward pass that was computed.",
        in_practice="The loss falls as with right code, to the third digit. A check passes if it allows an "
        "error of 0.001, as the one at fresh weights does.",
        fools=("loss_falls", "fresh_weights"),
        subject=with_op("gelu", backward=exact_slope_backward),
        kind=Kind.GELU_FORM,
    ),
    Bug(
        name="gelu-gate-taken-for-constant",
        where="gelu",
        title="Half of the product rule",
        line="return (deliver(d_y * gate, d_x),)",
        lesson="y = x g(x), and the eye sees a factor g before x. That is right for ReLU, whose gate is 0 "
        "or 1 and does not move. GELU's gate moves with x, and the product rule has a second term, x "
        "g'(x): x enters y in two places, and both send a gradient back.",
        in_practice="The loss falls a little slower and ends where right code ends. At fresh weights all "
        "inputs are near zero, where the second term is too, and the check passes.",
        fools=("loss_falls", "fresh_weights"),
        subject=with_op("gelu", backward=gate_only_backward),
        kind=Kind.MISSING_PATH,
    ),
    Bug(
        name="gelu-inner-slope-forgotten",
        where="gelu",
        title="The slope of the cubic inside tanh is taken for a constant",
        line="slope = 2 * gate * (1 - gate) * SQRT_2_OVER_PI  # (...)",
        lesson="tanh(u(x)) has the slope tanh'(u) u'(x), and the chain rule goes on until it reaches x: "
        "u = √(2/π) (x + 0.044715 x³) has a slope of its own, √(2/π) (1 + 3 · 0.044715 x²). For small x "
        "the last factor is 1, and GELU's inputs are small at first. It is 1.5 at x = 2.",
        in_practice="The loss falls as with right code, to the third digit. At fresh weights all inputs are "
        "near zero, where the factor is 1, and the check passes. Any other gradient check finds it.",
        fools=("loss_falls", "fresh_weights"),
        subject=with_op("gelu", backward=inner_slope_backward),
        kind=Kind.MISSING_FACTOR,
    ),
    Bug(
        name="gelu-writes-into-upstream-gradient",
        where="gelu",
        title="The upstream gradient is overwritten to save an array",
        line="d_y *= gate + x * slope",
        lesson="d_y looks like a thing of this function: it came in as an argument and is not needed "
        "after. The caller may think otherwise. Where a residual joins, one gradient goes two ways, and "
        "the second way finds it changed by the first. Memory is saved by `out=`, where the caller says "
        "which array may go.",
        in_practice="All gradients are right, and so is training, because nothing else in the model reads "
        "d_gated. The upstream gradient after the call is another, and the result is that same array.",
        fools=("loss_falls", "gradient_check", "ones_upstream", "one_of_everything", "fresh_weights"),
        subject=with_op("gelu", backward=in_place_backward),
    ),
    Bug(
        name="gelu-out-raveled",
        where="gelu",
        title="The result is written into a copy of `out`",
        line="np.multiply(d_y.ravel(), (gate + x * slope).ravel(), out=d_x.reshape(-1))",
        lesson="`reshape` returns a view where it can and a copy where it must, without a word. For an "
        "array that owns its memory it is a view and the line works. For a slice of a wider array, such as "
        "the queries' part of d_qkv, it is a copy: the result is written there and thrown away.",
        in_practice="Right without `out=`, and with an `out=` that owns its memory; the model gives gelu "
        "none, and trains the same. With a slice of a wider array the call returns what stood there "
        "before.",
        fools=("loss_falls", "gradient_check", "ones_upstream", "one_of_everything", "fresh_weights"),
        subject=with_op("gelu", backward=raveled_out_backward),
    ),
    Bug(
        name="gelu-form-not-looked-at",
        where="gelu",
        title="The exact form is asked for, the tanh form computed",
        line='return gelu_forward(x, approximate="tanh")',
        lesson="An option that is accepted and not used is worse than none. Forward and backward are both "
        "of the tanh form, so that they agree and every gradient is right. Only a comparison with somebody "
        "else's numbers, in the form that was asked for, can tell.",
        in_practice="Every gradient check passes, and the loss curve of a model with the exact form is the "
        "same to the fourth digit. The outputs differ from a reference's by up to 0.0005.",
        fools=("loss_falls", "gradient_check", "ones_upstream", "one_of_everything", "fresh_weights"),
        subject=with_op("gelu", forward=one_form_forward),
    ),
    Bug(
        name="gelu-float64-constant",
        where="gelu",
        title="np.sqrt(2 / np.pi) turns float32 into float64",
        line="u = np.sqrt(2 / np.pi) * (x + CUBIC * x**3)",
        lesson="np.pi is a Python float, but np.sqrt makes an np.float64 of it, and that has the last "
        "word: all arrays after this line are float64. No number gets worse. Memory and time double, in "
        "every layer above. A constant computed once with math.sqrt has no type to impose.",
        in_practice="The loss curve is the same. The logits of a float32 model come out float64, and so "
        "does every gradient behind them, at twice the memory; the parameters, updated in place, stay "
        "float32.",
        fools=("loss_falls", "gradient_check", "ones_upstream", "one_of_everything", "fresh_weights"),
        subject=with_op("gelu", forward=float64_constant_forward),
    ),
    Bug(
        name="gelu-shared-workspace",
        where="gelu",
        title="All layers keep their gates in one array",
        line="gate = _workspace.setdefault((x.shape, x.dtype.name), np.empty_like(x))",
        lesson="A fresh array per call is slow, so the last one is used again. But backward runs after all "
        "forwards: by then the gate of layer 1 has been overwritten by that of layer 2. On its own the "
        "operation is flawless, because a test calls it once. What forward saves must live until its "
        "backward.",
        in_practice="The operation passes its own gradient check, and training hardly suffers: a little "
        "slower, the same end. The gradients of a model with two layers are wrong, in every layer but the "
        "last.",
        fools=("loss_falls", "ones_upstream", "one_of_everything", "fresh_weights"),
        subject=with_op("gelu", forward=shared_workspace_forward),
    ),
)
