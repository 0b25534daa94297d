"""Checkpoints: all of it comes back, a failed write harms nothing, and a bad file is named in one line."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import signal
import struct
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import tiktoken
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import numpy_gpt as ng
import torch_gpt
from numpy_gpt.text.tokenizers import bytes_tokenizer, encode, learn_bpe
from tests.comparison import assert_same_bits
from tests.hostile import outcome_of
from tests.models import TIED, Problem, parameter_shapes, problems
from tests.strategies import DTYPES

CONFIG = ng.GPTConfig(300, 5, embedding_dim=4, num_heads=2, num_layers=1)
TOKENIZERS = [bytes_tokenizer(), learn_bpe(["to be or not to be, that is " * 9], 270)]

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def trained(problem: Problem, dtype: type, steps: int) -> tuple[ng.GPT, ng.AdamW]:
    """Return a model and its optimizer after a few steps on the problem's batch."""
    model = problem.model(dtype)
    optimizer = ng.AdamW(model.parameters, learning_rate=0.03, betas=(0.8, 0.97), eps=1e-6, weight_decay=0.2)
    for _ in range(steps):
        _, gradients = model.loss_and_gradients(problem.token_ids, problem.target_ids)
        optimizer.step(gradients)
    return model, optimizer


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A new folder for every example that hypothesis draws."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@given(problem=problems(), dtype=DTYPES, steps=st.integers(0, 2))
def test_training_goes_on_from_a_file_bit_for_bit(problem: Problem, dtype: type, steps: int) -> None:
    model, optimizer = trained(problem, dtype, steps)
    with folder() as place:
        ng.save_checkpoint(place / "a.safetensors", model, optimizer=optimizer)
        checkpoint = ng.load_checkpoint(place / "a.safetensors")
    restored = checkpoint.optimizer
    assert restored is not None
    assert restored.parameters is checkpoint.model.parameters
    assert restored.steps_taken == steps
    for setting in ("learning_rate", "betas", "eps", "weight_decay"):
        assert getattr(restored, setting) == getattr(optimizer, setting)
    assert checkpoint.model.config == problem.config
    assert_same_bits(checkpoint.model.parameters.flat, model.parameters.flat, "parameters")

    for continued, its_optimizer in ((model, optimizer), (checkpoint.model, restored)):
        its_optimizer.step(continued.loss_and_gradients(problem.token_ids, problem.target_ids)[1])
    assert_same_bits(checkpoint.model.parameters.flat, model.parameters.flat, "parameters a step later")
    for name, array in optimizer.state_dict().items():
        assert_same_bits(restored.state_dict()[name], array, name)


@given(
    step=st.integers(0, 10**12),
    metadata=st.dictionaries(st.text(), JSON_VALUES, max_size=4),
    as_text=st.booleans(),
)
def test_step_and_metadata_come_back(step: int, metadata: dict[str, Any], as_text: bool) -> None:
    with folder() as place:
        path = str(place / "a.safetensors") if as_text else place / "a.safetensors"
        ng.save_checkpoint(path, ng.GPT(CONFIG), step=step, metadata=metadata)
        checkpoint = ng.load_checkpoint(path)
    assert (checkpoint.step, checkpoint.metadata) == (step, metadata)


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda tokenizer: tokenizer.name)
def test_the_tokenizer_comes_back(tmp_path: Path, tokenizer: tiktoken.Encoding) -> None:
    ng.save_checkpoint(tmp_path / "a.safetensors", ng.GPT(CONFIG), tokenizer=tokenizer)
    restored = ng.load_checkpoint(tmp_path / "a.safetensors").tokenizer
    assert restored is not None
    text = "to be or\n\tnot \u00e9\U0001f600 <|endoftext|>"
    assert encode(restored, text).tolist() == encode(tokenizer, text).tolist()
    assert (restored.n_vocab, restored.eot_token) == (tokenizer.n_vocab, tokenizer.eot_token)


