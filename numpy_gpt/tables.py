"""What the command line shows as tables, for people; the numbers come from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from numpy_gpt.arrays import Array
from numpy_gpt.generation import next_token_probabilities
from numpy_gpt.model import GPT
from numpy_gpt.verify.lockstep import LockstepReport
from numpy_gpt.verify.parity import ParityReport, Row
from numpy_gpt.verify.precision import PrecisionRow

if TYPE_CHECKING:
    import tiktoken

LOCKSTEP_LINES = 12


def parity_table(report: ParityReport, *, with_shapes: bool) -> Table:
    """Return a table in sections, one for each block, so that the names fit a narrow window."""
    table = _table("worst relative errors")
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


def lockstep_table(report: LockstepReport) -> Table:
    """Return a table of about a dozen steps: evenly spaced, the last, and the first that diverged."""
    table = _table(f"NumPy and torch, {report.dtype}")
    for heading in ("step", "loss\nNumPy", "loss\ntorch", "gradient norm\nNumPy", "gradient norm\ntorch"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("largest weight gap", no_wrap=True)
    shown = {round(i) for i in np.linspace(0, len(report.rows) - 1, LOCKSTEP_LINES)}
    for i, row in enumerate(report.rows):
        diverged = row is report.divergence
        if i in shown or diverged:
            table.add_row(
                str(row.step),
                *(f"{loss:.6f}" for loss in row.losses),
                *(f"{norm:.5f}" for norm in row.norms),
                f"{row.gap:.1e} {row.tensor}",
                style="bold red" if diverged else "",
            )
    return table


def precision_table(rows: Sequence[PrecisionRow]) -> Table:
    """Return how float32 errs at each size: the median and the worst of all gradients."""
    table = _table("float32 gradients against float64, relative errors")
    table.add_column("model")
    for heading in ("median\nNumPy", "median\ntorch", "worst\nNumPy", "worst\ntorch"):
        table.add_column(heading, justify="right")
    for row in rows:
        errors = (row.numpy_median, row.torch_median, row.numpy_worst, row.torch_worst)
        table.add_row(f"{row.setting} {row.value}", *(f"{error:.1e}" for error in errors))
    return table


def likeliest_next_tokens(model: GPT, tokenizer: tiktoken.Encoding, token_ids: Array, top: int) -> Table:
    """Return, for every position of a text, the tokens that the model holds likeliest to come next.

    Args:
        model: which predicts at every position at once.
        tokenizer: of the model's vocabulary.
        token_ids: (T,) ints, T at most max_sequence_length.
        top: how many tokens to list; all of them where there are fewer.
    """
    logits = model([token_ids])[0, :, : tokenizer.n_vocab]  # (T, V)
    top = min(top, tokenizer.n_vocab)
    table = _table("after each token, what may come next; what did come is bold")
    table.add_column("after", no_wrap=True)
    for rank in range(1, top + 1):
        table.add_column(f"{rank}.", no_wrap=True)
    table.add_column("what came", no_wrap=True)
    for position, token in enumerate(token_ids):
        probabilities = next_token_probabilities(logits[position])  # (V,)
        came = int(token_ids[position + 1]) if position + 1 < len(token_ids) else None
        likeliest = np.argsort(-probabilities, kind="stable")[:top]
        table.add_row(
            show_token(tokenizer, int(token)),
            *(_chance(tokenizer, int(v), probabilities[v], bold=v == came) for v in likeliest),
            "" if came is None else _chance(tokenizer, came, probabilities[came], bold=False),
        )
    return table


def show_token(tokenizer: tiktoken.Encoding, token: int) -> str:
    """Return a token's text in quotes, with what cannot be seen spelled out."""
    return repr(tokenizer.decode_single_token_bytes(token).decode("utf-8", "replace"))


def _chance(tokenizer: tiktoken.Encoding, token: int, probability: float, *, bold: bool) -> Text:
    return Text(f"{show_token(tokenizer, token)} {probability:.1%}", style="bold" if bold else "")


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)


def _heading(name: str) -> tuple[str, str]:
    """Return the block that a parameter belongs to, empty where to none, and the rest of its name."""
    parts = name.split(".")
    depth = {"transformer_blocks": 2, "embedding": 1}.get(parts[0], 0)
    return ".".join(parts[:depth]), ".".join(parts[depth:])


def _verdict(row: Row) -> str:
    if not row.passed:
        return "DIFFERENT"
    return "zero by symmetry" if row.zero_by_symmetry else "equal"
