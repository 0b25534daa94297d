"""`check_backward`: right operations never fail, wrong ones never pass, and the report says what is wrong
and where."""

from __future__ import annotations

import io
import subprocess
import sys
import time
import zlib
from functools import partial
from typing import Any

import numpy as np
import pytest

from numpy_gpt.arrays import Array
from numpy_gpt.verify import Property, Report, check_backward
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
)


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def pair(name: str, seed: int = 0) -> Pair:
    return RIGHT[name](np.random.default_rng([seed, zlib.crc32(name.encode())]))


def kinds(report: Report) -> set[str]:
    return {finding.kind for finding in report.findings}


# --- right operations -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_operation_passes(name: str, seed: int) -> None:
    report = check_backward(*pair(name, seed), seed=seed)
    assert report.passed, report
    assert report.diagnosis == ()
    report.raise_if_failed()


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_operation_never_fails(name: str) -> None:
    verdicts = [check_backward(*pair(name, seed), seed=seed).verdict for seed in range(2, 26)]
    assert "failed" not in verdicts
    assert verdicts.count("inconclusive") <= 2


# --- wrong numbers ----------------------------------------------------------------------------------------

SMOOTH = (
    "linear",
    "softmax",
    "gelu_tanh",
    "layer_norm",
    "attention",
    "cross_entropy",
    "quotient",
    "inverse",
    "tiny_bias",
)


def spoiled(right: Pair, position: int, spoil: Any) -> Pair:
    def backward(d_out: Any, saved: Any) -> tuple[Any, ...]:
        gradients = list(right.backward(d_out, saved))
        gradients[position] = spoil(gradients[position])
        return tuple(gradients)

    return right._replace(backward=backward)


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("factor", [1 + 1e-5, 1 - 1e-5])
def test_an_error_of_one_in_a_hundred_thousand_fails(name: str, factor: float) -> None:
    right = pair(name)
    for position, value in enumerate(right.inputs):
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            report = check_backward(*spoiled(right, position, lambda d: d * d.dtype.type(factor)))
            assert report.verdict == "failed", report
            assert [tensor.verdict for tensor in report.tensors.values()].count("failed") == 1


SPOILS = {
    "negated": lambda d: -d,
    "zeroed": lambda d: 0 * d,
    "rolled": lambda d: np.roll(d, 1, axis=-1),
    "reversed": lambda d: d[::-1].copy(),
    "shifted": lambda d: d + d.dtype.type(1e-4) * np.abs(d).max(),
    "one element": lambda d: d * (1 + 1e-4 * (np.abs(d) == np.abs(d).max()).astype(d.dtype)),
    "last row": lambda d: np.concatenate([d[:-1], d[-1:] * d.dtype.type(0.9)]),
}


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("name", ["linear", "attention", "relu_network"])
def test_a_wrong_gradient_fails(name: str, spoil: str) -> None:
    right = pair(name)
    for position in range(len(right.inputs)):
        before = [right.inputs[position] for _ in range(2)]
        if before[0].shape[0] > 1 or spoil not in ("reversed", "rolled"):
            report = check_backward(*spoiled(right, position, SPOILS[spoil]))
            assert report.verdict == "failed", report
            with pytest.raises(AssertionError, match="failed"):
                report.raise_if_failed()


def test_the_report_gives_the_worst_element_with_both_values() -> None:
    def spoil(d: Array) -> Array:
        d = d.copy()
        d[1, 2, 3] *= -2
        return d

    right = Pair(attention_forward, attention_backward, attention_inputs(random(), 2, 5, 6))
    tensor = check_backward(*spoiled(right, 1, spoil)).tensors["keys"]
    assert tensor.verdict == "failed"
    assert tensor.index == (1, 2, 3)
    assert tensor.ratio == pytest.approx(-2)
    assert [profile.wrong for profile in tensor.profile] == [(1,), (2,), (3,)]


def test_layer_norm_without_its_weight_fails_in_x_alone() -> None:
    def backward(d_out: Array, saved: Any) -> tuple[Array, ...]:
        n, scale, weight = saved
        return (
            layer_norm_backward(d_out, (n, scale, np.ones_like(weight)))[0],
            *layer_norm_backward(d_out, saved)[1:],
        )

    report = check_backward(layer_norm_forward, backward, pair("layer_norm").inputs)
    verdicts = {name: tensor.verdict for name, tensor in report.tensors.items()}
    assert verdicts == {"x": "failed", "weight": "passed", "bias": "passed"}


