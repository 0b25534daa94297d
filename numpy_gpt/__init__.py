"""A batched GPT in pure NumPy, with every forward and every backward pass written by hand.

    import numpy_gpt as ng

    model = ng.GPT(ng.GPTConfig.preset("nano"))
    logits = model([[72, 101, 108, 108, 111]])        # (B, T, V): a prediction at every position

Importing this package brings in NumPy alone; what needs more is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from numpy_gpt.config import GPTConfig
from numpy_gpt.generation import generate
from numpy_gpt.model import GPT
from numpy_gpt.ops import Op, Ops
from numpy_gpt.parameters import Parameters
from numpy_gpt.training.adamw import AdamW
from numpy_gpt.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from numpy_gpt.training.clipping import clip_gradients

if TYPE_CHECKING:
    from numpy_gpt.interop.reading import load_pretrained
    from numpy_gpt.verify import check_autograd_function, check_backward

__version__ = "0.1.0"

__all__ = [
    "GPT",
    "AdamW",
    "Checkpoint",
    "GPTConfig",
    "Op",
    "Ops",
    "Parameters",
    "check_autograd_function",
    "check_backward",
    "clip_gradients",
    "generate",
    "load_checkpoint",
    "load_pretrained",
    "save_checkpoint",
]

ON_FIRST_USE = {
    "check_autograd_function": "numpy_gpt.verify",
    "check_backward": "numpy_gpt.verify",
    "load_pretrained": "numpy_gpt.interop.reading",
}
"""What takes as long to import as all the rest, and where it stands."""


def __getattr__(name: str) -> Any:
    if name not in ON_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(ON_FIRST_USE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