def test_a_model_alone_is_enough(tmp_path: Path) -> None:
    ng.save_checkpoint(tmp_path / "a.safetensors", ng.GPT(CONFIG))
    checkpoint = ng.load_checkpoint(tmp_path / "a.safetensors")
    assert (checkpoint.optimizer, checkpoint.tokenizer, checkpoint.step) == (None, None, 0)
    assert checkpoint.metadata == {}


@given(problem=problems(), dtype=DTYPES)
def test_the_file_opens_in_torch_and_holds_a_tied_matrix_once(problem: Problem, dtype: type) -> None:
    model = problem.model(dtype)
    with folder() as place:
        ng.save_checkpoint(place / "a.safetensors", model)
        stored = safetensors.torch.load_file(place / "a.safetensors")
        twin = torch_gpt.GPT(problem.config).to(torch.float32 if dtype is np.float32 else torch.float64)
        safetensors.torch.load_model(
            twin, str(place / "a.safetensors")
        )  # refuses missing and unexpected names
    assert {name: tuple(tensor.shape) for name, tensor in stored.items()} == parameter_shapes(problem.config)
    for name, array in model.state_dict().items():
        if name != TIED or not problem.config.tie_weights:
            assert_same_bits(stored[name].numpy(), array, name)
        assert_same_bits(twin.state_dict()[name].numpy(), array, f"twin's {name}")


