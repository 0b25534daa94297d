"""Bugs of the loop that predicts, draws, appends, and predicts again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from numpy_gpt.generation import next_token_probabilities
from numpy_gpt.model import GPT
from numpy_gpt.verify.bugs.bug import Bug
from numpy_gpt.verify.bugs.subject import RIGHT

Id = int | None


def window_stays_at_the_start(
    model: GPT,
    prompt: list[int],
    *,
    max_new_tokens: int,
    seed: int = 0,
    end_of_text: Id = None,
    **filters: Any,
) -> Iterator[int]:
    """Wrong past the window: the first tokens are kept, and the newest never seen."""
    ids, draws = list(prompt), np.random.default_rng(seed)
    for _ in range(max_new_tokens):
        window = ids[: model.config.max_sequence_length]
        probabilities = next_token_probabilities(model([window])[0, -1], **filters)  # (V,)
        token = int(draws.choice(len(probabilities), p=probabilities))
        if token == end_of_text:
            return
        ids.append(token)
        yield token


def first_position_read(
    model: GPT,
    prompt: list[int],
    *,
    max_new_tokens: int,
    seed: int = 0,
    end_of_text: Id = None,
    **filters: Any,
) -> Iterator[int]:
    """Wrong: reads the prediction after the first token."""
    ids, draws = list(prompt), np.random.default_rng(seed)
    for _ in range(max_new_tokens):
        window = ids[-model.config.max_sequence_length :]
        probabilities = next_token_probabilities(model([window])[0, 0], **filters)
        token = int(draws.choice(len(probabilities), p=probabilities))
        if token == end_of_text:
            return
        ids.append(token)
        yield token


def prompt_yielded(
    model: GPT,
    prompt: list[int],
    *,
    max_new_tokens: int,
    seed: int = 0,
    end_of_text: Id = None,
    **filters: Any,
) -> Iterator[int]:
    """Wrong: the prompt is repeated, and counts as new."""
    ids, draws = list(prompt), np.random.default_rng(seed)
    while len(ids) < max_new_tokens:
        window = ids[-model.config.max_sequence_length :]
        probabilities = next_token_probabilities(model([window])[0, -1], **filters)  # (V,)
        token = int(draws.choice(len(probabilities), p=probabilities))
        if token == end_of_text:
            break
        ids.append(token)
    yield from ids


def reseeded_each_token(
    model: GPT,
    prompt: list[int],
    *,
    max_new_tokens: int,
    seed: int = 0,
    end_of_text: Id = None,
    **filters: Any,
) -> Iterator[int]:
    """Wrong: every token is drawn with the same random number."""
    ids = list(prompt)
    for _ in range(max_new_tokens):
        window = ids[-model.config.max_sequence_length :]
        probabilities = next_token_probabilities(model([window])[0, -1], **filters)  # (V,)
        token = int(np.random.default_rng(seed).choice(len(probabilities), p=probabilities))
        if token == end_of_text:
            return
        ids.append(token)
        yield token


def seed_ignored(
    model: GPT,
    prompt: list[int],
    *,
    max_new_tokens: int,
    seed: int = 0,
    end_of_text: Id = None,
    **filters: Any,
) -> Iterator[int]:
    """Wrong: nobody can draw the same text twice."""
    ids, draws = list(prompt), np.random.default_rng()
    for _ in range(max_new_tokens):
        window = ids[-model.config.max_sequence_length :]
        probabilities = next_token_probabilities(model([window])[0, -1], **filters)  # (V,)
        token = int(draws.choice(len(probabilities), p=probabilities))
        if token == end_of_text:
            return
        ids.append(token)
        yield token


def end_of_text_yielded(
    model: GPT,
    prompt: list[int],
    *,
    max_new_tokens: int,
    seed: int = 0,
    end_of_text: Id = None,
    **filters: Any,
) -> Iterator[int]:
    """Wrong: the token that ends the text is given out, and the text goes on."""
    ids, draws = list(prompt), np.random.default_rng(seed)
    for _ in range(max_new_tokens):
        window = ids[-model.config.max_sequence_length :]
        probabilities = next_token_probabilities(model([window])[0, -1], **filters)  # (V,)
        token = int(draws.choice(len(probabilities), p=probabilities))
        ids.append(token)
        yield token


def stale_keys_slide(
    model: GPT,
    prompt: list[int],
    *,
    max_new_tokens: int,
    seed: int = 0,
    end_of_text: Id = None,
    **filters: Any,
) -> Iterator[int]:
    """Wrong past the window: the oldest keys are dropped, and the others keep their old positions."""
    window = model.config.max_sequence_length
    cache, unseen = model.new_cache(), list(prompt)[-window:]
    draws = np.random.default_rng(seed)
    for _ in range(max_new_tokens):
        excess = cache.length + len(unseen) - window
        if excess > 0:
            for kept in (cache.keys, cache.values):  # (L, 1, window, C)
                kept[:, :, :-excess] = kept[:, :, excess:].copy()
            cache.length -= excess
        probabilities = next_token_probabilities(model([unseen], cache=cache)[0, -1], **filters)  # (V,)
        token = int(draws.choice(len(probabilities), p=probabilities))
        if token == end_of_text:
            return
        unseen = [token]
        yield token


BUGS = (
    Bug(
        name="generation-window-stays-at-the-start",
        where="generation",
        title="A full window keeps the first tokens instead of the last",
        line="window = ids[: model.config.max_sequence_length]",
        lesson="To crop is `ids[:n]` by habit. For a text that grows at its end the tokens to keep are the "
        "last n, `ids[-n:]`. As long as everything fits the two are one; after that the model is asked "
        "about the same window for ever, and gives the same prediction.",
        in_practice="Right until the window is full. From there on a greedy continuation is one token for "
        "ever, and a drawn one is drawn again and again from the same probabilities.",
        fools=(),
        subject=RIGHT._replace(generate=window_stays_at_the_start),
    ),
    Bug(
        name="generation-first-position-read",
        where="generation",
        title="The prediction after the first token is taken",
        line="probabilities = next_token_probabilities(model([window])[0, 0], **filters)",
        lesson="A model that returned one prediction per sequence was indexed [0]; now it returns one per "
        "position, and the one that looks at the whole text is the last: [0, -1]. The first has seen one "
        "token, and does not change when more are appended.",
        in_practice="A prompt of one token gets a right first answer, and repeats it: a greedy "
        "continuation is the same token until the window begins to slide.",
        fools=(),
        subject=RIGHT._replace(generate=first_position_read),
    ),
    Bug(
        name="generation-prompt-yielded",
        where="generation",
        title="The prompt comes back as if it were new",
        line="yield from ids",
        lesson="Many libraries return prompt and continuation in one list, with the limit on both "
        "together. Called like the one that returns new tokens only, it prints the prompt twice, and a "
        "prompt longer than the limit gets no answer. Which of the two it is belongs into the first line "
        "of the documentation.",
        in_practice="Every single token is a right prediction. But the text begins with the prompt, and "
        "there are fewer new tokens than asked for.",
        fools=(),
        subject=RIGHT._replace(generate=prompt_yielded),
    ),
    Bug(
        name="generation-reseeded-each-token",
        where="generation",
        title="Every token is drawn with the same random number",
        line="token = int(np.random.default_rng(seed).choice(len(probabilities), p=probabilities))",
        lesson="A generator made inside the loop starts anew for each token, and its first number is "
        "always the same one. If that is 0.64, every token is the one at which the sum of the "
        "probabilities reaches 0.64: each is drawn fairly, taken alone, and together they are no sample.",
        in_practice="Greedy generation is right. A drawn continuation soon is one token over and over, "
        "where right code with the same seed writes on: the first token is right, the second not always.",
        fools=(),
        subject=RIGHT._replace(generate=reseeded_each_token),
    ),
    Bug(
        name="generation-seed-ignored",
        where="generation",
        title="The seed is not used",
        line="ids, draws = list(prompt), np.random.default_rng()",
        lesson="Without an argument the generator is seeded by the operating system. Every text is a fine "
        "sample and none can be had again, so that a report of a strange one cannot be looked into. A seed "
        "that is an argument has to arrive.",
        in_practice="Greedy generation is right, and every drawn text is as good as a right one. No two "
        "calls agree.",
        fools=(),
        subject=RIGHT._replace(generate=seed_ignored),
    ),
    Bug(
        name="generation-does-not-end",
        where="generation",
        title="The end of the text is a token like any other",
        line="ids.append(token)",
        lesson="The model has learned where texts end and says so with a token of its own. Somebody has to "
        "listen: otherwise it begins another text, about something else, until the number of tokens is "
        "reached.",
        in_practice="Right as long as no end of text is drawn. Then that token comes out, as an id that "
        "stands for no text, and more text after it.",
        fools=(),
        subject=RIGHT._replace(generate=end_of_text_yielded),
    ),
    Bug(
        name="generation-stale-keys-slide",
        where="generation",
        title="A full window crops the cache instead of recomputing it",
        line="kept[:, :, :-excess] = kept[:, :, excess:].copy()",
        lesson="Dropping the oldest keys and appending the new one makes each token as cheap past the "
        "window as before it. But learned positions are part of what the keys were computed from: after "
        "the window has slid, every token stands one place further to the front, and its keys and values "
        "say the old place. They also hold what is left of the token that was dropped. Recompute, or use "
        "positions that are relative.",
        in_practice="Right until the window is full. After that the text of the small run, which needs no "
        "more than the last token, goes on as well as with right code: 97 of 100 tokens are possible "
        "ones. Greedy tokens are often right. The logits of each are another model's.",
        fools=(),
        subject=RIGHT._replace(generate=stale_keys_slide),
    ),
)
