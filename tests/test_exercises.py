"""The exercises: solvable, unsolved as handed out, and every classic mistake gets an answer that helps and
does not give the solution away."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import numpy_gpt
from numpy_gpt.learn.exercises.advice import BY_KIND, BY_PROPERTY
from numpy_gpt.learn.exercises.comparing import TOLERANCE, difference
from numpy_gpt.learn.exercises.course import COURSE, UnknownExerciseError, find, position
from numpy_gpt.learn.exercises.examination import Outcome, examine
from numpy_gpt.learn.exercises.exercise import Exercise
from numpy_gpt.learn.exercises.handout import handout
from numpy_gpt.ops import Ops, book
from numpy_gpt.verify import Kind, Property
from numpy_gpt.verify.bugs import CATALOGUE, Bug

every_exercise = pytest.mark.parametrize("exercise", COURSE, ids=lambda exercise: exercise.name)


def handed_out(exercise: Exercise) -> str:
    return handout(exercise, position(exercise))


def with_function(exercise: Exercise, source: str, *, after: str = "") -> str:
    """Return the handed-out file with the function to write replaced, and with lines at its end."""
    text = handed_out(exercise)
    name = exercise.solution.__name__
    node = next(each for each in ast.parse(text).body if getattr(each, "name", None) == name)
    lines = text.splitlines()
    return "\n".join([*lines[: node.lineno - 1], source, *lines[node.end_lineno :], after]) + "\n"


def solved(exercise: Exercise) -> str:
    """Return the handed-out file with the solution in it, as a learner might have written it."""
    source = inspect.getsource(exercise.solution)
    return with_function(
        exercise, source.replace('"""', '"""', 1), after="from numpy_gpt.arrays import deliver"
    )


def ask(exercise: Exercise, source: str) -> Outcome:
    return examine(exercise, source.encode(), f"exercises/{exercise.name}.py")


def code_lines(exercise: Exercise) -> list[str]:
    """Return what the solution computes, whole lines and their parts, without spaces."""
    (function,) = ast.parse(inspect.getsource(exercise.solution)).body
    assert isinstance(function, ast.FunctionDef)
    nodes = [node for statement in function.body[1:] for node in ast.walk(statement)]
    parts = ["".join(ast.unparse(node).split()) for node in nodes if isinstance(node, ast.BinOp | ast.Call)]
    return sorted({part for part in parts if len(part) > 10})


def assert_gives_nothing_away(exercise: Exercise, text: str) -> None:
    given = "".join(handed_out(exercise).split())
    told = "".join(text.split())
    for line in code_lines(exercise):
        assert line not in told or line in given, f"the solution's {line} is told"


# --- the course ---------------------------------------------------------------------------------------------


def test_the_course_is_the_promised_one() -> None:
    assert [exercise.name for exercise in COURSE] == [
        *("line", "linear", "softmax", "cross_entropy", "gelu", "layer_norm", "embedding", "causal_mask"),
        *("attention_core", "heads", "residual_block", "tied_projection", "adamw", "cached_step"),
    ]


def test_an_exercise_is_found_by_name_and_number_however_it_is_written() -> None:
    for name in ("layer_norm", "layer-norm", " Layer_Norm", "6"):
        assert find(name).name == "layer_norm"
    for name in ("", "-1", "0", "15", "layer", "line\n\x1b[2J"):
        with pytest.raises(UnknownExerciseError, match="there are line, linear, softmax"):
            find(name)


def test_operations_of_the_book_are_handed_out_under_their_own_names() -> None:
    for exercise in COURSE:
        if exercise.op:
            assert (exercise.forward, exercise.solution) == tuple(getattr(book, exercise.op))
    assert {exercise.op for exercise in COURSE} - {None} == set(Ops._fields) - {"linear_cross_entropy"}


@every_exercise
def test_the_reference_solves_it_and_the_file_as_handed_out_does_not(exercise: Exercise) -> None:
    untouched = ask(exercise, handed_out(exercise))
    assert untouched.verdict == "unwritten"
    found = re.fullmatch(
        r"nothing written yet: start here: exercises/\w+\.py, line (\d+)", untouched.lines[0]
    )
    assert found
    line = int(found[1])
    assert "# Your lines go here" in "\n".join(handed_out(exercise).splitlines()[line - 2 : line])
    assert ask(exercise, solved(exercise)) == Outcome("solved")


@every_exercise
def test_comments_and_blank_lines_are_nothing_written(exercise: Exercise) -> None:
    source = handed_out(exercise).replace("# Your lines go here", "# where do I begin?\n\n    # here")
    assert ask(exercise, source).verdict == "unwritten"


@every_exercise
def test_the_file_holds_no_solution_and_teaches(exercise: Exercise) -> None:
    text = handed_out(exercise)
    flat = "".join(text.split())
    for line in code_lines(exercise):
        given = [each for each in (exercise.forward, *exercise.given) if each]
        shared = any(line in "".join(inspect.getsource(each).split()) for each in given)
        assert line not in flat or shared, line
    for heading in ("\nShapes\n", "\nTask\n", f"\n    numpy-gpt exercise check {exercise.name}\n"):
        assert heading in text
    assert len(text.splitlines()) < 120
    assert max(map(len, text.splitlines())) <= 116
    assert "out: tuple" not in text
    assert "the other factor" not in text, "what saved values are for is half of the solution"
    assert text.startswith(f'"""Exercise {COURSE.index(exercise) + 1} of 14. ')


