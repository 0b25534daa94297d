"""Weights and tokenizers of Hugging Face's GPT-2 and of nanoGPT: read exactly, or refused in one line."""

from __future__ import annotations

import json
import pickle
import struct
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import tiktoken
import torch
from hypothesis import given
from hypothesis import strategies as st

import numpy_gpt as ng
from numpy_gpt.arrays import Array
from numpy_gpt.interop import load_pretrained, load_pretrained_tokenizer
from numpy_gpt.interop.files import find_tensors
from numpy_gpt.text.tokenizers import SPLIT_PATTERN, encode, tokenizer_from_json, tokenizer_to_json
from tests.comparison import assert_float32, assert_same_bits
from tests.hostile import outcome_of
from tests.models import configs
from tests.pretrained import (
    CONFIG,
    HEAD,
    TOKEN_IDS,
    assert_same_answers,
    drawn_model,
    hugging_face_tensors,
    logits_of,
    nanogpt_tensors,
    settings_of,
    with_prefix,
    write_folder,
    write_weights,
)
from tests.strategies import DTYPES

C = CONFIG.embedding_dim
MASKS = {
    "h.0.attn.bias": np.tril(np.ones((1, 1, 6, 6), bool)),
    "h.1.attn.bias": np.tril(np.ones((1, 1, 6, 6), np.float32)),
    "h.1.attn.masked_bias": np.array(-1e4, np.float16),
}
WEIGHTS = dict(drawn_model().named_parameters())
TENSORS = hugging_face_tensors(WEIGHTS)


def assert_equal_models(actual: ng.GPT, expected: ng.GPT) -> None:
    assert actual.config == expected.config
    assert_same_bits(actual.parameters.flat, expected.parameters.flat, "parameters")


# ---- Hugging Face ------------------------------------------------------------------------------------------


@given(
    config=configs(qkv_bias=True),
    dtype=DTYPES,
    prefix=st.sampled_from(["", "transformer."]),
    from_file=st.booleans(),
    has_tied_head=st.booleans(),
)
def test_hugging_face_weights_come_in_bit_for_bit(
    config: ng.GPTConfig, dtype: type, prefix: str, from_file: bool, has_tied_head: bool
) -> None:
    model = drawn_model(config, dtype)
    tensors = hugging_face_tensors(dict(model.named_parameters()))
    if has_tied_head:
        tensors.setdefault(HEAD, tensors["wte.weight"])
    with tempfile.TemporaryDirectory() as name:
        folder = write_folder(Path(name) / "a", with_prefix(tensors, prefix), settings_of(config))
        path = folder / "model.safetensors" if from_file else folder
        assert_equal_models(load_pretrained(path, dtype=dtype), model)
        assert_equal_models(load_pretrained(str(path)), model)


@pytest.mark.parametrize("shards", ["1GB", "10KB"])
@pytest.mark.parametrize("activation", ["gelu_new", "gelu_pytorch_tanh", "gelu"])
def test_logits_loss_and_gradients_equal_those_of_transformers(
    tmp_path: Path, activation: str, shards: str
) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'numpy-gpt[interop]'")
    settings = settings_of(CONFIG) | {
        "activation_function": activation,
        "layer_norm_epsilon": 1e-3,
        "initializer_range": 0.3,
    }
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings)).double().eval()
    for vector in theirs.parameters():
        if vector.ndim == 1:
            torch.nn.init.normal_(vector)
    theirs.save_pretrained(tmp_path, max_shard_size=shards)
    assert (tmp_path / "model.safetensors").exists() == (shards == "1GB")
    ours = load_pretrained(tmp_path)
    assert ours.dtype == np.float64

    assert_same_answers(ours, theirs)

    single = load_pretrained(tmp_path, dtype=np.float32)
    exact = logits_of(theirs)
    assert_float32(
        single(TOKEN_IDS), [logits_of(theirs.float())], exact, "logits", chains=CONFIG.num_layers + 1
    )


def test_masks_are_left_out_and_biases_kept(tmp_path: Path) -> None:
    for prefix in ("", "transformer."):
        folder = write_folder(
            tmp_path / f"a{prefix}", with_prefix(TENSORS | MASKS, prefix), settings_of(CONFIG)
        )
        assert_equal_models(load_pretrained(folder), drawn_model())


def test_a_head_of_its_own_is_kept(tmp_path: Path) -> None:
    untied = replace(CONFIG, tie_weights=False)
    tensors = hugging_face_tensors(dict(drawn_model(untied).named_parameters()))
    for settings in (settings_of(CONFIG), settings_of(untied)):
        folder = write_folder(tmp_path / str(settings["tie_word_embeddings"]), tensors, settings)
        assert_equal_models(load_pretrained(folder), drawn_model(untied))


