"""Files are whole or absent, whoever writes them and whatever comes between."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import numpy_gpt as ng
from numpy_gpt import cli
from numpy_gpt.interop.writing import export_pretrained
from numpy_gpt.learn.exercises.progress import Progress
from numpy_gpt.learn.exercises.workbook import Workbook
from numpy_gpt.learn.explorer.rendering import GENERATOR
from numpy_gpt.text.prepare import PrepareConfig, prepare
from numpy_gpt.training.run_folder import RunFolder
from numpy_gpt.whole_files import write_whole

PACKAGE = Path(ng.__file__).parent
FAULTS = {
    "full disk": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "interrupt": KeyboardInterrupt(),
}
CONFIG = ng.GPTConfig(300, 5, embedding_dim=8, num_heads=2, num_layers=1)


def contents(folder: Path) -> dict[str, bytes | None]:
    """Return everything in a folder, with the bytes of its files."""
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("written", range(4))
@pytest.mark.parametrize("exists", [False, True])
def test_a_fault_after_any_piece_leaves_what_was_there(
    tmp_path: Path, fault: str, written: int, exists: bool
) -> None:
    path = tmp_path / "file"
    if exists:
        path.write_bytes(b"earlier")
    before = contents(tmp_path)

    def pieces() -> Iterator[bytes]:
        yield from [b"some", b"", b"thing"][:written]
        raise FAULTS[fault]

    with pytest.raises(type(FAULTS[fault])) as caught:
        write_whole(path, pieces())
    assert contents(tmp_path) == before
    if isinstance(caught.value, OSError):
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    write_whole(path, [b"some", b"", memoryview(b"thing")])
    assert contents(tmp_path) == {"file": b"something"}


def test_what_a_kill_left_aside_is_gone_after_the_next_writing(tmp_path: Path) -> None:
    (tmp_path / ".file.tmp").write_bytes(b"much longer than what comes")
    write_whole(tmp_path / "file", [b"whole"])
    assert contents(tmp_path) == {"file": b"whole"}


def write_page(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "explain_step", lambda text: f"<html>{GENERATOR} {text}</html>")
        exit_code = cli.main(["explain", "--text", "a b c", "--out", str(folder / "page.html")])
    if exit_code == 130:
        raise KeyboardInterrupt
    if exit_code:
        raise OSError(errno.ENOSPC, "said on standard error")


def draw_losses(folder: Path) -> None:
    pytest.importorskip("matplotlib", reason="pip install 'numpy-gpt[plot]'")
    run = RunFolder(folder)
    run._rows = [{"step": "1", "train_loss": "2.5", "validation_loss": ""}]
    assert run.draw()


def prepare_text(folder: Path) -> None:
    text = folder.parent / "text.txt"
    text.write_text("some words " * 9)
    prepare(PrepareConfig(folder / "prepared", (text,), tokenizer="bytes"))


WRITERS: dict[str, Callable[[Path], object]] = {
    "checkpoint": lambda folder: ng.save_checkpoint(folder / "a.safetensors", ng.GPT(CONFIG)),
    "metrics": lambda folder: RunFolder(folder)._rewrite_metrics(),
    "picture": draw_losses,
    "page": write_page,
    "progress": lambda folder: Progress(folder, solved={"line"}).save(),
    "exercise": lambda folder: Workbook(folder).start("line"),
    "export": lambda folder: export_pretrained(folder / "exported", ng.GPT(CONFIG)),
    "prepare": prepare_text,
}
REPLACE = {
    "checkpoint": "a.safetensors",
    "metrics": "metrics.csv",
    "picture": "loss.png",
    "page": "page.html",
    "progress": "progress.json",
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", WRITERS)
def test_every_writer_leaves_what_was_there_when_the_disk_or_the_user_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fault: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    if name in REPLACE:
        (folder / REPLACE[name]).write_text(f"earlier {GENERATOR}")
    before = contents(folder)
    seen: list[dict[str, bytes | None]] = []

    def fail(descriptor: int) -> None:
        seen.append(contents(folder))
        raise FAULTS[fault]

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(type(FAULTS[fault])):
            WRITERS[name](folder)
    assert seen[0] != before, "the fault came before anything was written"
    assert contents(folder) == before
    WRITERS[name](folder)
    after = contents(folder)
    assert after != before
    assert not [path for path in after if path.endswith(".tmp")]


PLAIN_WRITE = re.compile(
    r"""write_text\(|write_bytes\(|savefig\(self|open\([^)]*["'](?:[wax]b?\+?|[wax]t)["']|O_CREAT"""
)
ALLOWED = {
    "whole_files.py": 1,
    "training/run_folder.py": 1,  # a line of metrics for every step, as it comes
    "learn/exercises/trial.py": 2,  # between two processes, in a folder that is removed
}


def test_no_module_writes_a_file_in_another_way() -> None:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        if number := len(PLAIN_WRITE.findall(path.read_text(encoding="utf-8"))):
            found[path.relative_to(PACKAGE).as_posix()] = number
    assert found == ALLOWED