# ---- writing that fails ------------------------------------------------------------------------------------


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A checkpoint of step 1, alone in its folder."""
    path = tmp_path / "run" / "last.safetensors"
    path.parent.mkdir()
    ng.save_checkpoint(path, ng.GPT(CONFIG, seed=1), step=1)
    return path


def assert_untouched(path: Path) -> None:
    """Fail unless the earlier checkpoint is whole and nothing lies beside it."""
    assert list(path.parent.iterdir()) == [path]
    checkpoint = ng.load_checkpoint(path)
    assert checkpoint.step == 1
    assert_same_bits(checkpoint.model.parameters.flat, ng.GPT(CONFIG, seed=1).parameters.flat, "parameters")


def test_a_later_checkpoint_takes_the_place_of_an_earlier_one(earlier: Path) -> None:
    ng.save_checkpoint(earlier, ng.GPT(CONFIG, seed=2), step=2)
    assert list(earlier.parent.iterdir()) == [earlier]
    assert ng.load_checkpoint(earlier).step == 2


@given(dtype=DTYPES, with_optimizer=st.booleans())
def test_safetensors_reads_what_is_written_here(dtype: type, with_optimizer: bool) -> None:
    model = ng.GPT(CONFIG, dtype=dtype)
    optimizer = ng.AdamW(model.parameters) if with_optimizer else None
    with folder() as place:
        ng.save_checkpoint(place / "a", model, optimizer=optimizer, metadata={"text": "na\u00efve \ud800"})
        contents = (place / "a").read_bytes()
        found = safetensors.numpy.load_file(place / "a")
    expected = dict(model.named_parameters())
    if optimizer is not None:
        expected |= {f"optimizer.{name}": array for name, array in optimizer.state_dict().items()}
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert_same_bits(found[name], array, name)
    assert (8 + struct.unpack("<Q", contents[:8])[0]) % 8 == 0  # numbers may be mapped as they lie


def test_saving_takes_no_memory_for_another_copy(tmp_path: Path) -> None:
    model = ng.GPT(ng.GPTConfig(300, 5, embedding_dim=256, num_heads=2, num_layers=2))
    optimizer = ng.AdamW(model.parameters)
    tracemalloc.start()
    try:
        ng.save_checkpoint(tmp_path / "a.safetensors", model, optimizer=optimizer)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "a.safetensors").stat().st_size > 3 * model.parameters.flat.nbytes
    assert peak < model.parameters.flat.nbytes / 10


def test_a_full_disk_leaves_the_earlier_checkpoint(earlier: Path) -> None:
    resource = pytest.importorskip("resource", reason="needs a limit on the size of files, as POSIX has")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    large = ng.GPT(ng.GPTConfig(300, 5, embedding_dim=64, num_heads=2, num_layers=1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # as if 4 KiB were left
    try:
        with pytest.raises(OSError, match=earlier.name):
            ng.save_checkpoint(earlier, large, step=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert_untouched(earlier)


@pytest.mark.parametrize("metadata", [{"a": object()}, {"a": {1, 2}}, {"a": np.float32(1)}])
def test_metadata_that_json_cannot_hold_leaves_the_earlier_checkpoint(
    earlier: Path, metadata: dict[str, Any]
) -> None:
    with pytest.raises(TypeError):
        ng.save_checkpoint(earlier, ng.GPT(CONFIG), step=2, metadata=metadata)
    assert_untouched(earlier)


def test_an_interrupt_while_writing_leaves_the_earlier_checkpoint(
    earlier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)  # all is written, nothing is renamed
    with pytest.raises(KeyboardInterrupt):
        ng.save_checkpoint(earlier, ng.GPT(CONFIG), step=2)
    assert_untouched(earlier)


def test_what_cannot_be_written_leaves_no_stray_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        ng.save_checkpoint(tmp_path / "folder", ng.GPT(CONFIG))
    with pytest.raises(OSError, match="absent"):
        ng.save_checkpoint(tmp_path / "absent" / "a.safetensors", ng.GPT(CONFIG))
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


SAVE_FOR_EVER = """
import itertools, sys
import numpy_gpt as ng
model = ng.GPT(ng.GPTConfig(500, 64, embedding_dim=64, num_heads=2, num_layers=4))
for step in itertools.count():
    ng.save_checkpoint(sys.argv[1], model, step=step)
    print(step, flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs a signal that cannot be caught")
def test_a_killed_writer_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    environment = os.environ | {"PYTHONPATH": str(Path(ng.__file__).parents[1])}
    for kill_after in range(1, 9):
        writer = subprocess.Popen(
            [sys.executable, "-c", SAVE_FOR_EVER, str(path)], stdout=subprocess.PIPE, env=environment
        )
        assert writer.stdout is not None
        for _ in range(kill_after):
            saved = int(writer.stdout.readline())
        writer.kill()
        writer.communicate()
        assert ng.load_checkpoint(path).step >= saved
    ng.save_checkpoint(path, ng.GPT(CONFIG))
    assert list(tmp_path.iterdir()) == [path], "what a killed writer left behind is still there"


# ---- files that are no checkpoints -------------------------------------------------------------------------


class Parts:
    """A checkpoint taken apart: the header's JSON, the JSON document within it, and the numbers."""

    def __init__(self, contents: bytes) -> None:
        (length,) = struct.unpack("<Q", contents[:8])
        self.header: dict[str, Any] = json.loads(contents[8 : 8 + length])
        ((self.key, text),) = self.header["__metadata__"].items()
        self.document: dict[str, Any] = json.loads(text)
        self.numbers = bytearray(contents[8 + length :])

    def join(self) -> bytes:
        """Return the file again, whatever has become of its parts."""
        self.header["__metadata__"][self.key] = json.dumps(self.document)
        return pack(self.header, self.numbers)


def pack(header: Any, numbers: bytes | bytearray = b"") -> bytes:
    """Return a safetensors file with that header, JSON or bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + numbers


def whole_file() -> bytes:
    """Return a good checkpoint with everything in it."""
    model = ng.GPT(CONFIG)
    with folder() as place:
        ng.save_checkpoint(
            place / "a",
            model,
            optimizer=ng.AdamW(model.parameters),
            tokenizer=TOKENIZERS[0],
            step=3,
            metadata={"note": [1, None]},
        )
        return (place / "a").read_bytes()


WHOLE = whole_file()
LAST_BIAS = "final_norm.bias"
MEMORY_ALLOWED = 4_000_000  # bytes; the file has 30 thousand


def load(contents: bytes) -> ng.Checkpoint | str:
    """Return the checkpoint, or the text of the ValueError."""
    return outcome_of(ng.load_checkpoint, contents, memory_allowed=MEMORY_ALLOWED)


def assert_refused(contents: bytes) -> None:
    assert isinstance(load(contents), str), "a hostile file was loaded"


def test_the_file_that_is_spoilt_below_is_good() -> None:
    assert isinstance(load(WHOLE), ng.Checkpoint)
    assert isinstance(load(Parts(WHOLE).join()), ng.Checkpoint)


@given(length=st.integers(0, len(WHOLE) - 1))
def test_a_truncated_file_is_refused(length: int) -> None:
    assert_refused(WHOLE[:length])


@given(tail=st.binary(min_size=1, max_size=99))
def test_a_file_with_something_behind_it_is_refused(tail: bytes) -> None:
    assert_refused(WHOLE + tail)


@given(contents=st.binary(max_size=999) | st.text().map(str.encode))
def test_a_file_of_anything_is_refused(contents: bytes) -> None:
    assert_refused(contents)


@given(length=st.integers(0, 2**64 - 1) | st.integers(0, 2 * len(WHOLE)))
def test_a_header_of_another_length_is_refused(length: int) -> None:
    if length != struct.unpack("<Q", WHOLE[:8])[0]:
        assert_refused(struct.pack("<Q", length) + WHOLE[8:])


class Bomb:
    """What unpickling would run."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return pytest.fail, ("something was unpickled",)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    assert_refused(pickle.dumps(Bomb()))
    torch.save({"model": Bomb()}, tmp_path / "model.pt")
    assert_refused((tmp_path / "model.pt").read_bytes())
    np.save(tmp_path / "model.npy", np.array([Bomb()]), allow_pickle=True)
    assert_refused((tmp_path / "model.npy").read_bytes())


def spoil_document(*path: str, value: Any) -> bytes:
    """Return the file with one value of its document changed, or left out where the value is `...`."""
    parts = Parts(WHOLE)
    place: Any = parts.document
    for name in path[:-1]:
        place = place[name]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return parts.join()


SIZES = ("vocabulary_size", "max_sequence_length", "embedding_dim", "num_heads", "num_layers")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *(
            (("config", name), value)
            for name in SIZES
            for value in (..., 0, -1, 10**9, 10**400, "4", None, 3.0)
        ),
        *((("config", name), value) for name in ("qkv_bias", "tie_weights") for value in (None, 1, "no", [])),
        *((("config", "activation"), value) for value in ("relu", None, ["gelu"])),
        *((("config", "layer_norm_eps"), value) for value in (0, -1.0, math.nan, math.inf, "", [])),
        (("config", "tie_weights"), False),
        (("config", "qkv_bias"), False),
        (("config", "line\nbreak \x1b[31m"), 1),
        (("config", "long" * 9999), 1),
        *((("config",), value) for value in (..., None, [], "", 7)),
        *((("dtype",), value) for value in (..., None, [], {}, "float16", "float64", "object", 32)),
        *((("step",), value) for value in (..., None, -1, 1.5, "3", True, [], math.inf)),
        *((("metadata",), value) for value in (..., None, [], "", 7)),
        *((("format_version",), value) for value in (..., None, 0, 2, "1", [])),
        *((("optimizer",), value) for value in (..., None, [], "", 7, {"parameters": 1}, {"rate": 1})),
        *(
            (("optimizer", "learning_rate"), value)
            for value in (-1, math.nan, math.inf, 10**400, "", None, [])
        ),
        *(
            (("optimizer", "betas"), value)
            for value in (None, 0.9, [], [0.9], [0.9, 1.0], ["", ""], [0.9] * 3)
        ),
        *((("tokenizer",), value) for value in (..., {}, [], "gpt2", 7)),
        *((("tokenizer", "tokens"), value) for value in (..., None, [], ["a"], {"a": 1}, [1, 2])),
        *((("tokenizer", "pattern"), value) for value in (..., None, "(", r"(a+)+\1", "x" * 99999)),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(path: tuple[str, ...], value: Any) -> None:
    assert_refused(spoil_document(*path, value=value))


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "7", '"text"', "NaN", "[" * 99_999, '{"a":' * 99_999, "\ud800", "9" * 9999],
    ids=lambda text: text[:8],
)
def test_a_description_that_is_no_table_is_refused(text: str) -> None:
    parts = Parts(WHOLE)
    parts.header["__metadata__"][parts.key] = text
    assert_refused(pack(parts.header, parts.numbers))