def test_a_head_that_is_equal_by_chance_stays_untied(tmp_path: Path) -> None:
    untied = replace(CONFIG, tie_weights=False)
    tensors = TENSORS | {HEAD: TENSORS["wte.weight"]}
    assert load_pretrained(write_folder(tmp_path / "a", tensors, settings_of(untied))).config == untied


def test_a_padded_vocabulary_is_kept_whole(tmp_path: Path) -> None:
    padded = replace(CONFIG, vocabulary_size=64)
    tensors = hugging_face_tensors(dict(drawn_model(padded).named_parameters()))
    folder = write_folder(tmp_path / "a", tensors, settings_of(padded))
    write_tokenizer_json(folder)
    tokenizer = load_pretrained_tokenizer(folder)
    assert tokenizer is not None
    assert tokenizer.n_vocab == len(TOKENS) + 1
    assert_equal_models(load_pretrained(folder), drawn_model(padded))


def test_what_config_json_leaves_out_is_as_in_gpt2(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", TENSORS, {})
    assert load_pretrained(folder).config == replace(CONFIG, num_heads=12)


def test_other_names_of_sizes_are_known(tmp_path: Path) -> None:
    settings = {
        "hidden_size": C,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "max_position_embeddings": 6,
    }
    assert load_pretrained(write_folder(tmp_path / "a", TENSORS, settings)).config.num_heads == 2
    settings["num_hidden_layers"] = 3
    with pytest.raises(ValueError, match="num_hidden_layers 3, but the tensors 2"):
        load_pretrained(write_folder(tmp_path / "b", TENSORS, settings))


@pytest.mark.parametrize(("width", "num_heads"), [(768, 12), (1024, 16), (1280, 20), (1600, 25)])
def test_a_file_alone_of_gpt2s_own_width_has_its_heads(tmp_path: Path, width: int, num_heads: int) -> None:
    config = ng.GPTConfig(2, 1, embedding_dim=width, num_heads=num_heads, num_layers=1)
    write_weights(tmp_path / "a", hugging_face_tensors(dict(ng.GPT(config).named_parameters())))
    assert load_pretrained(tmp_path / "a").config == config
    assert load_pretrained(tmp_path / "a", num_heads=4).config == replace(config, num_heads=4)


@pytest.mark.parametrize("width", [12, 64, 128, 384, 704])  # nanoGPT's smallest has 4 heads in its 128
def test_the_heads_of_a_file_alone_are_not_guessed_elsewhere(tmp_path: Path, width: int) -> None:
    config = ng.GPTConfig(5, 3, embedding_dim=width, num_heads=4, num_layers=1)
    for layout in (hugging_face_tensors, nanogpt_tensors):
        write_weights(tmp_path / "a", layout(dict(drawn_model(config).named_parameters())))
        assert_refused(tmp_path / "a", "give num_heads", "--num-heads")
        assert load_pretrained(tmp_path / "a", num_heads=4).config.num_heads == 4
        assert_refused(tmp_path / "a", "num_heads", num_heads=5)


# ---- nanoGPT -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["transformer.", "_orig_mod.transformer."])
def test_nanogpt_has_matrices_as_ours_and_the_exact_gelu(tmp_path: Path, prefix: str) -> None:
    exact = replace(CONFIG, activation="gelu")
    tensors = with_prefix(nanogpt_tensors(WEIGHTS) | MASKS, prefix)
    tensors[prefix.replace("transformer.", HEAD)] = TENSORS["wte.weight"]
    arguments = {"n_layer": 2, "n_head": 3, "n_embd": C, "block_size": 6, "bias": True, "vocab_size": 11}
    folder = write_folder(tmp_path / "a", tensors, arguments)
    assert_equal_models(load_pretrained(folder), drawn_model(exact))
    older = write_folder(tmp_path / "b", tensors, arguments | {"activation_function": "gelu_new"})
    assert_equal_models(load_pretrained(older), drawn_model())


def test_nanogpt_without_biases_has_none_or_zeros(tmp_path: Path) -> None:
    tensors = {name: array for name, array in nanogpt_tensors(WEIGHTS).items() if not name.endswith("bias")}
    write_weights(tmp_path / "a", with_prefix(tensors | MASKS, "transformer."))
    model = load_pretrained(tmp_path / "a", num_heads=3)
    assert model.config == replace(CONFIG, activation="gelu", qkv_bias=False)
    for name, array in model.named_parameters():
        assert_same_bits(array, np.zeros_like(array) if name.endswith("bias") else WEIGHTS[name], name)


def test_a_matrix_saved_under_its_second_name_only_is_found(tmp_path: Path) -> None:
    tensors = nanogpt_tensors(WEIGHTS)
    tensors[HEAD] = tensors.pop("wte.weight")  # what safetensors.torch.save_model leaves of the two
    write_weights(tmp_path / "a", with_prefix(tensors, "transformer."))
    model = load_pretrained(tmp_path / "a", num_heads=3)
    assert_equal_models(model, drawn_model(replace(CONFIG, activation="gelu")))


# ---- numbers of other lengths ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wanted", [None, np.float32, np.float64])
def test_short_floats_are_read_without_rounding(
    tmp_path: Path, dtype: torch.dtype, wanted: type | None
) -> None:
    folder = write_folder(tmp_path / "a", {}, settings_of(CONFIG))
    short = {name: torch.tensor(array).to(dtype).contiguous() for name, array in TENSORS.items()}
    safetensors.torch.save_file(short, folder / "model.safetensors")
    model = load_pretrained(folder, dtype=wanted)
    assert model.dtype == (wanted or np.float32)
    found = hugging_face_tensors(dict(model.named_parameters()))
    for name, tensor in short.items():
        assert_same_bits(found[name], tensor.double().numpy().astype(model.dtype), name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_short_float_there_is_has_its_value(tmp_path: Path, dtype: torch.dtype) -> None:
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    safetensors.torch.save_file({"before": every[:3].clone(), "every": every}, tmp_path / "a")
    numbers = find_tensors(tmp_path / "a")["every"].read()
    np.testing.assert_array_equal(numbers, every.float().numpy())


def test_what_is_no_number_stays_none(tmp_path: Path) -> None:
    signalling = np.full(C, 0x7F800001, np.uint32).view(np.float32)  # a NaN that converting complains about
    folder = write_folder(tmp_path / "a", TENSORS | {"ln_f.bias": signalling}, settings_of(CONFIG))
    assert np.isnan(load_pretrained(folder, dtype=np.float64).parameters["final_norm.bias"]).all()


def test_numbers_that_float32_cannot_hold_are_refused(tmp_path: Path) -> None:
    large = {name: array.astype(np.float64) for name, array in TENSORS.items()}
    large["ln_f.bias"] = np.full(C, 1e39)
    folder = write_folder(tmp_path / "a", large, settings_of(CONFIG))
    assert load_pretrained(folder).dtype == np.float64
    with pytest.raises(ValueError, match=r"ln_f\.bias holds numbers too large for float32"):
        load_pretrained(folder, dtype=np.float32)
    with pytest.raises(ValueError, match="float16"):
        load_pretrained(folder, dtype=np.float16)


# ---- what is refused ---------------------------------------------------------------------------------------


def assert_refused(
    path: Path, *parts: str, load: Callable[..., Any] = load_pretrained, **options: Any
) -> None:
    """Fail unless loading is refused in one printable line with all these parts, the file's name first."""
    with pytest.raises(ValueError, match=parts[0]) as caught:
        load(path, **options)
    text = str(caught.value)
    assert all(part in text for part in parts), text
    assert text.isprintable()
    assert len(text) < 500


FLAGS = ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("activation_function", value) for value in ("relu", "silu", "gelu_fast", None, 7, ["gelu"])),
        *((flag, True) for flag in FLAGS),
        ("scale_attn_weights", False),
        ("model_type", "gpt_neo"),
        *(("n_inner", value) for value in (0, 47, 3 * C, "48")),
        *(("n_head", value) for value in (0, -3, 5, 10**400, "3", 3.0, None, True)),
        *(("vocab_size", value) for value in (10, 12, 10**12, None)),
        *(("n_positions", value) for value in (5, 10**12)),
        *(("n_embd", value) for value in (13, 10**12)),
        *(("n_layer", value) for value in (1, 3, 10**12)),
        *(("layer_norm_epsilon", value) for value in (0, -1e-5, "", None, [])),
        *(("qkv_bias", value) for value in ("no", 1)),
        ("tie_word_embeddings", "yes"),
    ],
)
def test_settings_of_another_model_are_refused_by_name(tmp_path: Path, name: str, value: Any) -> None:
    folder = write_folder(tmp_path / "a", TENSORS, settings_of(CONFIG) | {name: value})
    ours = {
        "n_head": "num_heads",
        "layer_norm_epsilon": "layer_norm_eps",
        "tie_word_embeddings": "tie_weights",
    }.get(name, name)
    assert_refused(folder, "config.json", ours)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "7", "[" * 99_999, '{"a":' * 99_999, "\ud800", "\x1b"]
)
def test_settings_that_are_no_table_are_refused(tmp_path: Path, text: str) -> None:
    folder = write_folder(tmp_path / "a", TENSORS, {})
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    assert_refused(folder, "config.json", "JSON")


