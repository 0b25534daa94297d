"""Bugs of the attention operation's forward pass."""

from __future__ import annotations

import math

import numpy as np

from numpy_gpt.arrays import Array, deliver
from numpy_gpt.ops.attention import AttentionSaved, causal_mask, join_heads, split_heads
from numpy_gpt.ops.softmax import softmax_backward, softmax_forward
from numpy_gpt.verify.bugs.bug import Bug, Out
from numpy_gpt.verify.bugs.subject import with_op

Result = tuple[Array, AttentionSaved]


def unscaled_forward(queries: Array, keys: Array, values: Array, *, num_heads: int) -> Result:
    """Wrong: softmax(s) instead of softmax(s / √D)."""
    q, k, v = (split_heads(x, num_heads) for x in (queries, keys, values))  # (B, H, T, D)
    scores = q @ k.swapaxes(-2, -1)  # (B, H, Tq, Tk)
    scores = np.where(causal_mask(q.shape[2], k.shape[2]), -math.inf, scores)  # (B, H, Tq, Tk)
    weights, softmax_saved = softmax_forward(scores)
    return join_heads(weights @ v), AttentionSaved(q, k, v, softmax_saved)


def unscaled_backward(
    d_context: Array, saved: AttentionSaved, *, out: Out = None
) -> tuple[Array, Array, Array]:
    """True to unscaled_forward."""
    d_queries, d_keys, d_values = out or (None, None, None)
    q, k, v, softmax_saved = saved
    d_heads = split_heads(d_context, q.shape[1])  # (B, H, Tq, D)
    d_v = softmax_saved.y.swapaxes(-2, -1) @ d_heads  # (B, H, Tk, D)
    (d_scores,) = softmax_backward(d_heads @ v.swapaxes(-2, -1), softmax_saved)  # (B, H, Tq, Tk)
    d_q, d_k = d_scores @ k, d_scores.swapaxes(-2, -1) @ q  # (B, H, Tq, D), (B, H, Tk, D)
    return (
        deliver(join_heads(d_q), d_queries),
        deliver(join_heads(d_k), d_keys),
        deliver(join_heads(d_v), d_values),
    )


def reshaped_split_forward(queries: Array, keys: Array, values: Array, *, num_heads: int) -> Result:
    """Wrong: (B, T, C) counted off as (B, H, T, D) mixes tokens and heads."""
    (B, Tq, C), Tk = queries.shape, keys.shape[1]
    D = C // num_heads
    q = queries.reshape(B, num_heads, Tq, D)
    k, v = (x.reshape(B, num_heads, Tk, D) for x in (keys, values))
    scores = q @ k.swapaxes(-2, -1) / math.sqrt(D)  # (B, H, Tq, Tk)
    scores = np.where(causal_mask(Tq, Tk), -math.inf, scores)  # (B, H, Tq, Tk)
    weights, softmax_saved = softmax_forward(scores)  # (B, H, Tq, Tk)
    return (weights @ v).reshape(B, Tq, C), AttentionSaved(q, k, v, softmax_saved)


def reshaped_split_backward(
    d_context: Array, saved: AttentionSaved, *, out: Out = None
) -> tuple[Array, Array, Array]:
    """True to reshaped_split_forward."""
    d_queries, d_keys, d_values = out or (None, None, None)
    q, k, v, softmax_saved = saved
    (B, H, Tq, D), Tk = q.shape, k.shape[2]
    d_heads = d_context.reshape(B, H, Tq, D)
    d_v = softmax_saved.y.swapaxes(-2, -1) @ d_heads  # (B, H, Tk, D)
    (d_scaled,) = softmax_backward(d_heads @ v.swapaxes(-2, -1), softmax_saved)  # (B, H, Tq, Tk)
    d_scores = d_scaled / math.sqrt(D)  # (B, H, Tq, Tk)
    d_q, d_k = d_scores @ k, d_scores.swapaxes(-2, -1) @ q  # (B, H, Tq, D), (B, H, Tk, D)
    return (
        deliver(d_q.reshape(B, Tq, H * D), d_queries),
        deliver(d_k.reshape(B, Tk, H * D), d_keys),
        deliver(d_v.reshape(B, Tk, H * D), d_values),
    )


