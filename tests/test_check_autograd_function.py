"""`check_autograd_function`: right kernels pass in every dtype, wrong ones fail, and every layout is
tried."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from numpy_gpt.verify import Property, Report, check_autograd_function

torch = pytest.importorskip("torch")
functional = torch.nn.functional

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def normal(*shape: int, dtype: Any = torch.float32, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any, weight: Any, bias: Any) -> Any:
        context.save_for_backward(x, weight)
        return x @ weight.T + bias

    @staticmethod
    def backward(context: Any, d_out: Any) -> Any:
        x, weight = context.saved_tensors
        rows = d_out.reshape(-1, d_out.shape[-1])
        return d_out @ weight, rows.T @ x.reshape(-1, x.shape[-1]), rows.sum(0)


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        out = torch.exp(x - x.amax(-1, keepdim=True))
        out = out / out.sum(-1, keepdim=True)
        context.save_for_backward(out)
        return out

    @staticmethod
    def backward(context: Any, d_out: Any) -> Any:
        (out,) = context.saved_tensors
        return out * (d_out - (d_out * out).sum(-1, keepdim=True))


class LayerNorm(torch.autograd.Function):
    """Computes in float32 at least, as kernels do, and rounds once."""

    @staticmethod
    def forward(context: Any, x: Any, weight: Any, bias: Any) -> Any:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        centred = wide - wide.mean(-1, keepdim=True)
        scale = torch.rsqrt((centred**2).mean(-1, keepdim=True) + 1e-5)
        context.save_for_backward(centred * scale, scale, weight)
        return (centred * scale * weight.to(wide) + bias.to(wide)).to(x)

    @staticmethod
    def backward(context: Any, d_out: Any) -> Any:
        n, scale, weight = context.saved_tensors
        d_wide = d_out.to(n)
        d_n = d_wide * weight.to(n)
        d_x = (d_n - d_n.mean(-1, keepdim=True) - n * (d_n * n).mean(-1, keepdim=True)) * scale
        rows = tuple(range(d_out.ndim - 1))
        return d_x.to(d_out), (d_wide * n).sum(rows).to(d_out), d_wide.sum(rows).to(d_out)


class Embedding(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, token_ids: Any, weight: Any) -> Any:
        context.save_for_backward(token_ids)
        context.rows = len(weight)
        return weight[token_ids]

    @staticmethod
    def backward(context: Any, d_out: Any) -> Any:
        (token_ids,) = context.saved_tensors
        d_weight = d_out.new_zeros(context.rows, d_out.shape[-1])
        return None, d_weight.index_add(0, token_ids.reshape(-1), d_out.reshape(-1, d_out.shape[-1]))


class Halves(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        context.save_for_backward(x)
        return x[:, :3].sin(), x[:, 3:].cos()

    @staticmethod
    def backward(context: Any, d_left: Any, d_right: Any) -> Any:
        (x,) = context.saved_tensors
        return torch.cat([d_left * x[:, :3].cos(), -d_right * x[:, 3:].sin()], dim=1)


def plain_softmax(x: Any) -> Any:
    return functional.softmax(x, dim=-1)


def plain_layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    return functional.layer_norm(x, weight.shape, weight, bias)


def plain_halves(x: Any) -> Any:
    return x[:, :3].sin(), x[:, 3:].cos()


def right_cases(dtype: Any, seed: int = 0) -> dict[str, tuple[Any, tuple[Any, ...], Any]]:
    def draw(*shape: int, of: int = 0) -> Any:
        return normal(*shape, dtype=dtype, seed=10 * seed + of)

    norms = (draw(3, 5, 7), draw(7, of=1), draw(7, of=2))
    return {
        "linear": (Linear, (draw(2, 9, 33), draw(17, 33, of=1) / 33**0.5, draw(17, of=2)), functional.linear),
        "softmax": (Softmax, (draw(4, 11),), plain_softmax),
        "layer_norm": (LayerNorm, norms, plain_layer_norm),
        "embedding": (Embedding, (torch.tensor([[1, 4, 1], [0, 4, 4]]), draw(6, 3)), functional.embedding),
        "halves": (Halves, (draw(4, 6),), plain_halves),
        "torch's own": (plain_layer_norm, norms, plain_layer_norm),
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", right_cases(torch.float32))
def test_a_right_function_passes_in_every_dtype(name: str, dtype: Any) -> None:
    function, inputs, reference = right_cases(dtype)[name]
    report = check_autograd_function(function, inputs, reference)
    assert report.passed, report


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", right_cases(torch.float32))
def test_a_right_function_passes_with_every_seed(name: str, dtype: Any) -> None:
    for seed in range(1, 30):
        function, inputs, reference = right_cases(dtype, seed)[name]
        report = check_autograd_function(function, inputs, reference, seed=seed)
        assert report.passed, report


def kinds(report: Report) -> set[str]:
    return {finding.kind for finding in report.findings}


def softmax_with(backward: Any, forward: Any = Softmax.forward) -> Any:
    """Return a Softmax with another static method."""
    return type("Spoiled", (torch.autograd.Function,), {"forward": forward, "backward": backward})


def spoiled_softmax(spoil: Any) -> Any:
    return softmax_with(staticmethod(lambda context, d_out: spoil(Softmax.backward(context, d_out))))


def with_one_wrong_row(d_x: Any) -> Any:
    d_x[2] *= 0.9
    return d_x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "spoil",
    [lambda d: -d, lambda d: 1.1 * d, lambda d: d.roll(1, -1), with_one_wrong_row],
    ids=["its sign", "a factor", "shifted", "one row"],
)
def test_a_wrong_gradient_fails_in_every_dtype(spoil: Any, dtype: Any) -> None:
    report = check_autograd_function(spoiled_softmax(spoil), (normal(4, 11, dtype=dtype),), plain_softmax)
    assert report.tensors["x"].verdict == "failed", report
    assert report.tensors["output"].verdict == "passed"
    with pytest.raises(AssertionError, match="failed"):
        report.raise_if_failed()


def test_the_report_says_which_rows_are_wrong() -> None:
    report = check_autograd_function(spoiled_softmax(with_one_wrong_row), (normal(4, 11),), plain_softmax)
    tensor = report.tensors["x"]
    assert tensor.profile[0].wrong == (2,)
    assert tensor.index is not None
    assert tensor.index[0] == 2
    assert tensor.ratio == pytest.approx(0.9, rel=1e-4)
    assert "axis 0: 2 of 4 only" in str(report)


def test_precision_lost_on_the_way_fails() -> None:
    def through_bfloat16(context: Any, d_out: Any) -> Any:
        return Softmax.backward(context, d_out.bfloat16().float())

    report = check_autograd_function(
        softmax_with(staticmethod(through_bfloat16)), (normal(4, 11),), plain_softmax
    )
    assert report.tensors["x"].verdict == "failed"


def test_a_wrong_output_fails() -> None:
    report = check_autograd_function(Softmax, (normal(4, 11),), lambda x: 1.001 * plain_softmax(x))
    assert report.tensors["output"].verdict == "failed"


def straight_on(tensor: Any) -> Any:
    """Read memory as a kernel does that knows the first address and the shape alone."""
    return torch.as_strided(tensor, (tensor.numel(),), (1,), tensor.storage_offset()).view(tensor.shape)


def test_a_backward_that_ignores_strides_is_found() -> None:
    function = softmax_with(
        staticmethod(lambda context, d_out: Softmax.backward(context, straight_on(d_out)))
    )
    report = check_autograd_function(function, (normal(4, 11),), plain_softmax)
    assert {tensor.verdict for tensor in report.tensors.values()} == {"passed"}
    assert kinds(report) == {Property.LAYOUT}
    text = str(report)
    for layout in (
        "transposed",
        "a strided slice",
        "expanded with stride 0 along axis 1",
        "one value expanded",
    ):
        assert f"upstream gradient is {layout}" in text


def test_a_forward_that_ignores_strides_is_found() -> None:
    function = softmax_with(
        Softmax.backward, staticmethod(lambda context, x: Softmax.forward(context, straight_on(x)))
    )
    report = check_autograd_function(function, (normal(4, 11),), plain_softmax)
    assert kinds(report) == {Property.LAYOUT}
    assert "the input x is transposed" in str(report)


def writes_into_its_input(context: Any, x: Any) -> Any:
    out = Softmax.forward(context, x)
    x.detach().mul_(2)
    return out


def writes_into_the_upstream_gradient(context: Any, d_out: Any) -> Any:
    d_x = Softmax.backward(context, d_out)
    d_out.mul_(2)
    return d_x


def returns_double(context: Any, x: Any) -> Any:
    return Softmax.forward(context, x).double()


def accumulates() -> Any:
    totals: list[Any] = []

    def backward(context: Any, d_out: Any) -> Any:
        totals.append(Softmax.backward(context, d_out))
        return sum(total for total in totals if total.shape == d_out.shape)

    return backward


@pytest.mark.parametrize(
    ("kind", "forward", "backward"),
    [
        (Property.INPUTS_UNTOUCHED, writes_into_its_input, Softmax.backward),
        (Property.INPUTS_UNTOUCHED, Softmax.forward, writes_into_the_upstream_gradient),
        (Property.DTYPE, returns_double, lambda context, d_out: Softmax.backward(context, d_out).float()),
        (Property.REPEATABLE, Softmax.forward, accumulates()),
    ],
)
def test_a_broken_property_is_named(kind: Property, forward: Any, backward: Any) -> None:
    function = softmax_with(staticmethod(backward), staticmethod(forward))
    report = check_autograd_function(function, (normal(4, 11),), plain_softmax)
    assert report.verdict == "failed"
    assert kind in kinds(report), report


def test_a_function_that_writes_into_its_input_spoils_no_later_trial() -> None:
    function = softmax_with(Softmax.backward, staticmethod(writes_into_its_input))
    report = check_autograd_function(function, (normal(4, 11),), plain_softmax)
    assert {tensor.verdict for tensor in report.tensors.values()} == {"passed"}
    assert Property.INPUTS_UNTOUCHED in kinds(report)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gradient_of_zero_may_be_computed_as_noise(dtype: Any) -> None:
    """A softmax ignores what is added to all its scores."""

    def shifted(x: Any, shift: Any) -> Any:
        return plain_softmax(x + shift)

    def kernel(x: Any, shift: Any) -> Any:
        return Softmax.apply(x + shift)

    inputs = (normal(4, 11, dtype=dtype), normal(4, 1, dtype=dtype, seed=1))
    assert check_autograd_function(kernel, inputs, shifted).passed
    missing = check_autograd_function(lambda x, shift: Softmax.apply(x + shift.detach()), inputs, shifted)
    assert missing.passed


def test_an_input_cut_off_from_the_output_fails() -> None:
    inputs = (normal(2, 5), normal(3, 5, seed=1), normal(3, seed=2))
    report = check_autograd_function(
        lambda x, weight, bias: functional.linear(x, weight.detach(), bias),
        inputs,
        functional.linear,
        names=["x", "weight", "bias"],
    )
    assert {name for name, tensor in report.tensors.items() if tensor.verdict == "failed"} == {"weight"}


def test_a_function_that_raises_fails_and_says_in_which_call() -> None:
    def raises(*arguments: Any) -> Any:
        raise ZeroDivisionError("there it is")

    report = check_autograd_function(raises, (normal(4, 11),), plain_softmax)
    assert kinds(report) == {Property.RUNS}
    assert "function raised ZeroDivisionError: there it is" in str(report)
    report = check_autograd_function(softmax_with(staticmethod(raises)), (normal(4, 11),), plain_softmax)
    assert "backward raised ZeroDivisionError: there it is" in str(report)
    report = check_autograd_function(lambda x: (plain_softmax(x), x * 1), (normal(4, 11),), plain_softmax)
    assert "2 outputs" in str(report)


@pytest.mark.parametrize("name", ["forward", "backward"])
def test_a_raise_at_any_call_fails(name: str) -> None:
    calls: list[int] = []

    def counted(until: int) -> Any:
        right = getattr(Softmax, name)

        def call(*arguments: Any) -> Any:
            calls.append(1)
            if len(calls) == until:
                raise RuntimeError("late")
            return right(*arguments)

        return type("Late", (Softmax,), {name: staticmethod(call)})

    assert check_autograd_function(counted(0), (normal(4, 11),), plain_softmax).passed
    total = len(calls)
    for until in range(1, total + 1):
        calls.clear()
        report = check_autograd_function(counted(until), (normal(4, 11),), plain_softmax)
        assert report.verdict == "failed", until
        assert {finding.kind for finding in report.findings} <= {Property.RUNS, Property.LAYOUT}


def test_inputs_are_left_alone() -> None:
    x = normal(4, 11).requires_grad_()
    kept = x.detach().clone()
    check_autograd_function(
        softmax_with(Softmax.backward, staticmethod(writes_into_its_input)), (x,), plain_softmax
    )
    assert torch.equal(x.detach(), kept)
    assert x.grad is None


@pytest.mark.parametrize(
    ("function", "inputs", "reference", "message"),
    [
        (3, (normal(3),), torch.sin, "function must be"),
        (torch.sin, (normal(3),), 3, "reference must be callable"),
        (torch.sin, normal(3), torch.sin, "list or tuple"),
        (torch.sin, (torch.arange(3),), torch.sin, "floating tensor"),
        (torch.sin, (normal(3),), lambda x: 1 / 0, "reference raised ZeroDivisionError"),
        (torch.sin, (normal(3),), lambda x: x.float().sin(), "dtype of its inputs"),
        (torch.sin, (normal(3),), lambda x: x.argmax(), "floating tensors only"),
    ],
)
def test_wrong_usage_says_what_to_change(function: Any, inputs: Any, reference: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_autograd_function(function, inputs, reference=reference)


def test_missing_torch_gives_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="pip install"):
        check_autograd_function(Softmax, (None,), plain_softmax)
