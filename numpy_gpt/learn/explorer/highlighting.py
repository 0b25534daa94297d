"""Python source as HTML, one string per line, with a class for each kind of token."""

from __future__ import annotations

import functools


@functools.cache
def highlight_lines(source: str) -> tuple[str, ...]:
    """Return each line of the source as HTML, escaped, its tokens in `<span class=...>`."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    html = highlight(source, PythonLexer(stripnl=False, ensurenl=True), HtmlFormatter(nowrap=True))
    return tuple(str(html).rstrip("\n").split("\n"))
