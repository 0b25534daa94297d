"""The diagnosis: the right kind comes first, on the catalogue's bugs and on others; nothing is guessed."""

from __future__ import annotations

import math
import time
import zlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from numpy_gpt.arrays import Array
from numpy_gpt.verify import Report, check_backward
from numpy_gpt.verify.bugs import CATALOGUE
from numpy_gpt.verify.gradcheck.diagnosis import MOST, QUICK, SLOW, diagnose
from numpy_gpt.verify.gradcheck.evidence import Evidence
from numpy_gpt.verify.gradcheck.finite_differences import Differences
from numpy_gpt.verify.gradcheck.judgement import judge
from numpy_gpt.verify.gradcheck.probing import measure_all
from numpy_gpt.verify.gradcheck.subject import Subject
from numpy_gpt.verify.gradcheck.suspects.fault import Fault
from numpy_gpt.verify.gradcheck.usage import usable_functions, usable_inputs, usable_names
from numpy_gpt.verify.kill_matrix.cases import op_cases
from numpy_gpt.verify.kinds import Kind
from tests import planted_in_other_layers as _registers  # noqa: F401
from tests.planted_mistakes import PLANTED
from tests.right_operations import (
    RIGHT,
    Pair,
    attention_backward,
    attention_forward,
    attention_inputs,
    layer_norm_backward,
    layer_norm_forward,
    linear_backward,
    linear_forward,
    softmax_rows,
)

KIND_BUGS = [bug for bug in CATALOGUE if bug.op is not None and bug.kind is not None]


