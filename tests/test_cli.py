"""The command line, through the real command: what it prints, what it leaves behind, and how it ends."""

from __future__ import annotations

import csv
import dataclasses
import os
import random
import re
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
from numpy_gpt import cli
from numpy_gpt import model as model_module
from numpy_gpt.config import SampleConfig, TrainConfig
from numpy_gpt.ops import Op, book
from numpy_gpt.text.tokenizers import encode
from numpy_gpt.training.interruption import gentle_interruption
from numpy_gpt.verify.parity import VerifyConfig

COMMAND = [sys.executable, "-m", "numpy_gpt"]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(ng.__file__).parents[1]), "PYTHONUTF8": "1"}
SENTENCE = (
    "the quick brown fox jumps over a lazy dog while seven wizards brew tea \u2013 na\u00efve, [b]no[/b]?"
)
TINY = [
    *("--text", "words.txt", "--tokenizer", "bytes", "--num-layers", "1", "--num-heads", "2"),
    *("--embedding-dim", "8", "--max-sequence-length", "12", "--batch-size", "3", "--warmup-steps", "2"),
]
LAST_LINE = re.compile(r"validation loss (\d+\.\d{4}) nats/token (\d+\.\d{4}) bits/byte")
COLUMNS = [
    *("step", "tokens", "learning_rate", "train_loss", "gradient_norm"),
    *("validation_loss", "validation_bits_per_byte", "tokens_per_second"),
]


def run(*arguments: str, folder: Path, command: list[str] = COMMAND, **environment: str) -> Any:
    """Return the completed process of a command in a folder."""
    return subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env=ENVIRONMENT | environment,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )


def outcome(*arguments: str) -> int:
    """Return the exit code of a command that runs within this process."""
    try:
        return cli.main(arguments)
    except SystemExit as exit_:
        return int(exit_.code or 0)


