"""Bugs of the batches that a model learns from."""

from __future__ import annotations

import numpy as np
from numpy.random import default_rng

from numpy_gpt.arrays import Array
from numpy_gpt.verify.bugs.bug import Bug
from numpy_gpt.verify.bugs.subject import RIGHT

Batch = tuple[Array, Array]


def targets_are_inputs(
    token_ids: Array, *, step: int, seed: int, batch_size: int, sequence_length: int
) -> Batch:
    """Wrong: nothing is shifted."""
    starts = default_rng((seed, step)).integers(len(token_ids) - sequence_length, size=batch_size)  # (B,)
    positions = starts[:, None] + np.arange(sequence_length)  # (B, T)
    return token_ids[positions], token_ids[positions]


def targets_shifted_by_two(
    token_ids: Array, *, step: int, seed: int, batch_size: int, sequence_length: int
) -> Batch:
    """Wrong: each position is asked for the token after the next."""
    starts = default_rng((seed, step)).integers(len(token_ids) - sequence_length - 1, size=batch_size)  # (B,)
    positions = starts[:, None] + np.arange(sequence_length)  # (B, T)
    return token_ids[positions], token_ids[positions + 2]


def last_window_missed(
    token_ids: Array, *, step: int, seed: int, batch_size: int, sequence_length: int
) -> Batch:
    """Wrong: the last token is never a target."""
    num_windows = len(token_ids) - sequence_length - 1
    starts = default_rng((seed, step)).integers(num_windows, size=batch_size)  # (B,)
    positions = starts[:, None] + np.arange(sequence_length)  # (B, T)
    return token_ids[positions], token_ids[positions + 1]


def windows_wrap(token_ids: Array, *, step: int, seed: int, batch_size: int, sequence_length: int) -> Batch:
    """Wrong: a window that begins near the end goes on at the beginning."""
    starts = default_rng((seed, step)).integers(len(token_ids), size=batch_size)  # (B,)
    positions = starts[:, None] + np.arange(sequence_length + 1)
    windows = token_ids[positions % len(token_ids)]  # (B, T + 1)
    return windows[:, :-1], windows[:, 1:]


def same_batch_every_step(
    token_ids: Array, *, step: int, seed: int, batch_size: int, sequence_length: int
) -> Batch:
    """Wrong: the step does not enter."""
    starts = default_rng(seed).integers(len(token_ids) - sequence_length, size=batch_size)
    positions = starts[:, None] + np.arange(sequence_length)  # (B, T)
    return token_ids[positions], token_ids[positions + 1]


def seed_plus_step(token_ids: Array, *, step: int, seed: int, batch_size: int, sequence_length: int) -> Batch:
    """Wrong: runs of neighbouring seeds see the same batches, one step apart."""
    starts = default_rng(seed + step).integers(len(token_ids) - sequence_length, size=batch_size)
    positions = starts[:, None] + np.arange(sequence_length)  # (B, T)
    return token_ids[positions], token_ids[positions + 1]


_random = default_rng(0)


def one_generator_for_all(
    token_ids: Array, *, step: int, seed: int, batch_size: int, sequence_length: int
) -> Batch:
    """Wrong: the batch depends on how many were drawn before."""
    starts = _random.integers(len(token_ids) - sequence_length, size=batch_size)
    positions = starts[:, None] + np.arange(sequence_length)  # (B, T)
    return token_ids[positions], token_ids[positions + 1]


def one_window_per_batch(
    token_ids: Array, *, step: int, seed: int, batch_size: int, sequence_length: int
) -> Batch:
    """Wrong: all rows of a batch are one window."""
    start = default_rng((seed, step)).integers(len(token_ids) - sequence_length)
    positions = np.tile(start + np.arange(sequence_length), (batch_size, 1))  # (B, T)
    return token_ids[positions], token_ids[positions + 1]


