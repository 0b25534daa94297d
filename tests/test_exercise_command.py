"""The exercises as a learner meets them: the command, files that are not what they should be, and training
with what was solved."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpy_gpt as ng
from numpy_gpt.learn.exercises import COURSE, LearnerOps, Workbook, learner_ops, load_learner_ops, workbook
from numpy_gpt.learn.exercises.course import find, position
from numpy_gpt.learn.exercises.examination import examine
from numpy_gpt.learn.exercises.trial import examine_apart
from numpy_gpt.ops import Ops, book
from tests.test_cli import TINY, outcome, run, write_words
from tests.test_exercises import handed_out, solved, with_function

STEPS = ["--steps", "6", "--eval-interval", "3"]


@pytest.fixture
def within(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examine within this process, which is ten times as fast as in one of its own."""
    for module in (workbook, learner_ops):
        monkeypatch.setattr(module, "examine_apart", examine)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within: None) -> Path:
    """The current folder, with a text in it and an empty folder of exercises, which is returned."""
    write_words(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exercises").mkdir()
    return tmp_path / "exercises"


def write(folder: Path, name: str, source: str | bytes) -> Path:
    path = folder / f"{name}.py"
    path.write_bytes(source if isinstance(source, bytes) else source.encode())
    return path


def solve(folder: Path, *names: str) -> None:
    for name in names:
        write(folder, name, solved(find(name)))


# --- the command --------------------------------------------------------------------------------------------


def test_a_learner_goes_from_start_to_solved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def said(*arguments: str, code: int) -> str:
        assert outcome("exercise", *arguments) == code
        return capsys.readouterr().out

    started = run("exercise", "start", "softmax", folder=tmp_path)
    assert started.returncode == 0, started.stderr
    path = tmp_path / "exercises/softmax.py"
    assert path.read_text(encoding="utf-8") == handed_out(find("softmax"))
    assert "nothing written yet: start here" in said("check", "softmax", code=1)
    path.write_text(solved(find("softmax")).replace("d_y - row_term", "d_y"), encoding="utf-8")
    assert said("check", "softmax", code=1).startswith("softmax: not right yet\n  wrong    d_x is ")
    solve(tmp_path / "exercises", "softmax")
    assert said("check", "softmax", code=0).splitlines()[:2] == ["softmax: solved", "1 of 14 solved."]
    listed = said("list", code=0)
    assert [line.split()[2] for line in listed.splitlines()[:3]] == ["next", "Linear:", "solved"]


def test_one_exercise_is_open_at_a_time_but_any_may_be_started(folder: Path) -> None:
    for number, exercise in enumerate(COURSE[:3]):
        assert Workbook(folder).open_exercise is exercise
        assert outcome("exercise", "start") == 0
        assert sorted(path.stem for path in folder.glob("*.py")) == sorted(
            e.name for e in COURSE[: number + 1]
        )
        assert outcome("exercise", "check") == 1
        solve(folder, exercise.name)
        assert outcome("exercise", "check") == 0
    assert outcome("exercise", "start", "cached-step") == 0
    assert Workbook(folder).open_exercise is COURSE[3]


def test_all_solved(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    progress = {"solved": [exercise.name for exercise in COURSE], "hints": {}}
    (folder / "progress.json").write_text(json.dumps(progress), encoding="utf-8")
    assert outcome("exercise", "list") == 0
    assert (
        "All are solved. Train with what you wrote: numpy-gpt train --ops exercises"
        in capsys.readouterr().out
    )
    assert outcome("exercise", "start") == 1
    assert "all exercises are solved" in capsys.readouterr().err


def test_what_a_learner_wrote_is_never_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(folder, "linear", "mine")
    assert outcome("exercise", "start", "linear") == 2
    message = capsys.readouterr().err
    assert str(path.relative_to(folder.parent)) in message
    assert len(message.splitlines()) == 1
    assert path.read_text(encoding="utf-8") == "mine"


def test_hints_come_one_by_one_and_are_remembered(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for asked, given in ((1, 1), (2, 2), (3, 3), (4, 3)):
        assert outcome("exercise", "hint", "gelu") == 0
        text = capsys.readouterr().out
        assert text.count("hint ") - text.count("exercise hint ") == given, asked
        assert ("Ask again" in text) == (given < 3) == ("last one" not in text)
    flat = " ".join(text.split())
    assert all(" ".join(hint.split()) in flat for hint in find("gelu").hints)


def test_what_to_type_next_works_for_another_folder_too(tmp_path: Path) -> None:
    workbook = Workbook(tmp_path / "of mine")
    asked = [workbook.overview(), workbook.start("gelu"), workbook.check("gelu"), workbook.hint("gelu")]
    commands = [
        line[line.index("numpy-gpt") :] for a in asked for line in a.lines if "numpy-gpt exercise" in line
    ]
    assert len(commands) >= 3
    assert all(command.endswith(f" --folder '{workbook.folder}'") for command in commands)


def test_what_a_missing_file_s_message_says_to_type_is_about_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("of mine").mkdir()
    for asked in (("exercise", "check", "linear", "--folder", "of mine"), ("train", "--ops", "of mine")):
        assert outcome(*asked) == 1
        assert "numpy-gpt exercise start linear --folder 'of mine'" in capsys.readouterr().err


def test_to_start_without_a_name_what_is_begun_is_to_go_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome("exercise", "start") == 0
    (folder / "line.py").write_text("mine")
    capsys.readouterr()
    assert outcome("exercise", "start") == 0
    assert "numpy-gpt exercise check line" in capsys.readouterr().out
    assert (folder / "line.py").read_text() == "mine"


def test_exercises_are_counted_from_one_everywhere(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome("exercise", "list") == 0
    listed = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[: len(COURSE)]]
    assert listed == [[str(number), exercise.name] for number, exercise in enumerate(COURSE, start=1)]
    for number, exercise in enumerate(COURSE, start=1):
        assert find(str(number)) is exercise
        assert position(exercise) == f"Exercise {number} of {len(COURSE)}"
    assert outcome("exercise", "start", "0") == 2


def test_hints_need_no_folder(tmp_path: Path) -> None:
    assert Workbook(tmp_path / "none").hint("gelu").lines
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (
            ("check", "linear"),
            1,
            "there is no exercises/linear.py: `numpy-gpt exercise start linear` makes it",
        ),
        (("check", "nonsense"), 2, "there is no exercise 'nonsense'; there are line, linear"),
        (("start", "../linear"), 2, "there is no exercise '../linear'"),
        (("start", "linear", "--folder", "words.txt"), 2, "words.txt"),
        (("start", "linear", "--folder", "words.txt/deeper"), 1, "words.txt"),
    ],
)
def test_a_wrong_command_gets_one_line(
    folder: Path, arguments: tuple[str, ...], code: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome("exercise", *arguments) == code
    message = capsys.readouterr().err
    assert reason in message.replace(os.sep, "/")
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 50_000,
        b"null",
        b"[]",
        b'{"solved": 3, "hints": {}}',
        b'{"solved": [], "hints": []}',
        b" " * 200_000,
    ],
    ids=lambda record: repr(record[:12]),
)
def test_a_broken_record_of_what_is_solved_costs_nothing_else(
    folder: Path, record: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "progress.json").write_bytes(record)
    assert outcome("exercise", "list") == 0
    assert "cannot be read, and nothing counts as solved" in capsys.readouterr().out
    solve(folder, "line")
    assert outcome("exercise", "check", "line") == 0
    assert Workbook(folder).progress.solved == {"line"}
    assert list(folder.glob(".*")) == []


