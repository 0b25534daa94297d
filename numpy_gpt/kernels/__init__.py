"""The kernels: tuned twins of the book's operations, with the same signatures and the same results.

Each file says how it differs from its chapter of the book. Only what makes a whole training step faster has a
twin; softmax and cross_entropy, which a model never calls alone, are the book's. Two things are used by all:
`workspace.empty` for memory that is used again, and `parallel.share` for spans that run on several threads.
"""

from numpy_gpt.kernels.attention import attention_backward, attention_forward
from numpy_gpt.kernels.embedding import embedding_backward, embedding_forward
from numpy_gpt.kernels.gelu import gelu_backward, gelu_forward
from numpy_gpt.kernels.layer_norm import layer_norm_backward, layer_norm_forward
from numpy_gpt.kernels.linear import linear_backward, linear_forward
from numpy_gpt.kernels.linear_cross_entropy import linear_cross_entropy_backward, linear_cross_entropy_forward
from numpy_gpt.kernels.workspace import Workspace, empty
from numpy_gpt.ops import Op, book

fast = book._replace(
    embedding=Op(embedding_forward, embedding_backward),
    linear=Op(linear_forward, linear_backward),
    layer_norm=Op(layer_norm_forward, layer_norm_backward),
    gelu=Op(gelu_forward, gelu_backward),
    attention=Op(attention_forward, attention_backward),
    linear_cross_entropy=Op(linear_cross_entropy_forward, linear_cross_entropy_backward),
)
"""The tuned operations, and the book's where there is no twin."""

__all__ = ["Workspace", "empty", "fast"]
