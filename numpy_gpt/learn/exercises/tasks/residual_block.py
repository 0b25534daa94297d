"""The residual block: a whole layer of a GPT.

All operations are there now, and this is how the model puts them together: twice "x plus what a branch makes
of x". The first branch lets tokens look at one another, the second lets each token think on its own.

The plus sign is what makes deep models learn. x is used twice, by the branch and past it, so its gradient has
two parts, and they add. The part that goes past the branch is the upstream gradient itself, untouched,
whatever the branch does to its own. Through a hundred blocks there is a road straight down.

Mind the order. The gradient that enters attention's branch is that of `middle`, which is whole only after
feed-forward's branch has brought back its part.

You write no formula here: every operation's backward is imported, and takes what its forward saved.

Shapes
    x, attention_normed, context, middle, feed_forward_normed, out, d_out (B, T, C)
    qkv (B, T, 3C)      queries, keys, values (B, T, C) each, thirds of qkv      wide, gated (B, T, 4C)

Task
    From the end to the beginning: d_gated, d_wide, d_feed_forward_normed, d_middle; d_context, d_qkv,
    d_attention_normed, d_x; and the gradients of the twelve weights and biases as they turn up.
    np.concatenate undoes np.split.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.learn.exercises.exercise import Case, Exercise, normal, paragraphs
from numpy_gpt.ops.attention import AttentionSaved, attention_backward, attention_forward
from numpy_gpt.ops.gelu import GeluSaved, gelu_backward, gelu_forward
from numpy_gpt.ops.layer_norm import LayerNormSaved, layer_norm_backward, layer_norm_forward
from numpy_gpt.ops.linear import LinearSaved, linear_backward, linear_forward


class ResidualBlockSaved(NamedTuple):
    """What residual_block_backward needs: what each operation saved."""

    attention_norm: LayerNormSaved
    qkv: LinearSaved
    attention: AttentionSaved
    out_proj: LinearSaved
    feed_forward_norm: LayerNormSaved
    up_proj: LinearSaved
    gelu: GeluSaved
    down_proj: LinearSaved


def residual_block_forward(  # noqa: PLR0917  # it has as many arrays as a block has
    x: Array,
    attention_norm_weight: Array,
    attention_norm_bias: Array,
    qkv_weight: Array,
    qkv_bias: Array,
    out_proj_weight: Array,
    out_proj_bias: Array,
    feed_forward_norm_weight: Array,
    feed_forward_norm_bias: Array,
    up_proj_weight: Array,
    up_proj_bias: Array,
    down_proj_weight: Array,
    down_proj_bias: Array,
    *,
    num_heads: int,
) -> tuple[Array, ResidualBlockSaved]:
    """Return x (B, T, C) after one block's two residual branches."""
    attention_normed, attention_norm = layer_norm_forward(x, attention_norm_weight, attention_norm_bias)
    qkv, qkv_saved = linear_forward(attention_normed, qkv_weight, qkv_bias)  # (B, T, 3C)
    queries, keys, values = np.split(qkv, 3, axis=-1)  # (B, T, C) each
    context, attention = attention_forward(queries, keys, values, num_heads=num_heads)  # (B, T, C)
    attention_branch, out_proj = linear_forward(context, out_proj_weight, out_proj_bias)  # (B, T, C)
    middle = x + attention_branch  # (B, T, C)

    feed_forward_normed, feed_forward_norm = layer_norm_forward(
        middle, feed_forward_norm_weight, feed_forward_norm_bias
    )  # (B, T, C)
    wide, up_proj = linear_forward(feed_forward_normed, up_proj_weight, up_proj_bias)  # (B, T, 4C)
    gated, gelu = gelu_forward(wide)  # (B, T, 4C)
    feed_forward_branch, down_proj = linear_forward(gated, down_proj_weight, down_proj_bias)  # (B, T, C)
    out = middle + feed_forward_branch  # (B, T, C)
    return out, ResidualBlockSaved(
        attention_norm, qkv_saved, attention, out_proj, feed_forward_norm, up_proj, gelu, down_proj
    )


def residual_block_backward(d_out: Array, saved: ResidualBlockSaved) -> tuple[Array, ...]:
    """Return (d_x (B, T, C), and the gradients of forward's twelve weights and biases in their order)."""
    # out = middle + down_proj(gelu(up_proj(norm(middle)))): d_out goes both ways
    d_gated, d_down_proj_weight, d_down_proj_bias = linear_backward(d_out, saved.down_proj)  # (B, T, 4C)
    (d_wide,) = gelu_backward(d_gated, saved.gelu)  # (B, T, 4C)
    d_feed_forward_normed, d_up_proj_weight, d_up_proj_bias = linear_backward(d_wide, saved.up_proj)
    through_feed_forward, d_feed_forward_norm_weight, d_feed_forward_norm_bias = layer_norm_backward(
        d_feed_forward_normed, saved.feed_forward_norm
    )  # (B, T, C)
    d_middle = d_out + through_feed_forward  # (B, T, C)

    # middle = x + out_proj(attention(split(qkv(norm(x))))): likewise
    d_context, d_out_proj_weight, d_out_proj_bias = linear_backward(d_middle, saved.out_proj)  # (B, T, C)
    d_queries, d_keys, d_values = attention_backward(d_context, saved.attention)  # (B, T, C) each
    d_qkv = np.concatenate((d_queries, d_keys, d_values), axis=-1)  # (B, T, 3C)
    d_attention_normed, d_qkv_weight, d_qkv_bias = linear_backward(d_qkv, saved.qkv)  # (B, T, C)
    through_attention, d_attention_norm_weight, d_attention_norm_bias = layer_norm_backward(
        d_attention_normed, saved.attention_norm
    )  # (B, T, C)
    d_x = d_middle + through_attention  # (B, T, C)

    assert d_down_proj_bias is not None and d_up_proj_bias is not None  # noqa: PT018  # for the types
    assert d_out_proj_bias is not None and d_qkv_bias is not None  # noqa: PT018
    return (
        d_x,
        *(d_attention_norm_weight, d_attention_norm_bias, d_qkv_weight, d_qkv_bias),
        *(d_out_proj_weight, d_out_proj_bias, d_feed_forward_norm_weight, d_feed_forward_norm_bias),
        *(d_up_proj_weight, d_up_proj_bias, d_down_proj_weight, d_down_proj_bias),
    )


def cases(random: np.random.Generator) -> list[Case]:
    """Two heads of width 2."""
    C = 4
    arrays = [normal(random, 2, 3, C)]
    for outputs, inputs in ((C, 0), (3 * C, C), (C, C), (C, 0), (4 * C, C), (C, 4 * C)):
        weight = normal(random, outputs, inputs, fan_in=inputs) if inputs else normal(random, outputs)
        arrays += [weight, normal(random, outputs)]
    return [Case(tuple(arrays), {"num_heads": 2})]


HINTS = """
Read forward from its last line up, and call the backward of each operation with what that operation saved.
Its first answer is what the operation before it needs; the others are gradients of weights.

At each plus sign the gradient splits in two, one past the branch, one through it. They meet again where the
branch began: middle for the second branch, x for the first.

The norm's first answer is only what comes through the branch. Add it to what went past before you go on to
the earlier branch. The thirds of qkv are in the order queries, keys, values.
"""

EXERCISE = Exercise(
    name="residual_block",
    statement=__doc__,
    solution=residual_block_backward,
    forward=residual_block_forward,
    cases=cases,
    tools=("np", "linear_backward", "gelu_backward", "layer_norm_backward", "attention_backward"),
    hints=paragraphs(HINTS),
)
