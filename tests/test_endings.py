"""How every command ends when it is not left in peace: signals, readers that leave, disks that are full."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpy_gpt as ng
from numpy_gpt.interop import export_pretrained
from numpy_gpt.text.tokenizers import bytes_tokenizer
from tests.test_cli import COMMAND, ENVIRONMENT, LAST_LINE, TINY, run, write_words

pytestmark = pytest.mark.skipif(os.name == "nt", reason="pipes, signals and mounts are those of POSIX")

NEVER_FLUSHED = """
import os, sys, time

def fsync(descriptor):
    print("writing", flush=True)
    os.unlink = slow_unlink
    time.sleep(60)

def slow_unlink(*arguments, **options):
    print("tidying", flush=True)
    time.sleep(0.2)
    unlink(*arguments, **options)

unlink, os.fsync = os.unlink, fsync
from numpy_gpt.__main__ import main
sys.exit(main())
"""
"""The command, on a disk that takes its time: something is written aside, and nothing has its name."""

COMMANDS = {
    "prepare": ["prepare", "--text", "words.txt", "--tokenizer", "bytes", "--out", "new/prepared"],
    "import": ["import", "--weights", "exported", "--out", "new.safetensors"],
    "export": ["export", "--checkpoint", "model.safetensors", "--out", "new"],
    "evaluate": ["evaluate", "--checkpoint", "model.safetensors", "--text", "words.txt"],
    "sample": ["sample", "--checkpoint", "model.safetensors", "--prompt", "the"],
    "list": ["sample", "--checkpoint", "model.safetensors", "--prompt", "the", "--top", "3"],
    "train": ["train", *TINY, "--steps", "4", "--eval-interval", "1", "--out", "run"],
    "version": ["--version"],
    "help": ["train", "--help"],
}
WRITING = ("prepare", "import", "export")
WRONG = (["dance"], ["train", "--num-heads", "3"])


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with something for every command to work on."""
    folder = tmp_path_factory.mktemp("original")
    write_words(folder)
    model = ng.GPT(ng.GPTConfig(257, 16, embedding_dim=32, num_heads=2, num_layers=1))
    model.parameters.flat[:] = np.random.default_rng(0).normal(0, 0.5, model.parameters.flat.size)
    ng.save_checkpoint(folder / "model.safetensors", model, tokenizer=bytes_tokenizer())
    export_pretrained(folder / "exported", model, tokenizer=bytes_tokenizer())
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "work"))


def everything_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@contextlib.contextmanager
def started(
    arguments: list[str], folder: Path, command: list[str] = COMMAND
) -> Iterator[subprocess.Popen[str]]:
    """Yield a command that is running, and end it afterwards if it has not ended."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*command, *arguments], cwd=folder, env=ENVIRONMENT, stdout=pipe, stderr=pipe, encoding="utf-8"
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it never happens"
        time.sleep(0.01)


# ---- signals -----------------------------------------------------------------------------------------------

SIGNALS = pytest.mark.parametrize(
    ("signals", "exit_code"),
    [([signal.SIGINT], 130), ([signal.SIGTERM], 143), ([signal.SIGINT] * 2, 130)],
    ids=["Ctrl-C", "SIGTERM", "Ctrl-C twice"],
)


def assert_interrupted(process: subprocess.Popen[str], signals: list[int], exit_code: int) -> None:
    """Send the signals, the second when the command has begun to tidy up, or has done so."""
    assert process.stdout is not None
    process.send_signal(signals[0])
    for number in signals[1:]:
        process.stdout.readline()
        process.send_signal(number)
    _, complaint = process.communicate(timeout=60)
    assert (process.returncode, complaint) == (exit_code, "numpy-gpt: interrupted\n")


@SIGNALS
@pytest.mark.parametrize("name", WRITING)
def test_an_interrupted_writer_leaves_nothing(
    folder: Path, name: str, signals: list[int], exit_code: int
) -> None:
    before = everything_in(folder)
    with started(COMMANDS[name], folder, [sys.executable, "-c", NEVER_FLUSHED]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        assert any(path.endswith(".tmp") for path in everything_in(folder)), "nothing is aside"
        assert_interrupted(process, signals, exit_code)
    assert everything_in(folder) == before


@SIGNALS
@pytest.mark.parametrize("name", ["sample", "evaluate"])
def test_an_interrupted_reader_says_so(folder: Path, name: str, signals: list[int], exit_code: int) -> None:
    os.mkfifo(folder / "pipe")  # nobody writes into it, so the command waits
    flag = {"sample": "--prompt-file", "evaluate": "--text"}[name]
    arguments = [name, "--checkpoint", "model.safetensors", flag, "pipe"]
    # The pipe opens as soon as the command has opened it, too.
    with started(arguments, folder) as process, (folder / "pipe").open("wb"):
        assert_interrupted(process, signals, exit_code)


MEET_A_SIGNAL = """
import os, signal, sys