BUGS = (
    Bug(
        name="data-targets-are-inputs",
        where="data",
        title="The model is asked for the token it is reading",
        line="return token_ids[positions], token_ids[positions]",
        lesson="The shift by one is the whole task: the target at t is the token at t + 1. Without it the "
        "answer stands in the question, and a residual stream that carries a token's own vector to a tied "
        "head has it from the start. Be suspicious of a loss that falls too fast, and look at one batch as "
        "text.",
        in_practice="The loss falls to a tenth of a nat within fifty steps, far below the ln 2 per token "
        "that the small run's text holds, and goes on to nearly nothing. Every gradient is right.",
        fools=("loss_falls",),
        subject=RIGHT._replace(training_batch=targets_are_inputs),
    ),
    Bug(
        name="data-targets-shifted-by-two",
        where="data",
        title="The model is asked for the token after the next",
        line="return token_ids[positions], token_ids[positions + 2]",
        lesson="Windows of T + 1 tokens are cut into [:-1] and [1:], and a dataset that had shifted "
        "already is shifted again. The task is learnable, only harder, so the loss falls and stays higher. "
        "In generation each token is what should come one later.",
        in_practice="The loss falls, slower, and ends at twice right code's: two steps ahead the small "
        "run's text has four continuations and not two. Every gradient is right.",
        fools=("loss_falls",),
        subject=RIGHT._replace(training_batch=targets_shifted_by_two),
    ),
    Bug(
        name="data-last-window-missed",
        where="data",
        title="The last window is never drawn",
        line="num_windows = len(token_ids) - sequence_length - 1",
        lesson="A window needs T + 1 tokens, so N tokens hold N - T of them, at starts 0 .. N - T - 1. "
        "NumPy's `integers(high)` excludes high already; to be careful once more loses one. In a long text "
        "nobody notices. In one of exactly T + 1 tokens there is nothing left to draw.",
        in_practice="The loss falls as with right code. Counting how often each window is drawn from a "
        "tiny text finds it; so does a text of exactly T + 1 tokens, which raises.",
        fools=("loss_falls",),
        subject=RIGHT._replace(training_batch=last_window_missed),
    ),
    Bug(
        name="data-windows-wrap",
        where="data",
        title="The end of the text is followed by its beginning",
        line="windows = token_ids[positions % len(token_ids)]  # (B, T + 1)",
        lesson="The remainder makes every start valid and every index safe, which is why it is there. But "
        "the first word of a text does not follow its last, and a model is taught that it does. Choose the "
        "starts so that all windows fit, and no index needs to be rescued.",
        in_practice="The loss falls as with right code. In a text whose tokens all differ, a window that "
        "holds the last and the first token side by side is seen at once.",
        fools=("loss_falls",),
        subject=RIGHT._replace(training_batch=windows_wrap),
    ),
    Bug(
        name="data-same-batch-every-step",
        where="data",
        title="Every step draws the same batch",
        line="starts = default_rng(seed).integers(len(token_ids) - sequence_length, size=batch_size)",
        lesson="A generator made from the seed alone starts over at every call. For a batch to be a pure "
        "function and still change, the step has to be part of its seed. The model learns its few windows "
        "by heart, and the training loss has never looked better.",
        in_practice="The loss falls to almost nothing, below the ln 2 per token that the small run's text "
        "holds, because six windows are learned by heart. On any other text the model is bad.",
        fools=("loss_falls",),
        subject=RIGHT._replace(training_batch=same_batch_every_step),
    ),
    Bug(
        name="data-seed-plus-step",
        where="data",
        title="Seed and step are added",
        line="starts = default_rng(seed + step).integers(len(token_ids) - sequence_length, size=batch_size)",
        lesson="One number is needed and there are two, so they are added. Then seed 1 at step 0 is seed 0 "
        "at step 1: runs with the seeds 0, 1 and 2, made to measure how much luck is in a result, see "
        "almost the same data. A pair is a seed too: default_rng((seed, step)).",
        in_practice="The loss falls as with right code, and each run is reproducible. That seed 1 repeats "
        "the batches of seed 0 shows only when the two are laid side by side.",
        fools=("loss_falls",),
        subject=RIGHT._replace(training_batch=seed_plus_step),
    ),
    Bug(
        name="data-one-generator-for-all",
        where="data",
        title="Batches come from one global generator",
        line="starts = _random.integers(len(token_ids) - sequence_length, size=batch_size)",
        lesson="A generator has a state, and whoever draws from it moves everybody else: an evaluation "
        "more or less, a resumed run, a second model in the process, and all later batches are others. The "
        "seed of the run is not even asked. Random, reproducible and resumable together need a function of "
        "data, seed and step.",
        in_practice="The loss falls as with right code. The same step asked for twice gives two batches, "
        "and a resumed run goes on with others than it would have seen.",
        fools=("loss_falls",),
        subject=RIGHT._replace(training_batch=one_generator_for_all),
    ),
    Bug(
        name="data-one-window-per-batch",
        where="data",
        title="All rows of a batch are the same window",
        line="start = default_rng((seed, step)).integers(len(token_ids) - sequence_length)",
        lesson="`size=batch_size` was forgotten, and broadcasting made a batch of the one start. B times "
        "the work for the gradient of one sequence. The loss falls, only noisier, as with a batch size of "
        "one, which is what it is.",
        in_practice="The loss falls, with several times the noise, and is higher at the end. One look at a "
        "batch is enough.",
        fools=("loss_falls",),
        subject=RIGHT._replace(training_batch=one_window_per_batch),
    ),
)
