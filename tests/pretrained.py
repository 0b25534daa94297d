"""GPT-2's weights as Hugging Face and nanoGPT lay them out, written down here a second time, by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch

import numpy_gpt as ng
from numpy_gpt.arrays import Array
from tests.comparison import FLOAT64_AGREEMENT, assert_close
from tests.models import draw_weights

CONFIG = ng.GPTConfig(11, 6, embedding_dim=12, num_heads=3, num_layers=2)
HEAD = "lm_head.weight"
TOKEN_IDS, TARGET_IDS = np.random.default_rng(0).integers(0, CONFIG.vocabulary_size, (2, 3, 5))


def drawn_model(config: ng.GPTConfig = CONFIG, dtype: type = np.float32, seed: int = 0) -> ng.GPT:
    """Return a model with weights in which nothing vanishes."""
    model = ng.GPT(config, dtype=dtype)
    model.load_state_dict({name: array.astype(dtype) for name, array in draw_weights(config, seed).items()})
    return model


def hugging_face_tensors(weights: Mapping[str, Array]) -> dict[str, Array]:
    """Return weights, or gradients, under Hugging Face's names without `transformer.`, in its layout.

    Its Conv1D computes x @ weight + b, so every matrix of a block is the transpose of ours, and queries, keys
    and values stand side by side in the columns of one.
    """
    tensors = {
        "wte.weight": weights["embedding.token_embedding.weight"],
        "wpe.weight": weights["embedding.position_embedding.weight"],
        "ln_f.weight": weights["final_norm.weight"],
        "ln_f.bias": weights["final_norm.bias"],
    }
    num_layers = sum(name.endswith("out_proj.weight") for name in weights)
    for i in range(num_layers):
        ours, theirs = f"transformer_blocks.{i}", f"h.{i}"
        tensors[f"{theirs}.ln_1.weight"] = weights[f"{ours}.attention_norm.weight"]
        tensors[f"{theirs}.ln_1.bias"] = weights[f"{ours}.attention_norm.bias"]
        qkv = [f"{ours}.attention.{name}" for name in ("W_query", "W_key", "W_value")]
        tensors[f"{theirs}.attn.c_attn.weight"] = np.hstack([weights[f"{name}.weight"].T for name in qkv])
        if f"{qkv[0]}.bias" in weights:
            tensors[f"{theirs}.attn.c_attn.bias"] = np.hstack([weights[f"{name}.bias"] for name in qkv])
        tensors[f"{theirs}.attn.c_proj.weight"] = weights[f"{ours}.attention.out_proj.weight"].T
        tensors[f"{theirs}.attn.c_proj.bias"] = weights[f"{ours}.attention.out_proj.bias"]
        tensors[f"{theirs}.ln_2.weight"] = weights[f"{ours}.feed_forward_norm.weight"]
        tensors[f"{theirs}.ln_2.bias"] = weights[f"{ours}.feed_forward_norm.bias"]
        tensors[f"{theirs}.mlp.c_fc.weight"] = weights[f"{ours}.feed_forward.up_proj.weight"].T
        tensors[f"{theirs}.mlp.c_fc.bias"] = weights[f"{ours}.feed_forward.up_proj.bias"]
        tensors[f"{theirs}.mlp.c_proj.weight"] = weights[f"{ours}.feed_forward.down_proj.weight"].T
        tensors[f"{theirs}.mlp.c_proj.bias"] = weights[f"{ours}.feed_forward.down_proj.bias"]
    if "vocabulary_projection.weight" in weights:
        tensors[HEAD] = weights["vocabulary_projection.weight"]
    return tensors


def nanogpt_tensors(weights: Mapping[str, Array]) -> dict[str, Array]:
    """Return the same tensors as nanoGPT keeps them: nn.Linear's matrices are (out, in), as ours."""
    return {
        name: array.T if name.startswith("h.") else array
        for name, array in hugging_face_tensors(weights).items()
    }


def with_prefix(tensors: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """Return the tensors with a prefix before every name but the head's."""
    return {name if name == HEAD else prefix + name: array for name, array in tensors.items()}


def settings_of(config: ng.GPTConfig) -> dict[str, Any]:
    """Return the config.json that Hugging Face would write for such a model."""
    return {
        "model_type": "gpt2",
        "vocab_size": config.vocabulary_size,
        "n_positions": config.max_sequence_length,
        "n_embd": config.embedding_dim,
        "n_head": config.num_heads,
        "n_layer": config.num_layers,
        "n_inner": None,
        "activation_function": {"gelu_tanh": "gelu_new", "gelu": "gelu"}[config.activation],
        "layer_norm_epsilon": config.layer_norm_eps,
        "tie_word_embeddings": config.tie_weights,
    }


def write_weights(path: Path, tensors: Mapping[str, Array]) -> None:
    """Write a safetensors file."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    safetensors.numpy.save_file(contiguous, path, {"format": "pt"})


def write_folder(path: Path, tensors: Mapping[str, Array], settings: Any) -> Path:
    """Write model.safetensors and config.json into a new folder, and return it."""
    path.mkdir()
    write_weights(path / "model.safetensors", tensors)
    (path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    return path


def logits_of(theirs: Any) -> Array:
    """Return what a transformers model predicts after each of TOKEN_IDS."""
    logits: Array = theirs(torch.tensor(TOKEN_IDS)).logits.detach().numpy()
    return logits


def assert_same_answers(ours: ng.GPT, theirs: Any) -> None:
    """Fail unless logits, loss and gradients equal those of a transformers model; both in float64.

    A gradient that one has and the other has not is of a bias that is absent here and zero there.
    """
    logits = theirs(torch.tensor(TOKEN_IDS)).logits
    # transformers' own loss would round the logits to float32.
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(TARGET_IDS).flatten())
    loss.backward()
    assert_close(ours(TOKEN_IDS), logits.detach().numpy(), "logits", tolerance=FLOAT64_AGREEMENT)
    our_loss, gradients = ours.loss_and_gradients(TOKEN_IDS, TARGET_IDS)
    assert_close(our_loss, loss.item(), "loss", tolerance=FLOAT64_AGREEMENT)

    d_theirs = {name: weight.grad.numpy() for name, weight in theirs.named_parameters()}
    d_ours = with_prefix(hugging_face_tensors(dict(gradients.named_parameters())), "transformer.")
    absent = set() if ours.config.qkv_bias else {name for name in d_theirs if name.endswith("c_attn.bias")}
    assert d_ours.keys() == d_theirs.keys() - absent
    floor = 1e-3 * max(float(abs(gradient).max()) for gradient in d_theirs.values())
    for name, gradient in d_ours.items():
        assert_close(gradient, d_theirs[name], f"d_{name}", tolerance=FLOAT64_AGREEMENT, floor=floor)