def test_biases_are_not_dropped(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", TENSORS, settings_of(CONFIG) | {"qkv_bias": False})
    assert_refused(folder, "h.0.attn.c_attn.bias is not zero")


def test_an_untied_head_must_be_there(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", TENSORS, settings_of(CONFIG) | {"tie_word_embeddings": False})
    assert_refused(folder, "lm_head.weight is missing")


def without(*names: str) -> dict[str, Array]:
    return {name: array for name, array in TENSORS.items() if name not in names}


@pytest.mark.parametrize(
    ("tensors", "fault"),
    [
        ({}, "there is no wte.weight"),
        (WEIGHTS, "there is no wte.weight"),
        (without("wpe.weight"), "there is no wpe.weight"),
        (without("h.0.attn.c_attn.weight"), "there is no h.0.attn.c_attn.weight"),
        (without("h.1.mlp.c_fc.bias"), "h.1.mlp.c_fc.bias is missing"),
        (without("h.1.ln_1.weight", "h.1.ln_1.bias"), "h.1.ln_1.weight is missing; h.1.ln_1.bias is missing"),
        (without(*(name for name in TENSORS if name.endswith("bias"))), "and 10 more"),
        (TENSORS | {"h.0.attn.c_attn.extra": np.ones(1)}, "h.0.attn.c_attn.extra is unexpected"),
        (TENSORS | {"h.00.ln_1.bias": np.ones(C)}, "has n_layer 2, but the tensors 3"),
        (TENSORS | {"line\nbreak \x1b[31m" + "long" * 999: np.ones(1)}, "is unexpected"),
        (TENSORS | {"transformer.wte.weight": np.ones((11, C))}, "holds wte.weight twice"),
        (TENSORS | {"h.1.attn.c_proj.weight": np.ones((C, C + 1))}, "has shape (12, 13), not (12, 12)"),
        (TENSORS | {"h.1.mlp.c_fc.weight": np.ones((4 * C, C))}, "has shape (48, 12), not (12, 48)"),
        (TENSORS | {"h.0.attn.c_attn.weight": np.ones((C, C))}, "has shape (12, 12), neither"),
        (TENSORS | {"ln_f.bias": np.ones((C, 1))}, "ln_f.bias has shape (12, 1), not (12,)"),
        (TENSORS | {"wte.weight": np.ones(11)}, "wte.weight has shape (11,), which is no matrix"),
        (TENSORS | {"wte.weight": np.ones((11, 0))}, "neither"),
        (TENSORS | {"ln_f.bias": np.ones(C, np.int64)}, "ln_f.bias is I64, not one of F64"),
        (TENSORS | {HEAD: np.ones((11, C), np.int8)}, "lm_head.weight is I8, not one of F64"),
        (TENSORS | {HEAD: np.ones((12, C))}, "lm_head.weight has shape (12, 12), not (11, 12)"),
        (TENSORS | WEIGHTS, "is unexpected"),
        (
            {name: a for name, a in nanogpt_tensors(WEIGHTS).items() if name != "ln_f.bias"},
            "ln_f.bias is missing",
        ),
    ],
)
def test_tensors_that_are_no_gpt2_are_refused(tmp_path: Path, tensors: dict[str, Array], fault: str) -> None:
    assert_refused(write_folder(tmp_path / "a", tensors, settings_of(CONFIG)), str(tmp_path), fault)


class Bomb:
    """What unpickling would run."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return pytest.fail, ("something was unpickled",)


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "ckpt.pt", "model.pth", "a.ckpt", "model.safetensors", "a"]
)
def test_nothing_is_unpickled(tmp_path: Path, name: str) -> None:
    refusal = "is a pickle, and nothing is ever unpickled; save it as safetensors"
    torch.save({"model": Bomb()}, tmp_path / name)
    assert_refused(tmp_path / name, name, refusal)
    (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
    assert_refused(tmp_path / name, name, refusal)
    if name != "a":
        assert_refused(tmp_path, name, refusal)
    index = {"weight_map": {name: name for name in TENSORS} | {"wte.weight": name}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    if name.endswith("bin"):
        assert_refused(tmp_path / "pytorch_model.bin.index.json", "is missing")


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        load_pretrained(tmp_path / "absent")
    assert_refused(tmp_path, str(tmp_path), "neither model.safetensors nor model.safetensors.index.json")


# ---- files spoilt on purpose -------------------------------------------------------------------------------


def pack(header: Any, numbers: bytes = b"") -> bytes:
    """Return a safetensors file with that header, JSON or bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + numbers


def whole_file() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        write_weights(Path(name) / "a", TENSORS)
        return (Path(name) / "a").read_bytes()


WHOLE = whole_file()
(HEADER_LENGTH,) = struct.unpack("<Q", WHOLE[:8])
MEMORY_ALLOWED = 4_000_000  # bytes; the file has 18 thousand


def outcome(contents: bytes) -> ng.GPT | str:
    """Return the model, or the text of the ValueError."""
    return outcome_of(partial(load_pretrained, num_heads=3), contents, memory_allowed=MEMORY_ALLOWED)


def test_the_file_that_is_spoilt_below_is_good() -> None:
    model = outcome(WHOLE)
    assert isinstance(model, ng.GPT)
    assert_equal_models(model, drawn_model())


@given(length=st.integers(0, len(WHOLE) - 1))
def test_a_truncated_file_is_refused(length: int) -> None:
    assert isinstance(outcome(WHOLE[:length]), str)


@given(contents=st.binary(max_size=999) | st.text().map(str.encode))
def test_a_file_of_anything_is_refused(contents: bytes) -> None:
    assert isinstance(outcome(contents), str)


@given(length=st.integers(0, 2**64 - 1) | st.integers(0, 2 * len(WHOLE)))
def test_a_header_of_another_length_is_refused(length: int) -> None:
    if length != HEADER_LENGTH:
        assert isinstance(outcome(struct.pack("<Q", length) + WHOLE[8:]), str)


@given(position=st.integers(0, len(WHOLE) - 1), byte=st.integers(0, 255))
def test_any_changed_byte_is_harmless_or_refused(position: int, byte: int) -> None:
    outcome(WHOLE[:position] + bytes([byte]) + WHOLE[position + 1 :])


@pytest.mark.parametrize("header", [b"", b"[]", b"null", b"\xff", b"[" * 99_999, b'{"a":' * 99_999])
def test_a_header_that_is_no_table_is_refused(header: bytes) -> None:
    assert isinstance(outcome(pack(header)), str)


@given(tail=st.binary(min_size=1, max_size=99))
def test_a_file_with_something_behind_it_is_refused(tail: bytes) -> None:
    assert isinstance(outcome(WHOLE + tail), str)


def test_a_name_that_occurs_twice_is_refused() -> None:
    header, numbers = WHOLE[8 : 8 + HEADER_LENGTH].rstrip(), WHOLE[8 + HEADER_LENGTH :]
    entry = json.dumps(json.loads(header)["ln_f.bias"])
    doubled = header[:-1] + f', "ln_f.bias": {entry}}}'.encode()
    refusal = outcome(pack(doubled, numbers))
    assert isinstance(refusal, str)
    assert "occurs twice" in refusal


def test_numbers_are_no_two_tensors_and_nobodys() -> None:
    header, numbers = json.loads(WHOLE[8 : 8 + HEADER_LENGTH]), WHOLE[8 + HEADER_LENGTH :]
    shared = header | {"ln_f.bias": header["ln_f.weight"]}
    nobodys = {name: entry for name, entry in header.items() if name != "ln_f.bias"}
    for changed in (shared, nobodys):
        refusal = outcome(pack(changed, numbers))
        assert isinstance(refusal, str)
        assert "what comes before it ends at" in refusal or "its numbers at" in refusal


@pytest.mark.parametrize("share", [True, False])
def test_a_small_file_makes_no_large_model(share: bool) -> None:
    header, numbers = json.loads(WHOLE[8 : 8 + HEADER_LENGTH]), WHOLE[8 + HEADER_LENGTH :]
    last = {name: entry for name, entry in header.items() if name.startswith("h.1.")}
    for i in range(2, 2000):
        if share:  # all layers of the same numbers
            header |= {name.replace("h.1.", f"h.{i}."): entry for name, entry in last.items()}
        else:  # nothing but the name of a layer
            header[f"h.{i}."] = {"dtype": "F32", "shape": [0], "data_offsets": [len(numbers)] * 2}
    allowed = 20 * len(json.dumps(header))
    refusal = outcome_of(partial(load_pretrained, num_heads=3), pack(header, numbers), memory_allowed=allowed)
    assert isinstance(refusal, str)


ENTRIES = [
    *({"dtype": value} for value in ("F16", "F64", "I32", "BOOL", "F8_E4M3", "object", 7, None, [])),
    *(
        {"shape": value}
        for value in ([2, 6], [1, 12], [], [11], [-12], [2**63], [2**40] * 2, "4", [12.0], None)
    ),
    {"shape": [10**99] * 9999},
    {"shape": [True] * 3},
    *(
        {"data_offsets": value}
        for value in ([0, 48], [0], [-48, 0], [2**62, 2**62 + 48], [48, 0], [0.0, 48], None)
    ),
    {"shape": [2**40], "data_offsets": [0, 2**42]},
]


@pytest.mark.parametrize("change", ENTRIES, ids=lambda change: f"{change!r:.40}")
def test_a_header_that_contradicts_itself_or_the_file_is_refused(change: dict[str, Any]) -> None:
    header = json.loads(WHOLE[8 : 8 + HEADER_LENGTH])
    numbers = WHOLE[8 + HEADER_LENGTH :]
    assert isinstance(outcome(pack(header, numbers)), ng.GPT)
    header["ln_f.bias"] |= change
    if change != {"data_offsets": [0, 48]}:  # another tensor's numbers, but whole
        assert isinstance(outcome(pack(header, numbers)), str)


def test_a_shape_without_numbers_is_refused() -> None:
    header = {"wte.weight": {"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 0]}}
    assert "has 0 bytes" in str(outcome(pack(header)))


# ---- shards ------------------------------------------------------------------------------------------------


@pytest.fixture
def sharded(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A folder with every second tensor in another file, and its index."""
    folder = write_folder(tmp_path / "sharded", {}, settings_of(CONFIG))
    (folder / "model.safetensors").unlink()
    places = {name: f"model-{i % 2 + 1}-of-2.safetensors" for i, name in enumerate(TENSORS)}
    for shard in set(places.values()):
        write_weights(folder / shard, {name: TENSORS[name] for name in places if places[name] == shard})
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    write_index(folder, index)
    return folder, index


def write_index(folder: Path, index: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def test_shards_are_put_together(sharded: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = sharded
    for path in (folder, folder / "model.safetensors.index.json"):
        assert_equal_models(load_pretrained(path), drawn_model())


def test_a_shard_that_is_missing_or_spoilt_is_named(sharded: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = sharded
    shard = folder / "model-2-of-2.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert_refused(folder, shard.name, "truncated")
    torch.save(Bomb(), shard)
    assert_refused(folder, shard.name, "nothing is ever unpickled")
    shard.unlink()
    assert_refused(folder, "index.json", f"the shard {shard.name} is missing")


@pytest.mark.parametrize(
    "place",
    [
        "../model-1-of-2.safetensors",
        "/etc/passwd",
        "..",
        ".",
        "",
        "a/b",
        r"..\a",
        "C:a",
        "a\0",
        None,
        7,
        ["a"],
    ],
)
def test_an_index_does_not_lead_out_of_its_folder(sharded: tuple[Path, dict[str, Any]], place: Any) -> None:
    folder, index = sharded
    (folder.parent / "model-1-of-2.safetensors").write_bytes(
        (folder / "model-1-of-2.safetensors").read_bytes()
    )
    index["weight_map"]["wte.weight"] = place
    write_index(folder, index)
    assert_refused(folder, "index.json", "wte.weight", "no file of this folder")


def test_index_and_shards_must_agree(sharded: tuple[Path, dict[str, Any]]) -> None:
    folder, index = sharded
    places = index["weight_map"]
    write_index(folder, {"weight_map": places | {"wte.weight": "model-2-of-2.safetensors"}})
    assert_refused(
        folder, "index.json", "wte.weight of the shard model-1-of-2.safetensors is only in the file"
    )
    write_index(folder, {"weight_map": places | {"extra": "model-2-of-2.safetensors"}})
    assert_refused(folder, "index.json", "extra of the shard model-2-of-2.safetensors is only in the index")
    for broken in ({}, [], {"weight_map": {}}, {"weight_map": []}, {"weight_map": None}):
        write_index(folder, broken)
        assert_refused(folder, "index.json")


# ---- tokenizers --------------------------------------------------------------------------------------------

ALPHABET = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that stand for themselves
LETTERS = {byte: chr(byte) for byte in ALPHABET} | {
    byte: chr(256 + i) for i, byte in enumerate(b for b in range(256) if b not in ALPHABET)
}
MERGES = ["t h", "\u0120 th", "\u0120th e", "a n", "\u0120 an"]
TOKENS = [*LETTERS.values(), *(merge.replace(" ", "") for merge in MERGES)]
END = "<|endoftext|>"
TEXT = "The then  bathe, anthem's 'the' 12345 \u00e9\U0001f600\n\n the\tan \x00 \xa0 an" + " the" * 9
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}


def tokenizer_json(**changes: Any) -> dict[str, Any]:
    """Return a small tokenizer.json in the form that GPT-2's own has, or with parts of its model changed."""
    model = {"type": "BPE", "vocab": {token: i for i, token in enumerate([*TOKENS, END])}, "merges": MERGES}
    return {
        "added_tokens": [{"id": len(TOKENS), "content": END, "special": True}],
        "normalizer": None,
        "pre_tokenizer": BYTE_LEVEL,
        "model": model | changes,
    }


def write_tokenizer_json(folder: Path, table: Any = None) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(table or tokenizer_json()), encoding="utf-8")
    return folder


def same_ids(tokenizer: tiktoken.Encoding | None, ids: list[int]) -> bool:
    assert tokenizer is not None
    return encode(tokenizer, TEXT).tolist() == ids


def test_without_files_there_is_no_tokenizer(tmp_path: Path) -> None:
    assert load_pretrained_tokenizer(tmp_path) is None
    assert load_pretrained_tokenizer(write_folder(tmp_path / "a", TENSORS, {}) / "model.safetensors") is None
    (tmp_path / "vocab.json").write_text("{}")
    assert load_pretrained_tokenizer(tmp_path) is None


def test_both_forms_of_a_tokenizer_give_the_ids_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'numpy-gpt[interop]'")
    vocabulary = {token: i for i, token in enumerate([*TOKENS, END])}
    pairs = [tuple(merge.split()) for merge in MERGES]
    theirs = transformers.GPT2TokenizerFast(vocab=vocabulary, merges=pairs)
    expected = theirs(TEXT)["input_ids"]
    assert theirs.decode(expected) == TEXT

    theirs.save_pretrained(tmp_path / "new")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    merges_txt = "\n".join(["#version: 0.2", *MERGES, ""])
    (tmp_path / "old" / "merges.txt").write_text(merges_txt, encoding="utf-8")
    (tmp_path / "small").mkdir()
    write_tokenizer_json(tmp_path / "small")
    for form in ("new", "old", "small"):
        tokenizer = load_pretrained_tokenizer(tmp_path / form)
        assert same_ids(tokenizer, expected), form
        assert tokenizer is not None
        assert (tokenizer.name, tokenizer.n_vocab, tokenizer.eot_token) == ("gpt2", 262, 261)
        tokenizer_to_json(tokenizer)  # a checkpoint can keep it


def test_special_tokens_may_come_first(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="pip install 'numpy-gpt[interop]'")
    theirs = tokenizers.ByteLevelBPETokenizer()
    theirs.train_from_iterator(
        [TEXT] * 3, vocab_size=290, special_tokens=[END, "<|pad|>"], show_progress=False
    )
    theirs.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_pretrained_tokenizer(tmp_path)
    assert same_ids(tokenizer, theirs.encode(TEXT).ids)
    assert tokenizer is not None
    assert (tokenizer.eot_token, tokenizer.n_vocab) == (0, theirs.get_vocab_size())


def test_a_pattern_of_its_own_is_kept(tmp_path: Path) -> None:
    table = tokenizer_json()
    split = {"type": "Split", "pattern": {"Regex": SPLIT_PATTERN}, "behavior": "Isolated", "invert": False}
    table["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, BYTE_LEVEL | {"use_regex": False}]}
    tokenizer = load_pretrained_tokenizer(write_tokenizer_json(tmp_path, table))
    assert tokenizer is not None
    mapping = tokenizer_to_json(tokenizer)
    assert (mapping["name"], mapping["pattern"]) == ("bpe", SPLIT_PATTERN)
    assert same_ids(tokenizer_from_json(mapping), encode(tokenizer, TEXT).tolist())


def reordered(*order: int) -> list[str]:
    return [MERGES[i] for i in order]


def vocabulary(**changes: Any) -> dict[str, Any]:
    return {token: i for i, token in enumerate([*TOKENS, END])} | changes


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"type": "WordPiece"}, "not BPE"),
        ({"dropout": 0.1}, "dropout"),
        ({"continuing_subword_prefix": "##"}, "continuing_subword_prefix"),
        ({"end_of_word_suffix": "</w>"}, "end_of_word_suffix"),
        ({"byte_fallback": True}, "byte_fallback"),
        ({"merges": reordered(1, 0, 2, 3, 4)}, "order"),
        ({"merges": [*MERGES, MERGES[0]]}, "order"),
        ({"merges": reordered(0, 1, 2, 3)}, "tiktoken would not make the token"),
        ({"merges": ["t h", "\u0120 th", "\u0120t he", "a n", "\u0120 an"]}, "tiktoken would not make"),
        ({"merges": [*MERGES, "a b"]}, "the merge to b'ab' makes no token"),
        ({"merges": ["t h", "th"]}, "does not join two tokens"),
        ({"merges": ["t h", "a b c"]}, "does not join two tokens"),
        ({"vocab": vocabulary(thing=999)}, "without gaps"),
        ({"vocab": vocabulary(thing=0)}, "without gaps"),
        ({"vocab": vocabulary(thing="262")}, "without gaps"),
        ({"vocab": vocabulary(thing=262)}, "tiktoken would not make the token b'thing'"),
        ({"vocab": vocabulary() | {"th \u3042": 262}}, "not written in GPT-2's alphabet"),
        ({"vocab": {token: i for i, token in enumerate(TOKENS[:-1])}}, "without gaps"),
        ({"vocab": []}, "tokenizer.json"),
        ({"vocab": None}, "tokenizer.json"),
        ({"merges": None}, "tokenizer.json"),
        ({"merges": [7]}, "tokenizer.json"),
    ],
)
def test_a_tokenizer_that_tiktoken_cannot_be_is_refused(
    tmp_path: Path, changes: dict[str, Any], fault: str
) -> None:
    write_tokenizer_json(tmp_path, tokenizer_json(**changes))
    assert_refused(tmp_path, "tokenizer.json", fault, load=load_pretrained_tokenizer)


@st.composite
def vocabularies(draw: st.DrawFn) -> dict[str, Any]:
    """A tokenizer.json whose merges may lead anywhere, also twice to one token."""
    tokens, merges = list("abc"), []
    for _ in range(draw(st.integers(0, 8))):
        left, right = draw(st.sampled_from(tokens)), draw(st.sampled_from(tokens))
        merges.append(f"{left} {right}")
        if left + right not in tokens:
            tokens.append(left + right)
    vocab = [*LETTERS.values(), *tokens[3:], END]
    table = tokenizer_json(
        vocab={token: i for i, token in enumerate(vocab)}, merges=merges, ignore_merges=draw(st.booleans())
    )
    table["added_tokens"] = [
        dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        | {"id": len(vocab) - 1, "content": END, "special": True}
    ]
    return table


@given(table=vocabularies(), texts=st.lists(st.text("abc", max_size=20), min_size=9, max_size=9))
def test_a_tokenizer_gives_the_ids_of_transformers_or_is_refused(
    table: dict[str, Any], texts: list[str]
) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="pip install 'numpy-gpt[interop]'")
    theirs = tokenizers.Tokenizer.from_str(json.dumps(table))
    with tempfile.TemporaryDirectory() as name:
        write_tokenizer_json(Path(name), table)
        try:
            ours = load_pretrained_tokenizer(name)
        except ValueError:
            return
    assert ours is not None
    for text in texts:
        assert encode(ours, text).tolist() == theirs.encode(text).ids, text


