"""Checkpoints: one safetensors file each, written aside and renamed, so that a file is whole or absent.

The file holds every parameter under its own name (a tied matrix once), the optimizer's state under
`optimizer.`, and one JSON document under the metadata key `numpy_gpt`: configuration, dtype, step, tokenizer,
the optimizer's settings, versions, and whatever else the caller adds. Nothing in it is ever executed.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.config import GPTConfig
from numpy_gpt.model import GPT
from numpy_gpt.parameters import Parameters, parameter_shapes
from numpy_gpt.text.printable import printable
from numpy_gpt.training.adamw import AdamW
from numpy_gpt.whole_files import write_whole

if TYPE_CHECKING:
    import tiktoken

ALIGNMENT = 8
"""Bytes: the width of the widest numbers."""

STORED = {"float32": "F32", "float64": "F64", "int64": "I64"}
"""safetensors' names for the dtypes that are written."""

METADATA_KEY = "numpy_gpt"
OPTIMIZER_PREFIX = "optimizer."
FORMAT_VERSION = 1
FEWEST_IN_A_LAYER = 13  # tensors; with biases of queries, keys and values 16


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint file held.

    Attributes:
        model: with the saved weights.
        optimizer: for that model, or None when none was saved.
        tokenizer: a tiktoken.Encoding, or None when none was saved.
        step: completed training steps.
        metadata: what the writer added, as plain JSON values.
    """

    model: GPT
    optimizer: AdamW | None = None
    tokenizer: tiktoken.Encoding | None = None
    step: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)


def save_checkpoint(
    path: str | os.PathLike[str],
    model: GPT,
    *,
    optimizer: AdamW | None = None,
    tokenizer: tiktoken.Encoding | None = None,
    step: int = 0,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint; on any failure the previous file at `path` is still there, whole.

    Args:
        path: the file to write, usually ending in .safetensors.
        model: whose configuration and parameters are saved.
        optimizer: whose moments and settings are saved too.
        tokenizer: kept whole, so that the checkpoint alone can read and write text.
        step: completed training steps.
        metadata: anything more, as JSON values.

    Raises:
        OSError: when the file cannot be written.
        ValueError: for a tokenizer with more tokens than the model's vocabulary.
        TypeError: for metadata that JSON cannot hold.
    """
    from numpy_gpt import __version__
    from numpy_gpt.text.tokenizers import tokenizer_to_json

    _check_fit(model.config, tokenizer)
    tensors: dict[str, Array] = dict(model.named_parameters())
    document: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "versions": {"numpy_gpt": __version__, "numpy": np.__version__},
        "config": asdict(model.config),
        "dtype": model.dtype.name,
        "step": step,
        "metadata": dict(metadata or {}),
        "optimizer": None,
        "tokenizer": None if tokenizer is None else tokenizer_to_json(tokenizer),
    }
    if optimizer is not None:
        tensors |= {OPTIMIZER_PREFIX + name: array for name, array in optimizer.named_state()}
        document["optimizer"] = {
            "learning_rate": optimizer.learning_rate,
            "betas": list(optimizer.betas),
            "eps": optimizer.eps,
            "weight_decay": optimizer.weight_decay,
        }
    write_tensors(Path(path), tensors, {METADATA_KEY: json.dumps(document)})


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint. Everything is compared with the file's header before any large allocation.

    Raises:
        OSError: when the file cannot be read.
        ValueError: in one line that names the file, when it is not a whole checkpoint of this format.
    """
    from numpy_gpt.text.tokenizers import tokenizer_from_json

    with _opened(Path(path)) as (file, document):
        config, dtype, settings = _checked_config(file, document), document["dtype"], document["optimizer"]
        tokenizer, metadata = document["tokenizer"], document["metadata"]
        if not isinstance(metadata, dict):
            raise ValueError(f"its metadata is a {type(metadata).__name__}, not a table")

        encoding = None if tokenizer is None else tokenizer_from_json(tokenizer)
        _check_fit(config, encoding)

        parameters = Parameters.zeros(config, dtype)
        _fill(parameters, file, "")
        optimizer = None
        if settings is not None:
            optimizer = AdamW(parameters, **settings)
            optimizer.steps_taken = int(file.get_tensor(f"{OPTIMIZER_PREFIX}steps_taken"))
            if optimizer.steps_taken < 0:
                raise ValueError(f"its optimizer has taken {optimizer.steps_taken} steps")
            _fill(optimizer.first_moment, file, f"{OPTIMIZER_PREFIX}first_moment.")
            _fill(optimizer.second_moment, file, f"{OPTIMIZER_PREFIX}second_moment.")
        return Checkpoint(
            GPT.from_parameters(parameters),
            optimizer,
            encoding,
            document["step"],
            metadata,
        )


def _check_fit(config: GPTConfig, tokenizer: tiktoken.Encoding | None) -> None:
    """Refuse a tokenizer that gives ids the model does not have; the reverse is a padded vocabulary."""
    if tokenizer is not None and tokenizer.n_vocab > config.vocabulary_size:
        raise ValueError(
            f"the tokenizer has {tokenizer.n_vocab} tokens, more than the model's vocabulary of "
            f"{config.vocabulary_size}"
        )


class Description(NamedTuple):
    """What a checkpoint says of itself."""

    step: int
    config: GPTConfig
    metadata: dict[str, Any]


def read_description(path: Path) -> Description:
    """Return what a checkpoint says of itself, without reading its tensors.

    Raises:
        OSError, ValueError: as `load_checkpoint`.
    """
    with _opened(path) as (file, document):
        return Description(document["step"], _checked_config(file, document), dict(document["metadata"]))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the open file and its JSON document; whatever goes wrong inside is one line naming the file."""
    from safetensors import SafetensorError, safe_open

    with path.open("rb"):  # a missing or unreadable file says so in the operating system's words
        pass
    faults = (SafetensorError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)
    try:
        with safe_open(path, framework="numpy") as file:
            document = json.loads((file.metadata() or {})[METADATA_KEY])
            if not isinstance(document, dict):
                raise ValueError(f"its description is a {type(document).__name__}, not a table")
            if document["format_version"] != FORMAT_VERSION:
                raise ValueError(f"its format version is {document['format_version']}, not {FORMAT_VERSION}")
            if type(document["step"]) is not int or document["step"] < 0:
                raise ValueError(f"its step is {document['step']!r}, not a number of steps")
            yield file, document
    except faults as error:
        reason = f"missing {error}" if isinstance(error, KeyError) else str(error)
        # A reason may quote the file, and a hostile one has names with line breaks or without an end.
        raise ValueError(f"{path} is not a checkpoint: {printable(reason):.300}") from error


