"""Verification: right code passes, every planted fault is found and named, and nothing is blamed on noise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import numpy_gpt as ng
from numpy_gpt import model as model_module
from numpy_gpt.arrays import Array
from numpy_gpt.ops import IGNORED_TARGET, Op, Ops, book
from numpy_gpt.verify import parity
from numpy_gpt.verify.cases import revealing_batch, revealing_parameters
from numpy_gpt.verify.measure import relative_error
from numpy_gpt.verify.parity import ParityReport, VerifyConfig, verify_parity
from tests.models import configs, parameter_shapes

SMALL = VerifyConfig(num_tokens=7, num_heads=2, embedding_dim=32, vocabulary_size=23)
KINDS = {
    "default": VerifyConfig(),
    "untied, exact gelu": VerifyConfig(tie_weights=False, activation="gelu", embedding_dim=33),
    "one token": VerifyConfig(batch_size=4, num_tokens=1, embedding_dim=36),
    "one sequence, one head, no biases": VerifyConfig(batch_size=1, num_heads=1, qkv_bias=False),
    "one layer, odd sizes": VerifyConfig(num_layers=1, num_heads=5, embedding_dim=35, vocabulary_size=7),
}
each_kind = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)


def with_differences(config: VerifyConfig) -> ParityReport:
    """Return the report of a machine without torch."""
    parameters = revealing_parameters(config.model_config(), config.seed)
    batch = revealing_batch(parameters.config, config.batch_size, config.num_tokens, config.seed)
    return parity.compare_with_differences(parameters, *batch, seed=config.seed)


def failures(report: ParityReport) -> list[str]:
    return [row.name for row in report.rows if not row.passed]


@each_kind
def test_right_code_equals_torch_in_every_tensor(config: VerifyConfig) -> None:
    report = verify_parity(config)
    shapes: dict[str, tuple[int, ...]] = {
        "logits": (config.batch_size, config.num_tokens, config.vocabulary_size),
        "loss": (),
    }
    assert {row.name: row.shape for row in report.rows} == shapes | parameter_shapes(config.model_config())
    assert failures(report) == []
    assert report.passed
    assert all(len(row.errors) == len(report.columns) for row in report.rows)
    assert all(row.errors[0] <= 1e-10 for row in report.rows)


@each_kind
def test_right_code_equals_its_finite_differences(config: VerifyConfig) -> None:
    report = with_differences(config)
    assert {row.name: row.shape for row in report.rows} == parameter_shapes(config.model_config())
    assert failures(report) == []
    assert report.passed


@pytest.mark.parametrize("compare", [verify_parity, with_differences])
@pytest.mark.parametrize("num_tokens", [1, 7])
def test_what_is_zero_by_symmetry_is_said_to_be(
    compare: Callable[[VerifyConfig], ParityReport], num_tokens: int
) -> None:
    report = compare(dataclasses.replace(SMALL, num_tokens=num_tokens))
    # Softmax ignores a shift of all scores; over one token it ignores the scores altogether.
    parts = ("W_key.bias",) if num_tokens > 1 else ("W_query.", "W_key.")
    rows = {row.name: row.zero_by_symmetry for row in report.rows}
    assert rows == {name: any(part in name for part in parts) for name in rows}


# ---- planted faults ----------------------------------------------------------------------------------------


def change(op: str, position: int, fault: Callable[[Array], Any]) -> Ops:
    """Return the book with one gradient of one operation changed, wherever it is written."""
    original: Op = getattr(book, op)

    def backward(d_out: Any, saved: Any, *, out: Any = None) -> tuple[Any, ...]:
        gradients = list(original.backward(d_out, saved, out=out))
        if gradients[position] is not None:
            gradients[position][...] = fault(gradients[position])
        return tuple(gradients)

    return book._replace(**{op: original._replace(backward=backward)})


def change_forward(op: str, fault: Callable[[Array], Any]) -> Ops:
    """Return the book with one operation's result changed, and a backward that does not know of it."""
    original: Op = getattr(book, op)

    def forward(*arrays: Any, **options: Any) -> tuple[Any, Any]:
        out, saved = original.forward(*arrays, **options)
        return fault(out), saved

    return book._replace(**{op: original._replace(forward=forward)})


