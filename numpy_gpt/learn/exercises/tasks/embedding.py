"""Embedding: look up a vector, and count every use.

A token's id picks a row of token_weight, and its place in the sequence picks a row of position_weight; the
two are added. There is no arithmetic to differentiate: forward only copies numbers. But it may copy one row
to many places. "the" stands in a text a hundred times, and each of these places wants something of the same
row.

What is used several times collects from every use. For the positions that is a sum over the batch: position 3
gets the same vector in every sequence. For the tokens the uses are scattered wherever the id occurs.

NumPy has a trap here, and it is the reason for this exercise: `a[ids] += b` reads, adds and writes each row
once, however often its id occurs. Where no id repeats, everything looks right.

Shapes
    token_ids (B, T)      x, d_x (B, T, C)      token_weight (V, C)
    position_weight (max_sequence_length, C), of which the first T rows are used
    token_shape and position_shape are the shapes of the two weights.

Task
    1. d_token_weight (V, C): zero for tokens that do not occur.
    2. d_position_weight (max_sequence_length, C): zero for positions that no sequence reaches.
    The first of the three gradients is None: an id is a choice, and cannot be nudged.
"""

from __future__ import annotations

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.learn.exercises.exercise import Case, Exercise, normal, paragraphs
from numpy_gpt.ops.embedding import EmbeddingSaved, embedding_backward, embedding_forward


def embedding_steps(d_x: Array, _: EmbeddingSaved) -> dict[str, Array]:
    """Return the gradients of forward's other variables, which a learner may want on the way."""
    return {"d_token_vectors": d_x, "d_position_vectors": d_x.sum(axis=0)}  # (B, T, C), (T, C)


def cases(random: np.random.Generator) -> list[Case]:
    """Ids that repeat within and across sequences, and fewer tokens than there are positions."""
    token_ids = np.array([[3, 1, 3, 0], [3, 5, 0, 0], [6, 5, 1, 3]])
    return [Case((token_ids, normal(random, 7, 5, fan_in=5), normal(random, 6, 5, fan_in=5)))]


HINTS = """
Start both gradients as zeros of the weights' shapes; then bring each d_x[b, t] to the two rows that made x[b,
t].

All sequences share the rows of position_weight, and only the first T of them are used. For the tokens try two
plain loops over b and t first: slow, and right.

For the tokens without loops: a ufunc has a method that is like indexing with += but counts every occurrence
of an index. Look up np.ufunc.at.
"""

EXERCISE = Exercise(
    name="embedding",
    statement=__doc__,
    solution=embedding_backward,
    forward=embedding_forward,
    cases=cases,
    steps=embedding_steps,
    tools=("np",),
    op="embedding",
    hints=paragraphs(HINTS),
)