def write_words(folder: Path) -> None:
    words = random.Random(0).choices(SENTENCE.split(), k=400)
    (folder / "words.txt").write_text(" ".join(words), encoding="utf-8")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder with a finished run in runs/first, and the process that made it."""
    folder = tmp_path_factory.mktemp("trained")
    write_words(folder)
    return folder, run(
        "train", *TINY, "--steps", "12", "--eval-interval", "5", "--out", "runs/first", folder=folder
    )


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a text in it."""
    write_words(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows_of(metrics: Path) -> list[list[str]]:
    with metrics.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


# ---- train -------------------------------------------------------------------------------------------------


def test_training_ends_with_the_validation_line(trained: tuple[Path, Any]) -> None:
    folder, process = trained
    assert process.returncode == 0
    assert process.stderr == ""
    line = LAST_LINE.fullmatch(process.stdout.splitlines()[-1])
    assert line, process.stdout
    last_row = dict(zip(COLUMNS, rows_of(folder / "runs" / "first" / "metrics.csv")[-1], strict=True))
    assert line[1] == f"{float(last_row['validation_loss']):.4f}"
    assert line[2] == f"{float(last_row['validation_bits_per_byte']):.4f}"


def test_training_prints_the_fingerprint_of_its_text_and_a_sample(trained: tuple[Path, Any]) -> None:
    folder, process = trained
    text = (folder / "words.txt").read_text(encoding="utf-8")
    assert re.search(r"fingerprint [0-9a-f]{8,}", process.stdout)
    assert text[-len(text) // 10 :][:50] in process.stdout  # what the sample continues, markup and all


def test_a_run_leaves_its_documented_files(trained: tuple[Path, Any]) -> None:
    folder = trained[0] / "runs" / "first"
    expected = {"last.safetensors", "best.safetensors", "metrics.csv", "loss.png"}
    assert {path.name for path in folder.iterdir()} == expected
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    last, best = (ng.load_checkpoint(folder / f"{name}.safetensors") for name in ("last", "best"))
    assert last.step == 12
    assert best.step in (5, 10, 12)
    assert last.model.config == ng.GPTConfig(257, 12, embedding_dim=8, num_heads=2, num_layers=1)
    assert last.optimizer is not None
    assert last.optimizer.steps_taken == 12
    assert last.tokenizer is not None


def test_metrics_have_a_row_per_step(trained: tuple[Path, Any]) -> None:
    header, *rows = rows_of(trained[0] / "runs" / "first" / "metrics.csv")
    assert header == COLUMNS
    table = [dict(zip(header, row, strict=True)) for row in rows]
    assert [int(row["step"]) for row in table] == list(range(1, 13))
    assert [int(row["tokens"]) for row in table] == [36 * step for step in range(1, 13)]
    assert [int(row["step"]) for row in table if row["validation_loss"]] == [5, 10, 12]
    for row in table:
        assert all(float(row[name]) > 0 for name in COLUMNS if not name.startswith("validation"))
        assert bool(row["validation_loss"]) == bool(row["validation_bits_per_byte"])


def test_every_setting_reaches_the_run(
    words: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    flags = [*TINY, "--steps", "3", "--dtype", "float64", "--ops", "book", "--threads", "1", "--seed", "7"]
    flags += [
        "--activation",
        "gelu",
        "--learning-rate",
        "0.5",
        "--min-learning-rate",
        "0.25",
        "--beta1",
        "0.5",
    ]
    flags += ["--beta2", "0.75", "--weight-decay", "0.125", "--clip-norm", "0", "--preset", "small"]
    assert outcome("train", *flags) == 0
    printed = capsys.readouterr()
    assert LAST_LINE.fullmatch(printed.out.splitlines()[-1])
    assert 'pip install "numpy-gpt[plot]"' in printed.out
    assert printed.err == ""

    (folder,) = (words / "runs").iterdir()  # without --out
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-\d{6}", folder.name)
    checkpoint = ng.load_checkpoint(folder / "last.safetensors")
    assert checkpoint.model.dtype == np.float64
    assert checkpoint.model.config.activation == "gelu"
    optimizer = checkpoint.optimizer
    assert optimizer is not None
    assert (optimizer.betas, optimizer.weight_decay) == ((0.5, 0.75), 0.125)
    rates = [float(row[2]) for row in rows_of(folder / "metrics.csv")[1:]]
    assert rates == pytest.approx([1 / 6, 1 / 3, 0.5])


def test_a_run_never_overwrites_another(words: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (words / "used").mkdir()
    (words / "used" / "metrics.csv").write_text("precious")
    assert outcome("train", *TINY, "--out", "used") == 2
    assert_one_line(capsys, "used")
    assert [path.read_text() for path in (words / "used").iterdir()] == ["precious"]


def test_a_run_that_diverges_ends_in_one_line(words: Path) -> None:
    process = run(
        "train", *TINY, "--learning-rate", "1e30", "--warmup-steps", "0", "--out", "out", folder=words
    )
    assert process.returncode == 1
    assert re.fullmatch(r"numpy-gpt: step 2: .*loss.* not finite.*\n", process.stderr)
    assert [path.name for path in (words / "out").iterdir()] == ["metrics.csv"]


# ---- how a run is interrupted ------------------------------------------------------------------------------


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot send these signals to a process")
@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_saves_its_last_step(words: Path, number: int, exit_code: int) -> None:
    flags = ["--steps", "1000000", "--eval-interval", "1000000", "--out", "out"]
    process = subprocess.Popen(
        [*COMMAND, "train", *TINY, *flags],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    metrics = words / "out" / "metrics.csv"
    try:
        while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") > 3):
            time.sleep(0.02)
        process.send_signal(number)
        printed, complaint = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == exit_code, complaint
    assert complaint == ""
    step = ng.load_checkpoint(words / "out" / "last.safetensors").step
    assert step == len(rows_of(metrics)) - 1
    assert f"step {step:,}" in printed.splitlines()[-1]


@pytest.fixture
def usual_interrupt() -> Iterator[None]:
    """Python's own SIGINT, which a shell that starts pytest in the background has switched off."""
    outer = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, outer)


@pytest.mark.usefixtures("usual_interrupt")
def test_the_first_signal_is_a_wish_and_the_second_an_order() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with gentle_interruption() as interruption:
        assert not interruption
        signal.raise_signal(signal.SIGINT)
        assert interruption
        assert interruption.signal_number == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_signals_are_handled_as_before_once_a_run_is_over() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(ZeroDivisionError), gentle_interruption():
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_an_interrupt_outside_of_training_is_no_traceback(
    words: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "load_data", interrupt)
    assert outcome("train", *TINY) == 130
    assert_one_line(capsys, "interrupted")


# ---- sample ------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(trained: tuple[Path, Any]) -> str:
    """The path of a trained model."""
    return str(trained[0] / "runs" / "first" / "last.safetensors")


def test_a_sample_is_the_prompt_and_what_the_model_adds(trained: tuple[Path, Any], checkpoint: str) -> None:
    arguments = ["sample", "--checkpoint", checkpoint, "--prompt", "the [b]quick", "--max-new-tokens", "20"]
    process = run(*arguments, "--temperature", "0", folder=trained[0])
    assert process.returncode == 0, process.stderr
    loaded = ng.load_checkpoint(checkpoint)
    tokenizer = loaded.tokenizer
    assert tokenizer is not None
    tokens = ng.generate(
        loaded.model,
        encode(tokenizer, "the [b]quick"),
        max_new_tokens=20,
        temperature=0,
        end_of_text=tokenizer.eot_token,
    )
    continued = "the [b]quick" + tokenizer.decode(list(tokens))
    assert process.stdout.strip() == re.sub(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]", "\ufffd", continued).strip()


def test_a_sample_cannot_steer_the_terminal(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = "a\x1b[31mb\rc\x07d\u202ee"
    assert outcome("sample", "--checkpoint", checkpoint, "--prompt", prompt, "--max-new-tokens", "0") == 0
    assert capsys.readouterr().out.strip() == "a\ufffd[31mb\ufffdc\ufffdd\ufffde"


def test_a_seed_decides_the_sample(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    def sample(*flags: str) -> str:
        assert outcome("sample", "--checkpoint", checkpoint, "--max-new-tokens", "30", *flags) == 0
        return capsys.readouterr().out

    assert sample("--seed", "1") == sample("--seed", "1")
    assert sample("--seed", "1") != sample("--seed", "2")
    assert sample("--seed", "1", "--top-k", "1") == sample("--seed", "2", "--top-k", "1")
    assert sample("--seed", "1", "--top-p", "1e-9") == sample("--seed", "2", "--temperature", "0")
    assert sample("--prompt", "", "--max-new-tokens", "0").strip() == ""


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({"b/best": 1, "b/last": 5, "a/best": 2, "a/last": 3}, "b"),
        ({"b/best": 1, "b/last": 2, "a/best": 3, "a/last": 3}, "a"),
        ({"b/best": 4, "b/last": 4, "a/best": 4, "a/last": 4}, "b"),
        ({"b/last": 9, "a/best": 1}, "a"),
    ],
    ids=["resumed last", "last whatever its name", "equal times", "without a best model"],
)
def test_without_a_checkpoint_the_run_that_wrote_last_is_sampled(
    words: Path, checkpoint: str, capsys: pytest.CaptureFixture[str], seconds: dict[str, int], expected: str
) -> None:
    # What else may lie there: a file, an empty folder, a folder in place of a model, a link to nowhere.
    for name in ("empty", "strange/best.safetensors", "broken"):
        (words / "runs" / name).mkdir(parents=True)
    (words / "runs" / "notes.txt").write_text("mine")
    (words / "runs" / "broken" / "best.safetensors").symlink_to("nowhere")
    for name, second in seconds.items():
        path = words / "runs" / f"{name}.safetensors"
        path.parent.mkdir(exist_ok=True)
        shutil.copy(checkpoint, path)
        os.utime(path, (second, second))
    (words / "runs" / expected / "dangling.safetensors").symlink_to("nowhere")
    assert outcome("sample", "--prompt", "the", "--max-new-tokens", "3") == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("the")
    assert printed.err.startswith(str(Path("runs", expected, "best.safetensors")))


def test_a_terminal_that_knows_few_characters_still_gets_its_sample(
    trained: tuple[Path, Any], checkpoint: str
) -> None:
    flags = ["--checkpoint", checkpoint, "--prompt", "na\u00efve \u2013", "--max-new-tokens", "30"]
    process = run("sample", *flags, folder=trained[0], PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith("na?ve ?")


# ---- verify ------------------------------------------------------------------------------------------------

SMALL = ["--num-tokens", "5", "--num-heads", "2", "--embedding-dim", "32", "--vocabulary-size", "23"]


def test_verification_compares_every_tensor_with_torch(tmp_path: Path) -> None:
    process = run("verify", *SMALL, folder=tmp_path)
    assert (process.returncode, process.stderr) == (0, "")
    assert "PyTorch" in process.stdout
    assert "zero by symmetry" in process.stdout
    for name in (
        "logits",
        "loss",
        "W_query.weight",
        "down_proj.bias",
        "token_embedding.weight",
        "final_norm.bias",
    ):
        assert name in process.stdout


WITHOUT_TORCH = """
import sys

class LooksPastTorch:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, *where):
        return None if name.partition(".")[0] == "torch" else self.finder.find_spec(name, *where)

sys.meta_path[:] = map(LooksPastTorch, sys.meta_path)
from numpy_gpt.cli import main
sys.exit(main())
"""


def test_without_torch_there_are_finite_differences_and_it_says_so(tmp_path: Path) -> None:
    process = run("verify", *SMALL, folder=tmp_path, command=[sys.executable, "-c", WITHOUT_TORCH])
    assert (process.returncode, process.stderr) == (0, "")
    assert re.search(r"finite differences.* PyTorch is not installed", process.stdout)


@pytest.mark.parametrize("flags", [("--train-steps", "2"), ("--precision",)])
def test_what_needs_torch_says_how_to_install_it(tmp_path: Path, flags: tuple[str, ...]) -> None:
    without_torch = [sys.executable, "-c", WITHOUT_TORCH]
    process = run("verify", *SMALL, *flags, folder=tmp_path, command=without_torch)
    assert (process.returncode, process.stdout) == (1, "")
    assert re.fullmatch(r"numpy-gpt: .*pip install .*torch.*\n", process.stderr)


def test_verification_of_wrong_code_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def backward(d_out: Any, saved: Any, *, out: Any = None) -> tuple[Any, ...]:
        return tuple(2 * gradient for gradient in book.gelu.backward(d_out, saved, out=out))

    broken = book._replace(gelu=Op(book.gelu.forward, backward))
    monkeypatch.setitem(model_module.TABLES, "fast", broken)
    assert outcome("verify", *SMALL) == 1
    printed = capsys.readouterr().out
    assert "DIFFERENT" in printed
    assert "NOT equal" in printed


# ---- wrong usage and bad data ------------------------------------------------------------------------------


def assert_one_line(capsys: pytest.CaptureFixture[str], *parts: str) -> None:
    """Fail unless standard error is one line that holds the parts."""
    complaint = capsys.readouterr().err
    assert re.fullmatch(r"numpy-gpt: .+\n", complaint), complaint
    for part in parts:
        assert part in complaint


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "train"),
        (["dance"], "dance"),
        (["train", "--dance", "3"], "--dance"),
        (["train", "words.txt"], "words.txt"),
        (["train", "--steps"], "--steps"),
        (["train", "--steps", "many"], "--steps"),
        (["train", "--steps", "0"], "steps"),
        (["train", "--num-heads", "3"], "num_heads"),
        (["train", "--tokenizer", "words"], "--tokenizer"),
        (["train", "--preset", "huge"], "--preset"),
        (["train", "--dtype", "float16"], "--dtype"),
        (["train", "--learning-rate", "nan"], "learning_rate"),
        (["train", "--min-learning-rate", "1"], "min_learning_rate"),
        (["train", "--tokenizer", "bytes", "--vocabulary-size", "300"], "vocabulary_size"),
        (["sample", "--temperature", "warm"], "--temperature"),
        (["sample", "--top-k", "1.5"], "--top-k"),
        (["verify", "--num-tokens", "0"], "num_tokens"),
        (["verify", "--num-heads", "5"], "num_heads"),
        (["verify", "--activation", "relu"], "activation"),
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(
    arguments: list[str], named: str, words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome(*arguments) == 2
    printed = capsys.readouterr()
    assert named in printed.err
    assert printed.out == ""
    assert [path.name for path in words.iterdir()] == ["words.txt"]


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *(("temperature", value) for value in ("-1", "nan", "inf")),
        ("top-k", "0"),
        *(("top-p", value) for value in ("0", "1.5", "nan")),
        ("max-new-tokens", "-1"),
        ("seed", "-1"),
    ],
)
def test_a_filter_out_of_range_exits_with_2(
    flag: str, value: str, checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome("sample", "--checkpoint", checkpoint, f"--{flag}", value) == 2
    assert_one_line(capsys, flag.replace("-", "_"))


def not_utf8(path: Path) -> None:
    path.write_bytes(b"abc\xff" * 99)


def too_short(path: Path) -> None:
    path.write_text("abc")


def empty(path: Path) -> None:
    path.write_text("")


def a_folder(path: Path) -> None:
    path.mkdir()


def missing(path: Path) -> None:
    pass


@pytest.mark.parametrize("make", [not_utf8, too_short, empty, a_folder, missing])
def test_a_text_that_cannot_be_learned_from_exits_with_1(
    make: Callable[[Path], None], words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(words / "odd.txt")
    assert outcome("train", *TINY, "--text", "odd.txt", "--out", "out") == 1
    assert_one_line(capsys, "odd.txt")
    assert not (words / "out").exists(), "a folder was made for nothing"


@pytest.mark.parametrize("make", [not_utf8, too_short, empty, a_folder, missing])
def test_a_file_that_is_no_checkpoint_exits_with_1(
    make: Callable[[Path], None], words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(words / "odd.safetensors")
    assert outcome("sample", "--checkpoint", "odd.safetensors") == 1
    assert_one_line(capsys, "odd.safetensors")


def test_a_checkpoint_without_a_tokenizer_exits_with_1(
    words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ng.save_checkpoint("mute.safetensors", ng.GPT(ng.GPTConfig(7, 5, 4, 2, 1)))
    assert outcome("sample", "--checkpoint", "mute.safetensors") == 1
    assert_one_line(capsys, "mute.safetensors", "tokenizer")


def test_nothing_to_sample_exits_with_1(words: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome("sample") == 1
    assert_one_line(capsys, "best.safetensors", "--checkpoint")


def test_gpt2s_tokenizer_without_files_and_network_exits_with_1(words: Path) -> None:
    nowhere = "http://127.0.0.1:9"  # the port that discards, where nobody listens
    process = run(
        *("train", *TINY, "--tokenizer", "gpt2", "--out", "out"),
        folder=words,
        TIKTOKEN_CACHE_DIR=str(words / "cache"),
        **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), nowhere),
    )
    assert process.returncode == 1
    assert re.fullmatch(r"numpy-gpt: .*TIKTOKEN_CACHE_DIR.*--tokenizer bpe\n", process.stderr)
    assert not (words / "out").exists()


def test_a_folder_that_cannot_be_made_exits_with_1(words: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome("train", *TINY, "--out", "words.txt/out") == 1
    assert_one_line(capsys, "words.txt")


# ---- help --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "config"), [("train", TrainConfig), ("sample", SampleConfig), ("verify", VerifyConfig)]
)
def test_help_names_every_flag(command: str, config: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(command, "--help") == 0
    printed = capsys.readouterr().out
    for field in dataclasses.fields(config):
        assert f"--{field.name.replace('_', '-')}" in printed


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome("--help") == 0
    printed = capsys.readouterr().out
    assert all(command in printed for command in ("train", "sample", "verify"))


def test_the_module_is_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = run("--version", folder=tmp_path)
    assert cli.main(["--version"]) == 0
    assert (process.returncode, process.stdout) == (0, capsys.readouterr().out)
    assert ng.__version__ in process.stdout
    assert run("train", "--num-heads", "3", folder=tmp_path).returncode == 2
