"""A cached decoding step: read each token once.

To generate, a model predicts a token, appends it, and predicts again. Run whole every time, it would compute
the keys and values of every earlier token again and again, and get the same numbers: what a token offers
depends on the tokens up to it, and they do not change. So they are kept. With a cache, one more token costs
one token.

Nothing is differentiated here. The task is to make a function that gets only the new tokens, and what the
function before it kept, and answers exactly as `whole_text` does in its last rows. The ways to miss that are
all quiet ones: logits of the right shape that belong to another position, another past, or another sequence.

Shapes
    token_ids (B, T): here the new tokens of each sequence, one or several      logits (B, T, V)
    past.keys, past.values (B, P, C): of the P tokens before; P is 0 at first
    token_weight (V, C)      position_weight (max_sequence_length, C)      each matrix of Weights (C, C)

Task
    1. x (B, T, C): the new tokens stand at the positions P, P + 1, ...
    2. queries (B, T, C) of the new tokens; keys and values (B, P + T, C) of all tokens so far.
    3. context (B, T, C): attention_forward takes fewer queries than keys, and lets them stand at the end.
    4. logits (B, T, V), and what to keep for the next call.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.learn.exercises.exercise import Case, Exercise, normal, paragraphs
from numpy_gpt.ops.attention import attention_forward
from numpy_gpt.ops.embedding import embedding_forward


class Weights(NamedTuple):
    """A model of one attention layer."""

    token_weight: Array  # (V, C)
    position_weight: Array  # (max_sequence_length, C)
    query: Array  # (C, C)
    key: Array  # (C, C)
    value: Array  # (C, C)


class Past(NamedTuple):
    """The cache: what attention needs of the tokens before."""

    keys: Array  # (B, P, C)
    values: Array  # (B, P, C)


def whole_text(token_ids: Array, weights: Weights, *, num_heads: int) -> Array:
    """Return the logits (B, T, V) of a whole text, computed without a cache."""
    x, _ = embedding_forward(token_ids, weights.token_weight, weights.position_weight)  # (B, T, C)
    queries, keys, values = x @ weights.query.T, x @ weights.key.T, x @ weights.value.T  # (B, T, C) each
    context, _ = attention_forward(queries, keys, values, num_heads=num_heads)  # (B, T, C)
    logits: Array = context @ weights.token_weight.T  # (B, T, V)
    return logits


def cached_step(token_ids: Array, past: Past, weights: Weights, *, num_heads: int) -> tuple[Array, Past]:
    """Return (logits (B, T, V) of the new tokens, the past of the next call)."""
    past_keys, past_values = past
    P = past_keys.shape[1]
    x, _ = embedding_forward(token_ids, weights.token_weight, weights.position_weight[P:])  # (B, T, C)
    queries = x @ weights.query.T  # (B, T, C)
    keys = np.concatenate((past_keys, x @ weights.key.T), axis=1)  # (B, P + T, C)
    values = np.concatenate((past_values, x @ weights.value.T), axis=1)  # (B, P + T, C)
    context, _ = attention_forward(queries, keys, values, num_heads=num_heads)  # (B, T, C)
    logits = context @ weights.token_weight.T  # (B, T, V)
    past = Past(keys, values)
    return logits, past


def cases(random: np.random.Generator) -> list[Case]:
    """A text of two sequences in three parts: a prompt, one token, two more."""
    V, C, B = 9, 4, 2
    weights = Weights(
        normal(random, V, C), normal(random, 7, C), *(normal(random, C, C, fan_in=C) for _ in range(3))
    )
    token_ids = random.integers(0, V, (B, 6))
    past = Past(np.zeros((B, 0, C)), np.zeros((B, 0, C)))
    made = []
    for first, last, label in ((0, 3, ""), (3, 4, "in the second call"), (4, 6, "in the third call")):
        part = token_ids[:, first:last]
        made.append(Case((part, past, weights), {"num_heads": 2}, label))
        _, past = cached_step(part, past, weights, num_heads=2)
    return made


HINTS = """
Copy whole_text and ask of each line: is this about the new tokens, or about all tokens so far?

Only keys and values are about all. Make those of the new tokens, and put them behind those that are kept,
along the axis of time. How many are kept is the length of that axis.

The positions: give embedding_forward the table from row P on. Attention needs no mask from you, and what you
return as past are the same keys and values that you gave to attention.
"""

EXERCISE = Exercise(
    name="cached_step",
    statement=__doc__,
    solution=cached_step,
    cases=cases,
    given=(whole_text,),
    tools=("np",),
    names=("x", "queries", "keys", "values", "context", "logits", "past"),
    look={
        "x": "where the new tokens stand: embedding_forward counts positions from the first row it is given",
        "queries": "who asks: the new tokens only",
        "keys": "what is kept and what is new, in their order in time, each sequence with its own",
        "values": "what is kept and what is new, in their order in time, each sequence with its own",
        "context": "what attention_forward is given: the queries of the new tokens, and the keys of all",
        "logits": "the last product: which matrix stands at both ends of this model",
        "past": "what the next call will need: keys and values of all tokens so far, not of the last part",
    },
    hints=paragraphs(HINTS),
)
