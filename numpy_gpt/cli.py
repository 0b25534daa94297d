"""The command line: parse, call, print. Everything it does can be called from Python too."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import sys
import time
import webbrowser
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tyro
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from numpy_gpt import __version__, generate
from numpy_gpt.config import (
    OPS_OF_A_FOLDER,
    EvaluateConfig,
    ExplainConfig,
    ExportConfig,
    GPTConfig,
    ImportConfig,
    SampleConfig,
    SettingsError,
    TrainConfig,
)
from numpy_gpt.extras import install_command
from numpy_gpt.interop import export_pretrained, load_pretrained, load_pretrained_tokenizer
from numpy_gpt.learn.exercises import LearnerOps, UnknownExerciseError, Workbook, load_learner_ops
from numpy_gpt.learn.exercises.commands import DEFAULT_FOLDER
from numpy_gpt.learn.explorer import check_place
from numpy_gpt.learn.explorer import explain as explain_step
from numpy_gpt.model import TABLES
from numpy_gpt.ops import Ops
from numpy_gpt.output import Output, open_streams, say_on_standard_error, settle
from numpy_gpt.parallel import blas_is_steerable, default_threads
from numpy_gpt.tables import likeliest_next_tokens, lockstep_table, parity_table, precision_table
from numpy_gpt.text.corpus import read_text
from numpy_gpt.text.prepare import PrepareConfig
from numpy_gpt.text.prepare import prepare as prepare_corpus
from numpy_gpt.text.printable import printable
from numpy_gpt.text.tokenizers import encode, gpt2_tokenizer, stream_text, token_lengths
from numpy_gpt.training.checkpoint import Checkpoint, load_checkpoint, read_description, save_checkpoint
from numpy_gpt.training.data import load_data
from numpy_gpt.training.evaluation import evaluate as evaluate_model
from numpy_gpt.training.interruption import SIGNALLED, gentle_interruption
from numpy_gpt.training.memory import gigabytes, require_memory, training_bytes
from numpy_gpt.training.run_folder import THREADS, RunFolder
from numpy_gpt.training.trainer import NotFiniteError, Trainer
from numpy_gpt.verify.kill_matrix import kill_matrix
from numpy_gpt.verify.lockstep import train_in_lockstep
from numpy_gpt.verify.parity import VerifyConfig, verify_parity
from numpy_gpt.verify.precision import measure_precision
from numpy_gpt.whole_files import write_whole

if TYPE_CHECKING:
    import tiktoken

DONE, FAILED, WRONG_USAGE = 0, 1, 2

DEFAULT_PROMPT = "\n"
SAMPLE_PROMPT_CHARACTERS = 60
SAMPLE_TOKENS = 120
WIDTH_WITH_SHAPES = 96


def train(config: TrainConfig) -> int:
    """Train, showing progress; leave checkpoints, metrics and a picture in a folder."""
    console = Output()
    trainer, folder = _start_or_resume(config, console)
    data, shape = trainer.data, trainer.model.config
    console.print(
        f"{trainer.model.parameters.flat.size:,} parameters in {config.dtype}: "
        f"V {shape.vocabulary_size}, T {shape.max_sequence_length}, L {shape.num_layers}, "
        f"H {shape.num_heads}, C {shape.embedding_dim}"
    )
    console.print(
        f"{data.description}: {data.num_bytes:,} bytes, fingerprint {data.text_fingerprint}; "
        f"{len(data.training_ids):,} tokens to learn from, {len(data.validation_ids):,} held out"
    )
    if config.resume:
        left = "" if trainer.step < trainer.last_step else ", which was the last"
        console.print(f"going on from {config.resume}, step {trainer.step:,}{left}")
    console.print(f"writing to {folder.path}")

    validation = None
    with (
        gentle_interruption() as interruption,
        _progress(console) as progress,
    ):
        bar = progress.add_task("train", total=config.steps, completed=trainer.step, note="")
        for report in trainer.run():
            folder.record(report, trainer)
            note = f"loss {report.train_loss:.3f}  {report.tokens_per_second:,.0f} tokens/s"
            progress.update(bar, completed=report.step, note=note)
            validation = report.validation
            if validation:
                console.print(
                    f"step {report.step:>6,}  training loss {report.train_loss:.4f}  "
                    f"validation loss {validation}"
                )
            if interruption:
                break
        if interruption:
            folder.save(folder.last, trainer)
    if not folder.draw():
        console.print(f"no picture of the losses: {install_command('plot')}")
    if interruption:
        console.print(f"stopped after step {trainer.step:,}; go on with --resume {folder.last}")
        return interruption.exit_code

    if validation is None:  # resumed from a checkpoint that had nothing left to do
        validation = trainer.evaluate()
        folder.save(folder.last, trainer)
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
    console.print(f"validation loss {validation}")
    return DONE


def _start_or_resume(config: TrainConfig, console: Output) -> tuple[Trainer, RunFolder]:
    """Return the trainer, and the folder it writes to: a new one, or that of the checkpoint."""
    learner = _learner_ops(config, console)
    ops = learner.table if learner else None
    if config.resume is None:
        data = load_data(config)
        _say_memory(config, config.model_config(data.tokenizer.n_vocab), ops, console)
        trainer, folder = Trainer.start(config, data, ops=ops), RunFolder.create(config.out)
    else:
        require_memory(_say_memory(config, read_description(config.resume).config, ops, console))
        checkpoint = load_checkpoint(config.resume)
        if learner:
            learner.require_same(checkpoint.metadata)
        trainer = Trainer.resume(config, load_data(config, checkpoint.tokenizer), checkpoint, ops=ops)
        reopened = config.out is None
        folder = RunFolder.reopen(config.resume, checkpoint) if reopened else RunFolder.create(config.out)
        until_now = checkpoint.metadata.get(THREADS)
        if isinstance(until_now, int) and until_now != trainer.model.threads:
            console.print(
                f"until now it ran on {until_now} threads: on another number, sums are "
                "rounded in another order, and results may differ in their last bits"
            )
    folder.metadata = learner.metadata if learner else {}
    return trainer, folder


def _say_memory(config: TrainConfig, shape: GPTConfig, ops: Ops | None, console: Output) -> int:
    """Say what a run will compute on, before it takes any of it, and return how many bytes it needs."""
    needed = training_bytes(config, shape, ops or TABLES[config.ops])
    console.print(
        f"on {config.threads or default_threads()} threads, with about {gigabytes(needed)} of memory"
        + ("" if blas_is_steerable() else "; NumPy's BLAS here chooses its threads itself")
    )
    return needed


def _learner_ops(config: TrainConfig, console: Output) -> LearnerOps | None:
    """Return the operations of a folder of exercises, and say whose they are; None for a table's name."""
    if config.kind_of_ops != OPS_OF_A_FOLDER:
        return None
    with console.status("checking the exercises"):
        learner = load_learner_ops(Path(config.ops))
    console.print(Text(str(learner)))
    return learner