@pytest.mark.parametrize("metadata", [..., None, {}, {"format": "pt"}, [], 7, {"numpy_gpt": 7}])
def test_a_file_without_a_description_is_refused(metadata: Any) -> None:
    parts = Parts(WHOLE)
    parts.header["__metadata__"] = metadata
    if metadata is ...:
        del parts.header["__metadata__"]
    assert_refused(pack(parts.header, parts.numbers))


@pytest.mark.parametrize(
    "header", [b"", b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 99_999, b'{"a":' * 99_999, b"{" * 9]
)
def test_a_header_that_is_no_table_is_refused(header: bytes) -> None:
    assert_refused(pack(header))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("dtype", value) for value in ("F16", "BF16", "F64", "I32", "BOOL", "object", 7, None)),
        *(("shape", value) for value in ([2, 2], [1, 4], [], [5], [-4], [2**63], [2**40, 2**40], "4", [4.0])),
        *(("data_offsets", value) for value in ([0, 16], [0], [-16, 0], [2**62, 2**62 + 16], None)),
    ],
)
def test_a_tensor_of_another_kind_is_refused(field: str, value: Any) -> None:
    parts = Parts(WHOLE)
    parts.header[LAST_BIAS][field] = value
    assert_refused(parts.join())


@pytest.mark.parametrize("name", ["lm_head.weight", "", "line\nbreak \x1b[31m", "long" * 9999])
def test_a_tensor_of_another_name_is_refused(name: str) -> None:
    parts = Parts(WHOLE)
    parts.header[name] = parts.header.pop(LAST_BIAS)
    assert_refused(parts.join())