@every_exercise
def test_there_are_three_hints_and_none_is_the_solution(exercise: Exercise) -> None:
    assert len(set(exercise.hints)) == 3
    for hint in exercise.hints:
        assert 60 < len(hint) < 420
        assert_gives_nothing_away(exercise, hint)


def test_the_file_of_exercise_0_nudges_and_compares(tmp_path: Path) -> None:
    path = tmp_path / "line.py"
    path.write_text(solved(find("line")), encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(Path(numpy_gpt.__file__).parents[1])}
    printed = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, check=True, env=environment
    ).stdout
    measured, derived, step = printed.splitlines()
    numbers = re.compile(r"-?\d+\.\d{6}")
    assert numbers.findall(measured) == numbers.findall(derived)
    before, after = map(float, re.findall(r"\d+\.\d{4}", step))
    assert after < before


# --- mistakes -----------------------------------------------------------------------------------------------

OUT_IS_THE_MODELS = {"gelu-out-raveled", "layer-norm-adds-to-out", "embedding-stale-positions"}
"""Mistakes with `out=`, which no learner's function has."""

BACKWARD_BUGS = [
    (exercise, bug)
    for exercise in COURSE
    for bug in CATALOGUE
    if exercise.op and bug.op == exercise.op and bug.name not in OUT_IS_THE_MODELS
    if getattr(bug.subject.ops, bug.op).backward is not exercise.solution
]
FORWARD_IS_RIGHT = {"linear-gradient-accumulates"}  # it only prepares the mistake


def planted(exercise: Exercise, bug: Bug) -> str:
    """Return a learner's file in which somebody has made a mistake of the catalogue."""
    assert exercise.op is not None
    assert exercise.forward is not None
    forward, backward = getattr(bug.subject.ops, exercise.op)
    module = backward.__module__
    source = inspect.getsource(backward)
    source = source.replace(f"def {backward.__name__}(", f"def {exercise.solution.__name__}(", 1)
    after = f"from {module} import *\nimport {module} as planted\n"
    after += "".join(
        f"{name} = planted.{name}\n" for name in ("Out", "_places") if name in vars(sys.modules[module])
    )
    if forward is not exercise.forward:
        after += f"{exercise.forward.__name__} = planted.{forward.__name__}\n"
    return with_function(exercise, source, after=after)


@pytest.mark.parametrize(("exercise", "bug"), BACKWARD_BUGS, ids=[bug.name for _, bug in BACKWARD_BUGS])
def test_a_bug_of_the_catalogue_is_answered_helpfully(exercise: Exercise, bug: Bug) -> None:
    outcome = ask(exercise, planted(exercise, bug))
    assert outcome.verdict in ("wrong", "broken"), outcome
    text = "\n".join(outcome.lines)
    assert_gives_nothing_away(exercise, text)
    forward = getattr(bug.subject.ops, bug.where).forward
    if forward is not exercise.forward and bug.name not in FORWARD_IS_RIGHT:
        assert f"{exercise.forward.__name__} no longer gives what it gave" in text  # type: ignore[union-attr]
        return
    if bug.kind:
        assert outcome.kind == bug.kind, text
    if outcome.kind in set(Kind):
        assert BY_KIND[Kind(outcome.kind)].next in text
    assert "look at" in text
    assert outcome.wrong is None or outcome.wrong in text