class Meets:
    def find_spec(self, name, *where):
        if name == "tyro":
            os.kill(os.getpid(), signal.{name})

sys.meta_path.insert(0, Meets())
from numpy_gpt.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(("name", "exit_code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_that_comes_while_modules_are_loaded_counts(
    tmp_path: Path, name: str, exit_code: int
) -> None:
    process = run(
        "--version", folder=tmp_path, command=[sys.executable, "-c", MEET_A_SIGNAL.format(name=name)]
    )
    assert (process.returncode, process.stdout) == (exit_code, "")
    assert process.stderr == "numpy-gpt: interrupted\n"


LOSE_THE_EXCEPTION = """
import contextlib, os, signal, sys
from numpy_gpt import cli, __main__

def loses_it():
    try:
        exec("os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(60)")
    except KeyboardInterrupt:
        {becomes}
    return 0

cli.main = loses_it
sys.exit(__main__.main())
"""


@pytest.mark.parametrize("becomes", ["pass", "raise SystemError('result with an exception set')"])
def test_an_interrupt_that_others_lose_or_change_still_decides_the_exit_code(
    tmp_path: Path, becomes: str
) -> None:
    script = LOSE_THE_EXCEPTION.format(becomes=becomes)
    process = run(folder=tmp_path, command=[sys.executable, "-c", script])
    assert process.returncode == 130
    assert process.stderr in ("", "numpy-gpt: interrupted\n")


WATCH_RUSTBPE = """
import sys, rustbpe
from numpy_gpt.text.tokenizers import learn_bpe

calls = 0

def note(frame, event, argument):
    global calls
    calls += event == "call" and "logging" in frame.f_code.co_filename

class Watched:
    def __init__(self):
        self.inner = learner()
        self.get_mergeable_ranks = self.inner.get_mergeable_ranks
    def train_from_iterator(self, texts, **options):
        global calls
        calls = 0
        sys.setprofile(note)
        self.inner.train_from_iterator(texts, **options)
        sys.setprofile(None)

learner, rustbpe.Tokenizer = rustbpe.Tokenizer, Watched
learn_bpe("ab ab ac " * 99, 260)
print(calls)
"""


def test_rustbpe_asks_for_no_log_while_it_learns(tmp_path: Path) -> None:
    # It loses an interrupt that comes up while it does.
    process = run(folder=tmp_path, command=[sys.executable, "-c", WATCH_RUSTBPE])
    assert (process.stdout, process.stderr) == ("0\n", "")


@pytest.mark.parametrize("moment", ["writing", "renaming"])
def test_what_a_killed_prepare_left_is_no_obstacle(folder: Path, moment: str) -> None:
    out = folder / "new" / "prepared"
    with started(COMMANDS["prepare"], folder, [sys.executable, "-c", NEVER_FLUSHED]) as process:
        wait_for(process, (out / ".training.npy.tmp").exists)
        process.kill()
    if moment == "renaming":
        (out / "validation.npy").write_bytes(b"half")
        (out / ".prepared.json.tmp").write_bytes(b"whole")
    done = run(*COMMANDS["prepare"], folder=folder)
    assert done.returncode == 0, done.stderr
    names = {"training.npy", "validation.npy", "tokenizer.json", "prepared.json"}
    assert {path.name for path in out.iterdir()} == names
    trained = run(*COMMANDS["train"], "--text", "new/prepared", folder=folder)
    assert trained.returncode == 0, trained.stderr


def test_somebody_elses_files_are_no_leftovers(folder: Path) -> None:
    out = folder / "new" / "prepared"
    out.mkdir(parents=True)
    for name in ("training.npy", ".hidden"):
        (out / name).write_text("mine")
        done = run(*COMMANDS["prepare"], folder=folder)
        assert done.returncode == 2
        assert "is not empty" in done.stderr
        assert [(path.name, path.read_text()) for path in out.iterdir()] == [(name, "mine")]
        (out / name).unlink()


# ---- readers that leave ------------------------------------------------------------------------------------


def run_in_shell(command: str, arguments: list[str], folder: Path) -> Any:
    """Return the completed process of a shell's command line, in which "$@" is numpy-gpt with arguments."""
    return subprocess.run(
        ["bash", "-c", command, "bash", *COMMAND, *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


LEAVING = {
    "at once": '"$@" | true; exit ${PIPESTATUS[0]}',
    "after a line": '"$@" | head -n 1; exit ${PIPESTATUS[0]}',
    "of both streams": '"$@" 2>&1 | head -n 1; exit ${PIPESTATUS[0]}',
    "before the start": '"$@" >&-',
    "all before the start": '"$@" <&- >&- 2>&-',
    "complaints only": '"$@" 2>&-',
}


QUICKLY_TRIED = {
    ("train", "at once"),
    ("sample", "of both streams"),
    ("list", "before the start"),
    ("help", "at once"),
}


@pytest.mark.parametrize(
    ("name", "leaving"),
    [
        pytest.param(name, leaving, marks=() if (name, leaving) in QUICKLY_TRIED else pytest.mark.slow)
        for name in COMMANDS
        for leaving in LEAVING
    ],
)
def test_a_command_succeeds_without_a_reader(folder: Path, name: str, leaving: str) -> None:
    process = run_in_shell(LEAVING[leaving], COMMANDS[name], folder)
    assert process.returncode == 0, process.stderr
    assert "Error" not in process.stderr
    if name == "train":
        assert ng.load_checkpoint(folder / "run" / "last.safetensors").step == 4
    elif name == "prepare":
        assert (folder / "new" / "prepared" / "prepared.json").exists()


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_wrong_usage_is_wrong_without_a_reader(folder: Path, arguments: list[str]) -> None:
    for command in (LEAVING["of both streams"], LEAVING["complaints only"]):
        assert run_in_shell(command, arguments, folder).returncode == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
@pytest.mark.parametrize("name", ["sample", "version", "help"])
def test_output_that_cannot_be_written_is_one_line(folder: Path, name: str) -> None:
    process = run_in_shell('"$@" >/dev/full', COMMANDS[name], folder)
    assert process.returncode == 1
    complaints = [line for line in process.stderr.splitlines() if "tokens/s" not in line]
    assert complaints == ["numpy-gpt: No space left on device"]


def test_sampling_ends_with_its_reader(folder: Path) -> None:
    arguments = [*COMMANDS["sample"], "--max-new-tokens", "1000000", "--top-k", "1"]
    assert run_in_shell(LEAVING["at once"], arguments, folder).returncode == 0  # within the time limit


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_whose_reader_was_interrupted_first_still_saves(
    folder: Path, number: int, exit_code: int
) -> None:
    endless = [*COMMANDS["train"], "--steps", "1000000", "--eval-interval", "1000000"]
    metrics = folder / "run" / "metrics.csv"
    with started(endless, folder) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        wait_for(process, lambda: metrics.exists() and metrics.read_bytes().count(b"\n") > 3)
        process.stdout.close()  # as `tee` does, which the same Ctrl-C ends
        process.send_signal(number)
        assert process.wait(timeout=60) == exit_code
        assert process.stderr.read() == ""
    assert ng.load_checkpoint(folder / "run" / "last.safetensors").step > 3


# ---- disks -------------------------------------------------------------------------------------------------


@pytest.fixture(params=["full", "read-only"])
def disk(request: pytest.FixtureRequest, folder: Path) -> Iterator[tuple[Path, str]]:
    """A disk that takes nothing more, and what is said of it."""
    place = folder / "disk"
    place.mkdir()
    options = {"full": "size=4k", "read-only": "ro"}[request.param]
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        done = False
    if not done:
        pytest.skip("needs the right to mount a small disk")
    fault = {"full": "No space left on device", "read-only": "Read-only file system"}[request.param]
    yield place, fault
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("name", [*WRITING, "train"])
def test_a_disk_that_takes_no_more_is_named_and_left_alone(
    folder: Path, disk: tuple[Path, str], name: str
) -> None:
    place, fault = disk
    arguments = [*COMMANDS[name][:-1], f"disk/{COMMANDS[name][-1].replace('/', '-')}"]
    process = run(*arguments, folder=folder)
    assert process.returncode == 1
    assert process.stderr.count("\n") == 1
    assert process.stderr.startswith("numpy-gpt: ")
    assert "disk/" in process.stderr
    assert fault in process.stderr
    left = {path for path in everything_in(place) if Path(path).name not in ("run", "metrics.csv")}
    assert left == set()


def test_a_run_on_a_disk_that_fills_up_keeps_its_last_checkpoint(folder: Path) -> None:
    first = run(*COMMANDS["train"], "--stop-after", "2", folder=folder)
    assert first.returncode == 0
    last = folder / "run" / "last.safetensors"
    size = last.stat().st_size
    script = f'ulimit -f {size // 1024 // 2}; trap "" XFSZ; "$@"'
    process = run_in_shell(script, ["train", "--resume", "run/last.safetensors"], folder)
    assert process.returncode == 1
    assert "last.safetensors: File too large" in process.stderr
    assert ng.load_checkpoint(last).step == 2
    assert not list((folder / "run").glob(".*"))
    resumed = run("train", "--resume", "run/last.safetensors", folder=folder)
    assert resumed.returncode == 0
    assert LAST_LINE.fullmatch(resumed.stdout.splitlines()[-1])
