"""From logits to text: filters on the next token's probabilities, and the loop that draws and appends.

Shapes
    logits (V,)  ->  probabilities (V,), float64 whatever the model computes in.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from numpy_gpt.arrays import Array
from numpy_gpt.ops.ids import check_token_ids

if TYPE_CHECKING:
    from numpy_gpt.model import GPT


def next_token_probabilities(
    logits: ArrayLike, *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Array:
    """Return with what probability each token comes next, after the filters.

        p_v = exp(z_v / temperature) / Σ_u exp(z_u / temperature)

    Then top_k, then top_p on what top_k left; the probabilities that remain are normalised to sum to 1.

    Args:
        logits: (V,) z; minus infinity for a token that must not come.
        temperature: below 1 sharpens, above 1 flattens; 0 puts everything on the largest logit, the lowest
            id among equals.
        top_k: keep exactly the k likeliest tokens, lower ids first among equals; above V nothing is dropped.
        top_p: keep the likeliest tokens up to and including the one at which their sum reaches p.

    Returns:
        (V,) float64, summing to 1.

    Raises:
        ValueError: a filter outside its range, or logits that hold NaN, plus infinity or no finite number.

    Source:
        top_p: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", section 3.1.
    """
    top_k = _check_filters(temperature, top_k, top_p)
    logits = np.asarray(logits, np.float64)  # (V,)
    if logits.ndim != 1 or logits.size == 0:
        raise ValueError(f"logits must have shape (V,), not {logits.shape}")
    largest = logits.max()
    if not math.isfinite(largest):  # one NaN makes the maximum NaN
        raise ValueError("logits hold NaN, plus infinity or no finite number: nothing can be drawn from them")
    probabilities: Array
    if temperature == 0:
        probabilities = (np.arange(logits.size) == logits.argmax()).astype(np.float64)  # (V,)
        return probabilities

    with np.errstate(over="ignore"):  # a tiny temperature sends all but the largest to exp(-inf) = 0
        probabilities = np.exp((logits - largest) / temperature)  # (V,)
    if top_k is not None and top_k < logits.size:
        kth_largest = np.partition(logits, -top_k)[-top_k]  # finding it is much quicker than sorting all
        is_kept = logits > kth_largest  # (V,)
        is_kept[np.flatnonzero(logits == kth_largest)[: top_k - is_kept.sum()]] = True
        probabilities[~is_kept] = 0
    probabilities /= probabilities.sum()
    # At 1 nothing is to be dropped, but the running sum may round to 1 before the rarest tokens.
    if top_p is not None and top_p < 1:
        likeliest_first = np.argsort(-logits, kind="stable")  # (V,): stable, so equals stay in order of id
        sums = np.cumsum(probabilities[likeliest_first])  # (V,)
        kept = np.searchsorted(sums, top_p) + 1  # + 1 for the token that reaches p
        probabilities[likeliest_first[kept:]] = 0
        probabilities /= probabilities.sum()
    return probabilities


def generate(
    model: GPT,
    prompt_ids: ArrayLike,
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    end_of_text: int | None = None,
    vocabulary_limit: int | None = None,
) -> Iterator[int]:
    """Continue a prompt, one token at a time: predict, draw, append, and predict again.

    Each prediction sees the last max_sequence_length tokens. Until the window is full, a key/value cache
    makes each token cost one position. Then the window slides: position embeddings are learned, so every
    token in it moves to another position, and each new token costs the whole window anew.

    Args:
        model: gives logits (1, T, V) for ids (1, T).
        prompt_ids: (T,) integers, of any length; when empty, generation starts from `end_of_text`.
        max_new_tokens: 0 or more.
        temperature, top_k, top_p: as in `next_token_probabilities`.
        seed: of the draws; equal seeds give equal tokens.
        end_of_text: the id that ends the text when it is drawn; it is not yielded, as it stands for no
            text. None never ends early.
        vocabulary_limit: draw ids below this only. For models whose vocabulary is padded beyond what their
            tokenizer has: give its n_vocab. None draws from all.

    Returns:
        An iterator of the new ids, each computed when it is asked for.

    Raises:
        ValueError, TypeError: for arguments that make no sense, at the call and not at the first token.
    """
    max_new_tokens = operator.index(max_new_tokens)
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens must be at least 0, not {max_new_tokens}")
    if seed < 0:
        raise ValueError(f"seed must be at least 0, not {seed}")
    top_k = _check_filters(temperature, top_k, top_p)
    vocabulary_limit = _index_or_none(vocabulary_limit)
    if vocabulary_limit is not None and vocabulary_limit < 1:
        raise ValueError(f"vocabulary_limit must be at least 1, not {vocabulary_limit}")
    end_of_text = _index_or_none(end_of_text)
    ids = _starting_ids(prompt_ids, model.config.vocabulary_size, end_of_text)
    draws = np.random.default_rng(seed)

    def tokens() -> Iterator[int]:
        window = model.config.max_sequence_length
        cache = model.new_cache()
        unseen = ids[-window:]  # what the cache has not been fed yet
        for _ in range(max_new_tokens):
            if cache.length + len(unseen) <= window:
                logits = model([unseen], cache=cache)[0, -1]  # (V,)
            else:
                logits = model([ids[-window:]])[0, -1]  # (V,)
            probabilities = next_token_probabilities(
                logits[:vocabulary_limit], temperature=temperature, top_k=top_k, top_p=top_p
            )  # (V,)
            token = int(draws.choice(probabilities.size, p=probabilities))
            if token == end_of_text:
                return
            ids.append(token)
            unseen = [token]
            yield token

    return tokens()


def _index_or_none(value: int | None) -> int | None:
    """Return any kind of integer as Python's own, whose arithmetic neither wraps nor overflows."""
    return None if value is None else operator.index(value)


def _check_filters(temperature: float, top_k: int | None, top_p: float | None) -> int | None:
    """Return top_k as Python's own integer, when all three filters make sense."""
    top_k = _index_or_none(top_k)
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature must be a finite number, 0 or more, not {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1, not {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, not {top_p}")
    return top_k


def _starting_ids(prompt_ids: ArrayLike, vocabulary_size: int, end_of_text: int | None) -> list[int]:
    """Return the prompt as a list of ints; `[end_of_text]` when it is empty."""
    if end_of_text is not None and not 0 <= end_of_text < vocabulary_size:
        raise ValueError(f"end_of_text {end_of_text} is outside 0..{vocabulary_size - 1}")
    try:
        prompt = np.asarray(prompt_ids)
    except ValueError:  # sequences of unequal length
        prompt = np.empty((0, 0))
    if prompt.ndim != 1:
        raise ValueError("prompt_ids must be one sequence of token ids, shape (T,)")
    if prompt.size == 0:  # np.asarray([]) is float64: the dtype of nothing means nothing
        if end_of_text is None:
            raise ValueError("an empty prompt starts from end_of_text, which is None")
        return [end_of_text]
    ids: list[int] = check_token_ids(prompt[None], vocabulary_size, prompt.size)[0].tolist()
    return ids