def late_mask_forward(queries: Array, keys: Array, values: Array, *, num_heads: int) -> Result:
    """Wrong: future keys count in softmax's sum, and are struck out afterwards."""
    q, k, v = (split_heads(x, num_heads) for x in (queries, keys, values))  # (B, H, T, D)
    scores = q @ k.swapaxes(-2, -1) / math.sqrt(q.shape[-1])  # (B, H, Tq, Tk)
    weights, softmax_saved = softmax_forward(scores)  # (B, H, Tq, Tk)
    weights = np.where(causal_mask(q.shape[2], k.shape[2]), 0, weights)
    return join_heads(weights @ v), AttentionSaved(q, k, v, softmax_saved)


def late_mask_backward(
    d_context: Array, saved: AttentionSaved, *, out: Out = None
) -> tuple[Array, Array, Array]:
    """True to late_mask_forward."""
    d_queries, d_keys, d_values = out or (None, None, None)
    q, k, v, softmax_saved = saved
    mask = causal_mask(q.shape[2], k.shape[2])  # (Tq, Tk)
    d_heads = split_heads(d_context, q.shape[1])  # (B, H, Tq, D)
    d_v = np.where(mask, 0, softmax_saved.y).swapaxes(-2, -1) @ d_heads  # (B, H, Tk, D)
    d_weights = np.where(mask, 0, d_heads @ v.swapaxes(-2, -1))  # (B, H, Tq, Tk)
    (d_scaled,) = softmax_backward(d_weights, softmax_saved)  # (B, H, Tq, Tk)
    d_scores = d_scaled / math.sqrt(q.shape[-1])  # (B, H, Tq, Tk)
    d_q, d_k = d_scores @ k, d_scores.swapaxes(-2, -1) @ q  # (B, H, Tq, D), (B, H, Tk, D)
    return (
        deliver(join_heads(d_q), d_queries),
        deliver(join_heads(d_k), d_keys),
        deliver(join_heads(d_v), d_values),
    )


def shifted_mask_forward(queries: Array, keys: Array, values: Array, *, num_heads: int) -> Result:
    """Wrong: every token sees the one after it."""
    q, k, v = (split_heads(x, num_heads) for x in (queries, keys, values))  # (B, H, T, D)
    Tq, Tk = q.shape[2], k.shape[2]
    scores = q @ k.swapaxes(-2, -1) / math.sqrt(q.shape[-1])  # (B, H, Tq, Tk)
    mask = np.triu(np.ones((Tq, Tk), dtype=bool), k=2 + Tk - Tq)
    weights, softmax_saved = softmax_forward(np.where(mask, -math.inf, scores))  # (B, H, Tq, Tk)
    return join_heads(weights @ v), AttentionSaved(q, k, v, softmax_saved)


def first_key_mask_forward(queries: Array, keys: Array, values: Array, *, num_heads: int) -> Result:
    """Wrong for fewer queries than keys: the first query is taken to stand at the first key."""
    q, k, v = (split_heads(x, num_heads) for x in (queries, keys, values))  # (B, H, T, D)
    Tq, Tk = q.shape[2], k.shape[2]
    scores = q @ k.swapaxes(-2, -1) / math.sqrt(q.shape[-1])  # (B, H, Tq, Tk)
    mask = np.triu(np.ones((Tq, Tk), dtype=bool), k=1)
    weights, softmax_saved = softmax_forward(np.where(mask, -math.inf, scores))  # (B, H, Tq, Tk)
    return join_heads(weights @ v), AttentionSaved(q, k, v, softmax_saved)


def finite_mask_forward(queries: Array, keys: Array, values: Array, *, num_heads: int) -> Result:
    """Wrong for large scores: -10,000 is not the smallest number."""
    q, k, v = (split_heads(x, num_heads) for x in (queries, keys, values))  # (B, H, T, D)
    scores = q @ k.swapaxes(-2, -1) / math.sqrt(q.shape[-1])  # (B, H, Tq, Tk)
    scores = np.where(causal_mask(q.shape[2], k.shape[2]), -1e4, scores)
    weights, softmax_saved = softmax_forward(scores)  # (B, H, Tq, Tk)
    return join_heads(weights @ v), AttentionSaved(q, k, v, softmax_saved)


