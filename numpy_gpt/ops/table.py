"""The table of operations that a model computes with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numpy_gpt.ops.attention import attention_backward, attention_forward
from numpy_gpt.ops.cross_entropy import cross_entropy_backward, cross_entropy_forward
from numpy_gpt.ops.embedding import embedding_backward, embedding_forward
from numpy_gpt.ops.gelu import gelu_backward, gelu_forward
from numpy_gpt.ops.layer_norm import layer_norm_backward, layer_norm_forward
from numpy_gpt.ops.linear import linear_backward, linear_forward
from numpy_gpt.ops.linear_cross_entropy import linear_cross_entropy_backward, linear_cross_entropy_forward
from numpy_gpt.ops.softmax import softmax_backward, softmax_forward


class Op(NamedTuple):
    """An operation and the operation that sends gradients back through it.

    forward(*arrays, **options) -> (out, saved)
    backward(d_out, saved, *, out=None) -> a tuple aligned with forward's arrays; None for integers and for
    an absent bias. `out` is a tuple aligned with it too, whose arrays are overwritten; a None in it means
    "allocate this one". `saved` may be used again and gives the same answer.
    """

    forward: Callable[..., tuple[Any, Any]]
    backward: Callable[..., tuple[Any, ...]]


class Ops(NamedTuple):
    """One `Op` for each operation; change some with `book._replace(gelu=Op(my_forward, my_backward))`.

    A model calls embedding, linear, layer_norm, gelu, attention and linear_cross_entropy. softmax and
    cross_entropy are the parts of which attention and linear_cross_entropy are made, there to be read,
    checked and used on their own; replacing them alone changes no model.
    """

    embedding: Op
    linear: Op
    layer_norm: Op
    gelu: Op
    softmax: Op
    attention: Op
    cross_entropy: Op
    linear_cross_entropy: Op


book = Ops(
    embedding=Op(embedding_forward, embedding_backward),
    linear=Op(linear_forward, linear_backward),
    layer_norm=Op(layer_norm_forward, layer_norm_backward),
    gelu=Op(gelu_forward, gelu_backward),
    softmax=Op(softmax_forward, softmax_backward),
    attention=Op(attention_forward, attention_backward),
    cross_entropy=Op(cross_entropy_forward, cross_entropy_backward),
    linear_cross_entropy=Op(linear_cross_entropy_forward, linear_cross_entropy_backward),
)
"""The operations of this folder: plain NumPy, written to be read."""
