"""What a run is said to need of memory: close to what it takes, and refused where it is not there."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from numpy_gpt import cli
from numpy_gpt.cli import main
from numpy_gpt.config import TrainConfig
from numpy_gpt.model import TABLES
from numpy_gpt.training import memory

SMALL: dict[str, Any] = {"preset": "small", "max_sequence_length": 128, "num_layers": 4}

MEASURE = """
import sys
import numpy as np
import numpy_gpt as ng
from numpy_gpt.config import TrainConfig
from numpy_gpt.training.accumulation import accumulate_gradients

config = TrainConfig(**eval(sys.argv[1]))
shape = config.model_config(config.requested_vocabulary)
options = {name: getattr(config, name) for name in ("dtype", "ops", "threads", "recompute")}
model = ng.GPT(shape, **options)
gradients = ng.Parameters.zeros(shape, config.dtype)
optimizer = ng.AdamW(model.parameters)
batch = np.zeros((config.batch_size, shape.max_sequence_length), int)
parts = [(part, part) for part in np.array_split(batch, config.accumulate)]
for _ in range(2):
    accumulate_gradients(model, parts, out=gradients)
    ng.clip_gradients(gradients, 1.0)
    optimizer.step(gradients)
with open("/proc/self/status") as status:
    print(next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:")))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells a process's peak")
@pytest.mark.parametrize(
    "settings",
    [
        {"threads": 2, "batch_size": 12},
        {"threads": 1, "batch_size": 12, "recompute": True},
        {"threads": 1, "batch_size": 12, "accumulate": 3},
        {"threads": 1, "batch_size": 6, "ops": "book", "dtype": "float64"},
    ],
    ids=["two threads", "recomputing", "in parts", "the book"],
)
def test_a_run_takes_about_what_is_said(settings: dict[str, Any]) -> None:
    settings = SMALL | settings
    measured = subprocess.run(
        [sys.executable, "-c", MEASURE, repr(settings)], capture_output=True, text=True, check=True
    )
    config = TrainConfig(**settings)
    said = memory.training_bytes(config, config.model_config(config.requested_vocabulary), TABLES[config.ops])
    assert 0.85 < said / int(measured.stdout) < 1.35


def test_what_is_too_large_is_refused_before_anything_is_allocated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--preset", "gpt2-xl", "--batch-size", "100000", "--tokenizer", "bytes"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "memory" in line
    assert "--accumulate" in line
    assert not list(tmp_path.iterdir())


WORDS = "the quick brown fox jumps over a lazy dog " * 40
RUN = ["train", "--text", "words.txt", "--tokenizer", "bytes", "--embedding-dim", "8", "--num-heads", "2"]
RUN += ["--num-layers", "1", "--max-sequence-length", "8", "--steps", "4", "--threads", "1", "--out", "run"]


def test_resuming_is_refused_before_the_checkpoint_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.txt").write_text(WORDS)
    assert main([*RUN, "--stop-after", "2"]) == 0
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(memory, "available_bytes", lambda: 1e6)
        patch.setattr(cli, "load_checkpoint", lambda path: pytest.fail("it was read all the same"))
        assert main(["train", "--resume", "run"]) == 1
    printed = capsys.readouterr()
    assert "--accumulate" in printed.err
    assert printed.err.count("\n") == 1
    assert main(["train", "--resume", "run"]) == 0


@pytest.mark.parametrize("arguments", [RUN, ["train", "--resume", "run", "--out", "branch"]])
def test_what_a_run_needs_is_said_before_it_takes_it(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.txt").write_text(WORDS)
    if "--resume" in arguments:
        assert main([*RUN, "--stop-after", "2"]) == 0
        capsys.readouterr()

    def take(*_: Any) -> None:
        raise MemoryError("killed while taking it")

    monkeypatch.setattr("numpy_gpt.parameters.Parameters.zeros", take)
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert re.search(r"^on 1 threads, with about \d+ MB of memory", printed.out)
    assert "killed while taking it" in printed.err


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    4 kB\n"}, 4096),
        (
            {
                "proc/meminfo": "MemAvailable: 4000 kB\n",
                "sys/fs/cgroup/memory.max": "3000\n",
                "sys/fs/cgroup/memory.current": "1000\n",
            },
            2000,
        ),
        ({"proc/meminfo": "MemAvailable: 4 kB\n", "sys/fs/cgroup/memory.max": "max\n"}, 4096),
        (
            {
                "proc/meminfo": "MemAvailable: 4000 kB\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "3000\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000\n",
            },
            2000,
        ),
        (
            {
                "proc/meminfo": "MemAvailable: 4000 kB\n",
                "sys/fs/cgroup/memory.max": "3000\n",
                "sys/fs/cgroup/memory.current": "2500\n",
                "sys/fs/cgroup/memory.stat": "anon 400\nactive_file 300\ninactive_file 1800\n",
            },
            2300,
        ),
        (
            {
                "proc/meminfo": "MemAvailable: 4000 kB\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "3000\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "2500\n",
                "sys/fs/cgroup/memory/memory.stat": "inactive_file 7\ntotal_inactive_file 1800\n",
            },
            2300,
        ),
        (
            {
                "sys/fs/cgroup/memory.max": "3000\n",
                "sys/fs/cgroup/memory.current": "1000\n",
                "sys/fs/cgroup/memory.stat": "inactive_file 1001\n",  # read a moment later
            },
            3000,
        ),
        (
            {
                "sys/fs/cgroup/memory.max": "3000\n",
                "sys/fs/cgroup/memory.current": "1000\n",
                "sys/fs/cgroup/memory.stat": "\ninactive_file many\n",
            },
            2000,
        ),
    ],
    ids=[
        "the machine",
        "a container",
        "a container without limit",
        "an older container",
        "a container that has read files",
        "an older container that has read files",
        "a container that is reading a file",
        "a container that tells nonsense",
    ],
)
def test_free_memory_is_the_machine_s_or_the_container_s(
    files: dict[str, str], expected: int, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory.available_bytes(tmp_path) == expected


def test_where_nothing_tells_there_is_still_a_number(tmp_path: Path) -> None:
    assert 0 < memory.available_bytes(tmp_path) <= math.inf
