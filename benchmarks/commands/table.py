"""`table`: result files as the tables of the README, so that no figure in it is typed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from benchmarks.report import markdown
from benchmarks.results import Results
from numpy_gpt.whole_files import write_whole

BEGIN, END = "<!-- benchmarks: made by `python -m benchmarks table` -->", "<!-- end of benchmarks -->"


@dataclass(frozen=True)
class TableOptions:
    """Print result files as Markdown.

    Args:
        files: what `--out` wrote.
        into: a Markdown file in which to put the tables instead, between the two marks that it has for them.
    """

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    into: Path | None = None

    def run(self, console: Console) -> None:
        """Print the tables, or put them in their place.

        Raises:
            OSError, ValueError: when a file cannot be read, or has no place for them.
        """
        tables = make_tables(self.files)
        if self.into is None:
            console.print(tables, end="")
        else:
            text = self.into.read_text(encoding="utf-8")
            page = put_between_marks(text, tables, str(self.into))
            write_whole(self.into.resolve(), [page.encode()])  # a link stays a link


def make_tables(files: Sequence[Path]) -> str:
    """Return one table for each file, in the order given."""
    return "\n".join(markdown(Results.load(path)) for path in files)


def put_between_marks(text: str, tables: str, where: str = "the text") -> str:
    """Return the text with what stood between the marks replaced.

    Raises:
        ValueError: unless both marks are there, once and in order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in after or END in after:
        raise ValueError(f"{where} needs the lines {BEGIN} and {END}, once and in this order")
    return f"{before}{BEGIN}\n\n{tables}\n{END}{after}" if tables else f"{before}{BEGIN}\n{END}{after}"