def seeded(name: str, seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def kinds(report: Report) -> list[str]:
    return [finding.kind for finding in report.diagnosis]


def evidence(pair: Pair, patience: float = 5.0) -> Evidence:
    """Measure an operation as a check does, for some seconds at most, and without its other questions."""
    inputs = usable_inputs(pair.inputs)
    random = np.random.default_rng(0)
    names = usable_names(None, pair.forward, inputs)
    with np.errstate(all="ignore"):
        subject = Subject.observe(
            usable_functions(pair.forward, pair.backward, inputs), names, inputs, random
        )
        measurements = measure_all(Differences(subject, random), time.process_time() + patience)
        tensors = {names[i]: judge(measurements[i]) for i in subject.tensors}
    return Evidence(subject, measurements, tensors, ())


# --- the right kind comes first ---------------------------------------------------------------------------


def ranks_in_the_catalogue(seeds: Iterable[int], cases_each: int) -> Counter[int | None]:
    """Count at which place the kind of each bug comes, over the cases of its operation that show it."""
    ranks: Counter[int | None] = Counter()
    for seed in seeds:
        for bug in KIND_BUGS:
            for case in [case for case in op_cases(seed) if case.name == bug.op][:cases_each]:
                operation, fresh = case.op(bug.subject.ops), case.fresh()

                def forward(*arrays: Any, op: Any = operation, options: Any = fresh.options) -> Any:
                    return op.forward(*arrays, **options)

                report = check_backward(
                    forward, operation.backward, fresh.arrays, names=case.array_names, seed=seed
                )
                if report.verdict == "failed":
                    found = kinds(report)
                    ranks[found.index(bug.kind) if bug.kind in found else None] += 1
                else:
                    assert report.diagnosis == ()
    return ranks


def is_good(ranks: Counter[int | None]) -> bool:
    total = ranks.total()
    return ranks[0] >= 0.8 * total and sum(ranks[rank] for rank in range(3)) >= 0.95 * total


def test_the_bugs_of_the_catalogue_are_named() -> None:
    ranks = ranks_in_the_catalogue([0], cases_each=1)
    assert ranks.total() > 20
    assert is_good(ranks), ranks


@pytest.mark.slow
def test_the_bugs_of_the_catalogue_are_named_over_many_shapes() -> None:
    ranks = ranks_in_the_catalogue(range(1, 7), cases_each=3)
    assert is_good(ranks), ranks


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_named(name: str) -> None:
    kind, make = PLANTED[name]
    report = check_backward(*make(seeded(name, 0)))
    assert kinds(report)[:1] == [kind], report
    assert len(report.diagnosis) <= MOST
    for finding in report.diagnosis:
        assert finding.tensor in report.tensors
        assert finding.error_left is not None
        assert f"{finding.error_left:.1e}" in finding.evidence


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_named_over_many_shapes(name: str) -> None:
    kind, make = PLANTED[name]
    found = [kinds(check_backward(*make(seeded(name, seed)), seed=seed)) for seed in range(1, 6)]
    assert sum(each[:1] == [kind] for each in found) >= 4, found
    assert all(kind in each[:3] for each in found), found


def test_every_kind_is_planted() -> None:
    assert {planted.kind for planted in PLANTED.values()} == set(Kind)


def test_two_mistakes_are_both_named() -> None:
    def backward(d_out: Array, saved: Any) -> tuple[Array | None, ...]:
        d_x, d_weight, _ = linear_backward(d_out, saved)
        assert d_weight is not None
        return d_x, d_weight.T.copy(), -d_out.sum(axis=0)

    random = np.random.default_rng(0)
    inputs = (random.standard_normal((5, 4)), random.standard_normal((4, 4)), random.standard_normal(4))
    report = check_backward(linear_forward, backward, inputs)
    named = {(finding.kind, finding.tensor) for finding in report.diagnosis}
    assert named >= {(Kind.TRANSPOSED, "weight"), (Kind.CONSTANT_FACTOR, "bias")}


def halved_and_transposed(d_out: Array, saved: Any) -> tuple[Array | None, ...]:
    d_x, d_weight, d_bias = linear_backward(d_out, saved)
    assert d_weight is not None
    return d_x, 0.5 * d_weight.T, d_bias


def without_projection_or_scale(d_out: Array, saved: Any) -> tuple[Array, ...]:
    _, _, weight = saved
    d_n = d_out * weight
    return d_n - d_n.mean(axis=-1, keepdims=True), *layer_norm_backward(d_out, saved)[1:]


def without_mean_or_weight(d_out: Array, saved: Any) -> tuple[Array, ...]:
    n, scale, _ = saved
    d_x = (d_out - n * (d_out * n).mean(axis=-1, keepdims=True)) * scale
    return d_x, *layer_norm_backward(d_out, saved)[1:]


def doubled_without_projection(d_out: Array, saved: Any) -> tuple[Array, ...]:
    d_x, *others = without_projection(d_out, saved)
    return 2 * d_x, *others


LINEAR = (linear_forward, ((5, 4), (4, 4), (4,)))
NORM = (layer_norm_forward, ((2, 3, 6), (6,), (6,)))

BOTH: dict[str, tuple[Any, Any, set[Kind]]] = {
    "halved and transposed": (LINEAR, halved_and_transposed, {Kind.CONSTANT_FACTOR, Kind.TRANSPOSED}),
    "no projection, no scale": (
        NORM,
        without_projection_or_scale,
        {Kind.LAYER_NORM_PROJECTION_TERM, Kind.MISSING_FACTOR},
    ),
    "no mean, no weight": (
        NORM,
        without_mean_or_weight,
        {Kind.LAYER_NORM_MEAN_TERM, Kind.LAYER_NORM_WEIGHT},
    ),
    "no projection, doubled": (
        NORM,
        doubled_without_projection,
        {Kind.LAYER_NORM_PROJECTION_TERM, Kind.CONSTANT_FACTOR},
    ),
}


@pytest.mark.parametrize("name", BOTH)
def test_two_mistakes_in_one_gradient_are_both_named(name: str) -> None:
    (forward, shapes), backward, wanted = BOTH[name]
    random = np.random.default_rng(0)
    report = check_backward(forward, backward, tuple(random.standard_normal(shape) for shape in shapes))
    assert set(kinds(report)[:2]) == wanted, report
    assert "two mistakes at once" in report.diagnosis[0].evidence


def test_one_mistake_in_several_gradients_is_one_finding() -> None:
    def backward(d_out: Array, saved: Any) -> tuple[Array, Array, Array]:
        d_queries, d_keys, d_values = attention_backward(d_out, saved)
        return 2 * d_queries, 2 * d_keys, d_values

    report = check_backward(attention_forward, backward, attention_inputs(np.random.default_rng(0), 2, 4, 6))
    first = report.diagnosis[0]
    assert first.kind == Kind.CONSTANT_FACTOR
    assert {"d_queries", "d_keys"} <= {word.strip(";:,") for word in first.evidence.split()}


# --- which number -----------------------------------------------------------------------------------------

NUMBERS = {
    "√3, where 3 is a head's width": math.sqrt(3),
    "1/√3, where 3 is a head's width": 1 / math.sqrt(3),
    "5, the length of axis 1 of queries": 5.0,
    "1/5, the length of axis 1 of queries": 0.2,
    "minus 1": -1.0,
    "1/2": 0.5,
    "10, the number of rows of queries": 10.0,
    "5/4": 1.25,
    "0.7312 times": 0.7312,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_factor_is_recognised(name: str) -> None:
    def backward(d_out: Array, saved: Any) -> tuple[Array, Array, Array]:
        d_queries, d_keys, d_values = attention_backward(d_out, saved)
        return d_queries, NUMBERS[name] * d_keys, d_values

    inputs = attention_inputs(np.random.default_rng(0), 2, 5, 6)
    (finding, *_) = diagnose(evidence(Pair(attention_forward, backward, inputs)))
    assert finding.kind == Kind.CONSTANT_FACTOR
    assert name in finding.evidence, finding.evidence


# --- large inputs, of which only samples are measured -----------------------------------------------------


def transposed_weight(d_out: Array, saved: Any) -> tuple[Array | None, ...]:
    d_x, d_weight, d_bias = linear_backward(d_out, saved)
    assert d_weight is not None
    return d_x, d_weight.T, d_bias


def without_projection(d_out: Array, saved: Any) -> tuple[Array, ...]:
    _, scale, weight = saved
    d_n = d_out * weight
    d_x = (d_n - d_n.mean(axis=-1, keepdims=True)) * scale
    return d_x, *layer_norm_backward(d_out, saved)[1:]


def without_row_term(d_out: Array, y: Array) -> tuple[Array]:
    return (y * d_out,)


def softmax_forward(x: Array) -> tuple[Array, Array]:
    return softmax_rows(x), softmax_rows(x)


LARGE = {
    Kind.TRANSPOSED: (linear_forward, transposed_weight, ((20, 80), (80, 80), (80,))),
    Kind.LAYER_NORM_PROJECTION_TERM: (layer_norm_forward, without_projection, ((4, 32, 64), (64,), (64,))),
    Kind.SOFTMAX_ROW_TERM: (softmax_forward, without_row_term, ((4, 32, 64),)),
}


@pytest.mark.parametrize("kind", LARGE)
def test_a_large_gradient_is_diagnosed_from_samples_and_in_time(kind: Kind) -> None:
    forward, backward, shapes = LARGE[kind]
    random = np.random.default_rng(0)
    seen = evidence(
        Pair(forward, backward, tuple(random.standard_normal(shape) for shape in shapes)), patience=1.0
    )
    assert not all(seen.measurements[i].is_dense for i in seen.subject.tensors)
    start = time.process_time()
    found = diagnose(seen)
    assert time.process_time() - start < 2.0
    assert found
    assert found[0].kind == kind


# --- nothing is guessed -----------------------------------------------------------------------------------

SOME = ("linear", "softmax", "gelu_tanh", "layer_norm", "attention", "embedding", "cross_entropy", "mean")


@pytest.mark.parametrize("name", SOME)
def test_noise_is_no_known_mistake(name: str) -> None:
    right = RIGHT[name](seeded(name, 3))
    random = np.random.default_rng(0)
    noise = [random.standard_normal((np.size(each), 1)) for each in right.inputs]

    def backward(d_out: Any, saved: Any) -> tuple[Any, ...]:
        gradients = right.backward(d_out, saved)
        loudness = float(np.mean(d_out))
        return tuple(
            None if gradient is None else gradient + loudness * each.reshape(gradient.shape)
            for gradient, each in zip(gradients, noise, strict=True)
        )

    seen = evidence(Pair(right.forward, backward, right.inputs))
    assert "failed" in {tensor.verdict for tensor in seen.tensors.values()}
    assert diagnose(seen) == ()


def test_a_broken_property_alone_is_not_explained() -> None:
    def forward(x: Array) -> tuple[Array, Array]:
        return np.sin(x.astype(np.float64)), x

    def backward(d_out: Array, x: Array) -> tuple[Array]:
        return (d_out * np.cos(x),)

    report = check_backward(forward, backward, (np.random.default_rng(0).standard_normal((2, 3)),))
    assert report.verdict == "failed"
    assert report.diagnosis == ()


# --- whatever the operation does --------------------------------------------------------------------------


class Itself:
    """Something saved that holds itself."""

    def __init__(self, x: Array) -> None:
        self.x = x
        self.me = self


def unsteady() -> Any:
    """Return a backward that fails now and then."""
    calls: list[int] = []

    def backward(d_out: Array, x: Array) -> tuple[Any, ...]:
        calls.append(1)
        if len(calls) > 2 and len(calls) % 3 == 0:
            raise RuntimeError("not now")
        return (np.zeros(len(calls)),) if len(calls) % 7 == 0 else (2 * d_out * np.cos(x),)

    return backward


ODD: dict[str, tuple[Any, Any]] = {
    "None": (lambda x: (np.sin(x), x), lambda d, x: (None,)),
    "a number": (lambda x: (np.sin(x), x), lambda d, x: (1.0,)),
    "a string": (lambda x: (np.sin(x), x), lambda d, x: ("gradient",)),
    "an object": (lambda x: (np.sin(x), x), lambda d, x: (object(),)),
    "not a number": (lambda x: (np.sin(x), x), lambda d, x: (d * np.nan,)),
    "nothing": (lambda x: (np.sin(x), x), lambda d, x: (np.zeros((0, 3)),)),
    "another rank": (lambda x: (np.sin(x), x), lambda d, x: (np.ones((2, 3, 4, 5)),)),
    "itself saved": (lambda x: (np.sin(x), Itself(x)), lambda d, saved: (2 * d * np.cos(saved.x),)),
    "odd things saved": (lambda x: (np.sin(x), {1: [x, None, "s"], "f": math.sin}), lambda d, saved: (d,)),
    "infinite slopes": (lambda x: (np.sqrt(np.maximum(x, 0)), x), lambda d, x: (d / x,)),
    "a constant": (lambda x: (0 * x + 1, x), lambda d, x: (d,)),
}


@pytest.mark.parametrize("name", [*ODD, "unsteady"])
@pytest.mark.parametrize("shape", [(2, 3, 4), (), (1, 1)])
def test_no_operation_makes_the_diagnosis_raise(name: str, shape: tuple[int, ...]) -> None:
    forward, backward = ODD[name] if name in ODD else (ODD["None"][0], unsteady())
    x = np.random.default_rng(0).standard_normal(shape)
    assert len(diagnose(evidence(Pair(forward, backward, (x,))))) <= MOST


@pytest.mark.parametrize("name", [*list(PLANTED)[::8], "fewer_queries_than_keys_without_the_mask"])
def test_no_suspect_needs_the_net_that_catches_their_exceptions(name: str) -> None:
    seen = evidence(PLANTED[name].make(seeded(name, 1)))
    for i in seen.subject.tensors:
        fault = Fault(seen.subject, seen.measurements[i], i, math.inf)
        with np.errstate(all="ignore"):
            for suspect in (*QUICK, *SLOW):
                for suspicion in suspect(fault):
                    assert suspicion.i == i
