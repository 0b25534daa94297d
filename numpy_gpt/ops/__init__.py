"""The book: one file per operation, each a lesson, forward with backward directly below it.

Read them in this order: linear, softmax, cross_entropy, linear_cross_entropy, gelu, layer_norm, embedding,
attention. Shape letters, everywhere: B batch, T tokens, C embedding_dim, H num_heads, D head_dim = C // H,
V vocabulary, L layers. A gradient is `d_` plus the name of what it belongs to.
"""

from numpy_gpt.ops.attention import (
    attention_backward,
    attention_forward,
    causal_mask,
    join_heads,
    split_heads,
)
from numpy_gpt.ops.cross_entropy import cross_entropy_backward, cross_entropy_forward
from numpy_gpt.ops.embedding import embedding_backward, embedding_forward
from numpy_gpt.ops.gelu import gelu_backward, gelu_forward
from numpy_gpt.ops.ids import IGNORED_TARGET
from numpy_gpt.ops.layer_norm import layer_norm_backward, layer_norm_forward
from numpy_gpt.ops.linear import linear_backward, linear_forward
from numpy_gpt.ops.linear_cross_entropy import linear_cross_entropy_backward, linear_cross_entropy_forward
from numpy_gpt.ops.softmax import softmax_backward, softmax_forward
from numpy_gpt.ops.table import Op, Ops, book

__all__ = [
    "IGNORED_TARGET",
    "Op",
    "Ops",
    "attention_backward",
    "attention_forward",
    "book",
    "causal_mask",
    "cross_entropy_backward",
    "cross_entropy_forward",
    "embedding_backward",
    "embedding_forward",
    "gelu_backward",
    "gelu_forward",
    "join_heads",
    "layer_norm_backward",
    "layer_norm_forward",
    "linear_backward",
    "linear_cross_entropy_backward",
    "linear_cross_entropy_forward",
    "linear_forward",
    "softmax_backward",
    "softmax_forward",
    "split_heads",
]
