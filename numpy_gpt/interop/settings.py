"""config.json and GPTConfig: what GPT-2's settings mean here, and which have no meaning here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy_gpt.config import PRESETS, GPTConfig
from numpy_gpt.interop.files import read_table

CONFIG = "config.json"

ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
"""Hugging Face's names; the first of each of ours is the one that is written."""

# A size by the name GPT-2 gives it, and by those that other configurations use; the last is nanoGPT's.
_SIZES = {
    "vocab_size": ("vocab_size",),
    "n_positions": ("n_positions", "max_position_embeddings", "block_size"),
    "n_embd": ("n_embd", "hidden_size"),
    "n_layer": ("n_layer", "num_hidden_layers"),
}
_HEADS = ("n_head", "num_attention_heads")

_FIXED = {
    "model_type": "gpt2",
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
}
"""Settings that have one value in the model built here, which is also their default."""

_DEFAULT_HEADS = 12  # of GPT-2, in both implementations
_GPT2_HEADS = {
    preset.embedding_dim: preset.num_heads for name, preset in PRESETS.items() if name.startswith("gpt2")
}


def read_settings(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the folder's config.json and where it lies, or None."""
    path = folder / CONFIG
    return (path, read_table(path)) if path.exists() else None


def config_from_settings(
    settings: dict[str, Any] | None,
    sizes: dict[str, int],
    *,
    num_heads: int | None,
    qkv_bias: bool,
    tie_weights: bool,
    default_activation: str,
) -> GPTConfig:
    """Return the configuration of weights with these sizes.

    Args:
        settings: config.json, or None where there is none; what it leaves out has GPT-2's default.
        sizes: what the tensors show, under the names of config.json.
        num_heads: H where the caller knows it.
        qkv_bias, tie_weights: what the tensors show.
        default_activation: Hugging Face's name of the activation where config.json has none.

    Raises:
        ValueError: for a setting that contradicts the tensors or asks for another model than GPT-2.
    """
    given = settings or {}
    for name, size in sizes.items():
        for alias in _SIZES[name]:
            if given.get(alias, size) != size:
                raise ValueError(f"has {alias} {given[alias]!r:.20}, but the tensors {size}")
    for name, value in _FIXED.items():
        if given.get(name, value) != value:
            raise ValueError(f"has {name} {given[name]!r:.40}; only {value!r} can be computed here")
    width = sizes["n_embd"]
    if given.get("n_inner") not in (None, 4 * width):
        raise ValueError(
            f"has n_inner {given['n_inner']!r:.20}; only {4 * width}, four times n_embd, fits here"
        )
    activation = given.get("activation_function", default_activation)
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise ValueError(
            f"has activation_function {activation!r:.40}, which is none of {', '.join(ACTIVATIONS)}"
        )
    return GPTConfig(
        vocabulary_size=sizes["vocab_size"],
        max_sequence_length=sizes["n_positions"],
        embedding_dim=width,
        num_heads=_num_heads(settings, width) if num_heads is None else num_heads,
        num_layers=sizes["n_layer"],
        qkv_bias=qkv_bias,
        tie_weights=tie_weights,
        activation=ACTIVATIONS[activation],
        layer_norm_eps=given.get("layer_norm_epsilon", 1e-5),
    )


def _num_heads(settings: dict[str, Any] | None, width: int) -> int:
    """Return H, which no tensor shows: the heads lie side by side in C."""
    if settings is not None:
        for name in _HEADS:
            if name in settings:
                heads: int = settings[name]
                return heads
        return _DEFAULT_HEADS
    if width not in _GPT2_HEADS:
        raise ValueError(
            f"weights do not show the number of heads, there is no {CONFIG} beside them, and {width} is none "
            f"of GPT-2's widths: give num_heads (--num-heads)"
        )
    return _GPT2_HEADS[width]


def settings_from_config(config: GPTConfig, dtype: str, end_of_text: int | None) -> dict[str, Any]:
    """Return a config.json that describes this model to Hugging Face.

    Args:
        config: of the model.
        dtype: of its weights.
        end_of_text: the id that begins and ends a text, or None.
    """
    activation = next(theirs for theirs, ours in ACTIVATIONS.items() if ours == config.activation)
    return {
        **_FIXED,
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": config.vocabulary_size,
        "n_positions": config.max_sequence_length,
        "n_embd": config.embedding_dim,
        "n_layer": config.num_layers,
        "n_head": config.num_heads,
        "n_inner": None,
        "activation_function": activation,
        "layer_norm_epsilon": config.layer_norm_eps,
        "tie_word_embeddings": config.tie_weights,
        "qkv_bias": config.qkv_bias,  # Hugging Face's GPT-2 always has one and ignores this; reading does not
        "resid_pdrop": 0.0,  # there is no dropout here, and Hugging Face's default would add it to training
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "torch_dtype": dtype,
    }