def test_a_record_with_strange_names_and_numbers_is_read_for_the_rest(folder: Path) -> None:
    record = {
        "solved": ["line", "../x", 3, []],
        "hints": {"line": True, "gelu": 10**30, "linear": -1, "x": 1},
    }
    (folder / "progress.json").write_text(json.dumps(record), encoding="utf-8")
    progress = Workbook(folder).progress
    assert (progress.solved, progress.complaint) == ({"line"}, None)
    assert outcome("exercise", "hint", "gelu") == 0


def test_a_record_that_cannot_be_written_is_said_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "progress.json").mkdir()
    solve(folder, "line")
    assert outcome("exercise", "check", "line") == 1
    message = capsys.readouterr().err
    assert "progress.json" in message
    assert len(message.splitlines()) == 1


# --- files that are not what they should be -----------------------------------------------------------------


def softmax_with(*lines: str) -> bytes:
    body = "".join(f"    {line}\n" for line in lines)
    source = f"def softmax_backward(d_y, saved):\n    (y,) = saved\n{body}    return (d_x,)\n"
    return with_function(find("softmax"), source).encode()


def line_of(source: bytes, text: str) -> int:
    return next(n for n, line in enumerate(source.decode().splitlines(), start=1) if text in line)


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("raise ValueError('a\\nb')", "exercises/softmax.py, line {}, in softmax_backward: ValueError: a b"),
        (
            "d_x = d_y @ np.ones((77, 2))",
            "exercises/softmax.py, line {}, in softmax_backward: ValueError: matmul",
        ),
        ("exit(3)", "line {}, in softmax_backward: it calls exit (SystemExit: 3)"),
        ("return None", "it returns None, and should return a tuple: return (d_x,)"),
        ("return d_y", "it returns one ndarray, and should return a tuple: return (d_x,)"),
        ("return d_y, d_y", "it returns 2 values, and should return 1: return (d_x,)"),
        ("return ({},)", "d_x is no array of real numbers but a dict"),
        ("d_x = [[1], [1, 2]]", "d_x is no array of real numbers but a list"),
        ("d_x = d_y * np.nan", "d_x is not finite at (0, 0)"),
        ("d_x = d_y[0]", "d_x has shape (5,), and its value has (3, 5)"),
        ("return softmax_backward(d_y, saved)", "RecursionError"),
    ],
)
def test_whatever_it_does_is_said_in_a_line(statement: str, told: str) -> None:
    source = softmax_with(statement)
    outcome = examine(find("softmax"), source, "exercises/softmax.py")
    assert outcome.verdict in ("wrong", "broken")
    text = "\n".join(outcome.lines)
    assert told.format(line_of(source, statement)) in text
    assert "Traceback" not in text
    assert "examination.py" not in text


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (b"def f(:\n", "this is not Python yet: x.py, line 1: SyntaxError"),
        (b"a\0b", "this is not Python yet: "),
        (b"\xff", "this is not Python yet: "),
        (b"x = " + b"-" * 100_000 + b"1", "this is not Python yet: "),
        (b"", "there is no function softmax_backward in x.py any more"),
        (
            b"import nonsuch\ndef softmax_backward(d_y, saved): 1",
            "x.py, line 1, in <module>: ModuleNotFoundError",
        ),
        (
            b"import sys\nsys.exit()\ndef softmax_backward(d_y, saved): 1",
            "line 2, in <module>: it calls exit",
        ),
        (b"def softmax_backward(d_y, saved): 1", "there is no function softmax_forward in x.py any more"),
        (b"def softmax_backward(d_y, saved): 1\ndef softmax_forward(x): 1/0", "forward stops: x.py, line 2"),
        (
            b"def softmax_backward(d_y, saved): 1\ndef softmax_forward(x): 1",
            "no longer returns (output, saved)",
        ),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_file_that_cannot_be_examined_is_said_in_a_line(source: bytes, told: str) -> None:
    outcome = examine(find("softmax"), source, "x.py")
    assert outcome.verdict == "broken"
    assert len(outcome.lines) == 1
    assert told in outcome.lines[0]
    assert outcome.lines[0].isprintable()


