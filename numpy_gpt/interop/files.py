"""Safetensors files: what tensors they hold, and the numbers of one tensor. Nothing is ever unpickled.

A file is eight bytes with the length of a header, the header as JSON, and the numbers. It is read here and
not by the safetensors package, which gives NumPy no BF16.

Source: "Format" in the documentation of safetensors.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.text.printable import printable

FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""What weights may be stored in, and the NumPy dtype of its bytes."""

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

_LENGTH_BYTES = 8
_LONGEST_HEADER = 100_000_000  # bytes, the format's own limit
_MOST_AXES = 8  # a mask has four; a million of them would keep the product of their lengths busy
_PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"}
_PICKLE_STARTS = (b"\x80", b"PK")  # a pickle, and the zip archive in which torch keeps one
_REFUSED_PICKLE = "is a pickle, and nothing is ever unpickled; save it as safetensors"


class StoredTensor(NamedTuple):
    """Where a tensor lies. Its header agrees with the length of the file; no number has been read."""

    path: Path
    dtype: str  # as safetensors names it
    shape: tuple[int, ...]
    start: int  # bytes from the beginning of the file

    def read(self) -> Array:
        """Return the numbers: float64, float32 or float16, and of BF16 the float32 with the same values."""
        numbers = np.fromfile(self.path, FLOATS[self.dtype], math.prod(self.shape), offset=self.start)
        if self.dtype == "BF16":
            numbers = (numbers.astype(np.uint32) << 16).view(np.float32)  # a BF16 is a float32's upper half
        return numbers.reshape(self.shape)


@contextmanager
def faults_of(path: Path) -> Iterator[None]:
    """Turn whatever the contents of a file make fail into a ValueError of one line that names the file."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        # A reason may quote the file, and a hostile one has names with line breaks or without an end.
        raise ValueError(f"{path}: {printable(reason):.300}") from error


def read_table(path: Path) -> dict[str, Any]:
    """Return the table that a JSON file holds."""
    with faults_of(path):
        return _table(path.read_bytes())


def find_tensors(path: Path) -> dict[str, StoredTensor]:
    """Return every tensor of a file, of an index of files, or of a folder, under the name it has there."""
    if path.is_dir():
        for name in (WEIGHTS, INDEX):  # the order in which Hugging Face looks
            if (path / name).exists():
                return find_tensors(path / name)
        with faults_of(path):
            if pickles := sorted(file.name for file in path.iterdir() if file.suffix in _PICKLES):
                raise ValueError(f"{pickles[0]} {_REFUSED_PICKLE}")
            raise ValueError(f"there is neither {WEIGHTS} nor {INDEX} in this folder")
    return _tensors_of_shards(path) if path.name.endswith(".index.json") else _tensors_of_file(path)


def _tensors_of_file(path: Path) -> dict[str, StoredTensor]:
    with path.open("rb") as file, faults_of(path):
        size = os.fstat(file.fileno()).st_size
        beginning = file.read(_LENGTH_BYTES)
        length = int.from_bytes(beginning, "little")
        if length > min(size - _LENGTH_BYTES, _LONGEST_HEADER):
            if beginning.startswith(_PICKLE_STARTS):
                raise ValueError(_REFUSED_PICKLE)
            raise ValueError("is not a safetensors file, or is truncated")
        header = _table(file.read(length))
        header.pop("__metadata__", None)
        numbers_start = _LENGTH_BYTES + length
        tensors = {}
        for name, entry in header.items():
            tensors[name] = _stored_tensor(path, name, entry, numbers_start, size)
        _check_layout(header, size - numbers_start)
        return tensors


def _check_layout(header: dict[str, Any], num_bytes: int) -> None:
    """Make sure that the tensors lie one after the other: no byte is read twice, none is left over."""
    end = 0
    for name, (start, stop) in sorted(
        ((name, entry["data_offsets"]) for name, entry in header.items()), key=lambda place: place[1]
    ):
        if start != end:
            raise ValueError(f"{name} begins at {start}, but what comes before it ends at {end}")
        end = stop
    if end != num_bytes:
        raise ValueError(f"its tensors end at {end}, but its numbers at {num_bytes}")


def _table(text: bytes) -> dict[str, Any]:
    def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a name occurs twice in one table")
        return found

    try:
        document = json.loads(text, object_pairs_hook=without_repeats)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its JSON is broken: {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"its JSON is a {type(document).__name__}, not a table")
    return document


def _stored_tensor(path: Path, name: str, entry: Any, numbers_start: int, size: int) -> StoredTensor:
    """Return a header's entry after holding dtype, shape and place against each other and the file."""
    dtype, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or not isinstance(shape, list) or len(shape) > _MOST_AXES:
        raise ValueError(f"{name} has dtype {dtype!r:.20} and shape {shape!r:.40}")
    if any(not isinstance(number, int) or number < 0 for number in (*shape, start, stop)):
        raise ValueError(f"{name} has shape {shape!r:.40} and lies at {start!r:.20} to {stop!r:.20}")
    if numbers_start + stop > size:
        raise ValueError(f"{name} ends after the file does: it is truncated")
    if dtype in FLOATS and stop - start != math.prod(shape) * np.dtype(FLOATS[dtype]).itemsize:
        raise ValueError(f"{name} is {dtype} of shape {shape}, but has {stop - start} bytes")
    return StoredTensor(path, dtype, tuple(shape), numbers_start + start)


def _tensors_of_shards(index: Path) -> dict[str, StoredTensor]:
    places = read_table(index).get("weight_map")
    with faults_of(index):
        if not isinstance(places, dict) or not places:
            raise ValueError("has no weight_map from tensors to files")
        for name, shard in places.items():
            # A name that is only a name: no folder, no drive, and neither "", "." nor ".."
            if not isinstance(shard, str) or shard in ("", ".", "..") or set(shard) & set("/\\:\0"):
                raise ValueError(f"{name} is said to lie in {shard!r:.60}, which is no file of this folder")
        shards = sorted(set(places.values()))
        if missing := [shard for shard in shards if not (index.parent / shard).is_file()]:
            raise ValueError(f"the shard {missing[0]} is missing")

    tensors: dict[str, StoredTensor] = {}
    for shard in shards:
        found = _tensors_of_file(index.parent / shard)
        promised = {name for name, place in places.items() if place == shard}
        with faults_of(index):
            if differing := sorted(promised ^ found.keys()):
                one_sided = "in the index" if differing[0] in promised else "in the file"
                raise ValueError(f"{differing[0]} of the shard {shard} is only {one_sided}")
        tensors |= found
    return tensors
