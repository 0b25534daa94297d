"""What a learner types, as the messages show it."""

from __future__ import annotations

import shlex
from pathlib import Path

DEFAULT_FOLDER = Path("exercises")
"""Where the command line looks unless told, so that it need not be told again."""


def command(action: str, name: str, folder: Path) -> str:
    """Return what to type, here, for an exercise of a folder."""
    elsewhere = "" if folder == DEFAULT_FOLDER else f" --folder {shlex.quote(str(folder))}"
    return f"numpy-gpt exercise {action} {name}{elsewhere}"
