"""What a check found: a report to read, to print in colour, or to raise from inside a test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, TypeAlias

import numpy as np

Verdict: TypeAlias = Literal["passed", "failed", "inconclusive"]
"""inconclusive: nothing speaks against the tensor, but the measurement is too coarse to vouch for it."""


class Property(StrEnum):
    """What every operation owes its caller beside right numbers; a finding of this kind says it is broken."""

    RUNS = "runs"  # neither forward nor backward raises
    SHAPE = "shape"  # a gradient has its input's shape, and None stands for inputs without one
    FINITE = "finite"  # finite inputs give finite outputs and gradients
    DTYPE = "dtype"  # float32 in, float32 out
    INPUTS_UNTOUCHED = "inputs_untouched"  # neither call writes into an input or the upstream gradient
    ALIASING = "aliasing"  # outputs share no memory with inputs or with each other
    RESULTS_KEPT = "results_kept"  # no later call overwrites what an earlier one returned
    REPEATABLE = "repeatable"  # equal calls, equal answers
    SAVED_REUSABLE = "saved_reusable"  # backward may be called again, and after other forwards
    LINEAR = "linear"  # backward is linear in the upstream gradient
    LAYOUT = "layout"  # the answer does not depend on how an array lies in memory
    TORCH = "torch"  # output and gradients equal those of torch_forward


@dataclass(frozen=True)
class Finding:
    """One thing found wrong, or what is probably wrong.

    Args:
        kind: a `Property`, or a kind of mistake that a diagnosis names.
        evidence: what was seen, in one line.
        tensor: the input whose gradient is concerned, or "output"; None for the operation as a whole.
        error_left: for a diagnosis, the error that is left after the suggested correction.
    """

    kind: str
    evidence: str
    tensor: str | None = None
    error_left: float | None = None

    def __str__(self) -> str:
        place = f" ({self.tensor})" if self.tensor else ""
        return f"{self.kind}{place}: {self.evidence}"


@dataclass(frozen=True)
class AxisProfile:
    """Where along one axis a gradient is wrong.

    Args:
        axis: which one.
        length: its number of indices.
        errors: per measured range of indices, the largest error there.
        wrong: the indices where a probe contradicts backward.
    """

    axis: int
    length: int
    errors: Mapping[range, float]
    wrong: tuple[int, ...]

    def __str__(self) -> str:
        coarsest = max(map(len, self.errors), default=1)
        blocks = f" (seen in blocks of {coarsest})" if coarsest > 1 else ""
        if len(self.wrong) == self.length:
            return f"axis {self.axis}: all {self.length}{blocks}"
        return f"axis {self.axis}: {_ranges(self.wrong)} of {self.length} only"


@dataclass(frozen=True)
class TensorReport:
    """One gradient: verdict and worst element.

    Args:
        name: the input whose gradient it is.
        shape: the input's shape.
        verdict: passed, failed or inconclusive.
        error: max|claimed - measured| over max|measured|; infinite when there is nothing to compare.
        index: where the error is largest among the elements measured one by one; None when none was.
        claimed: what backward gave there.
        measured: what differences, or torch, gave there.
        checked: how it was measured.
        reason: why it failed or is inconclusive, or what to know of a passed one; may be empty.
        profile: where it is wrong along each axis; empty unless it is.
    """

    name: str
    shape: tuple[int, ...]
    verdict: Verdict
    error: float
    index: tuple[int, ...] | None = None
    claimed: float | None = None
    measured: float | None = None
    checked: str = ""
    reason: str = ""
    profile: tuple[AxisProfile, ...] = ()

    @property
    def ratio(self) -> float | None:
        """Claimed over measured at the worst index, where there is one."""
        if self.claimed is None or self.measured is None:
            return None
        if self.measured == 0.0:
            return None if self.claimed == 0.0 else float("inf")
        return self.claimed / self.measured

    def _cells(self) -> tuple[str, ...]:
        return (
            self.name,
            str(self.shape),
            self.verdict,
            f"{self.error:.1e}",
            "" if self.index is None else str(self.index),
            _number(self.claimed),
            _number(self.measured),
            "" if self.ratio is None else f"{self.ratio:.4g}",
            self.checked,
        )

    def _where(self) -> list[str]:
        return [f"{self.name}: wrong at " + "; ".join(map(str, self.profile))] if self.profile else []


_COLUMNS = ("tensor", "shape", "verdict", "error", "worst at", "backward", "measured", "ratio", "checked")
_STYLES = {"passed": "green", "failed": "bold red", "inconclusive": "yellow"}


@dataclass(frozen=True)
class Report:
    """The outcome of a check.

    Args:
        title: what was checked.
        tensors: per input with a gradient, by name.
        findings: broken properties; one is enough to fail.
        diagnosis: what is probably wrong, likeliest first; empty when nothing is.
        notes: what is not wrong but worth knowing.
        reason: why nothing could be concluded, where that concerns the operation as a whole.
    """

    title: str
    tensors: Mapping[str, TensorReport]
    findings: tuple[Finding, ...] = ()
    diagnosis: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()
    reason: str = ""

    @property
    def verdict(self) -> Verdict:
        """The worst of all tensors and properties."""
        verdicts = {tensor.verdict for tensor in self.tensors.values()}
        if self.findings or "failed" in verdicts:
            return "failed"
        return "inconclusive" if self.reason or "inconclusive" in verdicts else "passed"

    @property
    def passed(self) -> bool:
        """Whether everything was verified and found right."""
        return self.verdict == "passed"

    def raise_if_failed(self) -> None:
        """Do nothing unless the verdict is failed.

        Raises:
            AssertionError: with the whole report as its text.
        """
        if self.verdict == "failed":
            raise AssertionError(str(self))

    def __str__(self) -> str:
        rows = [_COLUMNS, *(tensor._cells() for tensor in self.tensors.values())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = (
            "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )
        return "\n".join(
            [f"{self.title}: {self.verdict}", *(table if self.tensors else ()), *self._remarks()]
        )

    def _remarks(self) -> list[str]:
        remarks = [f"  inconclusive: {self.reason}"] if self.reason else []
        reasons: dict[str, list[str]] = {}
        for tensor in self.tensors.values():
            reasons.setdefault(tensor.reason, []).append(tensor.name)
        remarks += [f"  {', '.join(names)}: {reason}" for reason, names in reasons.items() if reason]
        remarks += [f"  {where}" for tensor in self.tensors.values() for where in tensor._where()]
        remarks += [f"  broken: {finding}" for finding in self.findings]
        remarks += [f"  probably {finding}" for finding in self.diagnosis]
        return remarks + [f"  note: {finding}" for finding in self.notes]

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """Render for rich, which is imported here and only here."""
        from rich.table import Table
        from rich.text import Text

        yield Text.assemble(self.title, ": ", (self.verdict, _STYLES[self.verdict]))
        if self.tensors:
            table = Table(*_COLUMNS, box=None, pad_edge=True)
            for tensor in self.tensors.values():
                cells = [Text(cell) for cell in tensor._cells()]
                cells[_COLUMNS.index("verdict")].stylize(_STYLES[tensor.verdict])
                table.add_row(*cells)
            yield table
        for remark in self._remarks():
            yield Text(remark)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _ranges(indices: Iterable[int], most: int = 6) -> str:
    """Write sorted indices as "3, 7, 12-15", the first few ranges of them."""
    array = np.fromiter(indices, dtype=int)
    runs = np.split(array, np.flatnonzero(np.diff(array) > 1) + 1)
    texts = [str(run[0]) if run.size == 1 else f"{run[0]}-{run[-1]}" for run in runs[:most]]
    return ", ".join(texts) + (f" and {len(runs) - most} more ranges" if len(runs) > most else "")