def test_bugs_of_the_catalogue_are_planted_in_every_operation() -> None:
    assert len(BACKWARD_BUGS) > 25
    assert {exercise.op for exercise, _ in BACKWARD_BUGS} == {e.op for e in COURSE if e.op}


MISTAKES = [
    # exercise, right, wrong, the first wrong variable, kind
    ("line", "np.sum(d_predictions * X)", "d_predictions * X", "d_w", Kind.MISSING_REDUCTION),
    ("line", "d_loss * 2 * errors", "d_loss * errors", "d_errors", Kind.CONSTANT_FACTOR),
    ("line", "return float(d_w), float(d_b)", "return float(d_b), float(d_w)", "return", None),
    ("causal_mask", "np.sum(d_y @ values.swapaxes(-2, -1), axis=0)", "d_y @ values.swapaxes(-2, -1)",
     "d_weights", Kind.MISSING_REDUCTION),
    ("causal_mask", "(d_masked,) = softmax_backward(d_weights, softmax_saved)",
     "d_masked = softmax_saved.y * d_weights", "d_masked", Kind.SOFTMAX_ROW_TERM),
    ("attention_core", "d_scaled / math.sqrt(queries.shape[-1])", "d_scaled",
     "d_scores", Kind.CONSTANT_FACTOR),
    ("attention_core", "d_scores.swapaxes(-2, -1) @ queries", "d_scores @ queries",
     "d_keys", Kind.TRANSPOSED),
    ("heads", "d_scaled / math.sqrt(D)", "d_scaled * math.sqrt(D)", "d_scores", Kind.CONSTANT_FACTOR),
    ("layer_norm", "d_normalized = d_y * weight", "d_normalized = d_y",
     "d_normalized", Kind.LAYER_NORM_WEIGHT),
    ("residual_block", "d_x = d_middle + through_attention", "d_x = through_attention",
     "d_x", Kind.MISSING_PATH),
    ("residual_block", "d_middle = d_out + through_feed_forward", "d_middle = d_out",
     "d_middle", Kind.MISSING_PATH),
    ("residual_block", "(d_queries, d_keys, d_values)", "(d_keys, d_queries, d_values)",
     "d_qkv", Kind.PERMUTED_AXES),
    ("tied_projection", "d_head + d_lookup", "d_lookup", "d_token_weight", Kind.MISSING_PATH),
    ("tied_projection", "d_head + d_lookup", "d_head", "d_token_weight", Kind.MISSING_PATH),
    ("tied_projection", "np.add.at(d_lookup, token_ids, d_x)", "d_lookup[token_ids] += d_x",
     "d_lookup", Kind.REPEATED_INDICES),
    ("adamw", "np.sqrt(v_hat) + eps", "np.sqrt(v_hat + eps)", "theta", None),
    ("adamw", "v_hat = v / (1 - beta2**step)", "v_hat = v", "v_hat", Kind.CONSTANT_FACTOR),
    ("adamw", "1 - beta1**step", "1 - beta1 ** (step + 1)", "m_hat", Kind.CONSTANT_FACTOR),
    ("adamw", "1 - learning_rate * weight_decay", "1 - weight_decay", "theta", None),
    ("adamw", "    m = beta1", "    gradient = gradient + weight_decay * theta\n    m = beta1", "m", None),
    ("adamw", "learning_rate * m_hat", "m_hat", "theta", None),
    ("adamw", "theta = theta * (1", "theta *= (1", None, Property.INPUTS_UNTOUCHED),
    ("cached_step", "position_weight[P:]", "position_weight", "x", None),
    ("cached_step", "Past(keys, values)", "Past(x @ weights.key.T, x @ weights.value.T)", "past", None),
    ("cached_step", "np.concatenate((past_keys, x @ weights.key.T), axis=1)", "x @ weights.key.T",
     "keys", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "right", "wrong", "variable", "kind"),
    MISTAKES,
    ids=[f"{m[0]}: {m[2].strip()}" for m in MISTAKES],
)
def test_the_first_wrong_variable_is_named(
    name: str, right: str, wrong: str, variable: str | None, kind: Kind | None
) -> None:
    exercise = find(name)
    source = solved(exercise)
    assert source.count(right) == 1
    outcome = ask(exercise, source.replace(right, wrong))
    text = "\n".join(outcome.lines)
    assert (outcome.verdict, outcome.wrong) == ("wrong", variable), text
    assert outcome.kind == kind, text
    assert variable not in outcome.right or variable == "return"
    assert_gives_nothing_away(exercise, text)
    assert any(word in text for word in ("look at", "forward computes with", "in its place")), text


