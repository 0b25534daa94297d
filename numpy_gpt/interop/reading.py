"""GPT-2's weights as Hugging Face or nanoGPT saved them, read into a GPT."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from numpy_gpt.arrays import Array
from numpy_gpt.config import GPTConfig
from numpy_gpt.interop.files import FLOATS, StoredTensor, faults_of, find_tensors
from numpy_gpt.interop.names import (
    BLOCK_LAYERS,
    FIRST_QKV,
    HEAD,
    POSITIONS,
    TOKENS,
    bare_name,
    gpt2_names,
    gpt2_shapes,
    is_mask,
    lies_transposed,
)
from numpy_gpt.interop.settings import config_from_settings, read_settings
from numpy_gpt.model import GPT
from numpy_gpt.parameters import Parameters

_LAYER = re.compile(r"h\.(\d+)\.")
_FAULTS_NAMED = 3


def load_pretrained(
    path: str | os.PathLike[str], *, dtype: DTypeLike | None = None, num_heads: int | None = None
) -> GPT:
    """Return the GPT whose weights Hugging Face's GPT-2 or nanoGPT saved as safetensors.

    All of a padded vocabulary is kept: V may be above the number of tokens a tokenizer has.

    Args:
        path: a folder with model.safetensors or its index of shards, or one such file. config.json beside it
            gives the number of heads, the activation and the epsilon of layer norm.
        dtype: float32 or float64; None keeps what is stored, but at least float32. F16 and BF16 become
            either without rounding.
        num_heads: H, for weights without a config.json, which do not show it. Without both it is GPT-2's
            where C is 768, 1024, 1280 or 1600, and not guessed elsewhere.

    Returns:
        A model with weights of its own. Where nanoGPT has no biases qkv_bias is False, the others are zero;
        its activation is the exact GELU unless config.json has another.

    Raises:
        OSError: when `path` cannot be read.
        ValueError: in one line that names the file, for anything but whole weights of a GPT-2.
    """
    path = Path(path)
    stored = find_tensors(path)
    found = read_settings(path if path.is_dir() else path.parent)
    settings_path, settings = found or (path, None)

    with faults_of(path):
        tensors = _learned_tensors(stored)
        sizes = _sizes(tensors)
        transposed = _is_transposed(tensors[FIRST_QKV], sizes["n_embd"])
        # Without a single bias it is nanoGPT with bias=False; with some it is a file that lacks the others.
        has_biases = transposed or any(name.endswith(".bias") for name in tensors)
        is_tied = HEAD not in tensors or _equal(tensors[HEAD], tensors[TOKENS])
    with faults_of(settings_path):
        config = config_from_settings(
            settings,
            sizes,
            num_heads=num_heads,
            qkv_bias=has_biases and (settings or {}).get("qkv_bias", True),
            tie_weights=is_tied and (settings or {}).get("tie_word_embeddings", True),
            default_activation="gelu_new" if transposed else "gelu",
        )
    with faults_of(path):
        _check(tensors, config, transposed=transposed, has_biases=has_biases)
        if dtype is None:
            dtype = np.float64 if tensors[TOKENS].dtype == "F64" else np.float32
        parameters = Parameters.zeros(config, dtype)
        _fill(parameters, tensors, transposed=transposed)
    return GPT.from_parameters(parameters)


def _learned_tensors(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the tensors under their bare names, without masks."""
    tensors: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        bare = bare_name(name)
        if bare in tensors:
            raise ValueError(f"holds {bare} twice, with and without a prefix")
        if not is_mask(bare):
            tensors[bare] = tensor
    if TOKENS not in tensors and HEAD in tensors:
        # Of two names for one matrix safetensors keeps the first in the alphabet.
        tensors[TOKENS] = tensors.pop(HEAD)
    return tensors


def _sizes(tensors: Mapping[str, StoredTensor]) -> dict[str, int]:
    """Return V, max_sequence_length, C and L as the tensors show them, under GPT-2's names."""
    for name in (TOKENS, POSITIONS, FIRST_QKV):
        if name not in tensors:
            raise ValueError(f"these are not GPT-2's weights: there is no {name}")
        if len(tensors[name].shape) != 2:
            raise ValueError(f"{name} has shape {tensors[name].shape}, which is no matrix")
    vocabulary_size, width = tensors[TOKENS].shape
    layers = {match[1] for match in map(_LAYER.match, tensors) if match}
    if len(layers) * len(BLOCK_LAYERS) > len(tensors):  # before a hostile number of layers is spelled out
        raise ValueError(f"holds parts of {len(layers)} layers, but only {len(tensors)} tensors")
    return {
        "vocab_size": vocabulary_size,
        "n_positions": tensors[POSITIONS].shape[0],
        "n_embd": width,
        "n_layer": len(layers),
    }


def _is_transposed(qkv: StoredTensor, width: int) -> bool:
    """Tell Hugging Face's (in, out) from nanoGPT's (out, in), which only an oblong matrix can show."""
    if qkv.shape not in ((width, 3 * width), (3 * width, width)):
        raise ValueError(
            f"{FIRST_QKV} has shape {qkv.shape}, neither Hugging Face's ({width}, {3 * width}) "
            f"nor nanoGPT's ({3 * width}, {width})"
        )
    return qkv.shape == (width, 3 * width)


def _equal(head: StoredTensor, tokens: StoredTensor) -> bool:
    return {head.dtype, tokens.dtype} <= FLOATS.keys() and np.array_equal(
        head.read(), tokens.read(), equal_nan=True
    )


def _check(
    tensors: Mapping[str, StoredTensor], config: GPTConfig, *, transposed: bool, has_biases: bool
) -> None:
    """Compare names, shapes and dtypes with what the configuration asks for."""
    expected = gpt2_shapes(config, transposed=transposed)
    if not has_biases:
        expected = {name: shape for name, shape in expected.items() if not name.endswith(".bias")}
    allowed = expected.keys() | {HEAD}  # a tied one is equal, or it would not be tied
    faults = [f"{name} is missing" for name in expected if name not in tensors]
    faults += [f"{name:.60} is unexpected" for name in tensors if name not in allowed]
    for name, shape in expected.items():
        if name not in tensors:
            continue
        if tensors[name].shape != shape:
            faults.append(f"{name} has shape {tensors[name].shape}, not {shape}")
        elif tensors[name].dtype not in FLOATS:
            faults.append(f"{name} is {tensors[name].dtype}, not one of {', '.join(FLOATS)}")
    if faults:
        more = f"; and {len(faults) - _FAULTS_NAMED} more" if len(faults) > _FAULTS_NAMED else ""
        raise ValueError("; ".join(faults[:_FAULTS_NAMED]) + more)


def _fill(parameters: Parameters, tensors: Mapping[str, StoredTensor], *, transposed: bool) -> None:
    views = dict(parameters.named_parameters())
    for name, ours in gpt2_names(parameters.config).items():
        if name not in tensors:  # a bias that nanoGPT does not have: zero
            continue
        array = _in_dtype(name, tensors[name].read(), parameters.dtype)
        if transposed and lies_transposed(name):
            array = array.T
        for our_name, part in zip(ours, np.split(array, len(ours)), strict=True):
            if our_name in views:
                views[our_name][...] = part
            elif part.any():
                raise ValueError(f"{name} is not zero, although qkv_bias is false")


def _in_dtype(name: str, array: Array, dtype: np.dtype[np.floating]) -> Array:
    with np.errstate(over="raise", invalid="ignore"):  # a NaN stays one, whatever kind it is
        try:
            return array.astype(dtype)
        except FloatingPointError:
            raise ValueError(f"{name} holds numbers too large for {dtype}") from None
