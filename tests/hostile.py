"""Files that are not what they should be: what a reader makes of them, and what it costs."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")


def outcome_of(read: Callable[[Path], Result], contents: bytes, *, memory_allowed: int) -> Result | str:
    """Return what is read, or the text of the ValueError; fail on any other outcome, or on much memory."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "candidate.safetensors"
        path.write_bytes(contents)
        tracemalloc.start()
        try:
            return read(path)
        except ValueError as error:
            reason = str(error)
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < memory_allowed
        assert str(path) in reason
        assert reason.isprintable(), "more than one line, or control characters"
        return reason