def last_token_wins(d_out: Array, saved: Any, *, out: Any = None) -> tuple[Any, ...]:
    """An embedding backward that forgets to add where a token occurs twice."""
    gradients = book.embedding.backward(d_out, saved, out=out)
    d_token = gradients[1]
    used = np.abs(d_token).sum(axis=1) > 0
    d_token[np.flatnonzero(used)[0]] *= 0.5
    return gradients


def one_off(gradient: Array) -> Array:
    """Change one number by a thousandth of the largest."""
    changed = gradient.copy()
    changed.flat[-1] += 1e-3 * np.abs(gradient).max()
    return changed


# A fault, and a tensor that a report must blame for it.
FAULTS: dict[str, tuple[Ops, str]] = {
    "gelu's gradient a little too large": (change("gelu", 0, lambda d: d * (1 + 3e-5)), "up_proj.weight"),
    "no gradient of a norm's weight": (change("layer_norm", 1, lambda d: 0 * d), "final_norm.weight"),
    "no gradient of a norm's bias": (change("layer_norm", 2, lambda d: 0 * d), "final_norm.bias"),
    "a linear bias counted twice": (change("linear", 2, lambda d: 2 * d), "out_proj.bias"),
    "a weight transposed": (
        change("linear", 1, lambda d: d.T if d.shape[0] == d.shape[1] else d),
        "out_proj.weight",
    ),
    "one number of a weight": (change("linear", 1, one_off), "down_proj.weight"),
    "queries and keys unscaled": (change("attention", 0, lambda d: 4 * d), "W_query.weight"),
    "values off": (change("attention", 2, lambda d: d * 1.001), "W_value.weight"),
    "a repeated token": (
        book._replace(embedding=book.embedding._replace(backward=last_token_wins)),
        "token_embedding",
    ),
    "the head's gradient halved": (
        change("linear_cross_entropy", 1, lambda d: d / 2),
        "token_embedding.weight",
    ),
    "not a number": (change("layer_norm", 2, lambda d: math.nan * d), "final_norm.bias"),
    "infinite": (change("layer_norm", 2, lambda d: d + math.inf), "final_norm.bias"),
}


