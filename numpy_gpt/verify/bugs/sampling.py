"""Bugs of the filters on the next token's probabilities."""

from __future__ import annotations

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.verify.bugs.bug import Bug
from numpy_gpt.verify.bugs.subject import RIGHT


def _softmax(logits: Array) -> Array:
    exponentials = np.exp(logits - logits.max())  # (V,)
    shares: Array = exponentials / exponentials.sum()
    return shares


def _keep(probabilities: Array, kept: Array) -> Array:
    """Return the probabilities (V,) of the kept ids, summing to 1, and zero for the others."""
    result = np.zeros_like(probabilities)
    result[kept] = probabilities[kept] / probabilities[kept].sum()
    return result


def _top_p(probabilities: Array, top_p: float | None) -> Array:
    """Return the probabilities (V,) after a right top_p."""
    if top_p is None or top_p >= 1:
        return probabilities
    order = np.argsort(-probabilities, kind="stable")  # (V,)
    kept = np.searchsorted(np.cumsum(probabilities[order]), top_p) + 1
    return _keep(probabilities, order[:kept])


def temperature_on_probabilities(
    logits: Array, *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Array:
    """Wrong: to divide probabilities and to make them sum to 1 again changes nothing."""
    order = np.argsort(-logits, kind="stable")  # (V,)
    if temperature == 0:
        return _keep(_softmax(logits), order[:1])
    probabilities = _softmax(logits) / temperature
    probabilities = _keep(probabilities, order[:top_k])  # (V,)
    return _top_p(probabilities, top_p)


def temperature_multiplied(
    logits: Array, *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Array:
    """Wrong: above 1 plays safe and below 1 takes risks."""
    order = np.argsort(-logits, kind="stable")  # (V,)
    if temperature == 0:
        return _keep(_softmax(logits), order[:1])
    probabilities = _softmax(logits * temperature)
    probabilities = _keep(probabilities, order[:top_k])  # (V,)
    return _top_p(probabilities, top_p)


def ties_of_the_kth_kept(
    logits: Array, *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Array:
    """Wrong for equal logits: keeps all that are as large as the k-th."""
    order = np.argsort(-logits, kind="stable")  # (V,)
    if temperature == 0:
        return _keep(_softmax(logits), order[:1])
    probabilities = _softmax(logits / temperature)  # (V,)
    if top_k is not None and top_k < len(logits):
        probabilities = _keep(probabilities, logits >= np.sort(logits)[-top_k])
    return _top_p(probabilities, top_p)


def one_more_than_k(
    logits: Array, *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Array:
    """Wrong: keeps k + 1 tokens."""
    order = np.argsort(-logits, kind="stable")  # (V,)
    if temperature == 0:
        return _keep(_softmax(logits), order[:1])
    probabilities = _softmax(logits / temperature)  # (V,)
    if top_k is not None and top_k < len(logits):
        threshold = logits[order[top_k]]
        probabilities = _keep(probabilities, logits >= threshold)
    return _top_p(probabilities, top_p)


def crossing_token_dropped(
    logits: Array, *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Array:
    """Wrong: keeps the tokens whose sum stays below p, and at worst none."""
    order = np.argsort(-logits, kind="stable")  # (V,)
    if temperature == 0:
        return _keep(_softmax(logits), order[:1])
    probabilities = _keep(_softmax(logits / temperature), order[:top_k])  # (V,)
    if top_p is None:
        return probabilities
    kept = np.cumsum(probabilities[order]) <= top_p
    return _keep(probabilities, order[kept])


def top_p_of_the_unfiltered(
    logits: Array, *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Array:
    """Wrong for both filters together: top_p sums probabilities from before top_k."""
    order = np.argsort(-logits, kind="stable")  # (V,)
    if temperature == 0:
        return _keep(_softmax(logits), order[:1])
    probabilities = _softmax(logits / temperature)  # (V,)
    kept = order[:top_k]
    if top_p is not None and top_p < 1:
        crossing = np.searchsorted(np.cumsum(probabilities[order]), top_p) + 1
        kept = kept[:crossing]
    return _keep(probabilities, kept)


BUGS = (
    Bug(
        name="sampling-temperature-on-probabilities",
        where="sampling",
        title="The temperature divides probabilities instead of logits",
        line="probabilities = _softmax(logits) / temperature",
        lesson="The temperature belongs into the exponent: exp(z / τ). Applied to finished probabilities "
        "it is one factor for all, and making them sum to 1 again takes it out. The option is there, is "
        "accepted, and does nothing.",
        in_practice="Texts look alike at every temperature but 0. With temperature 1, as most tests have "
        "it, everything is right.",
        fools=(),
        subject=RIGHT._replace(next_token_probabilities=temperature_on_probabilities),
    ),
    Bug(
        name="sampling-temperature-multiplied",
        where="sampling",
        title="The temperature multiplies the logits",
        line="probabilities = _softmax(logits * temperature)",
        lesson="In physics it is exp(-E / kT): hotter means flatter, so the logits are divided. "
        "Multiplied, 0.8 makes the text wilder and 1.2 tamer, and at 1 nothing is wrong. One hears of it "
        "from people who turn the temperature down and get nonsense.",
        in_practice="At temperature 1 everything is right, and at 0 too. Below 1 the likeliest token loses "
        "where it should gain.",
        fools=(),
        subject=RIGHT._replace(next_token_probabilities=temperature_multiplied),
    ),
    Bug(
        name="sampling-ties-of-the-kth-kept",
        where="sampling",
        title="top_k keeps more than k tokens when logits are equal",
        line="probabilities = _keep(probabilities, logits >= np.sort(logits)[-top_k])",
        lesson="A threshold is quicker to write than an order, and keeps everything that equals the k-th. "
        "Logits of a float32 model over 50,000 tokens are equal now and then, those of a toy model often. "
        "An order with a rule for ties, the lower id first, keeps exactly k.",
        in_practice="Right for all logits that differ, which random ones in a test do. With rounded logits "
        "more than k tokens keep a probability.",
        fools=(),
        subject=RIGHT._replace(next_token_probabilities=ties_of_the_kth_kept),
    ),
    Bug(
        name="sampling-one-more-than-k",
        where="sampling",
        title="top_k keeps k + 1 tokens",
        line="threshold = logits[order[top_k]]",
        lesson="In an order that counts from 0 the k-th largest is number k - 1. Number k is the first "
        "that should go. top_k=1 is meant to be greedy and is not; that is the value to test with.",
        in_practice="Texts are a little freer than asked for. top_k=1 gives two tokens where one is meant; "
        "top_k above V is right.",
        fools=(),
        subject=RIGHT._replace(next_token_probabilities=one_more_than_k),
    ),
    Bug(
        name="sampling-crossing-token-dropped",
        where="sampling",
        title="top_p drops the token that reaches p",
        line="kept = np.cumsum(probabilities[order]) <= top_p",
        lesson="The nucleus is the smallest set whose probability is at least p, so the token at which the "
        "sum crosses p belongs to it. With `<= p` it goes, and where the first token alone has more than "
        "p, all go: 0 / 0, in just the places where the model is most certain.",
        in_practice="With a small p, or a model that is sure of itself, the probabilities are NaN. "
        "Otherwise texts are a little tamer than asked for.",
        fools=(),
        subject=RIGHT._replace(next_token_probabilities=crossing_token_dropped),
    ),
    Bug(
        name="sampling-top-p-of-the-unfiltered",
        where="sampling",
        title="top_p sums probabilities from before top_k",
        line="crossing = np.searchsorted(np.cumsum(probabilities[order]), top_p) + 1",
        lesson="Two filters in a row: the second works on what the first left, as probabilities that sum "
        "to 1 again. If top_k left 60 percent, the nucleus of 0.5 is half of these 60, not 50 of the old "
        "100. Each filter alone is right, so only a test with both finds it.",
        in_practice="top_k alone is right and top_p alone is right. Together they keep more tokens than "
        "they should.",
        fools=(),
        subject=RIGHT._replace(next_token_probabilities=top_p_of_the_unfiltered),
    ),
)