def test_a_missing_reduction_is_a_wrong_shape() -> None:
    right = pair("tiny_bias")
    report = check_backward(right.forward, lambda d_out, saved: (d_out, d_out), right.inputs)
    assert report.tensors["bias"].verdict == "failed"
    assert kinds(report) == {Property.SHAPE}
    assert "(4, 3)" in str(report)


def test_none_for_an_input_that_matters_fails_and_for_one_that_does_not_passes() -> None:
    right = pair("unused_input")
    assert check_backward(right.forward, lambda d, saved: (2 * saved[0] * d, None), right.inputs).passed
    report = check_backward(right.forward, lambda d, saved: (None, None), right.inputs)
    assert report.tensors["x"].verdict == "failed"
    assert "None" in report.tensors["x"].reason


def test_a_wrong_path_of_a_small_output_does_not_drown_in_a_large_one() -> None:
    right = pair("two_outputs_of_unlike_sizes")
    report = check_backward(
        right.forward, lambda d, x: right.backward((2 * d[0], d[1]), x), right.inputs, names=["x"]
    )
    assert report.verdict == "failed"


def test_a_fault_among_small_elements_does_not_hide_behind_a_large_one() -> None:
    b = random().standard_normal(50)
    b[7] = 1e-4  # its derivative is 1e8 times the others'

    def wrong(d: Array) -> Array:
        return np.where(np.arange(50) >= 45, 0.5 * d, d)

    report = check_backward(
        *spoiled(Pair(lambda x: (1 / x, x.copy()), lambda d, x: (-d / x**2,), (b,)), 0, wrong)
    )
    assert report.tensors["x"].profile[0].wrong == (45, 46, 47, 48, 49)


# --- large inputs -----------------------------------------------------------------------------------------


def test_the_tail_of_a_tile_is_found_and_located() -> None:
    def spoil(d: Array) -> Array:
        d = d.copy()
        d[:, 64:] *= d.dtype.type(0.5)
        return d

    right = Pair(attention_forward, attention_backward, attention_inputs(random(), 2, 67, 64))
    report = check_backward(*spoiled(right, 1, spoil))
    tensor = report.tensors["keys"]
    assert {name for name, each in report.tensors.items() if each.verdict == "failed"} == {"keys"}
    assert tensor.profile[1].wrong == (64, 65, 66)
    assert "64-66 of 67 only" in str(report)
    assert tensor.index is not None
    assert tensor.index[1] >= 64
    assert tensor.ratio == pytest.approx(0.5)


def large_layer() -> Pair:
    x, weight, bias = random().standard_normal((2, 32, 64)), random().standard_normal((256, 64)), None
    return Pair(linear_forward, linear_backward, (x, weight / 8, bias))


def test_a_large_layer_passes_in_seconds() -> None:
    start = time.process_time()
    assert check_backward(*large_layer()).passed
    assert time.process_time() - start < 20  # two or three on a machine of its own


@pytest.mark.parametrize("error", [1e-5, 1.0])
def test_a_large_layer_with_a_wrong_factor_fails_everywhere(error: float) -> None:
    report = check_backward(*spoiled(large_layer(), 1, lambda d: d * d.dtype.type(1 + error)))
    assert report.tensors["x"].verdict == "passed"
    assert report.tensors["weight"].verdict == "failed"
    assert [len(profile.wrong) for profile in report.tensors["weight"].profile] == [256, 64]


def test_kinks_at_the_zeros_of_a_large_input_hide_nothing() -> None:
    x = np.maximum(random().standard_normal((64, 128)), 0)
    relu = Pair(lambda x: (np.maximum(x, 0), x.copy()), lambda d, x: (d * (x > 0),), (x,))
    assert check_backward(*relu).passed
    assert check_backward(*spoiled(relu, 0, lambda d: d * d.dtype.type(1 + 1e-5))).verdict == "failed"


def test_one_wrong_element_of_many_is_found() -> None:
    def spoil(d: Array) -> Array:
        d = d.copy()
        d[123, 45] = 0
        return d

    inputs = (random().standard_normal((3, 64)), random().standard_normal((256, 64)) / 8, None)
    report = check_backward(*spoiled(Pair(linear_forward, linear_backward, inputs), 1, spoil))
    tensor = report.tensors["weight"]
    assert [profile.wrong for profile in tensor.profile] == [(123,), (45,)]
    assert tensor.index == (123, 45)


