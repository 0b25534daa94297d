"""The properties: right code has them all, and what they compare with is itself right."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import numpy_gpt as ng
import torch_gpt
from numpy_gpt.parameters import Parameters
from numpy_gpt.verify.bugs import RIGHT, Subject
from numpy_gpt.verify.cases import revealing_parameters
from numpy_gpt.verify.kill_matrix import PROPERTIES, Property, reference
from numpy_gpt.verify.kill_matrix.cases import OpCase, model_answers, model_cases, op_answers, op_cases
from numpy_gpt.verify.kill_matrix.comparison import difference, slope, wrong_slope
from numpy_gpt.verify.kill_matrix.property import looks_at
from numpy_gpt.verify.kill_matrix.weak import WEAK_CHECKS
from tests.cases import BOOK_CASES
from tests.comparison import assert_close

ALL = (*PROPERTIES, *WEAK_CHECKS)


@pytest.mark.parametrize("tried", PROPERTIES, ids=lambda tried: tried.name)
def test_right_code_has_every_property(tried: Property) -> None:
    assert {seed: tried.check(RIGHT, seed) for seed in range(12)} == dict.fromkeys(range(12))


@pytest.mark.slow
@pytest.mark.parametrize("tried", PROPERTIES, ids=lambda tried: tried.name)
def test_right_code_has_every_property_for_many_seeds(tried: Property) -> None:
    for seed in range(12, 112):
        assert tried.check(RIGHT, seed) is None, seed


def test_names_are_unique_and_every_property_has_a_claim_of_one_sentence() -> None:
    assert len({tried.name for tried in ALL}) == len(ALL)
    for tried in ALL:
        assert tried.claim.endswith("."), tried.name
        assert 20 < len(tried.claim) < 130, tried.name
        assert set(tried.looks_at) <= set(Subject._fields)


def test_every_part_of_a_subject_is_looked_at() -> None:
    assert {field for tried in PROPERTIES for field in tried.looks_at} == set(Subject._fields)


def test_a_property_sees_only_what_it_says_it_looks_at() -> None:
    @looks_at("generate")
    def tells_what_it_sees(subject: Subject, seed: int) -> Iterator[str]:
        """Yields the fields that are not right."""
        yield " ".join(name for name in Subject._fields if getattr(subject, name) != getattr(RIGHT, name))

    wrong = Subject(*(None for _ in Subject._fields))  # type: ignore[arg-type]  # nothing of it is right
    assert tells_what_it_sees.check(wrong, 0) == "generate"
    assert tells_what_it_sees.view(RIGHT) == RIGHT


def test_an_exception_is_evidence_in_one_line() -> None:
    @looks_at("ops")
    def raises(subject: Subject, seed: int) -> Iterator[str]:
        """Raises."""
        yield from ()
        raise IndexError("first\n  second")

    assert raises.check(RIGHT, 0) == "raises IndexError: first second"


def torch_answer(case: OpCase) -> Any:
    """Return what torch makes of an operation's case, by the table of the operations' own tests."""
    (row,) = [row for row in BOOK_CASES if row.name == case.name]
    arrays = [array if array is None else torch.tensor(array) for array in case.arrays]
    return row.torch(*arrays, **case.options).numpy()


@pytest.mark.parametrize("seed", range(4))
def test_the_reference_agrees_with_torch(seed: int) -> None:
    for case, answer in zip(op_cases(seed), op_answers(seed), strict=True):
        assert_close(answer, torch_answer(case), case.name, tolerance=1e-12)
    for model_case, (logits, loss) in zip(model_cases(seed), model_answers(seed), strict=True):
        theirs = torch_gpt.from_numpy(ng.GPT.from_parameters(model_case.parameters))
        with torch.inference_mode():
            their_logits = theirs(torch.tensor(model_case.token_ids))
        assert_close(logits, their_logits.numpy(), "logits", tolerance=1e-12)
        targets = torch.tensor(model_case.target_ids).flatten()
        their_loss = functional.cross_entropy(their_logits.flatten(0, 1), targets, ignore_index=-100)
        assert_close(loss, their_loss.item(), "loss", tolerance=1e-12)


@pytest.mark.parametrize("tie_weights", [True, False])
def test_the_reference_of_adamw_agrees_with_torch(tie_weights: bool) -> None:
    config = ng.GPTConfig(3, 2, embedding_dim=2, num_heads=1, num_layers=1, tie_weights=tie_weights)
    parameters = revealing_parameters(config, 0)
    gradients = [revealing_parameters(config, seed) for seed in range(1, 6)]
    rates = [0.05, 0.1, 0.0, 0.02, 0.05]
    settings: dict[str, Any] = {"betas": (0.9, 0.95), "eps": 1e-3}
    tensors = {name: torch.tensor(view) for name, view in parameters.named_parameters()}
    optimizer = torch.optim.AdamW(
        [
            {"params": [t for t in tensors.values() if t.ndim == 2], "weight_decay": 0.2},
            {"params": [t for t in tensors.values() if t.ndim == 1], "weight_decay": 0.0},
        ],
        **settings,
    )
    for gradient, rate in zip(gradients, rates, strict=True):
        for name, tensor in tensors.items():
            tensor.grad = torch.tensor(gradient[name])
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    ours = reference.adamw(parameters, gradients, rates, weight_decay=0.2, **settings)
    for name, tensor in tensors.items():
        assert_close(ours[name], tensor.numpy(), name, tolerance=1e-12)


def test_the_reference_of_the_sampler_by_hand() -> None:
    logits = np.log([0.1, 0.4, 0.2, 0.3])
    cases: list[tuple[dict[str, Any], list[float]]] = [
        ({"temperature": 1.0, "top_k": None, "top_p": None}, [0.1, 0.4, 0.2, 0.3]),
        ({"temperature": 0.0, "top_k": None, "top_p": None}, [0, 1, 0, 0]),
        ({"temperature": 1.0, "top_k": 2, "top_p": None}, [0, 4 / 7, 0, 3 / 7]),
        ({"temperature": 1.0, "top_k": None, "top_p": 0.5}, [0, 4 / 7, 0, 3 / 7]),
        ({"temperature": 1.0, "top_k": 2, "top_p": 0.5}, [0, 1, 0, 0]),
        ({"temperature": 0.5, "top_k": None, "top_p": None}, [1 / 30, 16 / 30, 4 / 30, 9 / 30]),
    ]
    for options, expected in cases:
        np.testing.assert_allclose(
            reference.next_token_probabilities(logits, **options), expected, atol=1e-15, err_msg=str(options)
        )


def test_slopes_and_differences_are_found() -> None:
    assert abs(slope(lambda x: math.exp(3 * x)) - 3) < 1e-10
    assert list(wrong_slope("f", 3.0, lambda x: math.exp(3 * x), summed=1.0)) == []
    assert list(wrong_slope("f", 3.0001, lambda x: math.exp(3 * x), summed=1.0)) != []
    assert list(wrong_slope("f", math.nan, math.exp, summed=1.0)) != []
    right = np.arange(6.0).reshape(2, 3)
    assert list(difference("d_x", right, right.copy())) == []
    wrong = right.copy()
    wrong[1, 2] = 5.5
    assert list(difference("d_x", wrong, right)) == ["d_x (2, 3): error 1.0e-01, 5.5 instead of 5 at (1, 2)"]
    wrong[0, 1] = np.nan
    assert list(difference("d_x", wrong, right)) == ["d_x (2, 3): error inf, nan instead of 1 at (0, 1)"]
    assert list(difference("d_x", None, right)) == ["d_x: None instead of (2, 3)"]
    assert list(difference("d_x", right.T, right)) == ["d_x: (3, 2) instead of (2, 3)"]


def test_cases_are_the_same_for_equal_seeds_and_differ_for_others() -> None:
    first, second = op_cases(0)[0].arrays[1], op_cases(1)[0].arrays[1]
    op_cases.cache_clear()
    assert np.array_equal(op_cases(0)[0].arrays[1], first)
    assert not np.array_equal(first[:1, :1], second[:1, :1])
    assert isinstance(model_cases(0)[0].parameters, Parameters)
