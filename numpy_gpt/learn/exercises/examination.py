"""A learner's file put to the test: what is right, the first thing that is wrong, and where to look next."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.learn.exercises.advice import BY_KIND, BY_PROPERTY, Advice
from numpy_gpt.learn.exercises.comparing import Difference, as_array, difference, right_part
from numpy_gpt.learn.exercises.exercise import Case, Exercise, Function
from numpy_gpt.learn.exercises.learner_file import LearnerError, LearnerFile, describe
from numpy_gpt.learn.exercises.observing import Observed, hushed, observe
from numpy_gpt.verify import Finding, Kind, Property, Report, check_backward

Verdict = Literal["solved", "wrong", "unfinished", "unwritten", "broken"]

CANCELLED = 1e-3
"""A gradient below this share of the case's largest may be zero by symmetry, and its value rounding noise."""

COLUMN = 9
MOST_NAMES = 8


@dataclass(frozen=True)
class Outcome:
    """What a learner is told.

    Args:
        verdict: solved; wrong; unfinished, which is right as far as it goes; unwritten; broken, when it does
            not run to its end.
        lines: the answer, to be shown below a headline.
        wrong: the first variable that is wrong.
        kind: the kind of mistake, a `Kind` or a `Property`, where one was recognised.
        right: the variables found right before that.
        printed: how what the learner's code prints begins.
    """

    verdict: Verdict
    lines: tuple[str, ...] = ()
    wrong: str | None = None
    kind: str | None = None
    right: tuple[str, ...] = ()
    printed: str = ""


class _Truth(NamedTuple):
    """What is right in one case."""

    output: Any  # of forward
    d_output: Any  # a random upstream gradient
    variables: Mapping[str, Any]  # by name, the returned ones among them
    floor: float  # the size of what may be rounding


class _Attempt(NamedTuple):
    """What a learner's function made of one case."""

    case: Case
    returned: tuple[str | None, ...]  # the names of what it should return
    truth: _Truth
    seen: Observed

    @property
    def malformed(self) -> str | None:
        """What is wrong with what was returned, as a whole."""
        return None if self.seen.error else _malformed(self.seen.result, self.returned)

    @property
    def is_right(self) -> bool:
        """Whether every returned value is right."""
        if self.seen.error or self.malformed:
            return False
        pairs = zip(self.returned, self.seen.result, strict=True)
        return not any(self.gap(name, value) for name, value in pairs if name)

    def gap(self, name: str, value: Any) -> Difference | None:
        """Return how a value differs from what the name stands for."""
        may_be_flat = name not in self.returned
        expected = self.truth.variables[name]
        return difference(value, expected, floor=self.truth.floor, may_be_flat=may_be_flat)


def examine(
    exercise: Exercise, source: bytes, path: str, *, on_return: Callable[[], None] | None = None
) -> Outcome:
    """Run a learner's file on every case of an exercise, and say how far it is right.

    It runs within this process: see `trial.examine_apart` for files that may never end.

    Args:
        exercise: which it is for.
        source: the file's bytes.
        path: as it is shown in messages.
        on_return: called each time that the learner's functions have come to an end on a case.
    """
    with hushed() as listener:
        try:
            outcome = _Examination(LearnerFile(exercise, source, path), on_return).outcome()
        except LearnerError as error:
            outcome = Outcome("broken", (str(error),))
    return dataclasses.replace(outcome, printed=listener.heard)