def test_a_small_file_makes_no_large_model() -> None:
    parts = Parts(WHOLE)
    parts.document["config"]["num_layers"] = 4000
    for i in range(4000):
        parts.header[f"{i}"] = {"dtype": "F32", "shape": [0], "data_offsets": [len(parts.numbers)] * 2}
    assert_refused(parts.join())


def test_steps_taken_cannot_be_negative() -> None:
    parts = Parts(WHOLE)
    (name,) = (name for name in parts.header if name.endswith("steps_taken"))
    start, stop = parts.header[name]["data_offsets"]
    parts.numbers[start:stop] = struct.pack("<q", -1)
    assert_refused(parts.join())


def paths(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the way to every value in nested tables."""
    if path:
        yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from paths(inner, (*path, name))


@given(path=st.sampled_from(list(paths(Parts(WHOLE).document))), value=JSON_VALUES | st.just(...))
def test_any_change_of_the_description_is_harmless_or_refused(path: tuple[str, ...], value: Any) -> None:
    load(spoil_document(*path, value=value))


@given(position=st.integers(0, len(WHOLE) - 1), byte=st.integers(0, 255))
def test_any_changed_byte_is_harmless_or_refused(position: int, byte: int) -> None:
    load(WHOLE[:position] + bytes([byte]) + WHOLE[position + 1 :])


@pytest.mark.slow
@settings(max_examples=3000)
@given(changes=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.binary(max_size=9)), max_size=9))
def test_any_changed_bytes_are_harmless_or_refused(changes: list[tuple[int, bytes]]) -> None:
    contents = WHOLE
    for position, replacement in changes:
        contents = contents[:position] + replacement + contents[position + len(replacement) :]
    load(contents)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        ng.load_checkpoint(tmp_path / "absent.safetensors")
    with pytest.raises(OSError, match=tmp_path.name):
        ng.load_checkpoint(tmp_path)