# --- kinks, noise, domains --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slope", "verdict"),
    [(0.0, "passed"), (0.3, "passed"), (1.0, "passed"), (1.2, "failed"), (-0.1, "failed")],
)
def test_at_a_kink_any_slope_between_both_sides_is_right(slope: float, verdict: str) -> None:
    def backward(d_out: Array, x: Array) -> tuple[Array]:
        return (d_out * np.where(x == 0, slope, x > 0).astype(x.dtype),)

    x = np.array([-1.0, 0.0, 2.0, 0.0])
    assert check_backward(lambda x: (np.maximum(x, 0), x.copy()), backward, (x,)).verdict == verdict


def test_a_gradient_of_zero_is_held_against_the_others() -> None:
    tensor = check_backward(*pair("attention_with_key_bias")).tensors["key_bias"]
    assert tensor.verdict == "passed"
    assert "zero by symmetry" in tensor.reason
    assert tensor.error < 1e-6


def test_a_gradient_of_zero_may_be_other_noise_in_another_layout() -> None:
    right = pair("attention_with_key_bias")

    def backward(d_out: Array, saved: Any) -> tuple[Array, ...]:
        noise = 1e-17 if d_out.flags.c_contiguous else -1e-17
        return (*right.backward(d_out, saved)[:3], (noise * d_out.sum(axis=(0, 1))).astype(d_out.dtype))

    assert check_backward(right.forward, backward, right.inputs).passed


def in_float32(x: Array) -> tuple[Array, Array]:
    return np.tanh(x.astype(np.float32)), x


def through_float32(x: Array) -> tuple[Array, Array]:
    return np.tanh(x.astype(np.float32) * 2).astype(x.dtype) ** 2, x


@pytest.mark.parametrize(
    ("forward", "slope"),
    [
        (in_float32, lambda x: 1 - np.tanh(x) ** 2),
        (through_float32, lambda x: 4 * np.tanh(2 * x) * (1 - np.tanh(2 * x) ** 2)),
    ],
)
def test_arithmetic_stuck_in_float32_is_named_and_a_clear_error_fails_even_so(
    forward: Any, slope: Any
) -> None:
    x = random().standard_normal((4, 5))
    report = check_backward(forward, lambda d, x: ((d * slope(x)).astype(x.dtype),), (x,))
    assert report.verdict == "inconclusive", report
    assert "float32" in report.tensors["x"].reason
    assert (
        check_backward(forward, lambda d, x: ((1.05 * d * slope(x)).astype(x.dtype),), (x,)).verdict
        == "failed"
    )


def test_an_output_in_float32_proves_nothing_even_where_it_is_exact() -> None:
    def forward(x: Array) -> tuple[Array, Array]:
        return np.sign(x).astype(np.float32), x

    report = check_backward(forward, lambda d, x: (np.zeros_like(x),), (random().standard_normal(4),))
    assert report.verdict == "inconclusive"


def test_a_sum_that_cancels_is_ill_conditioned_not_wrong() -> None:
    def forward(x: Array) -> tuple[Any, Any]:
        return (x + 3e9 * x**2) - 3e9 * x**2 + 1e9 * x.sum(), x.shape

    def backward(d_out: Array, shape: Any) -> tuple[Array]:
        return ((d_out + 1e9 * d_out.sum()).astype(d_out.dtype),)

    report = check_backward(forward, backward, (random().standard_normal(5),))
    assert report.verdict != "failed", report


def test_large_numbers_within_forward_blur_small_outputs_too() -> None:
    for seed in range(10):
        x = random(seed).standard_normal(8) * 10.0 ** -np.arange(8)
        report = check_backward(lambda x: (x + 1e8 - 1e8, None), lambda d, saved: (d,), (x,), seed=seed)
        assert report.verdict == "inconclusive", report


def test_an_operation_that_refuses_every_step_is_inconclusive() -> None:
    point = np.array([0.25, 0.75])

    def forward(x: Array) -> tuple[Array, Array]:
        if x.sum() != 1:
            raise ValueError("no distribution")
        return np.log(x), x

    report = check_backward(forward, lambda d, x: (d / x,), (point,))
    assert report.verdict == "inconclusive"
    assert "no step can be taken" in report.tensors["x"].reason