class _Examination:
    """One file under examination."""

    def __init__(self, file: LearnerFile, on_return: Callable[[], None] | None) -> None:
        self.file = file
        self.on_return = on_return
        self.exercise = file.exercise
        self.cases = self.exercise.all_cases()
        self.functions: Mapping[str, Any] = {}

    def outcome(self) -> Outcome:
        """Return the first thing to say."""
        if self.file.is_untouched:
            return Outcome("unwritten", (f"nothing written yet: start here: {self.file.where_to_start}",))
        self.functions = self.file.run()
        for number, case in enumerate(self.cases):
            if number == 0:
                problem = self._problem_in(case)
            else:
                with hushed():  # what is printed has been heard
                    problem = self._problem_in(case)
            if problem:
                return problem
        with hushed():
            problem = self._misconduct()
        return problem or Outcome("solved")

    def _function(self, original: Function) -> Function:
        function = self.functions.get(original.__name__)
        if not callable(function):
            raise LearnerError(f"there is no function {original.__name__} in {self.file.path} any more")
        return function  # type: ignore[no-any-return]

    def _problem_in(self, case: Case) -> Outcome | None:
        """Return what is wrong in one case."""
        attempt = self._attempt(case)
        if attempt.is_right:
            return None
        wrong = self._first_wrong(attempt)
        if wrong:
            return wrong
        if attempt.seen.error:
            return self._stopped(attempt, attempt.seen.error)
        return Outcome("wrong", (_line("wrong", attempt.malformed or ""),), wrong="return")

    def _attempt(self, case: Case) -> _Attempt:
        truth = self._truth(case)
        seen = self._observe(case, truth)
        if self.on_return:
            self.on_return()
        return _Attempt(case, self.exercise.returned(case), truth, seen)

    def _truth(self, case: Case) -> _Truth:
        exercise = self.exercise
        output = d_output = saved = None
        if exercise.forward is None:
            seen = observe(exercise.solution, *deepcopy(case.inputs), **case.options)
        else:
            output, saved = exercise.forward(*deepcopy(case.inputs), **case.options)
            random = np.random.default_rng(1).normal(size=np.shape(output))
            d_output = float(random) if isinstance(output, float) else random
            seen = observe(exercise.solution, deepcopy(d_output), saved)
        assert seen.error is None, seen.error
        variables = {n: v for n, v in seen.variables.items() if self._is_compared(n) and v is not None}
        if exercise.steps:
            variables |= exercise.steps(deepcopy(d_output), saved)
        variables |= {n: v for n, v in zip(exercise.returned(case), seen.result, strict=True) if n}
        arrays = [array for value in seen.result if (array := as_array(value)) is not None]
        largest = max((float(np.max(np.abs(array), initial=0.0)) for array in arrays), default=0.0)
        return _Truth(output, d_output, variables, CANCELLED * largest)

    def _is_compared(self, name: str) -> bool:
        return name in self.exercise.names if self.exercise.forward is None else name.startswith("d_")

    def _observe(self, case: Case, truth: _Truth) -> Observed:
        """Call the learner's functions.

        Raises:
            LearnerError: when forward is not what it was.
        """
        exercise = self.exercise
        solution = self._function(exercise.solution)
        if exercise.forward is None:
            return observe(solution, *deepcopy(case.inputs), **case.options)
        forward = self._function(exercise.forward)
        first = observe(forward, *deepcopy(case.inputs), **case.options)
        if first.error is not None:
            raise LearnerError(f"forward stops: {describe(first.error, self.file.path)}")
        if not (isinstance(first.result, tuple) and len(first.result) == 2):
            raise LearnerError(f"{exercise.forward.__name__} no longer returns (output, saved)")
        output, saved = first.result
        if difference(output, truth.output):
            raise LearnerError(
                f"{exercise.forward.__name__} no longer gives what it gave{_where(case)}: it was right as it "
                "was handed out, and only what it saves may change"
            )
        return observe(solution, deepcopy(truth.d_output), saved)

    def _own_variables(self, attempt: _Attempt) -> list[str]:
        """Return the learner's variables that can be compared, in the order of their last values."""
        parameters = {argument.arg for argument in self.file.function.args.args}
        inputs = parameters if self.exercise.forward else set()
        return [
            name
            for name in self.file.variables_in_order()
            if attempt.seen.variables.get(name) is not None
            and name in attempt.truth.variables
            and name not in inputs
        ]

    def _first_wrong(self, attempt: _Attempt) -> Outcome | None:
        """Compare the variables in the order in which they were computed, then what was returned."""
        right: list[str] = []
        for name in self._own_variables(attempt):
            value = attempt.seen.variables[name]
            gap = attempt.gap(name, value)
            if gap:
                return self._wrong(attempt, name, value, gap, right)
            right.append(name)
        if attempt.seen.error or attempt.malformed:
            return None
        for returned, value in zip(attempt.returned, attempt.seen.result, strict=True):
            gap = attempt.gap(returned, value) if returned else None
            if returned and gap and returned in right:
                text = f"{returned} is right, but not what is returned in its place: it {gap.text}"
                return Outcome("wrong", (_line("wrong", text),), wrong="return", right=tuple(right))
            if returned and gap:
                return self._wrong(attempt, returned, value, gap, right)
        return None

    def _stopped(self, attempt: _Attempt, error: BaseException) -> Outcome:
        """Return what to say when the function raised and nothing before that is wrong."""
        right = tuple(self._own_variables(attempt))
        lines = _right_line(right)
        if not self._is_unfinished(attempt, error):
            lines.append(_line("stops", describe(error, self.file.path)))
            return Outcome("broken", tuple(lines), right=right)
        written = self.file.variables_in_order()
        left = [name for name in attempt.returned if name and name not in written]
        lines.append(_line("to write", ", ".join(left)))
        return Outcome("unfinished", tuple(lines), right=right)

    def _is_unfinished(self, attempt: _Attempt, error: BaseException) -> bool:
        """Whether all that is wrong is that a variable of the last line was not written yet."""
        name = error.name if isinstance(error, NameError) else None
        return name in attempt.returned and name not in self.file.variables_in_order()

    def _wrong(self, attempt: _Attempt, name: str, value: Any, gap: Difference, right: list[str]) -> Outcome:
        """Return what to say about the first wrong variable."""
        if not _is_finite(value):
            told = [*_right_line(right), _line("wrong", f"{name} {gap.text}{_where(attempt.case)}")]
            return Outcome("wrong", tuple(told), wrong=name, right=tuple(right))
        twin = self._twin(attempt, name, value)
        part = right_part(value, attempt.truth.variables[name])
        kind = gap.kind or self._explained(attempt, name, value)
        if kind is None and part and not twin:
            kind = Kind.PARTIAL
        lines = [*_right_line(right), _line("wrong", f"{name} {gap.text}{_where(attempt.case)}")]
        if twin:
            lines.append(_line("", f"it is the same as {twin}"))
        if part and kind == Kind.PARTIAL:
            lines.append(_line("", part))
        if kind:
            lines.append(_line("looks", BY_KIND[kind].looks))
        look = self.exercise.look.get(name) or (BY_KIND[kind].next if kind else None)
        if look:
            lines.append(_line("look at", look))
        lines += [*self._right_cases(attempt.case), *self._uses(name.removeprefix("d_"))]
        error = attempt.seen.error
        if error and not self._is_unfinished(attempt, error):
            lines.append(_line("then", f"it stops at {describe(error, self.file.path)}"))
        found = str(kind) if kind else None
        return Outcome("wrong", tuple(lines), wrong=name, kind=found, right=tuple(right))

    def _explained(self, attempt: _Attempt, name: str, value: Any) -> Kind | None:
        """Return the kind of mistake that a value of the right shape shows, by itself or to the checker."""
        got, right = as_array(value), np.asarray(attempt.truth.variables[name], np.float64)
        uses = self.file.uses(name.removeprefix("d_"))
        if got is None or got.size != right.size:
            return None
        if len(uses) > 1:
            if self._is_lost_part(attempt, got.reshape(right.shape), right):
                return Kind.MISSING_PATH
            if name not in attempt.returned and self.file.sets_once(name.removeprefix("d_")):
                return None  # the checker sees only what is returned, where later mistakes are mixed in
        kind = self._diagnosed(attempt.case, name)
        if kind in (None, Kind.PARTIAL) and self._twin(attempt, name, value):
            return Kind.MISSING_PATH if len(uses) > 1 else None
        return kind

    def _twin(self, attempt: _Attempt, name: str, value: Any) -> str | None:
        """Return the gradient of another variable that a wrong one equals."""
        others = {**attempt.truth.variables, **self._upstream(attempt)}
        return next((n for n, right in others.items() if n != name and _equal(value, right)), None)

    def _is_lost_part(self, attempt: _Attempt, got: Array, right: Array) -> bool:
        """Whether one part of a sum is seen to be lost, or to be all that there is."""
        upstream = list(self._upstream(attempt).values())
        lost = any(_equal(right - got, each) for each in (*attempt.truth.variables.values(), *upstream))
        return lost or any(_equal(got, each) for each in upstream)

    def _upstream(self, attempt: _Attempt) -> dict[str, Any]:
        """Return the upstream gradient under its name, where there is one."""
        if self.exercise.forward is None:
            return {}
        return {self.file.function.args.args[0].arg: attempt.truth.d_output}

    def _right_cases(self, wrong: Case) -> list[str]:
        """Return what follows from another case being right."""
        look = self.exercise.look
        with hushed():
            for case in self.cases:
                if case is not wrong and case.label in look and self._attempt(case).is_right:
                    return [_line("but", f"it is right {case.label}, so look at {look[case.label]}")]
        return []

    def _uses(self, value: str) -> list[str]:
        """Return the lines in which forward computes with a value."""
        uses = self.file.uses(value)
        if not uses:
            return []
        several = len(uses) > 1 and self.file.sets_once(value)
        parts = f", {len(uses)} times, so its gradient has {len(uses)} parts" if several else ""
        lines = [f"forward computes with {value} here{parts}"]
        return [_line("", text) for text in (*lines, *(f"  line {number}:  {text}" for number, text in uses))]

    def _report(self, case: Case) -> Report | None:
        """Return what the gradient checker says of a case, None where there is no backward to check."""
        if self.exercise.forward is None:
            return None
        forward = self._function(self.exercise.forward)

        def with_options(*inputs: Any) -> Any:
            return forward(*inputs, **case.options)

        backward = self._function(self.exercise.solution)
        try:
            return check_backward(with_options, backward, case.inputs, names=self.exercise.inputs)
        except ValueError:
            return None

    def _diagnosed(self, case: Case, name: str) -> Kind | None:
        """Return the checker's likeliest explanation, one for this variable where there is one."""
        with hushed():
            report = self._report(case)
        findings = report.diagnosis if report else ()
        own = [finding for finding in findings if f"d_{finding.tensor}" == name]
        for finding in (*own, *findings):
            return Kind(finding.kind)
        return None

    def _misconduct(self) -> Outcome | None:
        """Return what a function with right numbers owes its caller all the same."""
        report = self._report(self.cases[0])
        if report is None:
            return self._changed_input(self.cases[0])
        findings: tuple[Finding, ...] = (*report.diagnosis, *report.findings)
        for finding in findings:
            is_kind = finding.kind in set(Kind)
            advice = BY_KIND[Kind(finding.kind)] if is_kind else BY_PROPERTY[Property(finding.kind)]
            return _misbehaved(advice, finding.kind, finding.tensor)
        return None

    def _changed_input(self, case: Case) -> Outcome | None:
        inputs = deepcopy(case.inputs)
        observe(self._function(self.exercise.solution), *inputs, **case.options)
        for before, after in zip(case.inputs, inputs, strict=True):
            if isinstance(before, np.ndarray) and not np.array_equal(before, after):
                kind = Property.INPUTS_UNTOUCHED
                return _misbehaved(BY_PROPERTY[kind], kind, None)
        return None