def sample(config: SampleConfig) -> int:
    """Print the prompt and its continuation as it comes, or what may follow each token of the prompt."""
    console = Output()
    checkpoint, tokenizer = _load_with_tokenizer(config.checkpoint)
    prompt = _read_prompt(config)
    prompt_ids = encode(tokenizer, prompt)
    if config.top is not None:
        token_ids = prompt_ids if len(prompt_ids) else np.array([tokenizer.eot_token])
        window = token_ids[-checkpoint.model.config.max_sequence_length :]
        console.print_whole(likeliest_next_tokens(checkpoint.model, tokenizer, window, config.top))
        return DONE
    try:
        tokens = generate(
            checkpoint.model,
            prompt_ids,
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            seed=config.seed,
            end_of_text=tokenizer.eot_token,
            vocabulary_limit=tokenizer.n_vocab,
        )
    except ValueError as error:
        return _complain(error, WRONG_USAGE)
    started = time.perf_counter()
    generated: list[int] = []
    _print_continuation(console, prompt, stream_text(_remember(tokens, generated), tokenizer))
    seconds = time.perf_counter() - started
    say_on_standard_error(f"{len(generated)} tokens, {len(generated) / seconds:,.0f} tokens/s")
    return DONE


def evaluate(config: EvaluateConfig) -> int:
    """Print how well a model predicts a whole text."""
    console = Output()
    checkpoint, tokenizer = _load_with_tokenizer(config.checkpoint)
    text = read_text(config.text)
    token_ids = encode(tokenizer, text)
    evaluation = evaluate_model(
        checkpoint.model,
        token_ids,
        token_lengths(tokenizer),
        batch_size=config.batch_size,
        stride=config.stride,
    )
    if not math.isfinite(evaluation.loss):
        raise NotFiniteError(f"the model's loss on {config.text} is not finite")
    console.print(f"{config.text}: {len(text.encode()):,} bytes, {len(token_ids):,} tokens")
    console.print(f"perplexity {evaluation.perplexity:,.2f}")
    console.print(f"validation loss {evaluation}")
    return DONE


