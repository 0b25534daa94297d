"""Random models and batches in which no term of a gradient can hide.

Fresh GPT weights are a poor test: at N(0, 0.02) attention is nearly uniform, unit norms and zero biases make
whole terms vanish, and wrong gradients agree. At N(0, 1) softmax saturates and hides its own gradient. So:
matrices from N(0, 1/fan_in), which keeps activations near 1, and norm weights and biases from N(0, 1).
"""

from __future__ import annotations

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.config import GPTConfig
from numpy_gpt.ops import IGNORED_TARGET
from numpy_gpt.parameters import Parameters


def revealing_parameters(config: GPTConfig, seed: int) -> Parameters:
    """Return float64 weights that float32 holds exactly, so that models of both dtypes are the same model."""
    random = np.random.default_rng(seed)
    parameters = Parameters.zeros(config, np.float64)
    for _, view in parameters.named_parameters():
        std = 1.0 if view.ndim == 1 else view.shape[1] ** -0.5
        view[...] = random.normal(0, std, view.shape).astype(np.float32)
    return parameters


def revealing_batch(config: GPTConfig, batch_size: int, num_tokens: int, seed: int) -> tuple[Array, Array]:
    """Return token ids (B, T) with repeats, and target ids (B, T) of which a sixth are ignored."""
    random = np.random.default_rng([seed, 1])
    shape = (batch_size, num_tokens)
    token_ids = random.integers(0, config.vocabulary_size, shape)
    token_ids[:, num_tokens // 2] = token_ids[:, 0]  # every sequence uses one token at least twice
    target_ids = random.integers(0, config.vocabulary_size, shape)
    ignored = random.random(shape) < 1 / 6
    ignored[0, 0] = False  # at least one counts
    target_ids[ignored] = IGNORED_TARGET
    return token_ids, target_ids
