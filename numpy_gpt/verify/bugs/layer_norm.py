"""Bugs of the layer_norm operation."""

from __future__ import annotations

import numpy as np

from numpy_gpt.arrays import Array, deliver
from numpy_gpt.ops.layer_norm import LayerNormSaved
from numpy_gpt.verify.bugs.bug import Bug, Out
from numpy_gpt.verify.bugs.subject import with_op
from numpy_gpt.verify.kinds import Kind

Gradients = tuple[Array, Array, Array]
Result = tuple[Array, LayerNormSaved]


def mean_term_backward(d_y: Array, saved: LayerNormSaved, *, out: Out = None) -> Gradients:
    """Wrong: the mean is taken for a constant."""
    d_x, d_weight, d_bias = out or (None, None, None)
    normalized, inverse_std, weight = saved
    all_tokens = tuple(range(d_y.ndim - 1))
    d_bias = np.sum(d_y, axis=all_tokens, out=d_bias)  # (C,)
    d_weight = np.sum(d_y * normalized, axis=all_tokens, out=d_weight)  # (C,)
    d_normalized = d_y * weight  # (..., C)
    mean_along_n = np.mean(d_normalized * normalized, axis=-1, keepdims=True)  # (..., 1)
    d_x = deliver((d_normalized - normalized * mean_along_n) * inverse_std, d_x)
    return d_x, d_weight, d_bias


def projection_term_backward(d_y: Array, saved: LayerNormSaved, *, out: Out = None) -> Gradients:
    """Wrong: the variance is taken for a constant."""
    d_x, d_weight, d_bias = out or (None, None, None)
    normalized, inverse_std, weight = saved
    all_tokens = tuple(range(d_y.ndim - 1))
    d_bias = np.sum(d_y, axis=all_tokens, out=d_bias)  # (C,)
    d_weight = np.sum(d_y * normalized, axis=all_tokens, out=d_weight)  # (C,)
    d_normalized = d_y * weight  # (..., C)
    mean_of_d = d_normalized.mean(axis=-1, keepdims=True)  # (..., 1)
    d_x = deliver((d_normalized - mean_of_d) * inverse_std, d_x)
    return d_x, d_weight, d_bias


def unweighted_backward(d_y: Array, saved: LayerNormSaved, *, out: Out = None) -> Gradients:
    """Wrong: d_y where d_y * weight belongs."""
    d_x, d_weight, d_bias = out or (None, None, None)
    normalized, inverse_std, _ = saved
    all_tokens = tuple(range(d_y.ndim - 1))
    d_bias = np.sum(d_y, axis=all_tokens, out=d_bias)  # (C,)
    d_weight = np.sum(d_y * normalized, axis=all_tokens, out=d_weight)  # (C,)
    mean_of_d = d_y.mean(axis=-1, keepdims=True)
    mean_along_n = np.mean(d_y * normalized, axis=-1, keepdims=True)  # (..., 1)
    d_x = deliver((d_y - mean_of_d - normalized * mean_along_n) * inverse_std, d_x)  # (..., C)
    return d_x, d_weight, d_bias


def unscaled_backward(d_y: Array, saved: LayerNormSaved, *, out: Out = None) -> Gradients:
    """Wrong: n is differentiated as if it were x less its mean."""
    d_x, d_weight, d_bias = out or (None, None, None)
    normalized, _, weight = saved
    all_tokens = tuple(range(d_y.ndim - 1))
    d_bias = np.sum(d_y, axis=all_tokens, out=d_bias)  # (C,)
    d_weight = np.sum(d_y * normalized, axis=all_tokens, out=d_weight)  # (C,)
    d_normalized = d_y * weight  # (..., C)
    mean_of_d = d_normalized.mean(axis=-1, keepdims=True)  # (..., 1)
    mean_along_n = np.mean(d_normalized * normalized, axis=-1, keepdims=True)  # (..., 1)
    d_x = deliver(d_normalized - mean_of_d - normalized * mean_along_n, d_x)  # (..., C)
    return d_x, d_weight, d_bias


def first_axis_backward(d_y: Array, saved: LayerNormSaved, *, out: Out = None) -> Gradients:
    """Wrong for more axes than two: weight and bias are shared by all tokens of all sequences."""
    d_x, d_weight, d_bias = out or (None, None, None)
    normalized, inverse_std, weight = saved
    d_bias = deliver(np.sum(d_y, axis=0), d_bias)
    d_weight = deliver(np.sum(d_y * normalized, axis=0), d_weight)
    d_normalized = d_y * weight  # (..., C)
    mean_of_d = d_normalized.mean(axis=-1, keepdims=True)  # (..., 1)
    mean_along_n = np.mean(d_normalized * normalized, axis=-1, keepdims=True)  # (..., 1)
    d_x = deliver((d_normalized - mean_of_d - normalized * mean_along_n) * inverse_std, d_x)  # (..., C)
    return d_x, d_weight, d_bias


