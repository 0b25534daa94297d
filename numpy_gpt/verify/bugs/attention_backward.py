"""Bugs of the attention operation's backward pass."""

from __future__ import annotations

import math

from numpy_gpt.arrays import Array, deliver
from numpy_gpt.ops.attention import AttentionSaved, join_heads, split_heads
from numpy_gpt.ops.softmax import softmax_backward, softmax_forward
from numpy_gpt.verify.bugs.bug import Bug, Out
from numpy_gpt.verify.bugs.subject import with_op
from numpy_gpt.verify.kinds import Kind


def scrambled_keys_backward(
    d_context: Array, saved: AttentionSaved, *, out: Out = None
) -> tuple[Array, Array, Array]:
    """Wrong: d_keys joins its heads by a reshape alone."""
    d_queries, d_keys, d_values = out or (None, None, None)
    q, k, v, softmax_saved = saved
    B, H, Tk, D = k.shape

    d_heads = split_heads(d_context, H)  # (B, H, Tq, D)
    d_weights = d_heads @ v.swapaxes(-2, -1)  # (B, H, Tq, Tk)
    d_v = softmax_saved.y.swapaxes(-2, -1) @ d_heads  # (B, H, Tk, D)
    (d_scaled,) = softmax_backward(d_weights, softmax_saved)  # (B, H, Tq, Tk)
    d_scores = d_scaled / math.sqrt(D)  # (B, H, Tq, Tk)
    d_q = d_scores @ k  # (B, H, Tq, D)
    d_k = d_scores.swapaxes(-2, -1) @ q  # (B, H, Tk, D)
    return (
        deliver(join_heads(d_q), d_queries),
        deliver(d_k.reshape(B, Tk, H * D), d_keys),
        deliver(join_heads(d_v), d_values),
    )


def unscaled_backward(
    d_context: Array, saved: AttentionSaved, *, out: Out = None
) -> tuple[Array, Array, Array]:
    """Wrong: forward divides the scores by √D, and backward does not."""
    d_queries, d_keys, d_values = out or (None, None, None)
    q, k, v, softmax_saved = saved
    H = q.shape[1]

    d_heads = split_heads(d_context, H)  # (B, H, Tq, D)
    d_weights = d_heads @ v.swapaxes(-2, -1)  # (B, H, Tq, Tk)
    d_v = softmax_saved.y.swapaxes(-2, -1) @ d_heads  # (B, H, Tk, D)
    (d_scores,) = softmax_backward(d_weights, softmax_saved)
    d_q = d_scores @ k  # (B, H, Tq, D)
    d_k = d_scores.swapaxes(-2, -1) @ q  # (B, H, Tk, D)
    return (
        deliver(join_heads(d_q), d_queries),
        deliver(join_heads(d_k), d_keys),
        deliver(join_heads(d_v), d_values),
    )


def row_term_backward(
    d_context: Array, saved: AttentionSaved, *, out: Out = None
) -> tuple[Array, Array, Array]:
    """Wrong: softmax's gradient without the sum over the row."""
    d_queries, d_keys, d_values = out or (None, None, None)
    q, k, v, (weights,) = saved
    H, D = q.shape[1], q.shape[-1]

    d_heads = split_heads(d_context, H)  # (B, H, Tq, D)
    d_weights = d_heads @ v.swapaxes(-2, -1)  # (B, H, Tq, Tk)
    d_v = weights.swapaxes(-2, -1) @ d_heads  # (B, H, Tk, D)
    d_scores = weights * d_weights / math.sqrt(D)
    d_q = d_scores @ k  # (B, H, Tq, D)
    d_k = d_scores.swapaxes(-2, -1) @ q  # (B, H, Tk, D)
    return (
        deliver(join_heads(d_q), d_queries),
        deliver(join_heads(d_k), d_keys),
        deliver(join_heads(d_v), d_values),
    )


def unmasked_backward(
    d_context: Array, saved: AttentionSaved, *, out: Out = None
) -> tuple[Array, Array, Array]:
    """Wrong: computes the weights anew, to save their memory, and forgets the mask."""
    d_queries, d_keys, d_values = out or (None, None, None)
    q, k, v, _ = saved
    H, D = q.shape[1], q.shape[-1]

    weights, softmax_saved = softmax_forward(q @ k.swapaxes(-2, -1) / math.sqrt(D))
    d_heads = split_heads(d_context, H)  # (B, H, Tq, D)
    d_weights = d_heads @ v.swapaxes(-2, -1)  # (B, H, Tq, Tk)
    d_v = weights.swapaxes(-2, -1) @ d_heads  # (B, H, Tk, D)
    (d_scaled,) = softmax_backward(d_weights, softmax_saved)  # (B, H, Tq, Tk)
    d_scores = d_scaled / math.sqrt(D)  # (B, H, Tq, Tk)
    d_q = d_scores @ k  # (B, H, Tq, D)
    d_k = d_scores.swapaxes(-2, -1) @ q  # (B, H, Tk, D)
    return (
        deliver(join_heads(d_q), d_queries),
        deliver(join_heads(d_k), d_keys),
        deliver(join_heads(d_v), d_values),
    )


