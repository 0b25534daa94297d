"""How to get what is not installed."""

from __future__ import annotations


def install_command(extra: str) -> str:
    """Return the command that installs one of the package's extras, quoted as every shell understands it."""
    return f'pip install "numpy-gpt[{extra}]"'