def adding_backward(d_y: Array, saved: LayerNormSaved, *, out: Out = None) -> Gradients:
    """Wrong: adds to `out`, which is to be overwritten."""
    d_x, d_weight, d_bias = out or (None, None, None)
    normalized, inverse_std, weight = saved
    all_tokens = tuple(range(d_y.ndim - 1))
    d_bias = np.sum(d_y, axis=all_tokens, out=d_bias)  # (C,)
    if d_weight is None:
        d_weight = np.zeros_like(weight)
    d_weight += np.sum(d_y * normalized, axis=all_tokens)
    d_normalized = d_y * weight  # (..., C)
    mean_of_d = d_normalized.mean(axis=-1, keepdims=True)  # (..., 1)
    mean_along_n = np.mean(d_normalized * normalized, axis=-1, keepdims=True)  # (..., 1)
    d_x = deliver((d_normalized - mean_of_d - normalized * mean_along_n) * inverse_std, d_x)  # (..., C)
    return d_x, d_weight, d_bias


def over_everything_forward(x: Array, weight: Array, bias: Array, *, eps: float = 1e-5) -> Result:
    """Wrong: one mean and one variance for all tokens of all sequences."""
    centered = x - x.mean()
    inverse_std = 1 / np.sqrt(np.mean(centered * centered, keepdims=True) + eps)  # (1, ..., 1)
    normalized = centered * inverse_std  # (..., C)
    return normalized * weight + bias, LayerNormSaved(normalized, inverse_std, weight)


def over_everything_backward(d_y: Array, saved: LayerNormSaved, *, out: Out = None) -> Gradients:
    """True to over_everything_forward."""
    d_x, d_weight, d_bias = out or (None, None, None)
    normalized, inverse_std, weight = saved
    all_tokens = tuple(range(d_y.ndim - 1))
    d_bias = np.sum(d_y, axis=all_tokens, out=d_bias)  # (C,)
    d_weight = np.sum(d_y * normalized, axis=all_tokens, out=d_weight)  # (C,)
    d_normalized = d_y * weight  # (..., C)
    along_n = np.mean(d_normalized * normalized)
    d_x = deliver((d_normalized - d_normalized.mean() - normalized * along_n) * inverse_std, d_x)  # (..., C)
    return d_x, d_weight, d_bias


def unbiased_forward(x: Array, weight: Array, bias: Array, *, eps: float = 1e-5) -> Result:
    """Wrong: the variance is divided by C - 1."""
    inverse_std = 1 / np.sqrt(x.var(axis=-1, ddof=1, keepdims=True) + eps)
    normalized = (x - x.mean(axis=-1, keepdims=True)) * inverse_std  # (..., C)
    return normalized * weight + bias, LayerNormSaved(normalized, inverse_std, weight)


def unbiased_backward(d_y: Array, saved: LayerNormSaved, *, out: Out = None) -> Gradients:
    """True to unbiased_forward."""
    d_x, d_weight, d_bias = out or (None, None, None)
    normalized, inverse_std, weight = saved
    all_tokens = tuple(range(d_y.ndim - 1))
    d_bias = np.sum(d_y, axis=all_tokens, out=d_bias)  # (C,)
    d_weight = np.sum(d_y * normalized, axis=all_tokens, out=d_weight)  # (C,)
    d_normalized = d_y * weight  # (..., C)
    mean_of_d = d_normalized.mean(axis=-1, keepdims=True)  # (..., 1)
    along_n = np.sum(d_normalized * normalized, axis=-1, keepdims=True) / (d_y.shape[-1] - 1)  # (..., 1)
    d_x = deliver((d_normalized - mean_of_d - normalized * along_n) * inverse_std, d_x)  # (..., C)
    return d_x, d_weight, d_bias


def eps_outside_forward(x: Array, weight: Array, bias: Array, *, eps: float = 1e-5) -> Result:
    """Wrong: eps is added to the standard deviation instead of the variance."""
    inverse_std = 1 / (x.std(axis=-1, keepdims=True) + eps)
    normalized = (x - x.mean(axis=-1, keepdims=True)) * inverse_std  # (..., C)
    return normalized * weight + bias, LayerNormSaved(normalized, inverse_std, weight)