def _is_finite(value: Any) -> bool:
    array = as_array(value)
    return array is not None and bool(np.isfinite(array).all())


def _equal(value: Any, other: Any) -> bool:
    """Whether two values are the same array of numbers, and not only zeros."""
    got, expected = as_array(value), as_array(other)
    if got is None or expected is None or got.ndim == 0 or got.shape != expected.shape:
        return False
    return bool(np.any(expected)) and difference(got, expected) is None


def _right_line(names: Sequence[str]) -> list[str]:
    """Return a line with the variables that are right, in short where they are many."""
    if not names:
        return []
    if len(names) > MOST_NAMES:
        return [_line("right", f"{len(names)} variables, from {names[0]} to {names[-1]}")]
    return [_line("right", ", ".join(names))]


def _misbehaved(advice: Advice, kind: str, tensor: str | None) -> Outcome:
    place = f" ({tensor})" if tensor else ""
    lines = (
        _line("right", "every number"),
        _line("but", advice.looks + place),
        _line("look at", advice.next),
    )
    return Outcome("wrong", lines, wrong=tensor, kind=str(kind))


def _malformed(result: Any, names: tuple[str | None, ...]) -> str | None:
    """Say what is wrong with what was returned, as a whole."""
    wanted = f"({names[0]},)" if len(names) == 1 else ", ".join(name or "None" for name in names)
    if not isinstance(result, tuple | list):
        kind = "None" if result is None else f"one {type(result).__name__}"
        return f"it returns {kind}, and should return a tuple: return {wanted}"
    if len(result) != len(names):
        return f"it returns {len(result)} values, and should return {len(names)}: return {wanted}"
    for name, value in zip(names, result, strict=True):
        if name is None and value is not None:
            return f"it returns a gradient for what has none: return {wanted}"
    return None


def _where(case: Case) -> str:
    return f", {case.label}" if case.label else ""


def _line(heading: str, text: str) -> str:
    return f"{heading:<{COLUMN}}{text}"
