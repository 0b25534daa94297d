"""The benchmarks: their statistics, counts and checks. Nothing here asserts how long anything takes."""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import json
import math
import operator
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import threadpoolctl
import torch
from rich.console import Console

import numpy_gpt as ng
import torch_gpt
from benchmarks import memory
from benchmarks.cases import CASES, Case
from benchmarks.checking import NOISE_LIMIT, check_training, require_right
from benchmarks.cli import COMMANDS, main
from benchmarks.commands.compare import CompareOptions, change, differences, matches
from benchmarks.commands.decode import DecodeOptions
from benchmarks.commands.ladder import ORDER, LadderOptions, climb
from benchmarks.commands.op import OpOptions
from benchmarks.commands.scaling import ScalingOptions, thread_counts, with_size
from benchmarks.commands.step import StepOptions
from benchmarks.commands.table import BEGIN, END, make_tables, put_between_marks
from benchmarks.decoding import DECODERS, worst_disagreement
from benchmarks.flops import Product, matrix_products, training_flops
from benchmarks.machine import LoadMeter, describe_machine, processors_for
from benchmarks.operations import all_operands, op_call, worst_op_error
from benchmarks.opponents import OPPONENTS, contestant
from benchmarks.opponents.ours import NumpyTraining, table
from benchmarks.opponents.torch_eager import EagerTraining, fused_model
from benchmarks.opponents.torch_shards import ShardedTraining
from benchmarks.opponents.training import Setup, Training
from benchmarks.options import MeasureOptions
from benchmarks.pairing import measure_pairs
from benchmarks.plots import plot_ratios
from benchmarks.processes import WorkerError, run_job
from benchmarks.products import MAKERS, factors, peak_flops, products_seconds
from benchmarks.report import machine_lines, markdown, notes, results_table
from benchmarks.results import Comparison, Results, Skipped
from benchmarks.runner import Plan, Runner, Side
from benchmarks.statistics import LOAD_LIMIT, SPREAD_LIMIT, ratio_of_medians, reasons_to_doubt
from benchmarks.timing import median_seconds
from numpy_gpt.arrays import Array
from numpy_gpt.kernels.workspace import Workspace, empty
from numpy_gpt.model import TABLES
from numpy_gpt.ops import Op, Ops, book, causal_mask
from numpy_gpt.parallel import Team, current_team
from numpy_gpt.verify.bugs import CATALOGUE, Bug

MINUTE = Case("minute", ng.GPTConfig(13, 7, embedding_dim=12, num_heads=3, num_layers=2), 3, 5)
PROJECT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def threads_of_torch() -> Iterator[None]:
    """Contestants set torch's threads, which are the process's."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


# Statistics


def test_a_constant_ratio_has_an_interval_of_one_point() -> None:
    second = np.random.default_rng(0).uniform(1, 9, 20)
    ratio = ratio_of_medians(2 * second, second)
    assert ratio == pytest.approx((2, 2, 2))
    assert ratio is not None
    assert not ratio.spans_one


def test_the_interval_of_few_pairs_is_that_of_all_their_draws() -> None:
    first, second = np.array([1.0, 8.0, 2.0, 5.0, 3.0]), np.array([2.0, 3.0, 5.0, 4.0, 2.5])
    draws = np.array(list(itertools.product(range(5), repeat=5)))  # equally likely, all 3,125
    ratios = np.median(first[draws], axis=1) / np.median(second[draws], axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    assert low < np.quantile(ratios, 0.06) < np.quantile(ratios, 0.94) < high  # other shares would show
    assert ratio_of_medians(first, second) == pytest.approx((1.0, low, high))


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    random, trials = np.random.default_rng(1), 40
    held = 0
    for _ in range(trials):
        machine = random.lognormal(0, 0.3, 20)  # slow and fast spells, which a pair shares
        first, second = (machine * random.lognormal(0, 0.05, 20) for _ in range(2))
        ratio = ratio_of_medians(0.8 * first, second)
        assert ratio is not None
        held += ratio.low <= 0.8 <= ratio.high
    assert held >= 0.85 * trials


def test_pairs_are_drawn_together_and_others_apart() -> None:
    spells = np.random.default_rng(2).lognormal(0, 1, 20)
    together, apart = ratio_of_medians(spells, spells), ratio_of_medians(spells, spells, paired=False)
    assert together is not None
    assert apart is not None
    assert together.low == together.high == 1
    assert apart.low < 0.9
    assert apart.high > 1.1


def test_equal_samples_give_equal_intervals_and_what_is_not_positive_gives_none() -> None:
    first, second = np.random.default_rng(3).uniform(1, 2, (2, 12))
    assert ratio_of_medians(first, second) == ratio_of_medians(first, second)
    assert ratio_of_medians([1.0, -1.0], [1.0, 1.0]) is None
    assert ratio_of_medians([1.0, 1.0], [0.0, 1.0]) is None
    for bad in (([1.0], [1.0, 2.0]), ([], [])):
        with pytest.raises(ValueError, match="samples on both sides"):
            ratio_of_medians(*bad)


def test_no_difference_is_said_when_the_interval_spans_one() -> None:
    random = np.random.default_rng(4)
    equal = ratio_of_medians(random.normal(10, 1, 20), random.normal(10, 1, 20))
    unequal = ratio_of_medians(random.normal(5, 0.1, 20), random.normal(10, 0.1, 20))
    assert "no difference" in str(equal)
    assert "no difference" not in str(unequal)


def test_spread_and_load_make_a_comparison_unstable() -> None:
    calm = [1.0, 1.01, 0.99, 1.0]
    wild = [1.0, 1.0 + 3 * SPREAD_LIMIT, 1.0 - 3 * SPREAD_LIMIT, 1.0]
    assert reasons_to_doubt({"times": (calm, calm)}, load=0.0) == ()
    assert "times of A" in reasons_to_doubt({"times": (wild, calm)}, load=0.0)[0]
    assert "times of B" in reasons_to_doubt({"times": (calm, wild)}, load=0.0)[0]
    assert "other programs" in reasons_to_doubt({"times": (calm, calm)}, load=2 * LOAD_LIMIT)[0]


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    ("quantity", "size", "reasons"),
    [
        ("seconds", 0.5, {"times", "remainders"}),
        ("products_seconds", 0.05, {"matrix products"}),
        ("products_seconds", 0.5, {"matrix products", "remainders"}),
    ],
)
def test_every_column_of_times_is_judged(side: int, quantity: str, size: float, reasons: set[str]) -> None:
    steady = {"seconds": (1.0,) * 8, "products_seconds": (0.1 if size < 0.1 else 0.5,) * 8}
    samples = {name: [values, values] for name, values in steady.items()}
    values = steady[quantity]
    samples[quantity][side] = tuple(value + size / 4 * (-1) ** i for i, value in enumerate(values))
    found = invented(samples={name: (sides[0], sides[1]) for name, sides in samples.items()})
    assert {reason.split(" of ")[0].removeprefix("the ") for reason in found.unstable} == reasons
    assert all(f" of {'AB'[side]} spread" in reason for reason in found.unstable)
    text = markdown(results_of(found))
    assert all(reason in text for reason in found.unstable)


def test_remainders_that_are_not_positive_are_not_judged() -> None:
    second = (1.0, 1.1, 0.9)
    found = invented(samples={"seconds": (second, second), "products_seconds": (second, second)})
    assert found.ratios["remainder"] is None
    assert not any("remainder" in reason for reason in found.unstable)


# Floating-point operations


class Counting(np.ndarray):
    """An array whose products of matrices are counted, wherever NumPy makes them."""

    flops = 0

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        plain = [np.asarray(value) if isinstance(value, Counting) else value for value in inputs]
        if "out" in options:
            options["out"] = tuple(None if o is None else np.asarray(o) for o in options["out"])
        result = getattr(ufunc, method)(*plain, **options)
        if ufunc is np.matmul and min(value.ndim for value in plain) > 1:  # sums of rows are no such product
            Counting.flops += 2 * result.size * plain[0].shape[-1]
        return result.view(Counting) if isinstance(result, np.ndarray) else result


def counted_flops(case: Case) -> int:
    """Return what the book's forward and backward really multiply, masked scores and all."""
    model = ng.GPT(case.config, ops="book")
    flat = model.parameters.flat.view(Counting)
    counting = ng.GPT.from_parameters(ng.Parameters(case.config, flat), ops="book")
    Counting.flops = 0
    counting.loss_and_gradients(*case.batch())
    return Counting.flops