def in_place_forward(x: Array, weight: Array, bias: Array, *, eps: float = 1e-5) -> Result:
    """Wrong: centres the residual stream itself."""
    x -= x.mean(axis=-1, keepdims=True)
    inverse_std = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)  # (..., 1)
    normalized = x * inverse_std  # (..., C)
    return normalized * weight + bias, LayerNormSaved(normalized, inverse_std, weight)


BUGS = (
    Bug(
        name="layer-norm-mean-term-forgotten",
        where="layer_norm",
        title="The gradient does not pass through the mean",
        line="d_x = deliver((d_normalized - normalized * mean_along_n) * inverse_std, d_x)",
        lesson="The mean is made of x, so x acts through it too: a push on one channel moves the mean, and "
        "with it all other channels the other way. That is the term mean(d_n). A sign that it is there: "
        "the d_x of a token sum to zero, since adding a constant to x changes nothing.",
        in_practice="The loss falls as with right code. The fresh model's check finds it, and so does "
        "every other: the term is not small.",
        fools=("loss_falls",),
        subject=with_op("layer_norm", backward=mean_term_backward),
        kind=Kind.LAYER_NORM_MEAN_TERM,
    ),
    Bug(
        name="layer-norm-projection-term-forgotten",
        where="layer_norm",
        title="The gradient does not pass through the variance",
        line="d_x = deliver((d_normalized - mean_of_d) * inverse_std, d_x)",
        lesson="To make x longer does not change the result, because the variance grows with it. So d_x "
        "must have no part along x, and n mean(d_n n) is that part, taken away. Without it the gradient "
        "keeps pushing in a direction in which nothing can be gained.",
        in_practice="The loss falls slower and stays higher, clearly so. Every gradient check finds it, "
        "also at fresh weights.",
        fools=("loss_falls",),
        subject=with_op("layer_norm", backward=projection_term_backward),
        kind=Kind.LAYER_NORM_PROJECTION_TERM,
    ),
    Bug(
        name="layer-norm-weight-forgotten",
        where="layer_norm",
        title="The learned scale is missing in the gradient of x",
        line="mean_of_d = d_y.mean(axis=-1, keepdims=True)",
        lesson="y = n w + b, so the gradient that reaches n is d_y w, and from there on every d_y of the "
        "formula stands for it. Every fresh model has w = 1, where both are the same: the derivation is "
        "checked, the test passes, and the mistake begins with the first update of w.",
        in_practice="The loss falls as with right code, as all weights stay near 1. A check at fresh "
        "weights passes, because there they are 1 exactly.",
        fools=("loss_falls", "fresh_weights"),
        subject=with_op("layer_norm", backward=unweighted_backward),
        kind=Kind.LAYER_NORM_WEIGHT,
    ),
    Bug(
        name="layer-norm-inverse-deviation-forgotten",
        where="layer_norm",
        title="The gradient is not divided by the standard deviation",
        line="d_x = deliver(d_normalized - mean_of_d - normalized * mean_along_n, d_x)  # (..., C)",
        lesson="n = (x - μ) r, and by the chain rule whatever reaches n reaches x times r = 1/σ. The two "
        "terms that are taken away, hard to derive, get all the attention, and the plain factor in front "
        "of them is lost. Each token has its own, so that no constant makes up for it, and where σ is 1 "
        "nothing is missing.",
        in_practice="The loss falls a little slower at first, and ends where right code ends. Every gradient "
        "check finds it, also at fresh weights, where x is small and 1/σ is large.",
        fools=("loss_falls",),
        subject=with_op("layer_norm", backward=unscaled_backward),
        kind=Kind.MISSING_FACTOR,
    ),
    Bug(
        name="layer-norm-summed-over-one-axis",
        where="layer_norm",
        title="Weight and bias gradients are summed over the first axis only",
        line="d_weight = deliver(np.sum(d_y * normalized, axis=0), d_weight)",
        lesson="The weight (C,) was broadcast over every token of every sequence, and what forward "
        "broadcasts, backward sums. `axis=0` is that sum for rows (N, C). For (B, T, C) it sums over the "
        "batch and leaves (T, C). All axes but the last is what is meant, however many there are.",
        in_practice="A model does not get through its first step, as (T, C) does not fit into the "
        "gradient's (C,). On rows (N, C), on which such an operation is mostly tried, every gradient is "
        "right.",
        fools=("one_of_everything",),
        subject=with_op("layer_norm", backward=first_axis_backward),
        kind=Kind.MISSING_REDUCTION,
    ),
    Bug(
        name="layer-norm-adds-to-out",
        where="layer_norm",
        title="The weight's gradient is added to what stands in `out`",
        line="d_weight += np.sum(d_y * normalized, axis=all_tokens)",
        lesson="Where no `out` is given the sum starts at zero and is right, and this is how operations "
        "are tested. Training hands in views of one gradient vector that still holds the last step, and "
        "the gradient of every step so far stays in it. NumPy's `out=` means overwrite, and only that.",
        in_practice="Every gradient check passes, and the loss falls as with right code although the norms "
        "follow the sum of all their gradients since the start. Two equal calls with one `out` differ.",
        fools=("loss_falls", "gradient_check", "ones_upstream", "one_of_everything", "fresh_weights"),
        subject=with_op("layer_norm", backward=adding_backward),
    ),
    Bug(
        name="layer-norm-over-everything",
        where="layer_norm",
        title="One mean and one variance for the whole batch",
        line="centered = x - x.mean()",
        lesson="Without an axis NumPy takes the mean over everything: all channels of all tokens of all "
        "sequences. The numbers come out centred and of variance 1, as they should on the whole. But every "
        "token now depends on every other one, on those to come and on those of other sequences, through "
        "two numbers that no mask reaches.",
        in_practice="Every gradient check passes, and the loss falls as with right code. But changing a "
        "later token, or another sequence, changes every logit, and what a sequence scores depends on its "
        "company.",
        fools=("loss_falls", "gradient_check", "ones_upstream", "one_of_everything", "fresh_weights"),
        subject=with_op("layer_norm", forward=over_everything_forward, backward=over_everything_backward),
    ),
    Bug(
        name="layer-norm-unbiased-variance",
        where="layer_norm",
        title="The variance is divided by C - 1",
        line="inverse_std = 1 / np.sqrt(x.var(axis=-1, ddof=1, keepdims=True) + eps)",
        lesson="Statistics teaches C - 1, and torch.var does it unless told otherwise. Layer norm does not "
        "estimate the variance of a population, it makes these C numbers have variance 1, and divides by "
        "C. The result is too small by √(1 - 1/C). Forward and backward agree, a model trained so works, "
        "and one trained elsewhere is slightly off everywhere.",
        in_practice="Every gradient check passes, and the loss falls as with right code. Only a reference "
        "for the values finds it: the outputs are too small by a factor that depends on C alone.",
        fools=("loss_falls", "gradient_check", "ones_upstream", "one_of_everything", "fresh_weights"),
        subject=with_op("layer_norm", forward=unbiased_forward, backward=unbiased_backward),
    ),
    Bug(
        name="layer-norm-eps-outside-root",
        where="layer_norm",
        title="eps is added to the standard deviation",
        line="inverse_std = 1 / (x.std(axis=-1, keepdims=True) + eps)",
        lesson="Both keep the quotient finite, and for a variance near 1 they differ in the sixth digit. "
        "For a token vector that is nearly constant they do not: √(0 + 1e-5) is 0.003, and 0 + 1e-5 is 300 "
        "times less. Where eps stands is part of the definition, as much as the mean is.",
        in_practice="The loss falls as with right code. The values are off in the sixth digit, and so is "
        "the gradient, whose backward belongs to the right forward: a check with a tolerance of 1e-4 sees "
        "neither.",
        fools=("loss_falls", "fresh_weights"),
        subject=with_op("layer_norm", forward=eps_outside_forward),
    ),
    Bug(
        name="layer-norm-writes-into-its-input",
        where="layer_norm",
        title="The residual stream is centred in passing",
        line="x -= x.mean(axis=-1, keepdims=True)",
        lesson="One array less, and y is right. But x is the residual stream, to which the branch is to be "
        "added afterwards, and it has lost its mean. In a pre-norm model whose every reader normalises, "
        "nobody misses it: a wrong operation inside a right model, until it is used elsewhere.",
        in_practice="In this model nothing changes, no logit and no gradient: whatever reads the residual "
        "stream takes its mean away first. A test that compares the input before and after, or hands in a "
        "read-only one, finds it.",
        fools=("loss_falls", "gradient_check", "ones_upstream", "one_of_everything", "fresh_weights"),
        subject=with_op("layer_norm", forward=in_place_forward),
    ),
)