def split_by(pattern: Any, **changes: Any) -> dict[str, Any]:
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False} | changes
    return {"type": "Sequence", "pretokenizers": [split, BYTE_LEVEL | {"use_regex": False}]}


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("normalizer", {"type": "NFC"}, "normalizer"),
        ("added_tokens", [], "tiktoken would not make the token b'<|endoftext|>'"),
        ("added_tokens", [{"id": 261, "content": END, "special": False}], "is not special"),
        ("added_tokens", [{"id": 261, "content": "<|end|>", "special": True}], "without gaps"),
        ("added_tokens", [{"content": END}], "'special' is missing"),
        ("added_tokens", 7, "tokenizer.json"),
        ("pre_tokenizer", None, "not byte-level"),
        ("pre_tokenizer", {"type": "Whitespace"}, "pre_tokenizer"),
        ("pre_tokenizer", BYTE_LEVEL | {"add_prefix_space": True}, "prefix space"),
        ("pre_tokenizer", BYTE_LEVEL | {"use_regex": False}, "in no way"),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": []}, "tokenizer.json"),
        ("pre_tokenizer", split_by({"String": " "}), "Regex"),
        ("pre_tokenizer", split_by({"Regex": r"\S+|\s+"}, behavior="Removed"), "isolates"),
        ("pre_tokenizer", split_by({"Regex": r"\S+|\s+"}, invert=True), "isolates"),
        ("pre_tokenizer", split_by({"Regex": r"\S+"}), "loses parts of a text"),
        ("pre_tokenizer", split_by({"Regex": r"(\s+|\S+)\1"}), "different ways"),
        ("pre_tokenizer", split_by({"Regex": r"\p{N}{1,3}+|\P{N}"}), "different ways"),
        ("pre_tokenizer", split_by({"Regex": r"\s+$|\s|\S+"}), "different ways"),
        ("pre_tokenizer", split_by({"Regex": r"\w+|\W"}), "different ways"),
        ("pre_tokenizer", split_by({"Regex": "("}), "cannot be built"),
    ],
)
def test_what_surrounds_the_model_is_checked_too(tmp_path: Path, name: str, value: Any, fault: str) -> None:
    write_tokenizer_json(tmp_path, tokenizer_json() | {name: value})
    assert_refused(tmp_path, "tokenizer.json", fault, load=load_pretrained_tokenizer)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model": 7}', '{"model": {"type": "BPE"}}', "[" * 99_999])
def test_a_tokenizer_file_of_anything_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    assert_refused(tmp_path, "tokenizer.json", load=load_pretrained_tokenizer)


@pytest.mark.parametrize(
    ("vocab_json", "merges_txt", "file"),
    [
        (vocabulary(), "t\n", "merges.txt"),
        (vocabulary(), "t h", "vocab.json"),
        ([1], "t h", "vocab.json"),
        ({token: i for i, token in enumerate(TOKENS)}, "\n".join(MERGES), "vocab.json"),
        (vocabulary() | {"\u3042": 262}, "\n".join(MERGES), "vocab.json"),
    ],
)
def test_the_older_files_are_named(tmp_path: Path, vocab_json: Any, merges_txt: str, file: str) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps(vocab_json), encoding="utf-8")
    (tmp_path / "merges.txt").write_text(merges_txt, encoding="utf-8")
    assert_refused(tmp_path, file, load=load_pretrained_tokenizer)


def test_tokens_too_long_to_be_checked_are_refused(tmp_path: Path) -> None:
    vocab = {token: i for i, token in enumerate([*TOKENS, "a" * 9999, END])}
    table = tokenizer_json(vocab=vocab)
    table["added_tokens"][0]["id"] = len(vocab) - 1
    assert_refused(
        write_tokenizer_json(tmp_path, table), "tokenizer.json", "too long", load=load_pretrained_tokenizer
    )