@pytest.mark.parametrize("compare", [verify_parity, with_differences])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_gradient_is_found_and_named(
    compare: Callable[[VerifyConfig], ParityReport], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, culprit = FAULTS[fault]
    monkeypatch.setitem(model_module.TABLES, "fast", table)
    report = compare(SMALL)
    assert not report.passed
    assert any(culprit in name for name in failures(report)), failures(report)


FORWARD_FAULTS = {
    "gelu off": change_forward("gelu", lambda out: out * 1.0001),
    "a little of float32 in float64": change_forward(
        "linear", lambda out: out.astype(np.float32).astype(out.dtype)
    ),
    "the last position": change_forward(
        "attention", lambda out: out * (1 + 1e-6 * (np.arange(out.shape[1]) == 6))[:, None]
    ),
    "float32 with too few digits": change_forward(
        "linear", lambda out: out if out.dtype == np.float64 else out.astype(np.float16).astype(np.float32)
    ),
}


@pytest.mark.parametrize("fault", FORWARD_FAULTS)
def test_a_wrong_forward_shows_in_the_logits(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(model_module.TABLES, "fast", FORWARD_FAULTS[fault])
    report = verify_parity(SMALL)
    assert not report.passed
    assert "logits" in failures(report)


def test_differences_leave_the_weights_as_they_were() -> None:
    parameters = revealing_parameters(SMALL.model_config(), seed=1)
    before = parameters.flat.tobytes()
    parity.compare_with_differences(parameters, *revealing_batch(parameters.config, 2, 5, seed=1))
    assert parameters.flat.tobytes() == before


# ---- the parts ---------------------------------------------------------------------------------------------


@given(config=configs(), seed=st.integers(0, 999))
def test_revealing_weights_are_the_same_in_both_precisions(config: ng.GPTConfig, seed: int) -> None:
    parameters = revealing_parameters(config, seed)
    assert parameters.dtype == np.float64
    assert np.array_equal(parameters.flat.astype(np.float32), parameters.flat)
    assert np.array_equal(revealing_parameters(config, seed).flat, parameters.flat)


def test_revealing_weights_hide_no_term() -> None:
    config = ng.GPTConfig(300, 200, embedding_dim=256, num_heads=2, num_layers=2)
    for name, view in revealing_parameters(config, seed=0).named_parameters():
        std = 1.0 if view.ndim == 1 else view.shape[1] ** -0.5
        assert abs(view.std() / std - 1) < 5 / math.sqrt(2 * view.size), name
        assert abs(view.mean()) < 5 * std / math.sqrt(view.size), name


@given(config=configs(), batch_size=st.integers(1, 5), seed=st.integers(0, 999), data=st.data())
def test_a_revealing_batch_repeats_tokens_and_ignores_some_targets(
    config: ng.GPTConfig, batch_size: int, seed: int, data: st.DataObject
) -> None:
    T, V = data.draw(st.integers(1, config.max_sequence_length)), config.vocabulary_size
    token_ids, target_ids = revealing_batch(config, batch_size, T, seed)
    assert token_ids.shape == target_ids.shape == (batch_size, T)
    assert ((token_ids >= 0) & (token_ids < V)).all()
    counts = target_ids != IGNORED_TARGET
    assert ((target_ids[counts] >= 0) & (target_ids[counts] < V)).all()
    assert counts.any()
    if T > 1:
        assert all(len(set(row.tolist())) < T for row in token_ids)
    many = revealing_batch(config, 300, T, seed)[1]
    assert 0 < (many == IGNORED_TARGET).sum() < many.size / 2


def test_at_least_one_target_counts_however_few_there_are() -> None:
    for seed in range(40):
        assert revealing_batch(SMALL.model_config(), 1, 1, seed)[1] != IGNORED_TARGET


@pytest.mark.parametrize(
    ("value", "reference", "floor", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0, 0.0),
        ([1.0, 2.5], [1.0, 2.0], 0.0, 0.25),
        ([1e-9, 0.0], [0.0, 0.0], 1e-3, 1e-6),
        ([0.0, 2.5], [0.0, 2.0], 5.0, 0.1),
        ([0.0], [0.0], 0.0, 0.0),
        ([1e-300], [0.0], 0.0, math.inf),
        ([], [], 0.0, 0.0),
        (3.0, 2.0, 0.0, 0.5),
        ([1.0, 1.0], 1.0, 0.0, math.inf),
        ([[1.0]], [1.0], 0.0, math.inf),
        ([math.nan], [1.0], 0.0, math.inf),
        ([1.0], [math.nan], 0.0, math.inf),
        ([math.inf], [1.0], 0.0, math.inf),
        ([math.inf], [math.inf], 0.0, math.inf),
        ([1.0], [math.inf], 0.0, math.inf),
    ],
)
def test_errors_are_measured_as_documented(value: Any, reference: Any, floor: float, error: float) -> None:
    assert relative_error(value, reference, floor) == pytest.approx(error, rel=1e-15)


def test_a_report_passes_when_every_row_does() -> None:
    good, bad = (parity.Row(name, (3,), (0.1,), False, passed=name == "good") for name in ("good", "bad"))
    assert ParityReport("by hand", ("error",), (good, good)).passed
    assert not ParityReport("by hand", ("error",), (good, bad, good)).passed


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch_size", 0),
        ("num_tokens", 0),
        ("num_tokens", -1),
        ("num_layers", 0),
        ("num_heads", 5),
        ("embedding_dim", 47),
        ("vocabulary_size", 0),
        ("activation", "relu"),
        ("seed", -1),
    ],
)
def test_a_wrong_setting_is_named(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        VerifyConfig(**{field: value})