def test_the_edge_of_a_domain_is_inconclusive() -> None:
    x = np.array([0.0, 1.0, 2.0])
    report = check_backward(lambda x: (x * np.sqrt(x), x.copy()), lambda d, x: (1.5 * d * np.sqrt(x),), (x,))
    assert report.verdict == "inconclusive"


# --- properties -------------------------------------------------------------------------------------------

X = np.random.default_rng(1).standard_normal((3, 4))


def sine(x: Array) -> tuple[Array, Array]:
    return np.sin(x), x


def sine_backward(d_out: Array, x: Array) -> tuple[Array]:
    return (d_out * np.cos(x),)


def writes_into_its_input(x: Array) -> tuple[Array, Array]:
    kept = x.copy()
    np.sin(x, out=x)
    return x.copy(), kept


def writes_into_the_upstream_gradient(d_out: Array, x: Array) -> tuple[Array]:
    d_out *= np.cos(x)
    return (d_out.copy(),)


def writes_into_its_input_backwards(d_out: Array, x: Array) -> tuple[Array]:
    d_x = d_out * np.cos(x)
    x[...] = 0
    return (d_x,)


def returns_a_view(x: Array) -> tuple[Array, None]:
    return x.reshape(-1), None


def returns_twins(x: Array) -> tuple[tuple[Array, Array], Array]:
    out = np.sin(x)
    return (out, out[:1]), x


def twins_backward(d_outs: tuple[Array, Array], x: Array) -> tuple[Array]:
    d_x = d_outs[0] * np.cos(x)
    d_x[:1] += d_outs[1] * np.cos(x[:1])
    return (d_x,)


def promotes(d_out: Array, x: Array) -> tuple[Array]:
    return (d_out * np.cos(x) * np.sqrt(np.float64(1)),)


def reads_memory_straight_on(d_out: Array, x: Array) -> tuple[Array]:
    base = d_out if d_out.base is None else d_out.base
    return (base.ravel(order="K")[: d_out.size].reshape(d_out.shape) * np.cos(x),)


def mistakes_fortran_order(x: Array) -> tuple[Array, Array]:
    return np.sin(x.ravel(order="K").reshape(x.shape)), x


def refuses_strides(d_out: Array, x: Array) -> tuple[Array]:
    if not d_out.flags.c_contiguous:
        raise TypeError("C order only")
    return sine_backward(d_out, x)


def clips(d_out: Array, x: Array) -> tuple[Array]:
    return (np.clip(d_out * np.cos(x), -5, 5),)


def forgets(d_out: Array, saved: list[Array]) -> tuple[Array]:
    return (d_out * np.cos(saved.pop()),)


def accumulating() -> Any:
    totals = np.zeros((3, 4))

    def backward(d_out: Array, x: Array) -> tuple[Array]:
        totals[...] += d_out * np.cos(x)
        return (totals.astype(d_out.dtype),)

    return backward


def one_buffer() -> Any:
    buffers: dict[Any, Array] = {}

    def forward(x: Array) -> tuple[Array, Array]:
        out = buffers.setdefault(x.dtype, np.empty_like(x))
        np.sin(x, out=out)
        return out, x

    return forward


def one_gradient_buffer() -> Any:
    buffers: dict[Any, Array] = {}

    def backward(d_out: Array, x: Array) -> tuple[Array]:
        d_x = buffers.setdefault(x.dtype, np.empty_like(x))
        np.multiply(d_out, np.cos(x), out=d_x)
        return (d_x,)

    return backward


def one_saved_buffer() -> Any:
    buffers: dict[Any, Array] = {}

    def forward(x: Array) -> tuple[Array, Array]:
        kept = buffers.setdefault(x.dtype, np.empty_like(x))
        kept[...] = x
        return np.sin(x), kept

    return forward


