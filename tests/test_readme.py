"""What the README shows is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.mark.skipif(not BLOCKS, reason="the README stands only in the checkout")
def test_every_example_runs_and_prints_what_its_comments_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for block in BLOCKS:
        exec(compile(block, str(README), "exec"), namespace)
    printed = capsys.readouterr().out
    for shape in re.findall(r"^print\(.*\) +# (\(.*?\)|[\d. ]+?)  ", "\n".join(BLOCKS), flags=re.MULTILINE):
        assert shape in printed
    shown = TEXT.partition("[[0 1 1 1 1]")[2].partition("]]")[0]
    assert re.sub(r"\n +", "\n ", shown) in printed
    assert "probably layer_norm_projection_term (x)" in " ".join(printed.split())
    assert "x       (5, 8)  failed" in printed


@pytest.mark.skipif(sys.platform == "win32", reason="continuous integration runs where sed is")
def test_continuous_integration_takes_the_test_command_from_here() -> None:
    commands = re.findall(r"^ +(python3 -m venv \.venv && .*)$", TEXT, flags=re.MULTILINE)
    tests = "pytest -n 2 --dist loadfile"
    assert [command.split("/bin/")[-1] for command in commands] == ["numpy-gpt train", tests]
    script = (README.parent / ".ci/run").read_text(encoding="utf-8")
    extraction = re.search(r"sed -n '(.*?)' README\.md", script)
    assert extraction
    found = subprocess.run(
        ["sed", "-n", extraction[1], README], capture_output=True, encoding="utf-8", check=True
    )
    assert found.stdout.splitlines() == commands[1:]