def prepare(config: PrepareConfig) -> int:
    """Tokenize a corpus in a stream, showing progress."""
    console = Output()
    with _progress(console) as progress:
        bar = progress.add_task("prepare", total=None, note="bytes read")
        prepared = prepare_corpus(
            config, on_progress=lambda done, total: progress.update(bar, completed=done, total=total)
        )
    console.print(
        f"{config.out}: {prepared.num_training_ids:,} tokens to learn from, "
        f"{prepared.num_validation_ids:,} held out; train with --text {config.out}"
    )
    return DONE


def import_weights(config: ImportConfig) -> int:
    """Write a checkpoint with another implementation's weights, and its tokenizer where there is one."""
    if config.out.exists():
        raise FileExistsError(
            f"{config.out} is there already, and nothing is overwritten; choose another --out"
        )
    model = load_pretrained(config.weights, dtype=config.dtype, num_heads=config.num_heads)
    tokenizer = gpt2_tokenizer() if config.tokenizer else load_pretrained_tokenizer(config.weights)
    save_checkpoint(config.out, model, tokenizer=tokenizer, metadata={"imported_from": str(config.weights)})
    console = Output()
    console.print(f"{config.out}: {model}")
    if tokenizer is None:
        console.print("no tokenizer lies beside the weights: the checkpoint computes, but reads no text")
    return DONE


def export(config: ExportConfig) -> int:
    """Write a folder that Hugging Face's transformers loads."""
    path = config.checkpoint or _newest_checkpoint()
    checkpoint = load_checkpoint(path)
    export_pretrained(config.out, checkpoint.model, tokenizer=checkpoint.tokenizer)
    Output().print(f"{config.out}: {path} for transformers.GPT2LMHeadModel.from_pretrained")
    return DONE


def verify(config: VerifyConfig) -> int:
    """Print the comparison of every tensor, of every training step, or of every planted bug."""
    if config.bugs:
        return _verify_bugs()
    if config.precision:
        return _show_precision()
    if config.train_steps:
        return _verify_lockstep(config)
    console = Output()
    report = verify_parity(config)
    console.print(parity_table(report, with_shapes=console.width >= WIDTH_WITH_SHAPES))
    verdict = "every tensor agrees" if report.passed else "NOT equal"
    console.print(f"{report.method}: {verdict}")
    return DONE if report.passed else FAILED


def _verify_bugs() -> int:
    console = Output()
    with console.status("planting each bug of the catalogue in turn"):
        matrix = kill_matrix()
    console.print(str(matrix))
    verdict = "every bug is killed" if matrix.passed else "NOT complete"
    console.print(f"{len(matrix.bugs)} bugs, {len(matrix.properties)} properties: {verdict}")
    return DONE if matrix.passed else FAILED


def _show_precision() -> int:
    console = Output()
    with console.status("comparing models of many sizes"):
        rows = list(measure_precision())
    console.print(precision_table(rows))
    return DONE


