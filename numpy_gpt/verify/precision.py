"""How exact float32 is, NumPy's beside torch's, as a model gets longer, deeper and wider.

Every tolerance on float32 in this project follows from what is measured here: rounding errors grow with the
model, and they grow alike on both sides, so one side's error is held against the other's and not against a
constant.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from numpy_gpt.verify.parity import ParityReport, VerifyConfig, verify_parity

NUMPY32, TORCH32 = 1, 2  # columns of a parity report
BASE = VerifyConfig(batch_size=2, num_tokens=16, num_layers=2, num_heads=4, embedding_dim=48)
SWEEPS = {
    "num_tokens": (4, 16, 64, 256),
    "num_layers": (1, 2, 4, 8),
    "embedding_dim": (16, 48, 192, 384),
}
SEEDS = 3


@dataclass(frozen=True)
class PrecisionRow:
    """Relative errors of all gradients of one size of model, against torch in float64.

    Attributes:
        setting: what was varied.
        value: its value.
        numpy_median, torch_median: over the tensors.
        numpy_worst, torch_worst: over the tensors.
    """

    setting: str
    value: int
    numpy_median: float
    torch_median: float
    numpy_worst: float
    torch_worst: float


def measure_precision() -> Iterator[PrecisionRow]:
    """Yield a row for each size, over a few seeds each; tensors that are zero by symmetry are left out.

    Raises:
        ImportError: where torch is missing.
    """
    importlib.import_module("torch")  # without it, a parity report compares with something else
    for setting, values in SWEEPS.items():
        for value in values:
            size: dict[str, Any] = {setting: value}
            reports = [verify_parity(replace(BASE, **size, seed=seed)) for seed in range(SEEDS)]
            ours, theirs = (np.array(_errors(reports, column)) for column in (NUMPY32, TORCH32))
            yield PrecisionRow(
                setting,
                value,
                float(np.median(ours)),
                float(np.median(theirs)),
                float(ours.max()),
                float(theirs.max()),
            )


def _errors(reports: list[ParityReport], column: int) -> list[float]:
    return [
        row.errors[column]
        for report in reports
        for row in report.rows
        if not row.zero_by_symmetry and row.name not in ("logits", "loss")
    ]