def test_what_it_prints_is_shown_once_and_in_part(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, "softmax", softmax_with("for i in range(30): print(i, '\\x1b[2J')", "d_x = d_y"))
    assert outcome("exercise", "check", "softmax") == 1
    printed = capsys.readouterr().out.partition("it printed:\n")[2].splitlines()
    assert printed[0] == "    0 \N{REPLACEMENT CHARACTER}[2J"
    assert [line.split()[0] for line in printed] == [*map(str, range(10)), "..."]


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        (
            "while True: print('x' * 100)",
            "no end to be seen in a/softmax.py, line {}, in softmax_backward: a loop",
        ),
        ("__import__('os')._exit(5)", "a/softmax.py ended the whole program, with exit code 5"),
        (
            "raise KeyboardInterrupt",
            "it ends with a/softmax.py, line {}, in softmax_backward: KeyboardInterrupt",
        ),
        ("breakpoint(); input()", "a/softmax.py, line {}, in softmax_backward: EOFError"),
    ],
)
def test_a_process_of_its_own_ends_whatever_happens(statement: str, told: str) -> None:
    source = softmax_with(statement)
    started = time.perf_counter()
    outcome = examine_apart(find("softmax"), source, "a/softmax.py", seconds=1)
    assert outcome.verdict == "broken"
    assert told.format(line_of(source, statement)) in outcome.lines[-1]
    assert time.perf_counter() - started < 30