def _verify_lockstep(config: VerifyConfig) -> int:
    console = Output()
    with _progress(console) as progress:
        bar = progress.add_task("lockstep", total=config.train_steps, note="")
        report = train_in_lockstep(
            config.model_config(),
            steps=config.train_steps,
            batch_size=config.batch_size,
            num_tokens=config.num_tokens,
            dtype=config.dtype,
            seed=config.seed,
            on_step=lambda row: progress.update(bar, completed=row.step, note=f"gap {row.gap:.1e}"),
        )
    console.print(lockstep_table(report))
    if report.limit is None:
        console.print("shown, not judged: in float32 AdamW turns rounding noise into full steps")
    elif report.divergence is None:
        console.print(f"no weight drifted further than {report.limit:g} in {config.train_steps} steps")
    else:
        console.print(f"DIVERGED at step {report.divergence.step}: {report.divergence.tensor}")
    return DONE if report.passed else FAILED


@dataclasses.dataclass(frozen=True)
class ExerciseConfig:
    """Learn backprop by writing it: list, start, check and hint.

    Args:
        action: list them all; start one, which writes its file; check what you have written; hint.
        name: the exercise, by its name or number; without it, the first that is not solved. They are meant to
            be solved in their order, but any may be started.
        folder: where your files are.
    """

    action: tyro.conf.Positional[Literal["list", "start", "check", "hint"]]
    name: tyro.conf.Positional[Annotated[str | None, tyro.conf.arg(metavar="[NAME]")]] = None
    folder: Path = DEFAULT_FOLDER


def exercise(config: ExerciseConfig) -> int:
    """Print the answer; a check that finds something wrong is a failure."""
    workbook = Workbook(config.folder)
    try:
        actions = {"start": workbook.start, "check": workbook.check, "hint": workbook.hint}
        answer = workbook.overview() if config.action == "list" else actions[config.action](config.name)
    except UnknownExerciseError as error:
        return _complain(error, WRONG_USAGE)
    Output().print(Text("\n".join(answer.lines)))
    return FAILED if answer.solved is False else DONE


def explain(config: ExplainConfig) -> int:
    """Write the page about one training step."""
    console = Output()
    check_place(config.out)
    with console.status("training a tiny model, measuring its gradients, planting mistakes"):
        page = explain_step(config.text)
    write_whole(config.out, [page.encode()])
    console.print(f"{config.out}: {len(page.encode()) / 1e6:.1f} MB; open it in any browser")
    if config.open:
        webbrowser.open(config.out.resolve().as_uri())
    return DONE


