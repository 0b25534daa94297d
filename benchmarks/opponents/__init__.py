"""Who is measured: numpy_gpt, and everyone it is measured against.

    contestant("numpy")             the kernels
    contestant("numpy:book")        the book
    contestant("numpy:linear+gelu") the book, but linear and gelu are the kernels'
    contestant("torch-eager")       and the others of OPPONENTS

A contestant's own module loads its library, so it is loaded only in a process that runs it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.cases import Case
from benchmarks.opponents.training import Setup, Training

COMPILERS = ("g++", "clang++", "cl")
INSTALL = {
    "torch": "pip install '.[torch]'",
    "jax": "pip install jax",
    "transformers": "pip install '.[interop]'",
    "matplotlib": "pip install '.[plot]'",
}


@dataclass(frozen=True)
class Contestant:
    """One way to train the model.

    Args:
        name: as it is shown and asked for.
        library: whose matrix products it computes with: numpy, torch or jax.
        place: module and class of its `Training`.
        options: for that class.
    """

    name: str
    library: str
    place: str
    options: dict[str, str] = field(default_factory=dict)
    special_obstacle: Callable[[Case], str | None] = lambda _: None

    def build(self, setup: Setup) -> Training:
        """Return its model, ready to be trained."""
        module, _, name = self.place.partition(":")
        training: Training = getattr(importlib.import_module(module), name)(setup, **self.options)
        return training

    def obstacle(self, case: Case) -> str | None:
        """Return in a line why it cannot run the case on this machine; None when it can."""
        return missing(self.library) or self.special_obstacle(case)


def missing(package: str) -> str | None:
    """Return a line that says how to install a package; None when it is there."""
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed: {INSTALL[package]}"
    return None


def require(package: str) -> None:
    """Raise ImportError, with the command that installs it, when a package is not there."""
    if reason := missing(package):
        raise ImportError(reason)


def _no_compiler(_case: Case) -> str | None:
    named = os.environ.get("CXX")
    if any(shutil.which(name) for name in ([named] if named else COMPILERS)):
        return None
    return f"torch.compile needs a C++ compiler, and there is no {', '.join(COMPILERS)} on the path"


def _nothing_to_share_out(case: Case) -> str | None:
    return "one sequence makes one shard" if case.batch_size == 1 else None


OURS, MAIN_OPPONENT = "numpy", "torch-eager"

OPPONENTS = {
    found.name: found
    for found in (
        Contestant(MAIN_OPPONENT, "torch", "benchmarks.opponents.torch_eager:EagerTraining"),
        Contestant(
            "torch-shards",
            "torch",
            "benchmarks.opponents.torch_shards:ShardedTraining",
            special_obstacle=_nothing_to_share_out,
        ),
        Contestant(
            "torch-compile",
            "torch",
            "benchmarks.opponents.torch_compiled:CompiledTraining",
            special_obstacle=_no_compiler,
        ),
        Contestant("jax", "jax", "benchmarks.opponents.jax_jitted:JaxTraining"),
    )
}
"""Everyone that numpy_gpt trains against, by name; the main one first."""


def contestant(name: str) -> Contestant:
    """Return a contestant by name.

    Raises:
        ValueError: for a name that belongs to nobody.
    """
    kind, _, table = name.partition(":")
    if kind == OURS:
        place = "benchmarks.opponents.ours:NumpyTraining"
        return Contestant(name, "numpy", place, {"ops": table or "fast"})
    if name not in OPPONENTS:
        raise ValueError(f"contestant must be numpy or one of {', '.join(OPPONENTS)}, not {name!r}")
    return OPPONENTS[name]
