"""What a command says, and what becomes of it when nobody listens.

The reader of standard output may leave early, as `head` does, and either stream may have been closed from the
start. That is no fault of the work, which goes on unheard: its exit code says how it ended.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.table import Table

PAGE_WIDTH = 110
ANY_WIDTH = 10**9


class Output(Console):
    """Standard output, which prints text as it stands.

    Attributes:
        quiet: whether the reader has left. rich knows it by this name, and prints nothing more.
    """

    def __init__(self) -> None:
        # Away from a terminal a line stays a line, whatever its length, and tables have room.
        super().__init__(highlight=False, markup=False, emoji=False, soft_wrap=True)
        if not self.is_terminal:
            self.width = PAGE_WIDTH

    def print_whole(self, table: Table) -> None:
        """Print a table as wide as it needs to be, and leave it to the terminal to break its lines."""
        table.width = self.measure(table, options=self.options.update(width=ANY_WIDTH)).maximum
        self.print(table)

    def on_broken_pipe(self) -> None:
        """Go on without a reader; rich would end the program here."""
        self.quiet = True
        settle(sys.stdout)


def open_streams() -> None:
    """Make the streams fit for use: one that was closed leads nowhere, and no character is a fault."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115  open to the end
            setattr(sys, name, nowhere)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What the terminal or file has no code for becomes "?": no run ends over a character of its sample.
        sys.stdout.reconfigure(errors="replace")


def say_on_standard_error(line: str) -> None:
    """Print a line on standard error, if anybody is there to read it."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr)
    settle(sys.stderr)


def settle(stream: TextIO) -> None:
    """Flush a stream; where that fails, let all that it holds go nowhere.

    Python flushes once more when it ends, and what it cannot write then changes the exit code.
    """
    try:
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
