"""The same model in JAX: loss, gradients, clipping and AdamW, each step one compiled program."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.cases import Settings
from benchmarks.opponents.training import Setup
from numpy_gpt import GPT, GPTConfig
from numpy_gpt.arrays import Array
from numpy_gpt.parameters import TOKEN_EMBEDDING, VOCABULARY_PROJECTION

Tensors = dict[str, Any]
"""jax.Arrays by the names of our parameters."""


class JaxTraining:
    """The model in training. XLA takes all processors that the process may run on."""

    def __init__(self, setup: Setup) -> None:
        names = dict(GPT(setup.config).named_parameters())  # fresh weights, which the state replaces
        state = names if setup.state is None else {name: setup.state[name] for name in names}
        self.tensors: Tensors = {name: jnp.asarray(array) for name, array in state.items()}
        self.moments = [{name: jnp.zeros_like(t) for name, t in self.tensors.items()} for _ in range(2)]
        self.batch = tuple(jnp.asarray(ids, jnp.int32) for ids in setup.batch)
        self.steps_taken = 0
        loss = functools.partial(mean_loss, setup.config)
        self.loss_and_gradients = jax.jit(jax.value_and_grad(loss))
        update = functools.partial(training_step, loss, setup.settings)
        self.update = jax.jit(update, donate_argnums=(0, 1))

    def forward_backward(self) -> float:
        """Compute the loss, which is returned, and all gradients."""
        loss, self.gradient = jax.block_until_ready(self.loss_and_gradients(self.tensors, *self.batch))
        return float(loss)

    def step(self) -> float:
        """The same, then clip the gradients and update every weight by AdamW."""
        self.steps_taken += 1
        loss, self.tensors, self.moments = jax.block_until_ready(
            self.update(self.tensors, self.moments, self.steps_taken, *self.batch)
        )
        return float(loss)

    def gradients(self) -> dict[str, Array]:
        """Return the gradients of the last `forward_backward`."""
        return {name: np.asarray(tensor) for name, tensor in self.gradient.items()}

    def weights(self) -> dict[str, Array]:
        """Return the weights."""
        return {name: np.asarray(tensor) for name, tensor in self.tensors.items()}


def training_step(
    loss: Any, settings: Settings, tensors: Tensors, moments: Any, steps: Any, *batch: Any
) -> tuple[Any, Tensors, Any]:
    """Return the loss, and weights and moments after one clipped step of AdamW."""
    value, gradients = jax.value_and_grad(loss)(tensors, *batch)
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in gradients.values()))
    factor = jnp.minimum(1.0, settings.clip_norm / (norm + 1e-6))
    beta1, beta2 = settings.betas
    correction1, correction2 = 1 - beta1**steps, 1 - beta2**steps
    updated: Tensors = {}
    first: Tensors = {}
    second: Tensors = {}
    for name, tensor in tensors.items():
        g = gradients[name] * factor
        first[name] = beta1 * moments[0][name] + (1 - beta1) * g
        second[name] = beta2 * moments[1][name] + (1 - beta2) * g * g
        decay = 1 - settings.learning_rate * settings.weight_decay if tensor.ndim == 2 else 1.0
        size = jnp.sqrt(second[name] / correction2) + settings.eps
        updated[name] = tensor * decay - settings.learning_rate * (first[name] / correction1) / size
    return value, updated, [first, second]


def mean_loss(config: GPTConfig, tensors: Tensors, token_ids: Any, target_ids: Any) -> Any:
    """Return the mean cross-entropy over targets that are not -100."""
    logits = jax.nn.log_softmax(forward(config, tensors, token_ids))  # (B, T, V)
    counts = target_ids >= 0  # (B, T)
    chosen = jnp.take_along_axis(logits, jnp.where(counts, target_ids, 0)[..., None], axis=-1)[..., 0]
    return -jnp.sum(jnp.where(counts, chosen, 0)) / jnp.sum(counts)


def forward(config: GPTConfig, tensors: Tensors, token_ids: Any) -> Any:
    """Return logits (B, T, V)."""
    B, T = token_ids.shape
    H, D = config.num_heads, config.head_dim
    mask = jnp.tril(jnp.ones((T, T), bool))  # (T, T)

    def linear(name: str, x: Any) -> Any:
        y = x @ tensors[f"{name}.weight"].T
        return y + tensors[f"{name}.bias"] if f"{name}.bias" in tensors else y

    def norm(name: str, x: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + config.layer_norm_eps)
        return centred * scale * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    def heads(name: str, x: Any) -> Any:
        return linear(name, x).reshape(B, T, H, D).transpose(0, 2, 1, 3)  # (B, H, T, D)

    x = tensors[TOKEN_EMBEDDING][token_ids] + tensors["embedding.position_embedding.weight"][:T]  # (B, T, C)
    for i in range(config.num_layers):
        block = f"transformer_blocks.{i}"
        normed = norm(f"{block}.attention_norm", x)
        queries, keys, values = (heads(f"{block}.attention.W_{n}", normed) for n in ("query", "key", "value"))
        scores = queries @ keys.swapaxes(-2, -1) / math.sqrt(D)  # (B, H, T, T)
        weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf))
        context = (weights @ values).transpose(0, 2, 1, 3).reshape(x.shape)  # (B, T, C)
        x = x + linear(f"{block}.attention.out_proj", context)
        wide = linear(f"{block}.feed_forward.up_proj", norm(f"{block}.feed_forward_norm", x))
        gated = jax.nn.gelu(wide, approximate=config.activation == "gelu_tanh")
        x = x + linear(f"{block}.feed_forward.down_proj", gated)
    head = TOKEN_EMBEDDING if config.tie_weights else VOCABULARY_PROJECTION
    return norm("final_norm", x) @ tensors[head].T
