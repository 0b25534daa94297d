"""The command line: parse, call, print. Everything it does can be called from Python too."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from numpy_gpt import __version__, generate, load_checkpoint
from numpy_gpt.config import SampleConfig, TrainConfig
from numpy_gpt.parallel import blas_threads
from numpy_gpt.text.tokenizers import encode, stream_text
from numpy_gpt.training.data import load_data
from numpy_gpt.training.interruption import gentle_interruption
from numpy_gpt.training.run_folder import RunFolder
from numpy_gpt.training.trainer import Trainer
from numpy_gpt.verify.parity import ParityReport, Row, VerifyConfig, verify_parity

DONE, FAILED, WRONG_USAGE, SIGNALLED = 0, 1, 2, 128

SAMPLE_PROMPT_CHARACTERS = 60
SAMPLE_TOKENS = 120
PAGE_WIDTH = 110
WIDTH_WITH_SHAPES = 96


def train(config: TrainConfig) -> int:
    """Train, showing progress; leave checkpoints, metrics and a picture in a new folder."""
    console = _console()
    data = load_data(config)
    trainer = Trainer.start(config, data)
    folder = RunFolder(config.out)
    shape = trainer.model.config
    console.print(
        f"{trainer.model.parameters.flat.size:,} parameters in {config.dtype}: "
        f"V {shape.vocabulary_size}, T {shape.max_sequence_length}, L {shape.num_layers}, "
        f"H {shape.num_heads}, C {shape.embedding_dim}"
    )
    console.print(
        f"{data.description}: {data.num_bytes:,} bytes, fingerprint {data.fingerprint}; "
        f"{len(data.training_ids):,} tokens to learn from, {len(data.validation_ids):,} held out"
    )
    console.print(f"writing to {folder.path}")

    with (
        gentle_interruption() as interruption,
        blas_threads(config.threads),
        _progress(console) as progress,
    ):
        bar = progress.add_task("train", total=config.steps, completed=trainer.step, loss="", speed="")
        for report in trainer.run():
            folder.record(report, trainer)
            progress.update(
                bar,
                completed=report.step,
                loss=f"loss {report.train_loss:.3f}",
                speed=f"{report.tokens_per_second:,.0f} tokens/s",
            )
            if report.validation:
                console.print(
                    f"step {report.step:>6,}  training loss {report.train_loss:.4f}  "
                    f"validation loss {report.validation}"
                )
            if interruption:
                break
        if interruption:
            folder.save(folder.last, trainer)
    if not folder.draw():
        console.print("no picture of the losses: pip install 'numpy-gpt[plot]'")
    if interruption.signal_number is not None:
        console.print(f"stopped after step {trainer.step:,}; {folder.last} holds it")
        return SIGNALLED + interruption.signal_number

    prompt = data.validation_text[:SAMPLE_PROMPT_CHARACTERS]
    console.print("\nThe model continues a text that it has not seen:\n")
    tokens = generate(
        trainer.model,
        encode(data.tokenizer, prompt),
        max_new_tokens=SAMPLE_TOKENS,
        temperature=0.8,
        seed=config.seed,
        end_of_text=data.tokenizer.eot_token,
    )
    _print_continuation(console, prompt, stream_text(tokens, data.tokenizer))
    assert report.validation is not None  # the last step is always validated
    print(f"validation loss {report.validation}", flush=True)
    return DONE


def sample(config: SampleConfig) -> int:
    """Print the prompt and its continuation, as it is generated."""
    checkpoint = load_checkpoint(config.checkpoint or _newest_checkpoint())
    if checkpoint.tokenizer is None:
        raise ValueError(f"{config.checkpoint} holds no tokenizer, so it cannot read a prompt")
    try:
        tokens = generate(
            checkpoint.model,
            encode(checkpoint.tokenizer, config.prompt),
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            seed=config.seed,
            end_of_text=checkpoint.tokenizer.eot_token,
        )
    except ValueError as error:
        return _complain(error, WRONG_USAGE)
    _print_continuation(_console(), config.prompt, stream_text(tokens, checkpoint.tokenizer))
    return DONE


def verify(config: VerifyConfig) -> int:
    """Print the comparison of every tensor; fail when one is not equal."""
    console = _console()
    report = verify_parity(config)
    console.print(_parity_table(report, with_shapes=console.width >= WIDTH_WITH_SHAPES))
    verdict = "every tensor agrees" if report.passed else "NOT equal"
    console.print(f"{report.method}: {verdict}")
    return DONE if report.passed else FAILED


COMMANDS: dict[type[Any], Callable[[Any], int]] = {
    TrainConfig: train,
    SampleConfig: sample,
    VerifyConfig: verify,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 wrong usage, 128 + signal."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What the terminal or file has no code for becomes "?": no run ends over a character of its sample.
        sys.stdout.reconfigure(errors="replace")
    if arguments == ["--version"]:
        print(f"numpy-gpt {__version__}")
        return DONE
    try:
        config = tyro.extras.subcommand_cli_from_dict(
            {command.__name__: kind for kind, command in COMMANDS.items()},
            prog="numpy-gpt",
            description="A GPT in pure NumPy with hand-written backward passes.",
            args=arguments,
        )
        return COMMANDS[type(config)](config)
    except BrokenPipeError:  # the reader, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        return _complain("interrupted", SIGNALLED + signal.SIGINT)
    except FileExistsError as error:  # --out names a folder that is in use
        return _complain(error, WRONG_USAGE)
    except (OSError, ValueError, ArithmeticError, MemoryError, ImportError) as error:
        return _complain(error, FAILED)


def _complain(error: object, exit_code: int) -> int:
    """Say in one line on standard error what went wrong, and return the exit code."""
    reason = str(error)
    if isinstance(error, OSError) and error.filename and error.strerror:
        reason = f"{error.filename}: {error.strerror}"
    elif isinstance(error, MemoryError):
        reason = f"not enough memory: {error}"
    print(f"numpy-gpt: {' '.join(reason.split())}", file=sys.stderr)
    return exit_code


def _console() -> Console:
    # Away from a terminal a line stays a line, whatever its length, and tables have room.
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = PAGE_WIDTH
    return console


def _progress(console: Console) -> Progress:
    return Progress(
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


def _print_continuation(console: Console, prompt: str, pieces: Iterable[str]) -> None:
    """Print the prompt dimmed and the pieces as they come, without what would move the cursor about."""
    console.print(Text(_printable(prompt), style="dim"), end="")
    for piece in pieces:
        console.print(Text(_printable(piece)), end="")
    console.print("\n")


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _newest_checkpoint() -> Path:
    found = sorted(Path("runs").glob("*/best.safetensors"))
    if not found:
        raise FileNotFoundError("there is no runs/*/best.safetensors here: train first, or give --checkpoint")
    return found[-1]


def _parity_table(report: ParityReport, *, with_shapes: bool) -> Table:
    """Return a table in sections, one for each block, so that the names fit a narrow window."""
    table = Table(
        title="worst relative errors",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    table.add_column("tensor", no_wrap=True)
    if with_shapes:
        table.add_column("shape", no_wrap=True)
    for column in report.columns:
        table.add_column(column.replace(" ~ ", "\n~\n"), justify="right", no_wrap=True)
    table.add_column("verdict")
    section = ""
    for row in report.rows:
        heading, name = _heading(row.name)
        if heading != section:
            section = heading
            table.add_row(heading, style="bold")
        table.add_row(
            f" {name}" if heading else name,
            *(["×".join(map(str, row.shape))] if with_shapes else []),
            *(f"{error:.1e}" for error in row.errors),
            _verdict(row),
            style="" if row.passed else "bold red",
        )
    return table


def _heading(name: str) -> tuple[str, str]:
    """Return the block that a parameter belongs to, empty where to none, and the rest of its name."""
    parts = name.split(".")
    depth = {"transformer_blocks": 2, "embedding": 1}.get(parts[0], 0)
    return ".".join(parts[:depth]), ".".join(parts[depth:])


def _verdict(row: Row) -> str:
    if not row.passed:
        return "DIFFERENT"
    return "zero by symmetry" if row.zero_by_symmetry else "equal"
