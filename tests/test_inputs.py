"""What bad or odd input gets: the promised error at the promised point of the order, or a right answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numpy_gpt as ng
from numpy_gpt.ops import book
from tests.comparison import assert_same_bits

CONFIG = ng.GPTConfig(vocabulary_size=7, max_sequence_length=5, embedding_dim=4, num_heads=2, num_layers=1)
MODEL = ng.GPT(CONFIG)
NOT_2D = r"token_ids must have shape \(batch_size, sequence_length\)"
NO_TOKENS = "each sequence must contain at least one token"
TOO_LONG = "input has 6 tokens, but the maximum is 5"

# Where two things are wrong, the earlier row of the contract wins.
BAD_TOKEN_IDS: dict[str, tuple[Any, type[Exception], str]] = {
    "no axis": (3, ValueError, NOT_2D),
    "one axis": ([1, 2], ValueError, NOT_2D),
    "one empty axis": ([], ValueError, NOT_2D),
    "three axes": ([[[1, 2]]], ValueError, NOT_2D),
    "one axis of floats": ([1.0, 2.0], ValueError, NOT_2D),
    "no sequences": (np.zeros((0, 3), int), ValueError, "batch_size"),
    "no sequences of floats": (np.zeros((0, 3)), ValueError, "batch_size"),
    "no sequences of no tokens": (np.zeros((0, 0), int), ValueError, "batch_size"),
    "no tokens": ([[], []], ValueError, NO_TOKENS),
    "floats": ([[1.0, 2.0]], TypeError, "token_ids"),
    "bools": ([[True, False]], TypeError, "token_ids"),
    "too many floats": ([[0.5] * 6], TypeError, "token_ids"),
    "too long": ([[0] * 6], ValueError, TOO_LONG),
    "too long and beyond the vocabulary": ([[9] * 6], ValueError, TOO_LONG),
}


def call(token_ids: Any) -> Any:
    return MODEL(token_ids)


def forward(token_ids: Any) -> Any:
    return MODEL.forward(token_ids)


def loss_and_gradients(token_ids: Any) -> Any:
    return MODEL.loss_and_gradients(token_ids, token_ids)


every_entrance = pytest.mark.parametrize("entrance", [call, forward, loss_and_gradients])


@every_entrance
@pytest.mark.parametrize("fault", BAD_TOKEN_IDS)
def test_bad_token_ids_are_refused(entrance: Callable[[Any], Any], fault: str) -> None:
    token_ids, error, text = BAD_TOKEN_IDS[fault]
    with pytest.raises(error, match=text):
        entrance(token_ids)


@every_entrance
@pytest.mark.parametrize("bad_id", [-1, -7, 7, 99, 2**40, np.uint64(2**63 + 1)])
def test_an_id_outside_the_vocabulary_is_named_with_its_place(
    entrance: Callable[[Any], Any], bad_id: int
) -> None:
    token_ids = np.zeros((4, 3), np.asarray(bad_id).dtype)
    token_ids[3, 2] = bad_id
    with pytest.raises(ValueError, match=rf"(?<!\d){bad_id}(?!\d)") as caught:
        entrance(token_ids)
    assert "3, 2" in str(caught.value)
    assert "7" in str(caught.value).replace(str(bad_id), "", 1)


@pytest.mark.parametrize(
    "token_ids",
    [
        [[0, 6, 2], [1, 1, 5]],
        ((0, 6, 2), (1, 1, 5)),
        np.array([[0, 6, 2], [1, 1, 5]], np.uint8),
        np.array([[0, 6, 2], [1, 1, 5]], np.int16, order="F"),
        np.array([[5, 1, 1], [2, 6, 0]], np.uint64)[::-1, ::-1],
    ],
    ids=["lists", "tuples", "uint8", "int16 in Fortran order", "uint64 backwards"],
)
def test_token_ids_may_be_any_whole_numbers(token_ids: Any) -> None:
    plain = np.array([[0, 6, 2], [1, 1, 5]])
    assert_same_bits(MODEL(token_ids), MODEL(plain), "logits")
    loss, gradients = MODEL.loss_and_gradients(token_ids, token_ids)
    expected_loss, expected = MODEL.loss_and_gradients(plain, plain)
    assert loss == expected_loss
    assert_same_bits(gradients.flat, expected.flat, "gradients")


@pytest.mark.parametrize("target_ids", [[[1, 2, 3]], [[1], [2]], [1, 2], [[1, 2, 3], [1, 2, 3]]])
def test_targets_of_another_shape_are_refused_with_both_shapes(target_ids: Any) -> None:
    with pytest.raises(ValueError, match=r"\(2, 2\)") as caught:
        MODEL.loss_and_gradients([[1, 2], [3, 4]], target_ids)
    assert str(np.shape(target_ids)) in str(caught.value)


def test_token_ids_are_checked_before_targets() -> None:
    with pytest.raises(ValueError, match=TOO_LONG):
        MODEL.loss_and_gradients([[0] * 6], [[0]])


BAD_TARGETS = [-1, -99, -101, 7, 100]


@pytest.mark.parametrize("bad_target", BAD_TARGETS)
def test_a_target_outside_the_vocabulary_is_refused(bad_target: int) -> None:
    with pytest.raises(ValueError, match=str(bad_target)):
        MODEL.loss_and_gradients([[1, 2]], [[1, bad_target]])


@pytest.mark.parametrize("bad_target", BAD_TARGETS)
def test_losses_refuse_a_target_outside_the_vocabulary(bad_target: int) -> None:
    targets = np.array([[1, bad_target]])
    with pytest.raises(ValueError, match=str(bad_target)):
        book.cross_entropy.forward(np.zeros((1, 2, 7)), targets)
    with pytest.raises(ValueError, match=str(bad_target)):
        book.linear_cross_entropy.forward(np.zeros((1, 2, 4)), np.zeros((7, 4)), targets)


def test_losses_refuse_targets_of_another_shape() -> None:
    for shape in [(2, 1), (2,), (1, 3)]:
        targets = np.zeros(shape, int)
        with pytest.raises(ValueError, match=r"\(1, 2\)"):
            book.cross_entropy.forward(np.zeros((1, 2, 7)), targets)
        with pytest.raises(ValueError, match=r"\(1, 2\)"):
            book.linear_cross_entropy.forward(np.zeros((1, 2, 4)), np.zeros((7, 4)), targets)


@pytest.mark.parametrize("targets", [[[1.0, 2.0]], [[True, False]]])
def test_targets_that_are_no_whole_numbers_are_refused(targets: Any) -> None:
    with pytest.raises(TypeError):
        MODEL.loss_and_gradients([[1, 2]], targets)


@pytest.mark.parametrize(
    ("token_ids", "error", "text"),
    [
        ([1, 2], ValueError, NOT_2D),
        ([[0.0]], TypeError, "token_ids"),
        ([[0] * 6], ValueError, TOO_LONG),
        ([[0, 9]], ValueError, "9"),
        ([[0, -1]], ValueError, "-1"),
    ],
)
def test_the_embedding_makes_the_same_checks(token_ids: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        book.embedding.forward(np.array(token_ids), np.zeros((7, 4)), np.zeros((5, 4)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocabulary_size", 0),
        ("max_sequence_length", -1),
        ("embedding_dim", 0),
        ("embedding_dim", 5),  # not divisible by two heads
        ("num_heads", 0),
        ("num_heads", 3),
        ("num_layers", 0),
        ("num_layers", 1.5),
        ("activation", "relu"),
        ("layer_norm_eps", 0.0),
        ("layer_norm_eps", float("nan")),
    ],
)
def test_an_impossible_configuration_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        ng.GPTConfig(**(vars(CONFIG) | {field: value}))


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(ValueError, match="gpt2-medium"):
        ng.GPTConfig.preset("gpt3")


@pytest.mark.parametrize(
    ("preset", "sizes"),
    [
        ("nano", (257, 64, 128, 4, 4)),
        ("small", (4096, 256, 384, 6, 6)),
        ("gpt2", (50257, 1024, 768, 12, 12)),
    ],
)
def test_presets_have_the_documented_sizes(preset: str, sizes: tuple[int, ...]) -> None:
    assert ng.GPTConfig.preset(preset) == ng.GPTConfig(*sizes)
