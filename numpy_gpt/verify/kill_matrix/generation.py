"""Properties of the cache, of sampling and of generation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from numpy_gpt.arrays import Array
from numpy_gpt.cache import Cache
from numpy_gpt.config import GPTConfig
from numpy_gpt.model import GPT
from numpy_gpt.parameters import Parameters
from numpy_gpt.verify.bugs.subject import Subject
from numpy_gpt.verify.cases import revealing_parameters
from numpy_gpt.verify.kill_matrix import reference
from numpy_gpt.verify.kill_matrix.cases import model_cases
from numpy_gpt.verify.kill_matrix.comparison import difference
from numpy_gpt.verify.kill_matrix.property import looks_at


@looks_at("ops", "model")
def cache_equals_recomputation(subject: Subject, seed: int) -> Iterator[str]:
    """A text fed through a cache in parts, however it is cut, has the logits of the whole, in batches too.

    Two parts are not enough: a cache may remember the last part only. So every cut is tried.
    """
    for case in model_cases(seed):
        model = case.model(subject)
        ids, _ = case.batch()
        B, T = ids.shape
        whole = model(ids)  # (B, T, V)
        for is_cut in itertools.product((False, True), repeat=T - 1):
            parts = np.split(ids, np.flatnonzero(is_cut) + 1, axis=1)
            cache = model.new_cache(B)
            logits = np.concatenate([model(part, cache=cache) for part in parts], axis=1)  # (B, T, V)
            lengths = [part.shape[1] for part in parts]
            yield from difference(f"logits of {B} texts in parts of {lengths}", logits, whole)


@looks_at("next_token_probabilities")
def sampler_filters(subject: Subject, seed: int) -> Iterator[str]:
    """Temperature, top_k and top_p give the probabilities of a slow reference, with and without ties."""
    random = np.random.default_rng([seed, 60])
    V = int(random.integers(5, 9))
    distinct = random.standard_normal(V)
    tied = np.round(distinct)
    tied[[1, 3]] = tied.max() + 1  # two likeliest tokens
    for logits, temperature, top_k, top_p in itertools.product(
        (distinct, tied, 1000 * distinct), (0.0, 0.7, 1.0, 1.6), (None, 1, 3, V + 1), (None, 0.55, 0.8, 1.0)
    ):
        options: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        probabilities = subject.next_token_probabilities(logits.copy(), **options)
        expected = reference.next_token_probabilities(logits, **options)
        yield from difference(f"probabilities with {options} of {logits.round(2)}", probabilities, expected)


class _Recording(GPT):
    """Right, and remembers what it predicted last."""

    predicted: Array | None = None  # (V,)

    def __call__(self, token_ids: ArrayLike, *, cache: Cache | None = None) -> Array:
        """Return the logits (B, T, V)."""
        logits = super().__call__(token_ids, cache=cache)
        self.predicted = logits[0, -1]
        return logits


def _attentive_model(seed: int) -> _Recording:
    """Return a small right model whose likeliest next token changes with the tokens it reads.

    In the test weights the biases are large, so that their gradients show, and say more than the tokens do.
    Here they are zero, and the embeddings large instead.
    """
    config = GPTConfig(7, 5, embedding_dim=6, num_heads=2, num_layers=1, tie_weights=False)
    parameters = revealing_parameters(config, seed)
    for name, view in parameters.named_parameters():
        if name.endswith("bias"):
            view[...] = 0
    parameters.embedding.token_embedding.weight[...] *= 4
    model = _Recording.from_parameters(parameters)
    assert isinstance(model, _Recording)  # which from_parameters' type does not say
    return model


@looks_at("generate")
def generation_is_recomputation(subject: Subject, seed: int) -> Iterator[str]:
    """Each new token is drawn from the model's prediction after the last tokens that fit its window.

    Greedy tokens are compared one by one, past the window's end, and so are the logits behind them, since a
    prediction that is slightly wrong has the right token most of the time; drawn ones in how often they come.
    """
    model = _attentive_model(seed)
    window, V = model.config.max_sequence_length, model.config.vocabulary_size
    random = np.random.default_rng([seed, 61])
    for prompt_length in (1, window - 1, window + 1, window + 2, window + 4):
        prompt = random.integers(0, V, prompt_length).tolist()
        ids = list(prompt)
        for token in subject.generate(model, prompt, max_new_tokens=4, temperature=0.0):
            expected = reference.logits(model.parameters, np.array([ids[-window:]]))[0, -1]  # (V,)
            if token != expected.argmax():
                yield f"after {ids} comes {token} instead of {expected.argmax()}"
            yield from difference(f"logits after {ids}", model.predicted, expected)
            ids.append(token)

    draws, prompt = 100, [0, 1]
    options: dict[str, Any] = {"temperature": 1.5, "top_k": 3, "top_p": 0.95}
    counts = np.zeros(V)
    for draw in range(draws):
        counts[list(subject.generate(model, prompt, max_new_tokens=1, seed=draw, **options))] += 1
    logits = reference.logits(model.parameters, np.array([prompt]))[0, -1]
    shares = reference.next_token_probabilities(logits, **options)
    room = 6 * np.sqrt(draws * shares * (1 - shares))  # six standard deviations; none for what never comes
    if (np.abs(counts - draws * shares) > room).any():
        yield f"{options}: drawn {counts.tolist()} instead of about {(draws * shares).round().tolist()}"


@looks_at("generate")
def generation_follows_its_seed(subject: Subject, seed: int) -> Iterator[str]:
    """Equal seeds give equal tokens and other seeds others, and every token is drawn anew."""

    def tokens(model: GPT, draw: int) -> list[int]:
        return list(subject.generate(model, [1], max_new_tokens=12, temperature=2.0, seed=draw))

    model = _attentive_model(seed)
    first = tokens(model, seed)
    if tokens(model, seed) != first:
        yield "equal seeds give other tokens"
    if all(tokens(model, seed + other) == first for other in range(1, 4)):
        yield "other seeds give the same tokens"
    indifferent = GPT.from_parameters(Parameters.zeros(model.config, np.float64))
    if len(set(tokens(indifferent, seed))) == 1:
        yield "all tokens are the same, though all are equally likely"


@looks_at("generate")
def generation_ends(subject: Subject, seed: int) -> Iterator[str]:
    """Generation gives as many tokens as asked for, or those before the first that ends the text."""
    model = _attentive_model(seed)
    V = model.config.vocabulary_size

    def tokens(end_of_text: int | None) -> list[int]:
        return list(
            subject.generate(
                model, [1], max_new_tokens=12, temperature=2.0, seed=seed, end_of_text=end_of_text
            )
        )

    free = tokens(None)
    if len(free) != 12 or not all(type(token) is int and 0 <= token < V for token in free):
        yield f"asked for 12 tokens of 0..{V - 1}, and got {free}"
    end = free[5]
    ended = tokens(end)
    if ended != free[: free.index(end)]:
        yield f"{free} should end before {end}, and gives {ended}"
