"""Bugs of the embedding operation."""

from __future__ import annotations

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.ops.embedding import EmbeddingSaved
from numpy_gpt.ops.ids import check_token_ids
from numpy_gpt.verify.bugs.bug import Bug, Out
from numpy_gpt.verify.bugs.subject import with_op
from numpy_gpt.verify.kinds import Kind

Gradients = tuple[None, Array, Array]


def _places(saved: EmbeddingSaved, out: Out, d_x: Array) -> tuple[Array, Array]:
    """Return where the two gradients go: the arrays given, or fresh ones."""
    _, d_token, d_position = out or (None, None, None)
    if d_token is None:
        d_token = np.empty(saved.token_shape, d_x.dtype)
    if d_position is None:
        d_position = np.empty(saved.position_shape, d_x.dtype)
    return d_token, d_position


def repeats_lost_backward(d_x: Array, saved: EmbeddingSaved, *, out: Out = None) -> Gradients:
    """Wrong: a token that occurs twice is counted once."""
    d_token_weight, d_position_weight = _places(saved, out, d_x)
    T = saved.token_ids.shape[1]
    d_position_weight[:T] = d_x.sum(axis=0)  # (T, C)
    d_position_weight[T:] = 0
    d_token_weight[...] = 0
    d_token_weight[saved.token_ids] += d_x
    return None, d_token_weight, d_position_weight


def last_sequence_backward(d_x: Array, saved: EmbeddingSaved, *, out: Out = None) -> Gradients:
    """Wrong: each sequence overwrites the positions' gradient of the one before."""
    d_token_weight, d_position_weight = _places(saved, out, d_x)
    d_token_weight[...] = 0
    d_position_weight[...] = 0
    for ids, d_sequence in zip(saved.token_ids, d_x, strict=True):  # (T,), (T, C)
        np.add.at(d_token_weight, ids, d_sequence)
        d_position_weight[: len(ids)] = d_sequence
    return None, d_token_weight, d_position_weight


def averaged_positions_backward(d_x: Array, saved: EmbeddingSaved, *, out: Out = None) -> Gradients:
    """Wrong: the positions' gradient is a mean over the batch."""
    d_token_weight, d_position_weight = _places(saved, out, d_x)
    T = saved.token_ids.shape[1]
    d_position_weight[:T] = d_x.mean(axis=0)
    d_position_weight[T:] = 0
    d_token_weight[...] = 0
    np.add.at(d_token_weight, saved.token_ids, d_x)  # (V, C)
    return None, d_token_weight, d_position_weight


def stale_positions_backward(d_x: Array, saved: EmbeddingSaved, *, out: Out = None) -> Gradients:
    """Wrong: rows of positions that this batch does not reach keep what stood in them."""
    _, d_token_weight, d_position_weight = out or (None, None, None)
    if d_token_weight is None:
        d_token_weight = np.empty(saved.token_shape, d_x.dtype)
    if d_position_weight is None:
        d_position_weight = np.zeros(saved.position_shape, d_x.dtype)
    d_position_weight[: saved.token_ids.shape[1]] = d_x.sum(axis=0)
    d_token_weight[...] = 0
    np.add.at(d_token_weight, saved.token_ids, d_x)  # (V, C)
    return None, d_token_weight, d_position_weight


def position_per_sequence_forward(
    token_ids: Array, token_weight: Array, position_weight: Array
) -> tuple[Array, EmbeddingSaved]:
    """Wrong: the position is counted along the batch."""
    ids = check_token_ids(token_ids, len(token_weight), len(position_weight))  # (B, T)
    positions = np.arange(ids.shape[0])
    x = token_weight[ids] + position_weight[positions][:, None]  # (B, T, C)
    return x, EmbeddingSaved(ids, token_weight.shape, position_weight.shape)


def position_per_sequence_backward(d_x: Array, saved: EmbeddingSaved, *, out: Out = None) -> Gradients:
    """True to position_per_sequence_forward."""
    d_token_weight, d_position_weight = _places(saved, out, d_x)
    d_token_weight[...] = 0
    np.add.at(d_token_weight, saved.token_ids, d_x)  # (V, C)
    d_position_weight[...] = 0
    d_position_weight[: len(d_x)] = d_x.sum(axis=1)  # (B, C)
    return None, d_token_weight, d_position_weight


def wrapping_forward(
    token_ids: Array, token_weight: Array, position_weight: Array
) -> tuple[Array, EmbeddingSaved]:
    """Wrong for bad input: NumPy takes -1 for the last row."""
    ids = np.array(token_ids)
    x = token_weight[ids] + position_weight[: ids.shape[1]]  # (B, T, C)
    return x, EmbeddingSaved(ids, token_weight.shape, position_weight.shape)