def untransposed_values_backward(
    d_context: Array, saved: AttentionSaved, *, out: Out = None
) -> tuple[Array, Array, Array]:
    """Wrong: d_values mixed by what each query reads instead of by who reads each value."""
    d_queries, d_keys, d_values = out or (None, None, None)
    q, k, v, softmax_saved = saved
    H, D = q.shape[1], q.shape[-1]

    d_heads = split_heads(d_context, H)  # (B, H, Tq, D)
    d_weights = d_heads @ v.swapaxes(-2, -1)  # (B, H, Tq, Tk)
    d_v = softmax_saved.y @ d_heads
    (d_scaled,) = softmax_backward(d_weights, softmax_saved)  # (B, H, Tq, Tk)
    d_scores = d_scaled / math.sqrt(D)  # (B, H, Tq, Tk)
    d_q = d_scores @ k  # (B, H, Tq, D)
    d_k = d_scores.swapaxes(-2, -1) @ q  # (B, H, Tk, D)
    return (
        deliver(join_heads(d_q), d_queries),
        deliver(join_heads(d_k), d_keys),
        deliver(join_heads(d_v), d_values),
    )


BUGS = (
    Bug(
        name="attention-keys-scrambled",
        where="attention",
        title="The heads of the keys' gradient are joined by a reshape alone",
        line="deliver(d_k.reshape(B, Tk, H * D), d_keys),",
        lesson="(B, H, T, D) and (B, T, C) hold equally many numbers, so the reshape succeeds. But in "
        "memory the first has all tokens of head 0, then all of head 1; the second has all heads of token "
        "0, then of token 1. Splitting was a reshape and a transpose, so joining is the transpose back and "
        "then the reshape: join_heads is the exact reverse of split_heads and thereby its gradient.",
        in_practice="The loss falls as with right code, to the second digit. One head or one token is "
        "right, and at fresh weights the gradient of the keys is smaller than the tolerance. W_key's bias "
        "has a gradient that is not zero.",
        fools=("loss_falls", "one_of_everything", "fresh_weights"),
        subject=with_op("attention", backward=scrambled_keys_backward),
        kind=Kind.PERMUTED_AXES,
    ),
    Bug(
        name="attention-scale-forgotten-in-backward",
        where="attention",
        title="The gradient of the scores is not divided by √D",
        line="(d_scores,) = softmax_backward(d_weights, softmax_saved)",
        lesson="Forward computes softmax(s / √D). Backward undoes line by line, and a division by √D is a "
        "line, though it hides inside softmax's argument: its gradient is a division by √D again. Without "
        "it the gradients of queries and keys are too large by √D, 8 for heads of width 64, while that of "
        "the values, which never passes the scores, is right.",
        in_practice="The loss falls as with right code, because AdamW takes the factor out again. At fresh "
        "weights the gradients of queries and keys are smaller than the tolerance, right or wrong.",
        fools=("loss_falls", "fresh_weights"),
        subject=with_op("attention", backward=unscaled_backward),
        kind=Kind.CONSTANT_FACTOR,
    ),
    Bug(
        name="attention-row-term-forgotten",
        where="attention",
        title="Softmax's row term is missing inside attention",
        line="d_scores = weights * d_weights / math.sqrt(D)",
        lesson="The same slip as in softmax alone, but harder to see: it stands between four matrix "
        "products. The term Σ_j d_w_ij w_ij, one number per query, is what makes the scores' gradient of "
        "each query sum to zero. Fast kernels compute it as the dot product of d_context and context, a "
        "detour on which it is easily lost.",
        in_practice="The loss falls as with right code, and at fresh weights the check passes. W_key's "
        "bias has a gradient that is not zero.",
        fools=("loss_falls", "fresh_weights"),
        subject=with_op("attention", backward=row_term_backward),
        kind=Kind.SOFTMAX_ROW_TERM,
    ),
    Bug(
        name="attention-mask-forgotten-in-backward",
        where="attention",
        title="Weights recomputed for backward see the future",
        line="weights, softmax_saved = softmax_forward(q @ k.swapaxes(-2, -1) / math.sqrt(D))",
        lesson="To recompute the weights instead of keeping them is a good idea: they are the largest "
        "array of all when T is large. But then every step of forward has to be repeated, the mask too. "
        "Here backward differentiates an attention that looks both ways, which is not the one that was "
        "computed.",
        in_practice="The loss falls, slower at first, and ends near right code's. Outputs are causal, as "
        "forward is right; every gradient check finds it.",
        fools=("loss_falls",),
        subject=with_op("attention", backward=unmasked_backward),
        kind=Kind.MASK,
    ),
    Bug(
        name="attention-values-untransposed",
        where="attention",
        title="The values' gradient uses the weights without transposing them",
        line="d_v = softmax_saved.y @ d_heads",
        lesson="Row i of the weights says what query i reads. The gradient of value j needs the opposite: "
        "who has read value j, and how much, which is column j. So d_v = wᵀ d_z. With as many queries as "
        "keys the weights are square and the shapes keep silent; with the mask the gradient now even flows "
        "from the past to the future instead of back.",
        in_practice="The loss falls, clearly slower at first, and ends near right code's. Every gradient "
        "check finds it, and with fewer queries than keys the shapes no longer fit.",
        fools=("loss_falls",),
        subject=with_op("attention", backward=untransposed_values_backward),
    ),
)