def _checked_config(file: Any, document: dict[str, Any]) -> GPTConfig:
    """Return the model's configuration, after comparing it with the file's header."""
    config = GPTConfig(**document["config"])
    _check_header(file, config, document["dtype"], has_optimizer=document["optimizer"] is not None)
    return config


def _check_header(file: Any, config: GPTConfig, dtype: str, *, has_optimizer: bool) -> None:
    """Compare the file's names, shapes and dtypes with what the configuration asks for."""
    found = {}
    for name in file.keys():  # noqa: SIM118  a safetensors file is not a mapping
        tensor = file.get_slice(name)
        found[name] = (tuple(tensor.get_shape()), tensor.get_dtype())
    if config.num_layers * FEWEST_IN_A_LAYER > len(found):  # before a hostile number is spelled out
        raise ValueError(
            f"its configuration has {config.num_layers} layers, but the file {len(found)} tensors"
        )
    if dtype not in ("float32", "float64"):
        raise ValueError(f"its dtype is {dtype!r}, not float32 or float64")
    stored = STORED[dtype]
    shapes = parameter_shapes(config)
    prefixes = ["", *(f"{OPTIMIZER_PREFIX}{m}_moment." for m in ("first", "second") if has_optimizer)]
    expected = {prefix + name: (shape, stored) for prefix in prefixes for name, shape in shapes.items()}
    if has_optimizer:
        expected[f"{OPTIMIZER_PREFIX}steps_taken"] = ((), "I64")
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            wanted, got = (_describe(table.get(name)) for table in (expected, found))
            raise ValueError(f"{name} should be {wanted}, but is {got}")


def _describe(tensor: tuple[tuple[int, ...], str] | None) -> str:
    return "absent" if tensor is None else f"{tensor[1]} of shape {tensor[0]}"


def _fill(parameters: Parameters, file: Any, prefix: str) -> None:
    for name, view in parameters.named_parameters():
        view[...] = file.get_tensor(prefix + name)


def _header(tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> bytes:
    """Return what stands before the numbers: its length, and as JSON which tensor lies where.

    Source: "Format" in the documentation of safetensors.
    """
    table: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, array in tensors.items():
        start, end = end, end + array.nbytes
        dtype = STORED[array.dtype.name]
        table[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": (start, end)}
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % ALIGNMENT)  # so that the numbers begin at a multiple of it
    return len(text).to_bytes(8, "little") + text


def write_tensors(path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file, whole or not at all.

    One tensor is written after the other, so that a file takes no memory; safetensors' own functions keep
    neither promise.

    Args:
        path: the file to write.
        tensors: in float32, float64 or int64.
        metadata: texts by name.

    Raises:
        OSError: when it cannot be written; nothing is left behind, and a previous file at `path` stays.
    """
    # The widest numbers first: then each begins at a multiple of its own width.
    names = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))

    def pieces() -> Iterator[bytes | memoryview]:
        yield _header({name: tensors[name] for name in names}, metadata)
        for name in names:
            array = tensors[name]
            stored = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            yield stored.reshape(-1).view(np.uint8).data

    write_whole(path, pieces())