def test_the_count_is_that_of_every_product_that_the_book_makes() -> None:
    one_token = dataclasses.replace(MINUTE, num_tokens=1)  # nothing is masked
    assert training_flops(one_token) == counted_flops(one_token)


def test_of_attention_only_the_past_counts() -> None:
    B, T, C, L = MINUTE.batch_size, MINUTE.num_tokens, MINUTE.config.embedding_dim, MINUTE.config.num_layers
    masked = int(causal_mask(T, T).sum())
    products = 6  # two forward, and two for each of them backward
    assert counted_flops(MINUTE) - training_flops(MINUTE) == products * 2 * B * masked * C * L


@pytest.mark.parametrize("library", MAKERS)
@pytest.mark.parametrize("product", list(matrix_products(MINUTE)), ids=lambda p: p.name)
def test_the_products_that_are_timed_are_right(library: str, product: Product) -> None:
    a, b, _ = factors(product)
    assert (*a.shape, b.shape[-1]) == (product.stack, *product.shape)
    with MAKERS[library](product, 2) as multiply:
        found = np.asarray(multiply())
    expected = a @ b
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)


def test_a_stack_is_cut_among_the_threads_of_a_team(monkeypatch: pytest.MonkeyPatch) -> None:
    spans: list[int] = []
    run = Team.run
    monkeypatch.setattr(Team, "run", lambda team, tasks: spans.append(len(tasks)) or run(team, tasks))
    stack = next(product for product in matrix_products(MINUTE) if product.stack > 1)
    for threads in (1, 2, 3):
        with MAKERS["numpy"](stack, threads) as multiply:
            multiply()
    assert spans == [2, 3]


