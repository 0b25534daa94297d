"""Continuing a text greedily, one token at a time, with a key/value cache: ours and Hugging Face's."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import numpy_gpt as ng
from benchmarks.cases import Case
from numpy_gpt import GPTConfig
from numpy_gpt.arrays import Array
from numpy_gpt.interop import export_pretrained
from numpy_gpt.verify.cases import revealing_parameters
from numpy_gpt.verify.measure import relative_error

Decoder = Callable[[Array, int], list[int]]
"""Takes prompt ids (T,) and how many tokens to add, and returns these."""


def numpy_decoder(config: GPTConfig, threads: int) -> Decoder:
    """Return numpy_gpt's, with fresh weights."""
    return _decoder_of(ng.GPT(config, threads=threads))


def hugging_face_decoder(config: GPTConfig, threads: int) -> Decoder:
    """Return Hugging Face's, with fresh weights."""
    from benchmarks.opponents.hugging_face import HuggingFaceModel

    return HuggingFaceModel(config, threads)


DECODERS = {"numpy": numpy_decoder, "hugging-face": hugging_face_decoder}


def worst_disagreement(case: Case, name: str, new_tokens: int, threads: int) -> tuple[str, float]:
    """Return how far a contestant's generation is from Hugging Face's model with the same weights.

    The text that the contestant generates is fed to that model whole and without a cache, so that every
    position is judged by itself, whatever came of the others. Judged are the token, by how much the model
    prefers another, as a share of its largest logit: as good as zero where the two are tied and rounding
    decides; and, of numpy_gpt, the logits that it had when it chose, one position at a time with its cache.

    Args:
        case: the model, and the prompt as its batch.
        name: the contestant's, as in DECODERS.
        new_tokens: how many to generate, at least 1.
        threads: for both.

    Returns:
        What differs most, and by how much.
    """
    from benchmarks.opponents.hugging_face import HuggingFaceModel

    ours = ng.GPT(case.config, threads=threads)
    ours.parameters.flat[...] = revealing_parameters(case.config, seed=0).flat
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        export_pretrained(path, ours)
        theirs = HuggingFaceModel(case.config, threads, path)
    prompt = case.batch().token_ids[0]
    tokens = (_decoder_of(ours) if name == "numpy" else theirs)(prompt, new_tokens)
    text = np.concatenate([prompt, tokens[:-1]])  # all that was known when the last was chosen
    right = theirs.logits(text)[len(prompt) - 1 :]  # (new_tokens, V)
    errors = {
        f"token {i + 1} that it generates": float((logits.max() - logits[token]) / np.abs(logits).max())
        for i, (token, logits) in enumerate(zip(tokens, right, strict=True))
    }
    if name == "numpy":
        for i, (logits, their_logits) in enumerate(
            zip(_cached_logits(ours, prompt, text), right, strict=True)
        ):
            errors[f"a logit of token {i + 1}"] = relative_error(logits, their_logits)
    return max(errors.items(), key=lambda item: item[1])


def _cached_logits(model: ng.GPT, prompt: Array, text: Array) -> Iterator[Array]:
    """Yield logits (V,) of what follows the prompt, and each token of the text after it."""
    cache = model.new_cache()
    for first, last in itertools.pairwise([0, *range(len(prompt), len(text) + 1)]):
        yield model(text[None, first:last], cache=cache)[0, -1]


def _decoder_of(model: ng.GPT) -> Decoder:
    return lambda prompt, count: list(ng.generate(model, prompt, max_new_tokens=count, temperature=0))