def test_what_is_right_before_the_mistake_is_said() -> None:
    exercise = find("layer_norm")
    source = solved(exercise).replace("- mean_of_d", "")
    outcome = ask(exercise, source)
    assert outcome.right == ("d_bias", "d_weight", "d_normalized")
    assert outcome.wrong == "d_x"
    assert outcome.lines[0].split() == ["right", "d_bias,", "d_weight,", "d_normalized"]


STEP_BY_STEP = """def layer_norm_backward(d_y, saved):
    normalized, inverse_std, weight = saved
    d_bias = d_y.sum(axis=(0, 1)) if d_y.ndim == 3 else d_y.sum(axis=0)
    d_weight = (d_y * normalized).reshape(-1, len(weight)).sum(axis=0)
    d_normalized = d_y * weight
    centered = normalized / inverse_std
    d_inverse_std = (d_normalized * centered).sum(axis=-1, keepdims=True)
    d_variance = -0.5 * inverse_std**3 * d_inverse_std
    d_centered = d_normalized * inverse_std + d_variance * 2 * centered / len(weight)
    d_mean = -d_centered.sum(axis=-1, keepdims=True)
    d_x = d_centered + d_mean / len(weight)
    return d_x, d_weight, d_bias
"""


@pytest.mark.parametrize(
    ("right", "wrong", "variable"),
    [
        (" -0.5 * ", " 0.5 * ", "d_variance"),
        ("inverse_std**3", "inverse_std**2", "d_variance"),
        (" + d_variance * 2 * centered / len(weight)", "", "d_centered"),
        ("d_mean = -d", "d_mean = d", "d_mean"),
        ("d_centered + d_mean / len(weight)", "d_centered + d_mean", "d_x"),
    ],
)
def test_the_long_way_is_followed_line_by_line(right: str, wrong: str, variable: str) -> None:
    exercise = find("layer_norm")
    assert ask(exercise, with_function(exercise, STEP_BY_STEP)).verdict == "solved"
    assert STEP_BY_STEP.count(right) == 1
    outcome = ask(exercise, with_function(exercise, STEP_BY_STEP.replace(right, wrong)))
    assert outcome.wrong == variable, outcome


@pytest.mark.parametrize("exercise", [e for e in COURSE if e.steps], ids=lambda exercise: exercise.name)
def test_the_variables_of_the_long_way_are_right(exercise: Exercise) -> None:
    # The measured slope of <g, out> when a variable of forward is nudged just after it is set.
    assert exercise.forward is not None
    assert exercise.steps is not None
    text = inspect.getsource(exercise.forward)
    random = np.random.default_rng(0)
    for case in exercise.all_cases():
        out, saved = exercise.forward(*case.inputs, **case.options)
        g = random.normal(size=np.shape(out))
        for name, gradient in exercise.steps(g if g.ndim else float(g), saved).items():
            value = name.removeprefix("d_")
            found = re.findall(rf"^( +){value} = .*$", text, flags=re.MULTILINE)
            assert found, f"forward has no variable {value}"
            nudged = re.sub(
                rf"^( +)({value} = .*)$", rf"\1\2\n\1{value} = {value} + NUDGE", text, flags=re.MULTILINE
            )
            namespace = dict(vars(exercise.module))
            exec(f"from __future__ import annotations\n{nudged}", namespace)
            direction, slopes = random.normal(size=np.shape(gradient)), []
            for step in (1e-5, -1e-5):
                namespace["NUDGE"] = step * direction
                slopes.append(
                    np.sum(g * namespace[exercise.forward.__name__](*case.inputs, **case.options)[0])
                )
            measured = (slopes[0] - slopes[1]) / 2e-5
            assert measured == pytest.approx(np.sum(gradient * direction), rel=1e-6, abs=1e-8), name