def test_a_thread_that_is_left_behind_delays_nothing() -> None:
    lines = (
        "import threading, time",
        "threading.Thread(target=lambda: time.sleep(100)).start()",
        "d_x = d_y",
    )
    started = time.perf_counter()
    assert examine_apart(find("softmax"), softmax_with(*lines), "softmax.py").verdict == "wrong"
    assert time.perf_counter() - started < 30


@pytest.mark.parametrize(
    "make", [Path.mkdir, lambda path: path.write_bytes(b" " * 2_000_000)], ids=["folder", "huge"]
)
def test_what_is_no_file_of_ours_is_not_read(
    folder: Path, make: Callable[[Path], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    make(folder / "linear.py")
    assert outcome("exercise", "check", "linear") == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_a_pipe_is_not_waited_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(folder / "linear.py")
    assert outcome("exercise", "check", "linear") == 1
    assert "linear.py is not a file" in capsys.readouterr().err
    assert load_learner_ops(folder).table == book


# --- training with what was solved --------------------------------------------------------------------------


def tensors(path: Path) -> dict[str, bytes]:
    checkpoint = ng.load_checkpoint(path)
    return {name: array.tobytes() for name, array in checkpoint.model.state_dict().items()}


OP_EXERCISES = [exercise.name for exercise in COURSE if exercise.op]


def test_training_with_the_books_solutions_is_training_with_the_book(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    solve(folder, *OP_EXERCISES)
    assert outcome("train", *TINY, *STEPS, "--ops", "exercises", "--out", "mine") == 0
    called = ", ".join(name for name in Ops._fields if name != "softmax")
    said = capsys.readouterr().out
    assert f"computed by you: {called}; by the book: nothing" in said
    assert "softmax: solved; but a model calls it within attention only" in said
    assert outcome("train", *TINY, *STEPS, "--ops", "book", "--out", "books") == 0
    assert tensors(Path("mine/last.safetensors")) == tensors(Path("books/last.safetensors"))


def test_every_function_of_the_table_is_the_learners(folder: Path) -> None:
    solve(folder, *OP_EXERCISES)
    table = load_learner_ops(folder).table
    for name, op in zip(Ops._fields, table, strict=True):
        assert op.forward is not getattr(book, name).forward
        assert op.backward is not getattr(book, name).backward


def test_each_operation_that_is_said_to_be_the_learners_is_called_in_training(folder: Path) -> None:
    solve(folder, *OP_EXERCISES)
    counting = (
        "\nCALLS = []\n_right = {0}\ndef {0}(d, saved):\n    CALLS.append(1)\n    return _right(d, saved)\n"
    )
    for name in OP_EXERCISES:
        source = solved(find(name)) + counting.format(find(name).solution.__name__)
        write(folder, name, source)
    table = load_learner_ops(folder).table
    calls = {name: sys.modules[f"numpy_gpt_exercise_{name}"].CALLS for name in OP_EXERCISES}
    for made in calls.values():
        made.clear()
    model = ng.GPT(ng.GPTConfig(5, 4, 4, 2, 1), ops=table)
    model.loss_and_gradients([[0, 1, 2]], [[1, 2, 3]])
    assert {name for name, made in calls.items() if not made} == set(learner_ops.NOT_CALLED)


def test_what_is_not_solved_is_left_to_the_book(folder: Path) -> None:
    solve(folder, "linear")
    write(folder, "softmax", handed_out(find("softmax")))
    write(folder, "layer_norm", solved(find("layer_norm")).replace("- mean_of_d", ""))
    write(folder, "gelu", b"\0")
    (folder / "embedding.py").mkdir()
    learner = load_learner_ops(folder)
    assert learner.solved == ("linear",)
    changed = [name for name in Ops._fields if getattr(learner.table, name) is not getattr(book, name)]
    assert changed == ["linear", "linear_cross_entropy"]
    told = str(learner)
    assert told.splitlines()[0].startswith(
        "computed by you: linear, linear_cross_entropy; by the book: embedding,"
    )
    for reason in (
        "softmax: not solved (unwritten); the book's is used",
        "layer_norm: not solved (d_x is wrong); the book's is used",
        "gelu: not solved (broken); the book's is used",
    ):
        assert reason in told
    assert "embedding.py is not a file; the book's is used" in told


def test_a_folder_in_which_nothing_is_solved_trains_with_the_book(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, "linear", "endless")
    assert outcome("train", *TINY, *STEPS, "--ops", "exercises", "--out", "mine") == 0
    assert "computed by you: nothing yet" in capsys.readouterr().out


def test_a_folder_without_exercises_gets_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome("train", *TINY, *STEPS, "--ops", "exercises") == 1
    message = capsys.readouterr().err
    assert "exercises holds no exercise that a model computes with" in message
    assert len(message.splitlines()) == 1
    assert not Path("runs").exists()
    assert outcome("train", *TINY, *STEPS, "--ops", "nowhere") == 2
    assert "ops must be fast, book, or a folder" in " ".join(capsys.readouterr().err.replace("│", "").split())


def test_a_run_with_solved_exercises_is_resumed_with_the_same(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    solve(folder, "linear", "gelu")
    assert outcome("train", *TINY, *STEPS, "--ops", "exercises", "--out", "whole") == 0
    assert outcome("train", *TINY, *STEPS, "--ops", "exercises", "--stop-after", "3", "--out", "parts") == 0
    assert b"exercises" not in Path("parts/last.safetensors").read_bytes(), "no checkpoint names code to run"
    resume = ["train", "--resume", "parts/last.safetensors"]
    capsys.readouterr()

    def assert_refused(code: int, reason: str, *arguments: str) -> None:
        assert outcome(*resume, *arguments) == code
        message = capsys.readouterr().err
        assert reason in message
        assert len(message.splitlines()) == 1

    assert_refused(2, "give their folder again with --ops")
    assert_refused(2, "leave out --ops", "--ops", "book")
    folder.rename("moved")
    write(Path("moved"), "gelu", solved(find("gelu")) + "# changed\n")
    assert_refused(1, "are not those of the run", "--ops", "moved")
    solve(Path("moved"), "gelu")
    assert outcome(*resume, "--ops=moved") == 0
    assert tensors(Path("parts/last.safetensors")) == tensors(Path("whole/last.safetensors"))
    assert outcome("train", *TINY, *STEPS, "--ops", "book", "--stop-after", "3", "--out", "books") == 0
    capsys.readouterr()
    resume = ["train", "--resume", "books/last.safetensors"]
    assert_refused(2, "leave out --ops", "--ops", "moved")


def test_learner_ops_deliver_into_out(folder: Path) -> None:
    solve(folder, "linear")
    learner: LearnerOps = load_learner_ops(folder)
    random = np.random.default_rng(0)
    x, weight, bias, d_y = (random.normal(size=shape) for shape in ((2, 3), (4, 3), (4,), (2, 4)))
    _, saved = learner.table.linear.forward(x, weight, bias)
    place = np.full((4, 3), 7.0)
    fresh = learner.table.linear.backward(d_y, saved)
    delivered = learner.table.linear.backward(d_y, saved, out=(None, place, None))
    assert delivered[1] is place
    for one, other in zip(fresh, delivered, strict=True):
        np.testing.assert_array_equal(one, other)


# --- what the README shows ----------------------------------------------------------------------------------

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.skipif(not README.exists(), reason="the README stands only in the checkout")
def test_the_readmes_learner_hears_what_it_shows(folder: Path) -> None:
    text = README.read_text(encoding="utf-8")
    attempt = re.search(r"```python\n(def layer_norm_backward.*?)\n```", text, flags=re.DOTALL)
    assert attempt
    for source in (with_function(find("layer_norm"), attempt[1]), solved(find("layer_norm"))):
        write(folder, "layer_norm", source)
        answer = "\n".join(Workbook(Path("exercises")).check("layer_norm").lines)
        assert textwrap.indent(answer, "    ") in text


@pytest.mark.skipif(not README.exists(), reason="the README stands only in the checkout")
def test_the_readmes_breakpoint_stands_at_a_line_of_a_backward_pass() -> None:
    place = re.search(r'"break (numpy_gpt/ops/\w+\.py):(\d+)"', README.read_text(encoding="utf-8"))
    assert place
    line = (README.parent / place[1]).read_text(encoding="utf-8").splitlines()[int(place[2]) - 1]
    assert line.startswith("    d_normalized = ")