def float64_scale_forward(queries: Array, keys: Array, values: Array, *, num_heads: int) -> Result:
    """Wrong in float32: np.sqrt of an int is a float64 scalar, and makes float64 of all that it meets."""
    q, k, v = (split_heads(x, num_heads) for x in (queries, keys, values))  # (B, H, T, D)
    scores = q @ k.swapaxes(-2, -1) / np.sqrt(q.shape[-1])
    scores = np.where(causal_mask(q.shape[2], k.shape[2]), -math.inf, scores)  # (B, H, Tq, Tk)
    weights, softmax_saved = softmax_forward(scores)  # (B, H, Tq, Tk)
    return join_heads(weights @ v), AttentionSaved(q, k, v, softmax_saved)


_random = np.random.default_rng(0)


def dropout_forward(queries: Array, keys: Array, values: Array, *, num_heads: int) -> Result:
    """Wrong outside training: a tenth of the weights is dropped at random on every call."""
    q, k, v = (split_heads(x, num_heads) for x in (queries, keys, values))  # (B, H, T, D)
    scores = q @ k.swapaxes(-2, -1) / math.sqrt(q.shape[-1])  # (B, H, Tq, Tk)
    scores = np.where(causal_mask(q.shape[2], k.shape[2]), -math.inf, scores)  # (B, H, Tq, Tk)
    weights, softmax_saved = softmax_forward(scores)  # (B, H, Tq, Tk)
    kept = _random.random(weights.shape) < 0.9
    weights = np.where(kept, weights, 0) / 0.9  # (B, H, Tq, Tk)
    return join_heads(weights @ v), AttentionSaved(q, k, v, softmax_saved)