def test_names_of_the_learners_own_and_flat_arrays_are_no_mistake() -> None:
    exercise = find("linear")
    source = """def linear_backward(d_y, saved):
    x, weight, has_bias = saved
    d_z = d_y.reshape(-1, len(weight))
    d_x = d_z @ weight + 0
    d_rows_of_mine = d_z * 3
    d_b = d_z.sum(axis=0) if has_bias else None
    return d_x.reshape(x.shape), d_z.T @ x.reshape(-1, x.shape[-1]), d_b
"""
    assert ask(exercise, with_function(exercise, source)).verdict == "solved"


def test_a_reused_upstream_gradient_and_flattened_rows_are_not_blamed_for_a_later_mistake() -> None:
    exercise = find("layer_norm")
    source = """def layer_norm_backward(d_y, saved):
    normalized, inverse_std, weight = saved
    d_bias = d_y.reshape(-1, len(weight)).sum(axis=0)
    d_weight = (d_y * normalized).reshape(-1, len(weight)).sum(axis=0)
    d_normalized = (d_y * weight).reshape(-1, len(weight))
    d_y = d_y * weight
    d_x = d_y * inverse_std
    return d_x, d_weight, d_bias
"""
    outcome = ask(exercise, with_function(exercise, source))
    assert (outcome.wrong, outcome.right) == ("d_x", ("d_bias", "d_weight", "d_normalized"))


def test_a_half_written_file_hears_how_far_it_is_right() -> None:
    exercise = find("layer_norm")
    begun = handed_out(exercise).replace("# Your lines go here", "d_bias = d_y.sum(axis=(0, 1))  #")
    outcome = ask(exercise, begun)
    assert (outcome.verdict, outcome.right) == ("unfinished", ("d_bias",))
    assert outcome.lines[-1].split() == ["to", "write", "d_x,", "d_weight"]
    outcome = ask(exercise, begun.replace("d_y.sum(axis=(0, 1))", "d_y.sum(axis=0)"))
    assert (outcome.verdict, outcome.wrong, outcome.kind) == ("wrong", "d_bias", Kind.MISSING_REDUCTION)


def test_a_changed_forward_is_told_apart_from_a_wrong_backward() -> None:
    exercise = find("layer_norm")
    outcome = ask(exercise, solved(exercise).replace("variance + eps", "variance - eps", 1))
    assert outcome.verdict == "broken"
    assert "layer_norm_forward no longer gives what it gave" in outcome.lines[0]


def test_what_forward_saves_may_change() -> None:
    exercise = find("softmax")
    source = """def softmax_backward(d_y, saved):
    x, y = saved
    return (y * (d_y - (d_y * y).sum(axis=-1, keepdims=True)),)
"""
    text = with_function(exercise, source)
    assert ask(exercise, text.replace("return y, SoftmaxSaved(y)", "return y, (x, y)")).verdict == "solved"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("d_y *= 2", Property.INPUTS_UNTOUCHED),
        ("d_x = d_x.astype(np.float64)", Property.DTYPE),
        ("saved.y[...] = 0", Property.RESULTS_KEPT),
    ],
)
def test_right_numbers_alone_are_not_enough(line: str, kind: str) -> None:
    exercise = find("softmax")
    source = solved(exercise).replace("    return (d_x,)", f"    {line}\n    return (d_x,)")
    outcome = ask(exercise, source)
    assert outcome.verdict == "wrong"
    assert outcome.kind == kind
    assert outcome.lines[0].split()[0] == "right"


def test_there_is_advice_on_whatever_the_checker_can_say() -> None:
    assert set(BY_KIND) == set(Kind)
    assert set(BY_PROPERTY) == set(Property)


@pytest.mark.parametrize("shape", [(4,), (3, 5), ()])
def test_equal_gradients_are_equal_and_others_are_not(shape: tuple[int, ...]) -> None:
    right = np.random.default_rng(0).normal(size=shape)
    assert difference(right * (1 + TOLERANCE / 10), right) is None
    assert difference(right * (1 + 10 * TOLERANCE), right) is not None
    assert difference(right + np.nan, right) is not None
    assert difference(np.zeros((2, 2)), right) is not None
    for odd in (None, "x", [[1], [1, 2]], right * 1j):
        gap = difference(odd, right)
        assert gap is not None
        assert "no array of real numbers" in gap.text
