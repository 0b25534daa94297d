"""A picture of all ratios with their intervals."""

from __future__ import annotations

from pathlib import Path

from benchmarks.opponents import require
from benchmarks.report import machine_lines, ratio_labels
from benchmarks.results import Results

ROW_INCHES = 0.8
MARGIN_INCHES = 1.6
WIDTH_INCHES = 9.0
OFFSET = 0.15  # of a row, between the ratios of one comparison


def plot_ratios(results: Results, path: Path) -> None:
    """Write a picture: a row for each comparison, a mark with its interval for each ratio.

    Args:
        results: what to show.
        path: the file to write; its ending chooses the format.

    Raises:
        ImportError: without matplotlib, with the command that installs it.
        OSError, ValueError: when the file cannot be written, or not in that format.
    """
    require("matplotlib")
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    rows = len(results.comparisons)
    figure = Figure(figsize=(WIDTH_INCHES, MARGIN_INCHES + ROW_INCHES * rows), layout="constrained")
    axes = figure.subplots()
    for number, label in enumerate(ratio_labels(results.comparisons)):
        shown = [
            (row + number * OFFSET, ratio)
            for row, comparison in enumerate(results.comparisons)
            if (ratio := comparison.ratios.get(label)) is not None
        ]
        if shown:
            heights, ratios = zip(*shown, strict=True)
            below = [ratio.value - ratio.low for ratio in ratios]
            above = [ratio.high - ratio.value for ratio in ratios]
            values = [ratio.value for ratio in ratios]
            axes.errorbar(values, heights, xerr=[below, above], fmt="o", capsize=3, label=label)
    axes.axvline(1, color="grey", linewidth=1)
    axes.set_yticks(
        range(rows),
        [f"{c.subject}\n{c.first} / {c.second}" for c in results.comparisons],
    )
    axes.invert_yaxis()
    axes.set_xlabel("A / B with 95% interval; below 1 A needs less")
    axes.set_xscale("log")  # twice as fast and half as fast are equally far from 1
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_title("\n".join(machine_lines(results.machine)), fontsize="x-small", loc="left")
    if rows:
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