BUGS = (
    Bug(
        name="embedding-repeats-lost",
        where="embedding",
        title="A token that occurs twice is counted once",
        line="d_token_weight[saved.token_ids] += d_x",
        lesson="Read as `take the rows, add, put them back`, which is what NumPy does: with an id that "
        "occurs twice, the second writing back overwrites the first. Forward copied the row to both "
        "places, so both gradients belong to it. `np.add.at` adds every time.",
        in_practice="The loss falls as with right code, though frequent tokens learn from one of their "
        "uses only. A case with distinct tokens passes every check.",
        fools=("loss_falls", "one_of_everything"),
        subject=with_op("embedding", backward=repeats_lost_backward),
        kind=Kind.REPEATED_INDICES,
    ),
    Bug(
        name="embedding-positions-of-last-sequence",
        where="embedding",
        title="The positions learn from the last sequence only",
        line="d_position_weight[: len(ids)] = d_sequence",
        lesson="Written for one sequence, where assigning is right because each position occurs once. In a "
        "batch all sequences share the position table: forward broadcasts it over B, and backward has to "
        "sum over B. The loop should add where it assigns.",
        in_practice="The loss falls as with right code, a little slower. A case with one sequence passes "
        "every check; with several, another order of the batch gives other gradients.",
        fools=("loss_falls", "one_of_everything"),
        subject=with_op("embedding", backward=last_sequence_backward),
        kind=Kind.MISSING_REDUCTION,
    ),
    Bug(
        name="embedding-positions-averaged",
        where="embedding",
        title="The positions' gradient is averaged over the batch",
        line="d_position_weight[:T] = d_x.mean(axis=0)",
        lesson="Gradients should not depend on the batch size, one thinks, and takes the mean. They do "
        "not: the mean was taken in the loss, and each d_x carries its 1/N already. What is broadcast "
        "forward is summed backward, always.",
        in_practice="The loss falls as with right code, a constant factor being nothing to AdamW. A case "
        "with one sequence passes every check.",
        fools=("loss_falls", "one_of_everything"),
        subject=with_op("embedding", backward=averaged_positions_backward),
        kind=Kind.CONSTANT_FACTOR,
    ),
    Bug(
        name="embedding-stale-positions",
        where="embedding",
        title="Positions that no token reached keep their last gradient",
        line="d_position_weight[: saved.token_ids.shape[1]] = d_x.sum(axis=0)",
        lesson="The rows beyond T have a gradient too: zero. In a fresh array they are zero, in an array "
        "that is used again they hold the gradient of the last longer batch, which is then applied once "
        "more at every step. To overwrite `out=` means to overwrite all of it.",
        in_practice="Training on windows of full length never shows it, nor does any check that lets "
        "backward allocate. It takes an `out` with something in it and a sequence shorter than the table.",
        fools=("loss_falls", "gradient_check", "ones_upstream", "one_of_everything", "fresh_weights"),
        subject=with_op("embedding", backward=stale_positions_backward),
    ),
    Bug(
        name="embedding-position-per-sequence",
        where="embedding",
        title="The position is counted along the batch instead of the tokens",
        line="positions = np.arange(ids.shape[0])",
        lesson="When a model that took one sequence gets a batch axis in front, axis 0 is no longer the "
        "tokens. Here all tokens of sequence 0 stand at position 0 and all of sequence 1 at position 1. "
        "Broadcasting makes it fit. The model does not know the order of its tokens, and what it says "
        "about a sequence depends on where in the batch it stands.",
        in_practice="Every gradient check passes, and here the loss falls as with right code, since the "
        "text of the small run needs no order. Turning the batch around changes the logits.",
        fools=("loss_falls", "gradient_check", "ones_upstream", "one_of_everything", "fresh_weights"),
        subject=with_op(
            "embedding", forward=position_per_sequence_forward, backward=position_per_sequence_backward
        ),
    ),
    Bug(
        name="embedding-ids-wrap",
        where="embedding",
        title="Token -1 is the last token",
        line="ids = np.array(token_ids)",
        lesson="NumPy's negative indices count from the end, so a padding id of -1, or -100 in a large "
        "vocabulary, looks up a real token's vector and sends gradients to it. torch refuses such an "
        "index. Here somebody has to, before the lookup: a wrong id is the caller's mistake and should be "
        "heard of.",
        in_practice="With right ids everything is right. A wrong one raises nothing as long as it is "
        "negative, and takes the vector of a token that is not there.",
        fools=("loss_falls", "gradient_check", "ones_upstream", "one_of_everything", "fresh_weights"),
        subject=with_op("embedding", forward=wrapping_forward),
    ),
)
