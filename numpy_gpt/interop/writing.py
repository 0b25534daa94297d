"""A GPT as Hugging Face's GPT-2, tokenizer included."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.interop.files import WEIGHTS
from numpy_gpt.interop.names import HEAD, gpt2_names, lies_transposed
from numpy_gpt.interop.settings import CONFIG, settings_from_config
from numpy_gpt.interop.tokenizer_writing import tokenizer_files
from numpy_gpt.model import GPT
from numpy_gpt.parameters import Parameters
from numpy_gpt.text.tokenizers import END_OF_TEXT
from numpy_gpt.training.checkpoint import write_tensors
from numpy_gpt.whole_files import name_aside, write_whole

if TYPE_CHECKING:
    import tiktoken

GENERATION_CONFIG = "generation_config.json"


def export_pretrained(
    path: str | os.PathLike[str], model: GPT, *, tokenizer: tiktoken.Encoding | None = None
) -> None:
    """Write a folder from which `transformers.GPT2LMHeadModel.from_pretrained` loads a model of equal logits.

    It holds config.json and model.safetensors, in the model's dtype, and with a tokenizer the two files that
    `transformers.AutoTokenizer` reads. It is written aside and renamed: whole, or not there.

    Args:
        path: a folder that does not exist yet or is empty.
        model: without `qkv_bias` it is written with biases of zero, which Hugging Face's model always has.
        tokenizer: with at most the model's vocabulary_size tokens. With fewer, Hugging Face is told not to
            generate the ids that it does not have.

    Raises:
        FileExistsError: when there is a file, or a folder that holds something.
        OSError: when the folder cannot be written; nothing is left behind.
        ValueError: for a tokenizer that does not fit, or that Hugging Face's files cannot describe.
    """
    path = Path(path).resolve()
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise FileExistsError(errno.EEXIST, "is there already, and nothing is overwritten", str(path))
    documents = _documents(model, tokenizer)

    aside = name_aside(path)
    try:
        shutil.rmtree(aside, ignore_errors=True)  # what a killed process left
        aside.mkdir()
        for name, document in documents.items():
            write_whole(aside / name, [json.dumps(document, indent=2, ensure_ascii=False).encode()])
        # Older versions of transformers refuse weights that do not say this.
        write_tensors(aside / WEIGHTS, _tensors(model.parameters), {"format": "pt"})
        if path.exists():
            path.rmdir()  # only POSIX renames onto an empty folder
        aside.rename(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _documents(model: GPT, tokenizer: tiktoken.Encoding | None) -> dict[str, dict[str, Any]]:
    """Return all JSON files by name."""
    config = model.config
    if tokenizer is None:
        return {CONFIG: settings_from_config(config, model.dtype.name, end_of_text=None)}
    if tokenizer.n_vocab > config.vocabulary_size:
        raise ValueError(
            f"tokenizer {tokenizer.name!r} has {tokenizer.n_vocab} tokens, "
            f"but the model only {config.vocabulary_size}"
        )
    end_of_text = tokenizer._special_tokens.get(END_OF_TEXT)
    documents = {
        CONFIG: settings_from_config(config, model.dtype.name, end_of_text),
        **tokenizer_files(tokenizer, config.max_sequence_length),
    }
    if padding := list(range(tokenizer.n_vocab, config.vocabulary_size)):
        documents[GENERATION_CONFIG] = {
            "bos_token_id": end_of_text,
            "eos_token_id": end_of_text,
            "suppress_tokens": padding,
        }
    return documents


def _tensors(parameters: Parameters) -> dict[str, Array]:
    """Return every tensor under Hugging Face's name and in its layout."""
    views = dict(parameters.named_parameters())
    no_bias = np.zeros(parameters.config.embedding_dim, parameters.dtype)  # (C,)
    tensors = {}
    for name, ours in gpt2_names(parameters.config).items():
        array = np.concatenate([views.get(our_name, no_bias) for our_name in ours])
        if lies_transposed(name):
            array = np.ascontiguousarray(array.T)
        tensors[name if name == HEAD else f"transformer.{name}"] = array
    return tensors
