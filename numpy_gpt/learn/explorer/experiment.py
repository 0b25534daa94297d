"""The step that the page tells of: a small model is trained, then one more step is watched."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.config import GPTConfig
from numpy_gpt.learn.explorer.recording import Call, Replay, recording
from numpy_gpt.learn.explorer.sentence import MOST_TOKENS, Batch
from numpy_gpt.model import GPT
from numpy_gpt.ops import book
from numpy_gpt.parameters import Parameters
from numpy_gpt.training.adamw import AdamW
from numpy_gpt.training.clipping import clip_gradients

EMBEDDING_DIM, NUM_HEADS, NUM_LAYERS = 8, 2, 1
LEARNING_RATE, BETAS, WEIGHT_DECAY = 1e-2, (0.9, 0.99), 0.01
CLIP_NORM = 1.0

LEARNED_SHARE = 0.2
"""Training ends when the loss is below this share of an even guess's, log V: then attention and predictions
mean something, and every token still has a gradient to look at. Further on, only what cannot be known has."""

MOST_STEPS = 300


@dataclass(frozen=True)
class Experiment:
    """One training step, with everything that was computed in it.

    Attributes:
        batch: what it learned from.
        model: as it was before the step; computes with the book.
        steps_before: how many steps of training came before.
        calls: every operation of the step, in the order of the forward pass.
        loss: before the step.
        gradients: of every parameter, as backward left them.
        norm: their joint length before clipping.
        clipped: the same gradients after clipping.
        optimizer_before, optimizer_after: AdamW with its moments and the parameters they belong to.
        loss_after: of the same batch, after the step.
    """

    batch: Batch
    model: GPT
    steps_before: int
    calls: tuple[Call, ...]
    loss: float
    gradients: Parameters
    norm: float
    clipped: Parameters
    optimizer_before: AdamW
    optimizer_after: AdamW
    loss_after: float

    @property
    def ids(self) -> tuple[Array, Array]:
        """Token ids and target ids, (B, T) each."""
        return self.batch.token_ids, self.batch.target_ids

    @property
    def replay(self) -> Replay:
        """The forward pass, to be run with other numbers."""
        return Replay(self.model, self.ids, self.calls)


def run_experiment(batch: Batch, seed: int = 0) -> Experiment:
    """Train a model in float64 until it has learned something, then watch one step.

    It learns from every window of the sentence, so that a token's position alone does not give away what
    comes next and attention is needed. The step that is watched is made on the batch.
    """
    config = GPTConfig(
        vocabulary_size=len(batch.vocabulary),
        max_sequence_length=MOST_TOKENS,
        embedding_dim=EMBEDDING_DIM,
        num_heads=NUM_HEADS,
        num_layers=NUM_LAYERS,
    )
    model = GPT(config, seed=seed, dtype=np.float64, ops="book")
    optimizer = AdamW(model.parameters, learning_rate=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY)
    enough = LEARNED_SHARE * math.log(config.vocabulary_size)
    for _ in range(MOST_STEPS):
        loss, gradients = model.loss_and_gradients(*batch.windows)
        if loss < enough:
            break
        clip_gradients(gradients, CLIP_NORM)
        optimizer.step(gradients)

    ids = batch.token_ids, batch.target_ids
    before = copy.deepcopy(optimizer)
    ops, calls = recording(book)
    loss, gradients = GPT.from_parameters(before.parameters, ops=ops).loss_and_gradients(*ids)
    clipped = copy.deepcopy(gradients)
    norm = clip_gradients(clipped, CLIP_NORM)
    optimizer.step(clipped)
    return Experiment(
        batch=batch,
        model=GPT.from_parameters(before.parameters, ops="book"),
        steps_before=before.steps_taken,
        calls=tuple(calls),
        loss=loss,
        gradients=gradients,
        norm=norm,
        clipped=clipped,
        optimizer_before=before,
        optimizer_after=optimizer,
        loss_after=model.loss(*ids),
    )