@pytest.mark.parametrize("ops", ["fast", "book"])
def test_an_operation_has_the_threads_and_the_memory_that_it_has_in_a_model(
    ops: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, list[int], bool]] = []
    asked: list[tuple[int, ...]] = []
    lend = Workspace.empty
    monkeypatch.setattr(Workspace, "empty", lambda self, *what: asked.append(what[0]) or lend(self, *what))

    def look(*_: Any) -> None:
        blas = [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
        asked.clear()
        empty((3,), np.float32)
        seen.append((current_team().size, blas, bool(asked)))

    def forward(x: Array, **_: Any) -> tuple[Array, None]:
        look()
        return x, None

    def backward(d_out: Array, _: None) -> tuple[Array]:
        look()
        return (d_out,)

    monkeypatch.setitem(TABLES, ops, TABLES[ops]._replace(gelu=Op(forward, backward)))
    operands = dict(all_operands(MINUTE))["gelu"]
    with op_call(TABLES[ops], "gelu", operands, 2) as call:
        call.forward()
        call.backward()
    size, blas_limit = (2, 1) if ops == "fast" else (1, 2)
    for team_size, blas, reused in seen:
        assert team_size == size
        assert max(blas) <= blas_limit
        assert reused == (ops == "fast")
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("siblings", "threads", "expected"),
    [
        ({0: "0,4", 4: "0,4", 1: "1,5", 5: "1,5"}, 1, [0]),
        ({0: "0,4", 4: "0,4", 1: "1,5", 5: "1,5"}, 2, [0, 1]),
        ({0: "0,4", 4: "0,4", 1: "1,5", 5: "1,5"}, 3, [0, 1, 4]),
        ({0: "0,4", 4: "0,4", 1: "1,5", 5: "1,5"}, 4, None),
        ({0: "0", 1: "1"}, 1, [0]),
    ],
)
def test_threads_have_as_many_processors_on_as_many_cores_as_there_are(
    siblings: dict[int, str], threads: int, expected: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {text: min(n for n in siblings if siblings[n] == text) for text in siblings.values()}
    monkeypatch.setattr("benchmarks.machine.usable_processors", lambda: tuple(sorted(siblings)))
    monkeypatch.setattr("benchmarks.machine.usable_cores", lambda: sorted(first.values()))
    assert processors_for(threads) == expected


def test_the_axis_of_threads_ends_where_the_run_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.runner.run_job", FakeJobs())
    runner = Runner(Plan(pairs=1, seconds=0.0, peak_seconds=0.0), threads=3)
    found = [one for one in ScalingOptions(axes=("threads",)).compare(runner) if isinstance(one, Comparison)]
    assert [one.threads for one in found] == [(1, 1), (2, 2), (3, 3)]


def test_a_median_is_of_several_calls_however_long_they_take() -> None:
    calls = itertools.count()
    median_seconds(lambda: next(calls), seconds=0.0)
    assert next(calls) == 1 + 5


@pytest.mark.parametrize("library", MAKERS)
def test_products_are_timed_several_times_too(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        "benchmarks.products.median_seconds", lambda call, *, seconds, at_least: asked.append(at_least) or 1.0
    )
    monkeypatch.setattr("benchmarks.products.PEAK_SIZES", (8,))
    products_seconds(library, MINUTE, 1, seconds=0.0)
    peak_flops(library, 1, seconds=0.0)
    assert set(asked) == {3}


# Checking


def numpy_build(ops: Ops) -> Callable[[Setup], Training]:
    return lambda setup: NumpyTraining(setup, ops)


OPPONENT_NAMES = [
    pytest.param(name, marks=[pytest.mark.slow] if name == "torch-compile" else []) for name in OPPONENTS
]


@pytest.mark.parametrize("name", ["numpy", "numpy:book", "numpy:gelu+linear", *OPPONENT_NAMES])
def test_every_contestant_computes_what_torch_computes(name: str) -> None:
    if reason := contestant(name).obstacle(MINUTE):
        pytest.skip(reason)
    require_right(MINUTE, name, *check_training(MINUTE, contestant(name).build, threads=2))


@pytest.mark.parametrize("qkv_bias", [True, False])
def test_torch_makes_queries_keys_and_values_in_one_product(qkv_bias: bool) -> None:
    case = dataclasses.replace(MINUTE, config=dataclasses.replace(MINUTE.config, qkv_bias=qkv_bias))
    for name in ("torch-eager", "torch-shards"):
        require_right(case, name, *check_training(case, contestant(name).build, threads=2))
    training = EagerTraining(Setup(case.config, case.batch(), threads=1))
    C, L = case.config.embedding_dim, case.config.num_layers
    inside = [tuple(p.shape) for name, p in training.model.named_parameters() if ".attention." in name]
    assert inside.count((3 * C, C)) == L
    assert inside.count((C, C)) == L  # of the output alone


def test_what_is_fused_must_not_widen_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def mixed_up(setup: Setup) -> torch_gpt.GPT:
        model = fused_model(setup)
        for block in model.transformer_blocks:
            block.attention.W_qkv.weight.data = block.attention.W_qkv.weight.data.roll(1, dims=0)
        return model

    monkeypatch.setattr("benchmarks.opponents.torch_eager.fused_model", mixed_up)
    with pytest.raises(ArithmeticError, match="torch-eager is wrong"):
        require_right(MINUTE, "torch-eager", *check_training(MINUTE, EagerTraining, threads=1))


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("ignored", [(0,), (2,), (0, 1, 2)])
def test_a_shard_without_targets_adds_nothing(threads: int, ignored: tuple[int, ...]) -> None:
    batch = MINUTE.batch()
    batch.target_ids[list(ignored)] = -100
    state = ng.GPT(MINUTE.config).state_dict()
    setup = Setup(MINUTE.config, batch, threads, state=state)
    ours, shards = NumpyTraining(setup, "book"), ShardedTraining(setup)
    assert len(shards.shards) == min(threads, MINUTE.batch_size)
    assert shards.forward_backward() == pytest.approx(ours.forward_backward(), rel=1e-5)
    for name, gradient in ours.gradients().items():
        np.testing.assert_allclose(shards.gradients()[name], gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("threads", "each"), [(1, 1), (3, 1), (7, 2)])
def test_shards_have_all_threads_between_them(threads: int, each: int) -> None:
    shards = ShardedTraining(Setup(MINUTE.config, MINUTE.batch(), threads))
    assert shards.pool.submit(torch.get_num_threads).result() == each


# Wrong numbers in each operation that a model calls; the catalogue's own test plants all of its bugs.
WRONG_OPS = [
    bug
    for bug in CATALOGUE
    if bug.name
    in {
        "linear-bias-gradient-averaged",
        "layer-norm-mean-term-forgotten",
        "layer-norm-unbiased-variance",
        "gelu-exact-slope-behind-tanh-form",
        "embedding-repeats-lost",
        "attention-row-term-forgotten",
        "attention-mask-off-by-one",
        "head-tail-dropped",
    }
]


@pytest.mark.parametrize("bug", WRONG_OPS, ids=lambda bug: bug.name)
def test_what_computes_wrongly_is_not_timed(bug: Bug) -> None:
    check = check_training(MINUTE, numpy_build(bug.subject.ops), threads=1)
    with pytest.raises(ArithmeticError, match="numpy is wrong on minute, so it is not timed"):
        require_right(MINUTE, "numpy", *check)


class WithoutClipping(NumpyTraining):
    def step(self) -> float:
        loss = self.forward_backward()
        self.optimizer.step(self.gradient)
        return loss


class WithoutDecay(NumpyTraining):
    def __init__(self, setup: Setup, ops: Ops) -> None:
        super().__init__(setup, ops)
        self.optimizer.weight_decay = 0.0


@pytest.mark.parametrize("wrong", [WithoutClipping, WithoutDecay])
def test_a_wrong_update_is_found_too(wrong: type[NumpyTraining]) -> None:
    check = check_training(MINUTE, lambda setup: wrong(setup, book), threads=1)
    with pytest.raises(ArithmeticError, match=r"update of .* differs from torch's"):
        require_right(MINUTE, "numpy", *check)


def test_errors_that_are_not_numbers_are_wrong() -> None:
    with pytest.raises(ArithmeticError):
        require_right(MINUTE, "numpy", ("loss", float("nan")))


def test_single_operations_are_checked_too() -> None:
    for right in (book, table("fast")):
        assert worst_op_error(MINUTE, right, threads=1)[1] <= NOISE_LIMIT
    for bug in WRONG_OPS:
        operation, error = worst_op_error(MINUTE, bug.subject.ops, threads=1)
        assert error > NOISE_LIMIT, bug.name
        assert operation == bug.op


def test_a_wrong_output_is_found_where_its_gradients_are_right() -> None:
    def louder(x: Array, **options: Any) -> tuple[Array, Any]:
        y, saved = book.gelu.forward(x, **options)
        return 1.01 * y, saved

    ops = book._replace(gelu=Op(louder, book.gelu.backward))
    operation, error = worst_op_error(MINUTE, ops, threads=1)
    assert operation == "gelu"
    assert error > NOISE_LIMIT


def test_operands_stand_for_every_operation_in_order() -> None:
    assert tuple(name for name, _ in all_operands(MINUTE)) == Ops._fields


GENERATION = dataclasses.replace(MINUTE, batch_size=1, num_tokens=2)


@pytest.mark.parametrize("name", DECODERS)
def test_what_is_generated_is_what_hugging_face_expects(name: str) -> None:
    pytest.importorskip("transformers")
    require_right(GENERATION, name, worst_disagreement(GENERATION, name, 5, threads=1))


def test_a_cache_that_forgets_is_found_at_whatever_token(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    call = ng.GPT.__call__

    def forgetful(model: ng.GPT, token_ids: Any, *, cache: Any = None) -> Array:
        logits = call(model, token_ids, cache=cache)
        return logits * np.float32(1.01) if cache.length == 5 else logits  # the same token, but wrong

    monkeypatch.setattr(ng.GPT, "__call__", forgetful)
    what, error = worst_disagreement(GENERATION, "numpy", 5, threads=1)
    assert what == "a logit of token 4"
    assert error == pytest.approx(0.01, rel=0.01)


def test_tokens_after_the_first_that_differs_are_judged_too(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    generate = ng.generate
    monkeypatch.setattr(ng, "generate", lambda *args, **options: [*[*generate(*args, **options)][:4], 0])
    right = worst_disagreement(GENERATION, "hugging-face", 5, threads=1)
    what, error = worst_disagreement(GENERATION, "numpy", 5, threads=1)
    assert right[1] < NOISE_LIMIT < error
    assert what == "token 5 that it generates"


# Who is to blame


class FakeJobs:
    """Stands for fresh processes: says who was asked what, and fails or errs where it is told to."""

    def __init__(self, **faults: str) -> None:
        self.faults = faults  # "fails" or "is wrong", by name and task joined by an underscore
        self.asked: list[tuple[str, str, int]] = []

    def __call__(self, task: str, *, threads: int, name: str, **arguments: Any) -> Any:
        self.asked.append((task, name, threads))
        fault = self.faults.get(f"{name}_{task}".replace("-", "_"))
        if fault == "fails":
            raise WorkerError(f"{task} failed (exit 1): OSError: no luck")
        if task.startswith("check"):
            return {"worst": ("loss", 1.0 if fault == "is wrong" else 0.0), "limit": 0.1}
        if task == "ops":
            return {"gelu forward": 1.0}
        return {"seconds": 1.0}


COMMANDS_THAT_RACE: list[tuple[MeasureOptions, str, str]] = [
    (StepOptions(quick=True), "torch-eager", "step"),
    (ScalingOptions(quick=True), "torch-eager", "step"),
    (OpOptions(quick=True), "torch", "ops"),
    (DecodeOptions(quick=True), "hugging-face", "decode"),
]


def outcome(
    options: MeasureOptions, monkeypatch: pytest.MonkeyPatch, jobs: FakeJobs
) -> list[Comparison | Skipped]:
    """Return all that a command finds on two threads, where processes are played."""
    monkeypatch.setattr("benchmarks.runner.run_job", jobs)
    return list(options.compare(Runner(Plan(pairs=1, seconds=0.0, peak_seconds=0.0), threads=2)))


@pytest.mark.parametrize(("options", "opponent", "task"), COMMANDS_THAT_RACE, ids=str)
@pytest.mark.parametrize("fault", ["check fails", "check is wrong", "measuring fails"])
def test_an_opponent_at_fault_is_skipped_by_name(
    options: MeasureOptions, opponent: str, task: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    where, _, what = fault.partition(" ")
    if where == "check" and opponent == "torch":
        pytest.skip("torch's own functions are what operations are checked against")
    check = "check_decode" if task == "decode" else "check"
    key = f"{opponent}_{check if where == 'check' else task}".replace("-", "_")
    found = outcome(options, monkeypatch, FakeJobs(**{key: what}))
    skipped = [one for one in found if isinstance(one, Skipped)]
    assert {one.name for one in skipped} == {opponent}
    assert all(opponent in one.reason for one in skipped)
    others = [one for one in found if isinstance(one, Comparison)]
    assert all(one.second != opponent for one in others)
    if task == "ops":
        assert others, "the book was measured all the same"


OURS_THAT_RACE = [
    *((options, "numpy", task) for options, _, task in COMMANDS_THAT_RACE),
    (OpOptions(quick=True), "numpy:book", "ops"),
    (LadderOptions(quick=True), "numpy:linear", "step"),
]


@pytest.mark.parametrize(("options", "name", "task"), OURS_THAT_RACE, ids=str)
@pytest.mark.parametrize("fault", ["check fails", "check is wrong", "measuring fails"])
def test_our_own_fault_ends_the_run_and_names_us(
    options: MeasureOptions, name: str, task: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    where, _, what = fault.partition(" ")
    check = {"step": "check", "ops": "check_ops", "decode": "check_decode"}[task]
    jobs = FakeJobs(**{f"{name}_{check if where == 'check' else task}": what})
    with pytest.raises((WorkerError, ArithmeticError), match=f"^{name}"):
        outcome(options, monkeypatch, jobs)


@pytest.mark.parametrize(
    "options",
    [
        LadderOptions(quick=True),
        ScalingOptions(axes=("threads",)),
        *(options for options, *_ in COMMANDS_THAT_RACE),
    ],
    ids=str,
)
def test_each_side_is_checked_on_its_own_threads_before_it_is_timed(
    options: MeasureOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    jobs = FakeJobs()
    outcome(options, monkeypatch, jobs)
    checked = set()
    for task, name, threads in jobs.asked:
        if task.startswith("check"):
            checked.add((name, threads))
        elif name != "torch":
            assert (name, threads) in checked
    counts = Counter(asked for asked in jobs.asked if asked[0].startswith("check"))
    cases = 2 if isinstance(options, ScalingOptions) and not options.axes else 1
    assert max(counts.values()) <= cases, "nobody is checked twice on one case"


# Cases and rungs


def test_cases_survive_json() -> None:
    for case in CASES.values():
        assert Case.from_json(json.loads(json.dumps(case.to_json()))) == case


def test_a_size_changes_and_the_others_stay() -> None:
    assert with_size(MINUTE, "B", 8) == dataclasses.replace(MINUTE, batch_size=8)
    longer = with_size(MINUTE, "T", 64)
    assert (longer.num_tokens, longer.config.max_sequence_length) == (64, 64)
    assert with_size(MINUTE, "T", 2).config == MINUTE.config
    assert with_size(MINUTE, "V", 50).config.vocabulary_size == 50
    assert with_size(MINUTE, "L", 4).config.num_layers == 4
    assert [thread_counts(n) for n in (1, 2, 6, 8)] == [(1,), (1, 2), (1, 2, 4, 6), (1, 2, 4, 8)]


def test_each_rung_of_the_ladder_takes_one_more_kernel() -> None:
    kernels = Ops(*(Op(lambda *_: (), lambda *_: ()) for _ in Ops._fields))._replace(gelu=book.gelu)
    rungs = climb(kernels, threads=3)
    assert rungs[0] == ("the book", Side("numpy:book", 1))
    assert rungs[-1] == ("+ 3 threads and shards", Side("numpy", 3))
    between = [name for name in ORDER if name != "gelu"]
    assert [label for label, _ in rungs[1:-1]] == [f"+ {name}" for name in between]
    assert rungs[-2][1] == Side(f"numpy:{'+'.join(between)}", 1)
    assert climb(book, threads=1) == [("the book", Side("numpy:book", 1))]


def test_the_rung_that_completes_the_table_says_what_else_the_model_then_does() -> None:
    rungs = climb(table("fast"), threads=1)
    for label, side in rungs:
        complete = table(side.name.partition(":")[2]) == table("fast")
        assert ng.GPT(MINUTE.config, ops=table(side.name.partition(":")[2]))._is_tuned == complete
        assert ("compact lookup" in label) == complete
    assert "compact lookup" in rungs[-1][0]


def test_the_named_tables_are_mixed_from_two() -> None:
    mixed, fast = table("gelu+linear"), table("fast")
    assert (mixed.gelu, mixed.linear, mixed.attention) == (fast.gelu, fast.linear, book.attention)
    with pytest.raises(ValueError, match="no operation 'relu'"):
        table("gelu+relu")


# Pairs and processes


def test_pairs_alternate_and_never_overlap() -> None:
    order: list[str] = []

    def process(name: str) -> Callable[[], dict[str, float | None]]:
        def run() -> dict[str, float | None]:
            order.append(name)
            growth = None if name == "B" and len(order) == 3 else 1.0
            return {"seconds": float(len(order)), "growth_bytes": growth, "peak_bytes": 7.0}

        return run

    done: list[int] = []
    samples, load = measure_pairs(process("A"), process("B"), 4, on_pair=done.append)
    assert "".join(order) == "ABBAABBA"
    assert samples == {"seconds": ((1, 4, 5, 8), (2, 3, 6, 7)), "peak_bytes": ((7,) * 4, (7,) * 4)}
    assert done == [1, 2, 3, 4]
    assert 0 <= load <= 1


def test_a_failed_process_says_why_in_a_line() -> None:
    with pytest.raises(WorkerError, match=r"step failed \(exit 1\): ValueError: contestant must be"):
        run_job(
            "step",
            threads=1,
            case=MINUTE.to_json(),
            name="nobody",
            phase="step",
            seconds=0.0,
            products=False,
        )


def test_the_machine_is_described() -> None:
    machine = describe_machine()
    assert machine["processor"]
    assert machine["libraries"]["numpy"] == np.__version__
    assert 0 <= LoadMeter().share_of_others() <= 1
    assert json.loads(json.dumps(machine)) == machine


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is resident now")
def test_memory_is_that_of_the_steps_and_not_of_what_came_and_went_before() -> None:
    if not memory.forget_peak():
        pytest.skip("this system does not let the peak be forgotten")
    size = np.ones(2**24).nbytes  # what building takes and gives back
    before = memory.resident_bytes()
    meter = memory.MemoryMeter()
    idle = meter.measure()
    assert before is not None
    assert idle.peak_bytes is not None
    assert idle.growth_bytes is not None
    assert before - size // 8 <= idle.peak_bytes <= before + size // 8
    assert idle.growth_bytes <= size // 8
    np.ones(2**24)  # what a step does
    busy = meter.measure()
    assert busy.growth_bytes is not None
    assert busy.growth_bytes >= size // 2


def test_without_leave_to_forget_a_peak_no_growth_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "CLEAR_REFS", tmp_path / "absent" / "clear_refs")
    measured = memory.MemoryMeter().measure()
    assert measured.growth_bytes is None
    assert measured.peak_bytes == memory.peak_bytes()


@pytest.fixture(scope="module")
def measured() -> Comparison:
    """A minute model against torch, in real fresh processes."""
    runner = Runner(Plan(pairs=1, seconds=0.01, peak_seconds=0.01), threads=1)
    sides = Side("numpy", 1), Side("torch-eager", 1)
    (found,) = runner.race(MINUTE, *sides, phase="step")
    assert isinstance(found, Comparison), found
    return found


def test_a_race_measures_everything(measured: Comparison) -> None:
    assert {len(side) for sides in measured.samples.values() for side in sides} == {1}
    assert {"as installed", "matrix products", "remainder"} <= measured.ratios.keys()
    assert measured.errors is not None
    assert max(measured.errors) < 1e-3
    for side in (0, 1):
        assert measured.tokens_per_second(side)
        assert measured.flops_per_second(side)
    if sys.platform == "linux":
        assert {"peak memory", "memory growth"} <= measured.ratios.keys()


def test_who_cannot_run_is_skipped_with_the_reason() -> None:
    alone = dataclasses.replace(MINUTE, batch_size=1)
    runner = Runner(Plan(pairs=1, seconds=0.0, peak_seconds=0.0), threads=1)
    (found,) = runner.race(alone, Side("numpy", 1), Side("torch-shards", 1), phase="step")
    assert found == Skipped("minute", "torch-shards", "one sequence makes one shard")


# Result files


def results_of(*comparisons: Comparison, threads: int = 1) -> Results:
    blas = {"blas": "openblas 1", "kernel": "Haswell", "threads": threads}
    machine = {
        **describe_machine(),
        "date": "2030-01-01",
        "threads": threads,
        "blas": {"numpy": blas, "torch": {**blas, "blas": "mkl 2", "build": "one\ntwo"}},
        "peak": {"numpy": 1e11, "torch": 2e11},
    }
    skipped = [Skipped("minute", "jax", "jax is not installed")]
    return Results("step", {"quick": True, "threads": threads}, machine, list(comparisons), skipped)


def invented(scale: float = 1.0, pairs: int = 20, **changes: Any) -> Comparison:
    """Return a comparison with samples that nobody measured, for what is computed from them."""
    random = np.random.default_rng(5)
    first, second = (tuple(random.normal(size, 0.01 * size, pairs).tolist()) for size in (0.6 * scale, 1.0))
    half = (tuple(value / 2 for value in first), tuple(value / 4 for value in second))
    return Comparison(
        **{
            "subject": "nano",
            "first": "numpy",
            "second": "torch-eager",
            "threads": (1, 1),
            "samples": {"seconds": (first, second), "products_seconds": half},
            "load": 0.0,
            "tokens": 768,
            "flops": 10**9,
            "errors": (1e-5, 0.0),
            **changes,
        }
    )


def test_the_three_ratios_are_what_their_names_say() -> None:
    ratios = invented().ratios
    values = {name: ratio.value for name, ratio in ratios.items() if ratio is not None}
    assert values["as installed"] == pytest.approx(0.6, rel=0.02)
    assert values["matrix products"] == pytest.approx(0.6 * 2, rel=0.02)
    assert values["remainder"] == pytest.approx(0.6 * 0.5 / 0.75, rel=0.02)


def test_a_result_file_gives_back_what_was_saved(tmp_path: Path, measured: Comparison) -> None:
    results = results_of(measured, invented(errors=None, tokens=None))
    path = tmp_path / "mine.json"
    results.save(path)
    assert Results.load(path) == results
    assert list(tmp_path.iterdir()) == [path]
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["comparisons"][0]["ratios"].keys() == measured.ratios.keys()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "is no benchmark result"),
        ("[]", "the file must be an object"),
        ("{}", "format is missing"),
        ('{"format": 99}', "its format is 99"),
        ('{"format": "1"}', "its format is '1'"),
        ('{"format": true}', "its format is True"),
        ('{"format": 1, "command": "step"}', "settings is missing"),
        ("[" * 100_000, "nests"),
        ("[" * 20 + "]" * 20, "nests"),
    ],
)
def test_what_is_no_result_file_is_refused_in_a_line(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=fault) as caught:
        Results.load(path)
    assert str(path) in str(caught.value)


STRANGE: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 10**400, 1e308, 1e-308, math.nan, math.inf, "", "text", "a\nb", "\ud800"),
    *([], [1], [[], []], {}, {"a": {}}),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value inside a document; of lists only to the first two."""
    inside = (
        value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    )
    for key, inner in inside:
        yield (*path, key)
        yield from places(inner, (*path, key))


def require_one_line_or_a_table(path: Path, console: Console) -> str | None:
    """Load and show a file in every way; return what was wrong with it, which its name must begin."""
    try:
        results = Results.load(path)
    except (ValueError, OSError) as error:
        return str(error)
    markdown(results)
    console.print(results_table(results))
    for line in (*machine_lines(results.machine), *notes(results)):
        console.print(line)
    CompareOptions(path, path).run(console)
    return None


@pytest.mark.parametrize("command", ["step", "decode"])
def test_whatever_is_wrong_with_a_file_is_said_or_does_not_matter(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.statistics.RESAMPLES", 5)
    path, console = tmp_path / "bad.json", Console(file=io.StringIO())
    settings = {"quick": True, "threads": 1, "prompt_tokens": 8, "new_tokens": 4}
    memory_too = {**invented(pairs=2).samples, "peak_bytes": ((1.0, 2.0), (1.0, 2.0))}
    good = results_of(invented(pairs=2, samples=memory_too))
    dataclasses.replace(good, command=command, settings=settings).save(path)
    text = path.read_text(encoding="utf-8")
    assert require_one_line_or_a_table(path, console) is None
    refused: set[tuple[Any, ...]] = set()
    document = json.loads(text)
    if command == "decode":  # which has settings of its own, and all else as the others
        ways = [("settings", *way) for way in places(document["settings"])]
    else:
        ways = [way for way in places(document) if "ratios" not in way[:-1]]  # nobody reads what is inside
    for place in ways:
        for strange in (..., *STRANGE):
            document = json.loads(text)
            *way, last = place
            parent = functools.reduce(operator.getitem, way, document)
            if strange is ...:
                del parent[last]
            else:
                parent[last] = strange
            path.write_text(json.dumps(document), encoding="utf-8")
            if (fault := require_one_line_or_a_table(path, console)) is not None:
                assert fault.startswith(str(path))
                assert "\n" not in fault
                refused.add(place)
    sample = ("comparisons", 0, "samples", "seconds", 0, 0)
    expected = {sample, ("machine", "blas"), ("comparisons", 0, "load"), ("comparisons",)}
    assert ({("settings", "new_tokens")} if command == "decode" else expected) <= refused


@pytest.mark.parametrize("contents", [bytes(range(256)), b"\x80", b"\0" * 9])
def test_junk_gets_a_line_from_every_command_that_reads(
    contents: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "junk.json"
    path.write_bytes(contents)
    for arguments in (["table", str(path)], ["compare", str(path), str(path)]):
        assert main(arguments) == 1
        error = capsys.readouterr().err
        assert str(path) in error
        assert error.count("\n") == 1


def test_the_committed_files_load() -> None:
    for path in (PROJECT / "benchmarks/results").glob("*.json"):
        assert Results.load(path).comparisons


def test_a_table_goes_into_its_file_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, into, link = tmp_path / "mine.json", tmp_path / "page.md", tmp_path / "link.md"
    results_of(invented()).save(results)
    before = f"{BEGIN}\n{END}\n"
    into.write_text(before, encoding="utf-8")
    link.symlink_to(into)
    arguments = ["table", str(results), "--into", str(link)]
    with monkeypatch.context() as full:
        full.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "no room")))
        assert main(arguments) == 1
    assert into.read_text(encoding="utf-8") == before
    assert main(arguments) == 0
    assert link.is_symlink()
    assert "numpy" in into.read_text(encoding="utf-8")
    assert sorted(tmp_path.iterdir()) == sorted([results, into, link])


def test_samples_that_are_no_pairs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    results_of(invented()).save(path)
    document = json.loads(path.read_text(encoding="utf-8"))
    document["comparisons"][0]["samples"]["seconds"][0].pop()
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ValueError, match="seconds holds 19 and 20 samples"):
        Results.load(path)


def test_two_files_are_compared_where_both_measured_the_same() -> None:
    first = results_of(invented(), invented(subject="small"))
    second = results_of(invented(scale=0.5, pairs=12), threads=2)
    ((one, other),) = matches(first, second)
    assert one.subject == "nano"
    ratio = change(one, other, 0)
    assert ratio is not None
    assert ratio.value == pytest.approx(2, rel=0.02)
    assert not ratio.spans_one
    unchanged = change(one, other, 1)
    assert unchanged is not None
    assert unchanged.spans_one
    assert list(differences(first, first)) == []
    lines = list(differences(first, second))
    assert "settings threads: 1 | 2" in lines
    assert "blas numpy threads: 1 | 2" in lines


def test_compare_prints_both_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(tmp_path / name) for name in ("one.json", "other.json", "none.json")]
    for path, results in zip(
        paths,
        (
            results_of(invented()),
            results_of(invented(0.5), threads=2),
            results_of(invented(subject="other")),
        ),
        strict=True,
    ):
        results.save(Path(path))
    assert main(["compare", *paths[:2]]) == 0
    printed = capsys.readouterr().out
    assert "differs: settings threads: 1 | 2" in printed
    assert "2.00" in printed
    assert main(["compare", paths[0], paths[2]]) == 1
    assert "nothing in common" in capsys.readouterr().err


# What people read


def test_the_table_names_processor_and_both_libraries() -> None:
    results = results_of(invented())
    text = markdown(results)
    assert results.machine["processor"] in text
    assert "openblas 1 (Haswell)" in text
    assert "mkl 2 (Haswell)" in text
    assert results_table(results).row_count == 1


@pytest.mark.parametrize(
    ("command", "settings", "said"),
    [
        ("step", {"quick": True}, "measured with --quick, pairs: 20;"),
        ("step", {"quick": False, "phase": "step"}, "measured in full, pairs: 20;"),
        ("step", {"quick": False, "phase": "forward-backward"}, "pairs: 20, forward and backward alone;"),
        (
            "decode",
            {"quick": True, "prompt_tokens": 8, "new_tokens": 32},
            "measured with --quick, pairs: 20, prompt of 8 tokens, 32 new ones;",
        ),
    ],
)
def test_the_line_above_a_table_says_how_it_was_measured(
    command: str, settings: dict[str, Any], said: str
) -> None:
    results = dataclasses.replace(results_of(invented()), command=command, settings=settings)
    assert said in markdown(results).splitlines()[0]


def test_unstable_comparisons_are_marked() -> None:
    busy = invented(load=0.9)
    assert "UNSTABLE" in markdown(results_of(busy))
    assert "UNSTABLE" not in markdown(results_of(invented()))


def test_a_picture_is_made(tmp_path: Path, measured: Comparison) -> None:
    path = tmp_path / "ratios.svg"
    plot_ratios(results_of(measured, invented()), path)
    assert "<svg" in path.read_text(encoding="utf-8")


def test_tables_go_between_the_marks_and_nowhere_else() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    once = put_between_marks(text, "new\n")
    assert once == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert put_between_marks(once, "new\n") == once
    assert put_between_marks(once, "") == f"before\n{BEGIN}\n{END}\nafter\n"
    for bad in ("no marks", f"{END}\n{BEGIN}", text + text):
        with pytest.raises(ValueError, match="once and in this order"):
            put_between_marks(bad, "new\n")


def test_the_readme_shows_what_the_committed_results_say() -> None:
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    files = sorted((PROJECT / "benchmarks/results").glob("*.json"))
    assert put_between_marks(text, make_tables(files), "README.md") == text, (
        "run: python -m benchmarks table benchmarks/results/*.json --into README.md"
    )


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["step", "--cases", "giant"], "cases must be among nano, small"),
        (["step", "--opponents", "abacus"], "opponents must be among torch-eager"),
        (["step", "--threads", "0"], "threads must lie in 1.."),
        (["step", "--plot", "ratios.gif"], "plot must end in .png, .svg, .pdf"),
        (["step", "--out", "a.png", "--plot", "a.png"], "out and plot must be two files"),
        (["decode", "--out", "a.png", "--plot", "absent/../a.png"], "out and plot must be two files"),
        (["op", "--cases", "giant"], "cases must be among"),
        (["decode", "--new-tokens", "0"], "new_tokens must be at least 1"),
        (["decode", "--preset", "nano", "--new-tokens", "64"], "must fit 64 positions"),
        (["scaling", "--axes", "H"], "axes must be among T, B, V, L, threads"),
        (["ladder", "--cases", "giant"], "cases must be among"),
    ],
)
def test_settings_that_make_no_run_are_refused(
    arguments: list[str], fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.cli.measure", lambda *_: pytest.fail("it began to measure"))
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert fault in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arguments", "code", "fault"),
    [
        (["step", "--out", "README.md"], 2, "README.md: is there already"),
        (["step", "--out", "absent/mine.json"], 1, "absent: there is no such folder"),
        (["compare", "absent.json", "README.md"], 1, "absent.json: No such file"),
        (["table", "README.md"], 1, "README.md is no benchmark result"),
    ],
)
def test_bad_input_gets_one_line(
    arguments: list[str],
    code: int,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(PROJECT)
    assert main(arguments) == code
    error = capsys.readouterr().err
    assert fault in error
    assert error.count("\n") == 1


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        with pytest.raises(SystemExit) as caught:
            main([name, "--help"])
        assert caught.value.code == 0
    assert "--quick" in capsys.readouterr().out
