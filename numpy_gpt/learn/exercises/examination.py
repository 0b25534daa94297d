"""A learner's file put to the test: what is right, the first thing that is wrong, and where to look next."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

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
    returned: tuple[Any, ...]
    variables: Mapping[str, Any]  # by name, the returned ones among them
    floor: float  # the size of what may be rounding


def examine(exercise: Exercise, source: bytes, path: str) -> Outcome:
    """Run a learner's file on every case of an exercise, and say how far it is right.

    It runs within this process: see `trial.examine_apart` for files that may never end.
    """
    with hushed() as listener:
        try:
            outcome = _Examination(LearnerFile(exercise, source, path)).outcome()
        except LearnerError as error:
            outcome = Outcome("broken", (str(error),))
    return dataclasses.replace(outcome, printed=listener.heard)


class _Examination:
    """One file under examination."""

    def __init__(self, file: LearnerFile) -> None:
        self.file = file
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
        truth = self._truth(case)
        seen = self._observe(case, truth)
        if seen.error is not None:
            return self._stopped(case, truth, seen)
        names = self.exercise.returned(case)
        malformed = _malformed(seen.result, names)
        if malformed is None and not any(self._gaps(truth, zip(names, seen.result, strict=True))):
            return None
        return self._first_wrong(case, truth, seen) or Outcome("wrong", (malformed or "",), wrong="return")

    def _truth(self, case: Case) -> _Truth:
        exercise = self.exercise
        output = d_output = None
        if exercise.forward is None:
            arguments: tuple[Any, ...] = deepcopy(case.inputs)
            seen = observe(exercise.solution, *arguments, **case.options)
        else:
            output, saved = exercise.forward(*deepcopy(case.inputs), **case.options)
            random = np.random.default_rng(1).normal(size=np.shape(output))
            d_output = float(random) if isinstance(output, float) else random
            arguments = (deepcopy(d_output), saved)
            seen = observe(exercise.solution, *arguments)
        assert seen.error is None, seen.error
        variables = {n: v for n, v in seen.variables.items() if self._is_compared(n) and v is not None}
        if exercise.steps:
            variables |= exercise.steps(deepcopy(d_output), saved)
        returned = zip(exercise.returned(case), seen.result, strict=True)
        variables |= {name: value for name, value in returned if name}
        sizes = [np.max(np.abs(array), initial=0.0) for v in seen.result if (array := as_array(v)) is not None]
        return _Truth(output, d_output, seen.result, variables, CANCELLED * float(max(sizes, default=0.0)))

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
            raise LearnerError(f"{forward.__name__} no longer returns (output, saved)")
        output, saved = first.result
        if difference(output, truth.output):
            raise LearnerError(
                f"{forward.__name__} no longer gives what it gave{_where(case)}: it was right as it was handed "
                "out, and only what it saves may change"
            )
        return observe(solution, deepcopy(truth.d_output), saved)

    def _gaps(self, truth: _Truth, values: Iterable[tuple[str | None, Any]]) -> list[tuple[str, Difference]]:
        """Return which of some named values are wrong, and how."""
        gaps = []
        for name, value in values:
            if name is not None:
                gap = difference(value, truth.variables[name], floor=truth.floor)
                gaps += [(name, gap)] if gap else []
        return gaps

    def _first_wrong(self, case: Case, truth: _Truth, seen: Observed, ending: str = "") -> Outcome | None:
        """Compare the variables in the order in which they were computed, then what was returned."""
        parameters = {argument.arg for argument in self.file.function.args.args}
        returned = self.exercise.returned(case)
        right: list[str] = []
        for name in self.file.gradients_in_order():
            value = seen.variables.get(name)
            hides_input = self.exercise.forward is not None and name in parameters
            if value is None or name not in truth.variables or hides_input:
                continue
            expected = truth.variables[name]
            gap = difference(value, expected, floor=truth.floor, may_be_flat=name not in returned)
            if gap:
                return self._wrong(case, name, value, gap, right, truth, ending)
            right.append(name)
        if seen.error is not None or _malformed(seen.result, returned):
            return None
        for name, value in zip(returned, seen.result, strict=True):
            for _, gap in self._gaps(truth, [(name, value)]):
                assert name is not None
                return self._wrong(case, name, value, gap, right, truth, ending)
        return None

    def _stopped(self, case: Case, truth: _Truth, seen: Observed) -> Outcome:
        """Return what to say when the function did not come to its end."""
        error = seen.error
        assert error is not None
        missing = error.name if isinstance(error, NameError) else None
        unfinished = missing in self.exercise.returned(case) and missing not in self.file.gradients_in_order()
        ending = "" if unfinished else f"it stops at {describe(error, self.file.path)}"
        problem = self._first_wrong(case, truth, seen, ending)
        if problem:
            return problem
        order = self.file.gradients_in_order()
        right = [name for name in order if name in truth.variables and seen.variables.get(name) is not None]
        lines = [_line("right", ", ".join(right))] if right else []
        if not unfinished:
            return Outcome("broken", (*lines, _line("stops", describe(error, self.file.path))), right=tuple(right))
        left = [name for name in self.exercise.returned(case) if name and name not in order]
        lines.append(_line("to write", ", ".join(left)))
        return Outcome("unfinished", tuple(lines), right=tuple(right))

    def _wrong(
        self,
        case: Case,
        name: str,
        value: Any,
        gap: Difference,
        right: list[str],
        truth: _Truth,
        ending: str,
    ) -> Outcome:
        """Return what to say about the first wrong variable."""
        part = right_part(value, truth.variables[name])
        kind = gap.kind or self._diagnosed(case, name) or (Kind.PARTIAL if part else None)
        lines = [_line("right", ", ".join(right))] if right else []
        lines.append(_line("wrong", f"{name} {gap.text}{_where(case)}"))
        if part and kind in (None, Kind.PARTIAL):
            lines.append(_line("", part))
        lines += _advice_lines(BY_KIND[kind] if kind else None)
        lines += self._looks(case, name)
        if ending:
            lines.append(_line("then", ending))
        return Outcome("wrong", tuple(lines), wrong=name, kind=str(kind) if kind else None, right=tuple(right))

    def _looks(self, case: Case, name: str) -> list[str]:
        """Return the next things to look at that follow from the variable's name."""
        exercise = self.exercise
        lines = [_line("look at", exercise.look[name])] if name in exercise.look else []
        for other in self.cases:
            if other is not case and other.label in exercise.look:
                with hushed():
                    if self._problem_in_quietly(other) is None:
                        lines.append(_line("", f"It is right {other.label}: {exercise.look[other.label]}."))
                        break
        value = name.removeprefix("d_")
        uses = self.file.uses(value)
        if uses:
            several = len(uses) > 1 and self.file.sets_once(value)
            rule = f", {len(uses)} times: its gradient adds up as many parts" if several else ""
            lines.append(_line("", f"forward computes with {value} here{rule}"))
            lines += [_line("", f"  line {number}:  {text}") for number, text in uses]
        return lines

    def _problem_in_quietly(self, case: Case) -> object:
        """Return anything but None when a case without a forward is wrong."""
        truth = self._truth(case)
        seen = self._observe(case, truth)
        names = self.exercise.returned(case)
        if seen.error is not None or _malformed(seen.result, names):
            return seen
        return self._gaps(truth, zip(names, seen.result, strict=True)) or None

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


def _misbehaved(advice: Advice, kind: str, tensor: str | None) -> Outcome:
    place = f" ({tensor})" if tensor else ""
    lines = (_line("right", "every number"), _line("but", advice.looks + place), _line("look at", advice.next))
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


def _advice_lines(advice: Advice | None) -> list[str]:
    return [_line("looks", advice.looks), _line("look at", advice.next)] if advice else []


def _where(case: Case) -> str:
    return f", {case.label}" if case.label else ""


def _line(heading: str, text: str) -> str:
    return f"{heading:<{COLUMN}}{text}"
