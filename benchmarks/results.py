"""What a run found, and the JSON file that keeps it.

    {"format": 1, "command": "step", "settings": {...}, "machine": {...},
     "comparisons": [{"subject": "nano", "first": "numpy", "second": "torch-eager", "samples": {...},
                      "ratios": {...}, "unstable": [...], ...}, ...],
     "skipped": [{"subject": "nano", "name": "jax", "reason": "..."}, ...]}

The samples are what was measured. The ratios and the reasons to call a comparison unstable follow from them;
they are written for whoever reads the file without this program, and computed anew when it is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import schema
from benchmarks.statistics import Ratio, median, ratio_of_medians, reasons_to_doubt
from numpy_gpt.whole_files import write_whole

FORMAT = 1

SECONDS, PRODUCTS, PEAK, GROWTH = "seconds", "products_seconds", "peak_bytes", "growth_bytes"
"""What one process measures, as `benchmarks.tasks` calls it."""

Series = tuple[float, ...]


@dataclass(frozen=True)
class Comparison:
    """Two contestants, A and B, measured in alternating pairs.

    Args:
        subject: what they did, such as a case.
        first, second: who A and B are.
        threads: how many each had.
        samples: for each quantity, A's and B's, one of each pair; seconds always.
        load: the share of the usable processors that other programs took meanwhile.
        tokens: how many tokens one measured second-count covers; None where it has none.
        flops: likewise, operations in matrix products.
        errors: of A and of B against torch, the worst in the check.
    """

    subject: str
    first: str
    second: str
    threads: tuple[int, int]
    samples: Mapping[str, tuple[Series, Series]]
    load: float
    tokens: int | None = None
    flops: int | None = None
    errors: tuple[float, float] | None = None

    @property
    def ratios(self) -> dict[str, Ratio | None]:
        """Return A over B for everything that was measured; None where that means nothing.

        The remainder is the time of a step less that of a reference set of products: those of
        `benchmarks.flops`, the same for A and B, on the shapes of a plain model and one after the other. A
        program that makes others, such as the tiles of causal attention or the logits again in backward, has
        the difference in its remainder.
        """
        found = {"as installed": self._ratio(SECONDS)}
        if PRODUCTS in self.samples:
            found["matrix products"] = self._ratio(PRODUCTS)
            found["remainder"] = ratio_of_medians(*(self.remainder(side) for side in (0, 1)))
        for name, quantity in (("peak memory", PEAK), ("memory growth", GROWTH)):
            if quantity in self.samples:
                found[name] = self._ratio(quantity)
        return found

    @property
    def unstable(self) -> tuple[str, ...]:
        """Return why the times, or what was made of them, cannot be trusted, in words; else nothing."""
        judged = {"times": self.samples[SECONDS]}
        if PRODUCTS in self.samples:
            judged["matrix products"] = self.samples[PRODUCTS]
            if self.ratios["remainder"] is not None:
                judged["remainders"] = (self.remainder(0), self.remainder(1))
        return reasons_to_doubt(judged, self.load)

    def remainder(self, side: int) -> Series:
        """Return one side's seconds without those of its matrix products, pair by pair."""
        pairs = zip(self.samples[SECONDS][side], self.samples[PRODUCTS][side], strict=True)
        return tuple(whole - products for whole, products in pairs)

    def typical(self, quantity: str, side: int) -> float | None:
        """Return the median of a quantity for A, side 0, or B, side 1."""
        return median(self.samples[quantity][side]) if quantity in self.samples else None

    def tokens_per_second(self, side: int) -> float | None:
        """Return how many tokens one side passes in a second."""
        return self._rate(self.tokens, side)

    def flops_per_second(self, side: int) -> float | None:
        """Return one side's operations in matrix products per second of the whole."""
        return self._rate(self.flops, side)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values, and what follows from it."""
        ratios = {name: ratio and ratio._asdict() for name, ratio in self.ratios.items()}
        return {**asdict(self), "ratios": ratios, "unstable": self.unstable}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Comparison:
        """Return the comparison that `to_json` wrote down.

        Raises:
            ValueError: saying what is wrong with it.
        """
        schema.require(values, schema.COMPARISON, "a comparison")
        own = {name: values[name] for name in cls.__dataclass_fields__}
        samples = {name: _two_series(name, sides) for name, sides in own["samples"].items()}
        schema.require(samples, {SECONDS: schema.ANYTHING}, "samples")
        for name, (first, _) in samples.items():
            if len(first) != len(samples[SECONDS][0]):
                raise ValueError(f"{name} has {len(first)} pairs, and {SECONDS} {len(samples[SECONDS][0])}")
        errors = own["errors"] and tuple(own["errors"])
        return cls(**{**own, "samples": samples, "threads": tuple(own["threads"]), "errors": errors})

    def _ratio(self, quantity: str) -> Ratio | None:
        return ratio_of_medians(*self.samples[quantity])

    def _rate(self, amount: int | None, side: int) -> float | None:
        return None if amount is None else amount / median(self.samples[SECONDS][side])


@dataclass(frozen=True)
class Skipped:
    """A contestant that was not measured, and why."""

    subject: str
    name: str
    reason: str


@dataclass
class Results:
    """Everything that one run found.

    Args:
        command: the subcommand.
        settings: as the user gave them.
        machine: see `benchmarks.machine.describe_machine`; with `blas` of each library, and its `peak` in
            operations per second.
        comparisons, skipped: in the order of the run.
    """

    command: str
    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    comparisons: list[Comparison] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def peak(self) -> float | None:
        """The most operations per second that any library's matrix product reached here."""
        return max(self.machine.get("peak", {}).values(), default=None)

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        document = {
            "format": FORMAT,
            "command": self.command,
            "settings": self.settings,
            "machine": self.machine,
            "comparisons": [comparison.to_json() for comparison in self.comparisons],
            "skipped": [asdict(skipped) for skipped in self.skipped],
        }
        write_whole(path, [(json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()])

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read a file that `save` wrote.

        Raises:
            OSError: when it cannot be read.
            ValueError: naming the file and what is wrong with it.
        """
        try:
            return cls._from_document(json.loads(path.read_text(encoding="utf-8")))
        except RecursionError:
            raise ValueError(f"{path} is no benchmark result: it nests too deeply") from None
        except ValueError as error:
            raise ValueError(f"{path} is no benchmark result: {error}") from None

    @classmethod
    def _from_document(cls, document: Any) -> Results:
        """Return the results of a file, or raise ValueError for whatever they could not be shown with."""
        schema.require_plain(document)
        schema.require(document, {"format": schema.ANYTHING}, "the file")
        if type(document["format"]) is not int or document["format"] != FORMAT:
            raise ValueError(
                f"its format is {schema.shown(document['format'])}, and this program reads {FORMAT}"
            )
        schema.require(document, schema.DOCUMENT, "the file")
        machine, command = document["machine"], document["command"]
        if command == "decode":
            schema.require(document["settings"], schema.DECODE_SETTINGS, "settings")
        for names in ("libraries", "peak"):
            schema.require(
                machine[names], dict.fromkeys(machine["blas"], schema.ANYTHING), f"machine: {names}"
            )
        if not document["comparisons"]:
            raise ValueError("it holds no comparisons")
        for skipped in document["skipped"]:
            schema.require(skipped, schema.SKIPPED, "skipped")
        return cls(
            command=command,
            settings=document["settings"],
            machine=machine,
            comparisons=[Comparison.from_json(values) for values in document["comparisons"]],
            skipped=[Skipped(**{name: one[name] for name in schema.SKIPPED}) for one in document["skipped"]],
        )


def _two_series(name: str, sides: Any) -> tuple[Series, Series]:
    """Return A's and B's samples, or raise ValueError; what can shrink may be negative, and no time can."""
    schema.require(sides, schema.pair_of(schema.LIST), name)
    leaf = schema.POSITIVE if name in (SECONDS, PRODUCTS) else schema.NUMBER
    for side in sides:
        for value in side:
            schema.require(value, leaf, name)
    first, second = (tuple(float(value) for value in side) for side in sides)
    if len(first) != len(second) or not first:
        raise ValueError(f"{name} holds {len(first)} and {len(second)} samples")
    return first, second