BUGS = (
    Bug(
        name="attention-split-by-reshape",
        where="attention",
        title="Heads are split off by a reshape alone",
        line="q = queries.reshape(B, num_heads, Tq, D)",
        lesson="(B, T, C) and (B, H, T, D) hold the same numbers, so one reshape seems to do. It counts "
        "them off in their order in memory: each head gets all channels of a few tokens instead of a few "
        "channels of all tokens. What the mask calls tokens are pieces of tokens, and tokens in different "
        "parts of the sequence never meet. First (B, T, H, D), then exchange T and H.",
        in_practice="Every gradient check passes, with one head everything is right, and the outputs are "
        "even causal. The loss of the small run falls as with right code, because its text needs no more "
        "than the last token.",
        fools=("loss_falls", "gradient_check", "ones_upstream", "one_of_everything", "fresh_weights"),
        subject=with_op("attention", forward=reshaped_split_forward, backward=reshaped_split_backward),
    ),
    Bug(
        name="attention-unscaled",
        where="attention",
        title="The scores are not divided by √D",
        line="weights, softmax_saved = softmax_forward(scores)",
        lesson="A score is a sum of D products, and grows like √D. Undivided, the scores of wide heads are "
        "so far apart that softmax picks one key and ignores the rest, and where softmax is that sure its "
        "gradient is nearly zero. Forward and backward agree with each other perfectly: it is just not the "
        "attention of the paper, and weights trained elsewhere give nonsense.",
        in_practice="Every gradient check passes, and at the small run's width of 8 per head the loss "
        "falls as with right code. A reference for the values tells.",
        fools=("loss_falls", "gradient_check", "ones_upstream", "one_of_everything", "fresh_weights"),
        subject=with_op("attention", forward=unscaled_forward, backward=unscaled_backward),
    ),
    Bug(
        name="attention-masked-after-softmax",
        where="attention",
        title="The mask strikes out weights after softmax instead of scores before it",
        line="weights = np.where(causal_mask(q.shape[2], k.shape[2]), 0, weights)",
        lesson="No future value is read, so it looks causal. But the future keys were part of the sum that "
        "softmax divided by: the weights left over do not add up to one, and how small they are tells the "
        "model something about tokens it must not know. A score of minus infinity before softmax leaves no "
        "trace.",
        in_practice="Every gradient check passes. The loss falls well below ln 2 per token, which is all "
        "that can be known about the small run's text: a loss that is too good is a leak.",
        fools=("loss_falls", "gradient_check", "ones_upstream", "one_of_everything", "fresh_weights"),
        subject=with_op("attention", forward=late_mask_forward, backward=late_mask_backward),
    ),
    Bug(
        name="attention-mask-off-by-one",
        where="attention",
        title="Every token sees the token after it",
        line="mask = np.triu(np.ones((Tq, Tk), dtype=bool), k=2 + Tk - Tq)",
        lesson="np.triu(ones, k) marks j - i >= k. Token i may see itself and the past, j <= i, so what is "
        "hidden begins at j - i = 1. With k = 0 a token cannot see itself and the first row is all minus "
        "infinity, which gives NaN and is found at once. With k = 2 nothing complains: the next token, "
        "which is to be predicted, lies open.",
        in_practice="Every gradient check passes. The loss falls far below the ln 2 per token that the "
        "small run's text holds, to 0.2 and on. Changing the next token changes the prediction of it.",
        fools=("loss_falls", "gradient_check", "ones_upstream", "one_of_everything", "fresh_weights"),
        subject=with_op("attention", forward=shifted_mask_forward),
    ),
    Bug(
        name="attention-mask-from-the-first-key",
        where="attention",
        title="With fewer queries than keys the mask is aligned at the wrong end",
        line="mask = np.triu(np.ones((Tq, Tk), dtype=bool), k=1)",
        lesson="While training there are as many queries as keys and k = 1 is right. With a cache the "
        "queries are only the new tokens, and stand at the last of all positions: query i is token i + Tk "
        "- Tq and may see that far. Aligned at the first key, the one new token of a step sees only the "
        "first token of the text.",
        in_practice="With as many queries as keys, as always in training, nothing is wrong, and every "
        "check on such a case passes. With fewer, the outputs differ from those of the whole sequence.",
        fools=("loss_falls", "gradient_check", "ones_upstream", "one_of_everything", "fresh_weights"),
        subject=with_op("attention", forward=first_key_mask_forward),
    ),
    Bug(
        name="attention-mask-finite",
        where="attention",
        title="-10,000 in place of minus infinity",
        line="scores = np.where(causal_mask(q.shape[2], k.shape[2]), -1e4, scores)",
        lesson="A large negative number is chosen for fear of NaN, or because float16 ends at 65,504. It "
        "is invisible as long as all scores are far above it. Minus infinity is safe: softmax takes the "
        "row's largest score away first, which is finite as every token sees itself, and exp(-inf) is "
        "exactly zero.",
        in_practice="At ordinary scores all numbers are right, to the last bit. With scores of minus "
        "40,000 the tokens to come outweigh those that may be seen.",
        fools=("loss_falls", "gradient_check", "ones_upstream", "one_of_everything", "fresh_weights"),
        subject=with_op("attention", forward=finite_mask_forward),
    ),
    Bug(
        name="attention-float64-scale",
        where="attention",
        title="np.sqrt turns a float32 model into a float64 one",
        line="scores = q @ k.swapaxes(-2, -1) / np.sqrt(q.shape[-1])",
        lesson="np.sqrt(64) is not 8.0 but np.float64(8.0), and since NumPy 2 such a scalar has a type "
        "that counts: float32 array / float64 scalar is a float64 array, and so is everything computed "
        "from it. A Python float adapts itself instead, and math.sqrt gives one.",
        in_practice="The loss curve is the same, only slower and with float64 attention weights, the "
        "largest array of the model, and everything after them. The dtype of the logits tells.",
        fools=("loss_falls", "gradient_check", "ones_upstream", "one_of_everything", "fresh_weights"),
        subject=with_op("attention", forward=float64_scale_forward),
    ),
    Bug(
        name="attention-dropout-left-on",
        where="attention",
        title="Dropout at evaluation, and in no gradient",
        line="kept = _random.random(weights.shape) < 0.9",
        lesson="Dropout belongs to training, has to be switched off for everything else, and its mask must "
        "be saved, since backward has to drop the same weights. Here it has no switch, a generator that is "
        "everybody's, and a backward that knows nothing of it.",
        in_practice="The loss falls as with right code. Two equal calls give different answers, so every "
        "comparison of numbers fails, each time with another error.",
        fools=("loss_falls",),
        subject=with_op("attention", forward=dropout_forward),
    ),
)