COMMANDS: dict[str, tuple[type[Any], Callable[[Any], int]]] = {
    "train": (TrainConfig, train),
    "sample": (SampleConfig, sample),
    "evaluate": (EvaluateConfig, evaluate),
    "verify": (VerifyConfig, verify),
    "explain": (ExplainConfig, explain),
    "prepare": (PrepareConfig, prepare),
    "import": (ImportConfig, import_weights),
    "export": (ExportConfig, export),
    "exercise": (ExerciseConfig, exercise),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 wrong usage, 128 + signal."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    open_streams()
    try:
        with np.errstate(all="ignore"):  # what is not finite is said once, by an error
            return _run(arguments)
    except BrokenPipeError:  # the reader of the help, such as `head`, has had enough
        return DONE
    except KeyboardInterrupt:
        return _complain("interrupted", SIGNALLED + signal.SIGINT)
    except (FileExistsError, SettingsError) as error:  # the first: --out names a folder that is in use
        return _complain(error, WRONG_USAGE)
    except (OSError, ValueError, ArithmeticError, MemoryError, ImportError) as error:
        return _complain(error, FAILED)
    finally:
        settle(sys.stdout)


def _run(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        Output().print(f"numpy-gpt {__version__}")
        return DONE
    with _heard_or_not(arguments):
        config = tyro.extras.subcommand_cli_from_dict(
            {name: kind for name, (kind, _) in COMMANDS.items()},
            prog="numpy-gpt",
            description="A GPT in pure NumPy with hand-written backward passes.",
            args=arguments,
        )
    if isinstance(config, TrainConfig) and config.resume is not None:
        config = _with_saved_settings(config.resume, arguments)
    return dict(COMMANDS.values())[type(config)](config)


@contextlib.contextmanager
def _heard_or_not(arguments: Sequence[str]) -> Iterator[None]:
    """Let wrong usage be wrong usage, also where what tyro says of it finds no reader."""
    try:
        yield
    except OSError as error:
        if {"-h", "--help"}.isdisjoint(arguments):
            raise SystemExit(WRONG_USAGE) from error
        raise


def _with_saved_settings(checkpoint: Path, arguments: Sequence[str]) -> TrainConfig:
    """Return the settings of the run that left the checkpoint, with what the command line may change."""
    saved = TrainConfig.from_json(read_description(checkpoint).metadata.get("train_config"))
    if saved.ops == OPS_OF_A_FOLDER and not any(each.partition("=")[0] == "--ops" for each in arguments):
        reason = "this run computed with solved exercises: give their folder again with --ops"
        raise SystemExit(_complain(reason, WRONG_USAGE))
    # Without its vocabulary, which would contradict another tokenizer before that is refused by its name.
    defaults = dataclasses.replace(saved, out=None, stop_after=None, vocabulary_size=None)
    with _heard_or_not(arguments):
        config = tyro.cli(TrainConfig, default=defaults, args=arguments[1:], prog="numpy-gpt train")
    if config.vocabulary_size is None and config.tokenizer == saved.tokenizer:
        config = dataclasses.replace(config, vocabulary_size=saved.vocabulary_size)
    if changed := config.changes_from(saved):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
        raise SystemExit(_complain(f"a resumed run keeps its settings: leave out {flags}", WRONG_USAGE))
    return config


def _complain(error: object, exit_code: int) -> int:
    """Say in one line on standard error what went wrong, and return the exit code."""
    reason = str(error)
    if isinstance(error, OSError) and error.strerror:
        reason = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    elif isinstance(error, MemoryError):
        reason = f"not enough memory: {error}"
    elif isinstance(error, ModuleNotFoundError) and error.name == "torch":
        reason = f"this needs torch: {install_command('torch')}"
    say_on_standard_error(f"numpy-gpt: {' '.join(reason.split())}")
    return exit_code


def _progress(console: Output) -> Progress:
    return Progress(
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


def _print_continuation(console: Output, prompt: str, pieces: Iterable[str]) -> None:
    """Print the prompt dimmed and the pieces as they come, without what would move the cursor about."""
    console.print(Text(printable(prompt, keep="\n\t"), style="dim"), end="")
    for piece in pieces:
        console.print(Text(printable(piece, keep="\n\t")), end="")
        if console.quiet:  # the reader has left
            break
    console.print("\n")


def _load_with_tokenizer(given: Path | None) -> tuple[Checkpoint, tiktoken.Encoding]:
    path = given or _newest_checkpoint()
    checkpoint = load_checkpoint(path)
    if given is None:
        say_on_standard_error(f"{path}, after step {checkpoint.step:,}")
    if checkpoint.tokenizer is None:
        raise ValueError(f"{path} holds no tokenizer, so it cannot read text")
    return checkpoint, checkpoint.tokenizer


def _read_prompt(config: SampleConfig) -> str:
    if config.prompt_file is None:
        return DEFAULT_PROMPT if config.prompt is None else config.prompt
    if str(config.prompt_file) == "-":
        return sys.stdin.buffer.read().decode("utf-8", "replace")
    return read_text(config.prompt_file)


def _remember(tokens: Iterable[int], memory: list[int]) -> Iterator[int]:
    """Yield the tokens, keeping each in `memory`."""
    for token in tokens:
        memory.append(token)
        yield token


def _newest_checkpoint() -> Path:
    """Return the best checkpoint of the run in runs/ that wrote a checkpoint last."""
    found = [path for path in Path("runs").glob("*/best.safetensors") if path.is_file()]
    if not found:
        raise FileNotFoundError("there is no runs/*/best.safetensors here: train first, or give --checkpoint")
    return max(found, key=lambda path: (_last_written(path.parent), path))  # of equal times, the last name


def _last_written(run: Path) -> int:
    """Return when a run wrote its latest checkpoint, in nanoseconds."""
    return max(path.stat().st_mtime_ns for path in run.glob("*.safetensors") if path.is_file())