BROKEN = {
    "input written": (Property.INPUTS_UNTOUCHED, "x", writes_into_its_input, sine_backward),
    "upstream gradient written": (
        Property.INPUTS_UNTOUCHED,
        "output",
        sine,
        writes_into_the_upstream_gradient,
    ),
    "input written by backward": (Property.INPUTS_UNTOUCHED, "x", sine, writes_into_its_input_backwards),
    "view of the input": (
        Property.ALIASING,
        "output",
        returns_a_view,
        lambda d, s: (d.reshape(3, 4).copy(),),
    ),
    "outputs overlap": (Property.ALIASING, "output 0", returns_twins, twins_backward),
    "output overwritten": (Property.RESULTS_KEPT, "output", one_buffer(), sine_backward),
    "gradient overwritten": (Property.RESULTS_KEPT, "x", sine, one_gradient_buffer()),
    "saved overwritten": (Property.SAVED_REUSABLE, "x", one_saved_buffer(), sine_backward),
    "saved used up": (Property.SAVED_REUSABLE, None, lambda x: (np.sin(x), [x]), forgets),
    "float64 from float32": (Property.DTYPE, "x", sine, promotes),
    "float64 output from float32": (
        Property.DTYPE,
        "output",
        lambda x: (np.sin(x) * np.float64(1), x),
        sine_backward,
    ),
    "upstream read straight on": (Property.LAYOUT, "x", sine, reads_memory_straight_on),
    "input read straight on": (Property.LAYOUT, "output", mistakes_fortran_order, sine_backward),
    "strides refused": (Property.LAYOUT, None, sine, refuses_strides),
    "clipped": (Property.LINEAR, "x", sine, clips),
    "accumulating": (Property.REPEATABLE, "x", sine, accumulating()),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_property_is_named_with_its_tensor(name: str) -> None:
    kind, tensor, forward, backward = BROKEN[name]
    report = check_backward(forward, backward, (X.copy(),), names=["x"])
    assert report.verdict == "failed", report
    assert (kind, tensor) in {(finding.kind, finding.tensor) for finding in report.findings}, report
    if name not in ("accumulating", "input written by backward"):
        assert kinds(report) == {kind}, report


def test_a_layout_finding_says_which_array_lay_how() -> None:
    report = check_backward(sine, reads_memory_straight_on, (X,))
    text = str(report)
    assert "upstream gradient is Fortran-ordered" in text
    assert "upstream gradient is a strided slice" in text
    assert "upstream gradient is a stride-0 broadcast" in text


def test_a_gradient_that_is_the_upstream_gradient_itself_is_noted_not_failed() -> None:
    report = check_backward(*pair("residual"))
    assert report.passed
    assert {note.kind for note in report.notes} == {Property.ALIASING}


def test_values_that_are_not_finite_fail() -> None:
    report = check_backward(
        lambda x: (np.exp(1000 * x), x), lambda d, x: (d * np.exp(1000 * x),), (np.ones(3),)
    )
    assert kinds(report) >= {Property.FINITE}
    masked = np.array([True, False, False])
    report = check_backward(
        lambda x: (np.where(masked, -np.inf, x), None),
        lambda d, saved: (np.where(masked, 0, d),),
        (np.ones(3),),
    )
    assert kinds(report) == {Property.FINITE}
    report = check_backward(
        lambda x: (np.abs(x), x), lambda d, x: (d * x / np.abs(x),), (np.array([0.0, 1.0]),)
    )
    assert kinds(report) == {Property.FINITE}
    assert report.tensors["x"].verdict == "failed"


def test_a_gradient_for_integers_fails_unless_it_is_zero() -> None:
    right = pair("embedding")

    def with_ids(value: float) -> Any:
        return lambda d, saved: (np.full(saved[0].shape, value), right.backward(d, saved)[1])

    assert kinds(check_backward(right.forward, with_ids(1.0), right.inputs)) == {Property.SHAPE}
    assert check_backward(right.forward, with_ids(0.0), right.inputs).passed


def test_an_operation_that_raises_fails_and_says_in_which_call() -> None:
    def raises(*arguments: Any) -> Any:
        raise ZeroDivisionError("there it is")

    for name, functions in (("forward", (raises, sine_backward)), ("backward", (sine, raises))):
        report = check_backward(*functions, (X,))
        assert report.verdict == "failed"
        assert kinds(report) == {Property.RUNS}
        assert f"{name} raised ZeroDivisionError: there it is (line " in str(report)
        assert "of test_check_backward.py)" in str(report)


def test_a_reason_that_several_tensors_share_is_told_once() -> None:
    report = check_backward(network_forward, lambda d_out, saved: 1 / 0, NETWORK.inputs)
    assert str(report).splitlines()[4].strip() == "x, weight: backward raised"


def network_forward(x: Array, weight: Array) -> tuple[Array, Any]:
    hidden = np.tanh(x)
    return hidden @ weight, (hidden, weight)


def network_backward(d_out: Array, saved: Any) -> tuple[Array, Array]:
    hidden, weight = saved
    return (d_out @ weight.T) * (1 - hidden**2), hidden.T @ d_out


NETWORK = Pair(
    network_forward, network_backward, (random().standard_normal((2, 3)), random(1).standard_normal((3, 2)))
)


def failing(function: Any, calls: list[int], fails: Any, failure: Any) -> Any:
    """Wrap a function to fail at some of its calls, which are counted."""

    def wrapped(*arguments: Any) -> Any:
        calls.append(1)
        return failure() if fails(len(calls)) else function(*arguments)

    return wrapped


def raise_late() -> Any:
    raise RuntimeError("late")


def never(call: int) -> bool:
    return False


FAILS = {
    "once": lambda n, call: call == n,
    "from then on": lambda n, call: call >= n,
    "for a while": lambda n, call: n <= call < n + 5,
    "again and again": lambda n, call: call % n == 0,
}


@pytest.mark.parametrize("failure", [raise_late, lambda: None], ids=["raises", "returns nothing"])
@pytest.mark.parametrize("fails", FAILS)
@pytest.mark.parametrize("name", ["forward", "backward"])
def test_a_call_that_fails_however_late_fails_the_check(name: str, fails: str, failure: Any) -> None:
    calls: list[int] = []
    function = getattr(NETWORK, name)
    assert check_backward(*NETWORK._replace(**{name: failing(function, calls, never, failure)})).passed
    assert len(calls) > 40
    for n in range(12, len(calls) + 1, 17 if name == "forward" else 3):
        wrapped = failing(function, [], partial(FAILS[fails], n), failure)
        report = check_backward(*NETWORK._replace(**{name: wrapped}))
        assert report.verdict == "failed", (n, report)


def test_a_forward_that_draws_at_random_is_inconclusive() -> None:
    generator = random()

    def forward(x: Array) -> tuple[Array, Array]:
        kept = generator.random(x.shape) < 0.5
        return x * kept, kept

    report = check_backward(forward, lambda d, kept: (d * kept,), (X,))
    assert report.verdict == "inconclusive"
    assert "seed" in report.reason


# --- usage ------------------------------------------------------------------------------------------------


def always(value: Any) -> Any:
    return lambda *arguments: value


@pytest.mark.parametrize(
    ("forward", "backward", "inputs", "options", "message"),
    [
        (sine, sine_backward, X, {}, r"pass \(x,\)"),
        (sine, sine_backward, (), {}, "at least one floating-point array"),
        (sine, sine_backward, (np.arange(3),), {}, "at least one floating-point array"),
        (sine, sine_backward, (X + 1j,), {}, "real numbers"),
        (sine, sine_backward, (np.array([np.nan]),), {}, "NaN"),
        (sine, sine_backward, ([[1.0], [1.0, 2.0]],), {}, "no array"),
        (sine, sine_backward, (X, X), {}, "forward cannot be called with the 2 inputs"),
        (sine, lambda d_out: (d_out,), (X,), {}, "backward cannot be called"),
        ("sine", sine_backward, (X,), {}, "forward must be callable"),
        (sine, None, (X,), {}, "backward must be callable"),
        (sine, sine_backward, (X,), {"names": ["x", "y"]}, "2 names for 1 inputs"),
        (sine, sine_backward, (X,), {"names": "x"}, "strings"),
        (np.add, always((X, X)), (X, X), {"names": ["x", "x"]}, "differ"),
        (sine, sine_backward, (X,), {"seed": -1}, "seed"),
        (always(X), sine_backward, (X,), {}, r"forward must return \(output, saved\)"),
        (always((np.arange(3), None)), sine_backward, (X,), {}, "floating-point output"),
        (always(("text", None)), sine_backward, (X,), {}, "floating-point output"),
        (sine, lambda d_out, x: d_out, (X,), {}, r"return \(d_x,\)"),
        (sine, lambda d_out, x: (d_out, None), (X,), {}, "it returned 2 for 1 inputs"),
        (sine, sine_backward, (X,), {"torch_forward": 3}, "torch_forward must be callable"),
    ],
)
def test_wrong_usage_says_what_to_change(
    forward: Any, backward: Any, inputs: Any, options: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_backward(forward, backward, inputs, **options)


def test_a_loss_that_is_a_python_float_is_answered_by_one() -> None:
    def backward(d_loss: Any, x: Array) -> tuple[Array]:
        assert type(d_loss) is float
        return (2 * d_loss * x,)

    assert check_backward(lambda x: (float((x**2).sum()), x), backward, (X,)).passed


def test_names_come_from_the_caller_or_from_forward() -> None:
    right = pair("linear")
    assert list(check_backward(*right).tensors) == ["x", "weight", "bias"]
    assert list(check_backward(*right, names=("a", "b", "c")).tensors) == ["a", "b", "c"]

    def unnamed(*inputs: Any) -> Any:
        return right.forward(*inputs)

    anonymous = check_backward(unnamed, right.backward, right.inputs)
    assert list(anonymous.tensors) == ["input_0", "input_1", "input_2"]


def test_inputs_of_any_precision_are_taken_as_float64_and_left_alone() -> None:
    x = random().standard_normal((3, 4)).astype(np.float32)
    kept = x.copy()
    assert check_backward(sine, sine_backward, [x]).passed
    assert check_backward(sine, sine_backward, [x.tolist()]).passed
    assert x.dtype == np.float32
    np.testing.assert_array_equal(x, kept)


# --- the report -------------------------------------------------------------------------------------------


def test_equal_seeds_give_equal_reports() -> None:
    right = pair("attention")
    texts = {str(check_backward(*spoiled(right, 0, np.negative), seed=3)) for _ in range(2)}
    assert len(texts) == 1


def test_the_report_prints_with_and_without_rich() -> None:
    from rich.console import Console

    report = check_backward(*spoiled(pair("linear"), 1, np.negative))
    console = Console(width=200, file=io.StringIO())
    console.print(report)
    for text in (str(report), console.file.getvalue()):
        assert "failed" in text
        assert "weight" in text
        assert "axis 0: all" in text


def test_the_check_needs_numpy_alone() -> None:
    code = (
        "import sys, numpy as np; from numpy_gpt.verify import check_backward;"
        "print(check_backward(lambda x: (x * x, x), lambda d, x: (2 * d * x,), (np.ones(3),)));"
        "print(sorted({'torch', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# --- torch as a second oracle -----------------------------------------------------------------------------


def test_torch_agrees_with_a_right_operation() -> None:
    torch = pytest.importorskip("torch")
    right = pair("linear")
    assert check_backward(*right, torch_forward=torch.nn.functional.linear).passed
    embedding = pair("embedding")
    assert check_backward(*embedding, torch_forward=torch.nn.functional.embedding).passed


def test_torch_finds_what_samples_miss() -> None:
    torch = pytest.importorskip("torch")

    def spoil(d: Array) -> Array:
        d = d.copy()
        d[200, 33] *= d.dtype.type(1 + 1e-4)
        return d

    inputs = (random().standard_normal((3, 64)), random().standard_normal((256, 64)) / 8, None)
    wrong = spoiled(Pair(linear_forward, linear_backward, inputs), 1, spoil)
    report = check_backward(*wrong, torch_forward=torch.nn.functional.linear)
    assert report.tensors["weight"].verdict == "failed"
    assert report.tensors["weight"].index == (200, 33)


def test_another_torch_forward_is_a_finding() -> None:
    torch = pytest.importorskip("torch")
    assert kinds(check_backward(sine, sine_backward, (X,), torch_forward=torch.cos)) == {Property.TORCH}


def test_torch_may_choose_another_slope_at_a_kink() -> None:
    torch = pytest.importorskip("torch")
    x = np.array([-1.0, 0.0, 2.0])
    relu = (lambda x: (np.maximum(x, 0), x.copy()), lambda d, x: (d * (x >= 0),))
    report = check_backward(*relu, (x,), torch_forward=torch.relu)
    assert report.passed, report
    assert "kink" in report.tensors["x"].reason


def test_torch_vouches_for_what_differences_cannot() -> None:
    pytest.importorskip("torch")
    x = np.array([0.0, 1.0, 2.0])
    half_power = (lambda x: (x * np.sqrt(x), x.copy()), lambda d, x: (1.5 * d * np.sqrt(x),))
    report = check_backward(*half_power, (x,), torch_forward=lambda x: x.pow(1.5))
    assert report.passed, report


@pytest.mark.parametrize("answer", [lambda x: x[:1], lambda x: x.tolist(), lambda x: 1 / 0])
def test_a_torch_forward_that_cannot_be_used_says_so(answer: Any) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match="torch_forward"):
        check_backward(sine, sine_backward, (X,), torch_forward=answer)


def test_missing_torch_gives_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="pip install"):
        check_backward(sine, sine_backward, (X,), torch_forward=always(None))
