"""Properties of what the model is fed, and of how its predictions are scored."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from numpy_gpt.ops import IGNORED_TARGET
from numpy_gpt.verify.bugs.subject import RIGHT, Subject
from numpy_gpt.verify.kill_matrix import reference
from numpy_gpt.verify.kill_matrix.cases import model_cases
from numpy_gpt.verify.kill_matrix.comparison import difference
from numpy_gpt.verify.kill_matrix.property import looks_at


@looks_at("training_batch")
def windows_are_aligned(subject: Subject, seed: int) -> Iterator[str]:
    """Every row is T tokens in a row from the text, and each target is the token after its input."""
    T, text = 5, np.arange(100, 109)  # all tokens differ, so that each tells where it stands
    for step in range(8):
        inputs, targets = subject.training_batch(text, step=step, seed=seed, batch_size=3, sequence_length=T)
        if inputs.shape != (3, T) or targets.shape != (3, T):
            yield f"shapes {inputs.shape} and {targets.shape} instead of {(3, T)}"
        elif (targets != inputs + 1).any():
            yield f"inputs {inputs.tolist()} with targets {targets.tolist()}"
        elif (np.diff(inputs, axis=1) != 1).any() or inputs.min() < text[0] or targets.max() > text[-1]:
            yield f"inputs {inputs.tolist()} are not windows of {text.tolist()}"


@looks_at("training_batch")
def every_window_is_drawn(subject: Subject, seed: int) -> Iterator[str]:
    """Every window of the text is drawn sooner or later, the first and the last as often as any other."""
    T, num_windows, steps, batch_size = 4, 5, 100, 4
    text = np.arange(T + num_windows)
    starts = [
        subject.training_batch(text, step=step, seed=seed, batch_size=batch_size, sequence_length=T)[0][:, 0]
        for step in range(steps)
    ]
    counts = np.bincount(np.concatenate(starts), minlength=num_windows)
    expected = steps * batch_size / num_windows
    # Six standard deviations: a fair draw leaves this range once in a hundred million.
    room = 6 * math.sqrt(expected * (1 - 1 / num_windows))
    if len(counts) != num_windows or (np.abs(counts - expected) > room).any():
        yield f"windows 0..{num_windows - 1} drawn {counts.tolist()} times, not about {expected:.0f} each"


@looks_at("training_batch")
def batches_are_pure(subject: Subject, seed: int) -> Iterator[str]:
    """A batch depends on data, seed and step alone; other seeds, steps and rows are other draws."""
    text = np.arange(1000)

    def batch(step: int, seed: int) -> list[list[int]]:
        inputs, _ = subject.training_batch(text, step=step, seed=seed, batch_size=3, sequence_length=2)
        rows: list[list[int]] = inputs.tolist()
        return rows

    first = batch(3, seed)
    others = {"another step": batch(4, seed), "another seed": batch(3, seed + 1)}
    if batch(3, seed) != first:
        yield "the same step gives another batch when asked again"
    for what, other in others.items():
        if other == first:
            yield f"{what} gives the same batch"
    # Sum of step and seed alone would be such a mistake: runs of neighbouring seeds see each other's batches.
    if others["another step"] == others["another seed"]:
        yield "step + 1 and seed + 1 give the same batch"
    if all(row == first[0] for row in first):
        yield "all rows of the batch are one window"


@looks_at("evaluation_windows")
def every_token_is_scored_once(subject: Subject, seed: int) -> Iterator[str]:
    """Evaluation windows make every token but the first a target exactly once, after all of its window."""
    random = np.random.default_rng([seed, 50])
    T = int(random.integers(2, 6))
    for length in (T + 1, 2 * T + 1, int(random.integers(3 * T + 2, 4 * T + 1))):
        text = np.arange(100, 100 + length)
        batches = list(subject.evaluation_windows(text, batch_size=2, sequence_length=T))
        inputs, targets = (np.concatenate(parts) for parts in zip(*batches, strict=True))
        scored = [
            (
                row_inputs[row_targets != IGNORED_TARGET].tolist(),
                row_targets[row_targets != IGNORED_TARGET].tolist(),
            )
            for row_inputs, row_targets in zip(inputs, targets, strict=True)
        ]
        expected = list(reference.windows_of(text.tolist(), T))
        if scored != expected:
            yield f"{length} tokens in windows of {T}: scored {scored} instead of {expected}"


@looks_at("evaluate")
def evaluation_is_the_mean_over_tokens(subject: Subject, seed: int) -> Iterator[str]:
    """Loss and bits per byte are sums over all tokens but the first, whatever the batch size."""
    case = model_cases(seed)[0]
    model = case.model(RIGHT)
    V, T = model.config.vocabulary_size, model.config.max_sequence_length
    random = np.random.default_rng([seed, 51])
    bytes_per_token = random.integers(1, 9, V)
    for length in (T + 1, 3 * T + 2):
        text = random.integers(0, V, length)
        nats = sum(
            reference.cross_entropy(
                reference.logits(case.parameters, np.array([inputs])), np.array([targets]), divisor=1
            )
            for inputs, targets in reference.windows_of(text.tolist(), T)
        )
        bits_per_byte = nats / math.log(2) / bytes_per_token[text[1:]].sum()
        for batch_size in (1, 2, 5):
            evaluation = subject.evaluate(model, text, bytes_per_token, batch_size=batch_size)
            what = f"of {length} tokens in windows of {T}, {batch_size} at a time"
            yield from difference(f"loss {what}", evaluation.loss, nats / (length - 1))
            yield from difference(f"bits per byte {what}", evaluation.bits_per_byte, bits_per_byte)
