"""Writing a text file whole or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a text aside and rename it; a link stays a link, and a file that was there keeps its mode.

    Raises:
        OSError: when it cannot be written; nothing is left behind, and what was there stays.
    """
    path = path.resolve()
    aside = path.with_name(f".{path.name}.tmp")
    try:
        aside.write_text(text, encoding="utf-8")
        if path.exists():
            shutil.copymode(path, aside)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
