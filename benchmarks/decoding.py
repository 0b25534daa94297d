"""Continuing a text greedily, one token at a time, with a key/value cache: ours and Hugging Face's."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

import numpy_gpt as ng
from benchmarks.cases import Case
from numpy_gpt import GPTConfig
from numpy_gpt.arrays import Array
from numpy_gpt.interop import export_pretrained
from numpy_gpt.verify.cases import revealing_parameters

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


def worst_disagreement(case: Case, new_tokens: int, threads: int) -> float:
    """Return how far Hugging Face is from the tokens that numpy_gpt generates with the same weights.

    Zero where both generate the same. Otherwise, for the first token that differs, by how much Hugging Face
    prefers its own to ours, as a share of its largest logit: as good as zero when the two are tied and
    rounding decides.
    """
    from benchmarks.opponents.hugging_face import HuggingFaceModel

    model = ng.GPT(case.config, threads=threads)
    model.parameters.flat[...] = revealing_parameters(case.config, seed=0).flat
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        export_pretrained(path, model)
        theirs = HuggingFaceModel(case.config, threads, path)
    prompt = case.batch().token_ids[0]
    ours, expected = _decoder_of(model)(prompt, new_tokens), theirs(prompt, new_tokens)
    for i, (mine, other) in enumerate(zip(ours, expected, strict=True)):
        if mine != other:
            logits = theirs.logits(np.concatenate([prompt, ours[:i]]))  # (V,)
            return float((logits[other] - logits[mine]) / np.abs(logits).max())
    return 0.0


def _decoder_of(model: ng.GPT) -> Decoder:
    return lambda prompt, count: list(ng.generate(model, prompt, max_new_tokens=count, temperature=0))
