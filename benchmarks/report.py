"""What people read: tables for the terminal, and Markdown for the README."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks.results import GROWTH, PEAK, SECONDS, Comparison, Results
from benchmarks.statistics import Ratio, median

NOTHING = "-"


def machine_lines(machine: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a reader needs to know of the machine, a line each."""
    quota = machine["quota"]
    limit = "no quota" if quota is None else f"a quota of {quota:g} processors"
    yield (
        f"{machine['processor']}: {machine['usable_cores']} cores, {machine['usable_processors']} of "
        f"{machine['logical_processors']} logical processors, {limit}; "
        f"threads for everyone: {machine['threads']}"
    )
    versions = ", ".join(f"{name} {version}" for name, version in machine["libraries"].items())
    yield f"{machine['system']}, Python {machine['python']}, {versions}; float32"
    for library, blas in machine["blas"].items():
        yield (
            f"{library}: {blas_name(blas)}, threads: {blas['threads'] or 'unknown'}, products at up to "
            f"{machine['peak'][library] / 1e9:.0f} GFLOP/s"
        )


def blas_name(blas: Mapping[str, Any]) -> str:
    """Return a BLAS with its kernel, such as "openblas 0.3.31 (SkylakeX)"."""
    return f"{blas['blas']} ({blas['kernel']})" if blas["kernel"] else str(blas["blas"])


def results_table(results: Results) -> Table:
    """Return all comparisons, ratios with their intervals."""
    labels = ratio_labels(results.comparisons)
    table = Table(
        title="A / B, below 1 where A needs less, with 95% intervals",
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
    )
    for heading in ("", "A", "B"):
        table.add_column(heading)
    for label in labels:
        table.add_column(label, justify="right")
    for comparison in results.comparisons:
        ratios = comparison.ratios
        table.add_row(
            comparison.subject,
            *(side_summary(results, comparison, side) for side in (0, 1)),
            *(ratio_text(ratios.get(label)).replace(" ", "\n", 1) for label in labels),
        )
    return table


def one_line(comparison: Comparison) -> str:
    """Return how a comparison came out, for someone who waits for the next."""
    ratios = ", ".join(f"{label} {ratio_text(ratio)}" for label, ratio in comparison.ratios.items())
    return f"{comparison.subject}, {comparison.first} / {comparison.second}: {ratios}"


def ratio_labels(comparisons: Sequence[Comparison]) -> list[str]:
    """Return the names of all ratios that any comparison has, in their order."""
    return list(dict.fromkeys(label for comparison in comparisons for label in comparison.ratios))


def ratio_text(ratio: Ratio | None) -> str:
    """Return a ratio with its interval; a dash where there is none."""
    return NOTHING if ratio is None else str(ratio)


def side_summary(results: Results, comparison: Comparison, side: int) -> str:
    """Return one side's name and absolute figures, a line each."""
    name, threads = (comparison.first, comparison.second)[side], comparison.threads[side]
    if threads != results.machine["threads"]:
        name += f" ({threads} thread{'s' if threads > 1 else ''})"
    return "\n".join([name, *figures(results, comparison, side)])


def figures(results: Results, comparison: Comparison, side: int) -> Iterator[str]:
    """Yield one side's absolute figures in words, those that were measured."""
    yield duration(median(comparison.samples[SECONDS][side]))
    if tokens := comparison.tokens_per_second(side):
        yield f"{tokens:,.0f} tokens/s"
    if rate := comparison.flops_per_second(side):
        share = f", {rate / results.peak:.0%} of peak" if results.peak else ""
        yield f"{rate / 1e9:,.0f} GFLOP/s{share}"
    for quantity, what in ((PEAK, "peak"), (GROWTH, "growth")):
        if size := comparison.typical(quantity, side):
            yield f"{what} {size / 2**20:,.0f} MiB"


def duration(seconds: float) -> str:
    """Return a time with three digits and its unit."""
    unit, scale = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if seconds >= s), ("µs", 1e-6))
    return f"{seconds / scale:.{max(0, 2 - math.floor(math.log10(seconds / scale)))}f} {unit}"


def notes(results: Results) -> Iterator[str]:
    """Yield what must be said beside the table: what is unstable, and who was skipped."""
    yield from doubts(results)
    for skipped in results.skipped:
        yield f"skipped {skipped.name} on {skipped.subject}: {skipped.reason}"


def doubts(results: Results) -> Iterator[str]:
    """Yield a line for every comparison that cannot be trusted, with the reasons."""
    for comparison in results.comparisons:
        if comparison.unstable:
            yield (
                f"UNSTABLE {comparison.subject}, {comparison.first} against {comparison.second}: "
                f"{'; '.join(comparison.unstable)}"
            )


def how_measured(results: Results) -> str:
    """Return with which plan, how many pairs and, of generation, how many tokens the figures were taken."""
    settings = results.settings
    pairs = sorted({len(comparison.samples[SECONDS][0]) for comparison in results.comparisons})
    plan = "with --quick" if settings["quick"] else "in full"
    parts = [f"measured {plan}", f"pairs: {', '.join(map(str, pairs))}"]
    if results.command == "decode":
        parts.append(f"prompt of {settings['prompt_tokens']} tokens, {settings['new_tokens']} new ones")
    if settings.get("phase") == "forward-backward":
        parts.append("forward and backward alone")
    return ", ".join(parts)


def markdown(results: Results) -> str:
    """Return the results as a Markdown table, under a line that says on what and how they were measured."""
    machine = results.machine
    libraries = " and ".join(
        f"{name} {machine['libraries'][name]} with {blas_name(blas)}"
        for name, blas in machine["blas"].items()
    )
    labels = ratio_labels(results.comparisons)
    headings = [results.command, "A", "B", *labels]
    rows = [
        [
            comparison.subject + (" UNSTABLE" if comparison.unstable else ""),
            *(_cell(results, comparison, side) for side in (0, 1)),
            *(ratio_text(comparison.ratios.get(label)) for label in labels),
        ]
        for comparison in results.comparisons
    ]
    heading = (
        f"{machine['processor']}, threads: {machine['threads']}, {machine['system']}; {libraries}; float32"
    )
    lines = [
        f"{heading}; {how_measured(results)}; {machine['date']}:",
        "",
        _row(headings),
        _row(["---"] * 3 + ["---:"] * len(labels)),
        *(_row(row) for row in rows),
        *("\n" + line for line in doubts(results)),
    ]
    return "\n".join(lines) + "\n"


def _cell(results: Results, comparison: Comparison, side: int) -> str:
    return ", ".join(side_summary(results, comparison, side).split("\n"))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
