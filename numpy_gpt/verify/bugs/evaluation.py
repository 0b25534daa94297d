"""Bugs of evaluation: windows over a whole text, and the mean over its tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.model import GPT
from numpy_gpt.text.batches import evaluation_windows
from numpy_gpt.training.evaluation import Evaluation
from numpy_gpt.verify.bugs.bug import Bug
from numpy_gpt.verify.bugs.subject import RIGHT

Batches = Iterator[tuple[Array, Array]]


def overlapping_windows(token_ids: Array, *, batch_size: int, sequence_length: int) -> Batches:
    """Wrong: windows overlap by one, and the tokens where they do are targets twice."""
    T = sequence_length
    for start in range(0, len(token_ids) - T, T - 1):
        yield token_ids[None, start : start + T], token_ids[None, start + 1 : start + T + 1]


def whole_windows_only(token_ids: Array, *, batch_size: int, sequence_length: int) -> Batches:
    """Wrong: what does not fill a window is left out."""
    T = sequence_length
    for start in range(0, len(token_ids) - T, T):
        yield token_ids[None, start : start + T], token_ids[None, start + 1 : start + T + 1]


def gaps_between_windows(token_ids: Array, *, batch_size: int, sequence_length: int) -> Batches:
    """Wrong: the first token of each window is nobody's target."""
    T = sequence_length
    for start in range(0, len(token_ids) - 1, T):
        window = token_ids[None, start : start + T]
        yield window[:, :-1], window[:, 1:]


def mean_of_batch_means(
    model: GPT, token_ids: Array, bytes_per_token: Array, *, batch_size: int
) -> Evaluation:
    """Wrong for a last batch of another size: all batches weigh the same."""
    windows = evaluation_windows(
        token_ids, batch_size=batch_size, sequence_length=model.config.max_sequence_length
    )
    loss = float(np.mean([model.loss(inputs, targets) for inputs, targets in windows]))
    bytes_each = bytes_per_token[token_ids[1:]].mean()
    return Evaluation(loss, loss / math.log(2) / float(bytes_each))


def bytes_of_all_tokens(
    model: GPT, token_ids: Array, bytes_per_token: Array, *, batch_size: int
) -> Evaluation:
    """Wrong: the first token's bytes are counted, though it is not predicted."""
    windows = evaluation_windows(
        token_ids, batch_size=batch_size, sequence_length=model.config.max_sequence_length
    )
    nats = sum(model.loss(inputs, targets, divisor=1.0) for inputs, targets in windows)
    num_bytes = int(bytes_per_token[token_ids].sum())
    return Evaluation(nats / (len(token_ids) - 1), nats / math.log(2) / num_bytes)


BUGS = (
    Bug(
        name="evaluation-tokens-counted-twice",
        where="evaluation",
        title="Windows overlap by one token",
        line="for start in range(0, len(token_ids) - T, T - 1):",
        lesson="Inputs and targets are shifted by one, so one thinks the windows have to be as well. They "
        "have not: the window's T + 1 tokens share one with the next window's, as the last target here and "
        "the first input there, and a stride of T makes every token a target once. With T - 1 some count "
        "double.",
        in_practice="Training is not concerned. The figure is near the true one, 0.754 instead of 0.747 "
        "nats on a text of 300 tokens, and for windows of 8 it is a mean over an eighth more tokens.",
        fools=(),
        subject=RIGHT._replace(evaluation_windows=overlapping_windows),
    ),
    Bug(
        name="evaluation-remainder-dropped",
        where="evaluation",
        title="The last, shorter window is left out",
        line="for start in range(0, len(token_ids) - T, T):",
        lesson="A range over whole windows is simple, and the rest is less than one window. So models with "
        "different window lengths are measured on different texts, and a text of less than two windows "
        "almost not. Fill the last window up, and mark what fills it as ignored.",
        in_practice="Training is not concerned. The figure is near the true one, 0.749 instead of 0.747 "
        "nats on a text of 300 tokens, of which the last three are not in it.",
        fools=(),
        subject=RIGHT._replace(evaluation_windows=whole_windows_only),
    ),
    Bug(
        name="evaluation-gaps-between-windows",
        where="evaluation",
        title="The first token of each window is never predicted",
        line="yield window[:, :-1], window[:, 1:]",
        lesson="The text is cut into pieces of T, and each piece into inputs and targets: a piece has only "
        "T - 1 pairs, and the step from its last token to the next piece's first is in none. Just those "
        "predictions have the longest context, or the shortest, and the mean over the others is another "
        "mean.",
        in_practice="Training is not concerned. The figure is near the true one, 0.744 instead of 0.747 "
        "nats on a text of 300 tokens, though an eighth of the predictions is missing.",
        fools=(),
        subject=RIGHT._replace(evaluation_windows=gaps_between_windows),
    ),
    Bug(
        name="evaluation-mean-of-batch-means",
        where="evaluation",
        title="A short last batch weighs as much as a full one",
        line="loss = float(np.mean([model.loss(inputs, targets) for inputs, targets in windows]))",
        lesson="The model returns a mean, and a mean of means comes of itself. The last batch has fewer "
        "windows, and fewer tokens in them, that weigh as much as all of another batch; the result depends "
        "on the batch size, which should only be a matter of speed. Sum the nats, count the tokens, divide "
        "once.",
        in_practice="Training is not concerned. On a text of 300 tokens the loss of one and the same model "
        "is 0.743, 0.746 or 0.744 nats with 4, 8 or 16 windows per batch, and 0.747 in truth.",
        fools=(),
        subject=RIGHT._replace(evaluate=mean_of_batch_means),
    ),
    Bug(
        name="evaluation-bytes-of-all-tokens",
        where="evaluation",
        title="Bits are spread over one token's bytes too many",
        line="num_bytes = int(bytes_per_token[token_ids].sum())",
        lesson="Numerator and denominator have to speak of the same tokens. The first token is only read, "
        "never predicted, so its surprise is in no sum and its bytes must be in none. The error is small "
        "for a long text, and all in one's favour.",
        in_practice="Training is not concerned, and the loss in nats is right. Bits per byte are too low "
        "by the first token's share, half a percent for a text of 300 tokens.",
        fools=(),
        subject=RIGHT._replace(evaluate=bytes_of_all_tokens),
    ),
)
