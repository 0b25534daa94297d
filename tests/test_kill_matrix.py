"""The kill matrix: every bug is found, every property finds one, and the right code survives."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from numpy_gpt.kernels import fast
from numpy_gpt.verify.bugs import CATALOGUE, RIGHT, Bug, Subject
from numpy_gpt.verify.kill_matrix import PROPERTIES, Cell, KillMatrix, kill_matrix
from numpy_gpt.verify.kill_matrix.data import batches_are_pure, windows_are_aligned
from numpy_gpt.verify.kill_matrix.property import Property, looks_at

BY_NAME = {bug.name: bug for bug in CATALOGUE}
NO_BUG: Bug = dataclasses.replace(CATALOGUE[0], name="no-bug", subject=RIGHT)


@pytest.fixture(scope="module")
def matrix() -> KillMatrix:
    return kill_matrix([0])


def test_every_bug_is_killed(matrix: KillMatrix) -> None:
    assert matrix.survivors == ()
    assert matrix.every_bug_killed


def test_every_property_kills(matrix: KillMatrix) -> None:
    assert matrix.idle_properties == ()
    assert matrix.every_property_kills


def test_right_code_survives(matrix: KillMatrix) -> None:
    assert [cell.evidence for cell in matrix.on_right_code] == [None] * len(PROPERTIES)
    assert matrix.right_code_survives
    assert matrix.passed


@pytest.mark.parametrize(
    "rule", [rule for rule in PROPERTIES if "ops" in rule.looks_at], ids=lambda rule: rule.name
)
def test_the_kernels_survive_too(rule: Property) -> None:
    assert [rule.check(RIGHT._replace(ops=fast), seed) for seed in range(3)] == [None] * 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_every_seed_is_enough_alone(seed: int) -> None:
    matrix = kill_matrix([seed])
    assert matrix.survivors == ()
    assert matrix.idle_properties == ()
    assert matrix.right_code_survives


def test_some_kills_that_the_lessons_speak_of(matrix: KillMatrix) -> None:
    def killers(name: str) -> set[str]:
        return set(matrix.killers(BY_NAME[name]))

    assert "softmax_ignores_a_shift" in killers("attention-row-term-forgotten")
    assert "tied_weight_law" in killers("model-tied-head-part-lost")
    assert killers("layer-norm-writes-into-its-input") == {"inputs_are_untouched"}
    assert killers("attention-mask-from-the-first-key") == {"op_values", "cache_equals_recomputation"}
    assert killers("cache-last-part-counted") == {"cache_equals_recomputation"}
    assert killers("generation-stale-keys-slide") == {"generation_is_recomputation"}
    assert "op_gradients" not in killers("gelu-shared-workspace")
    assert "model_gradients" in killers("gelu-shared-workspace")
    assert "causality" not in killers("attention-split-by-reshape")


def test_evidence_is_one_line_that_names_what_is_wrong(matrix: KillMatrix) -> None:
    for bug in CATALOGUE:
        for evidence in matrix.killers(bug).values():
            assert evidence
            assert "\n" not in evidence
    scale = matrix.killers(BY_NAME["attention-scale-forgotten-in-backward"])
    assert scale["op_gradients"].startswith("attention d_queries: predicts a slope of ")


def test_the_text_has_a_row_for_every_bug_and_a_line_for_every_property(matrix: KillMatrix) -> None:
    lines = str(matrix).splitlines()
    for bug in CATALOGUE:
        assert sum(line.startswith(f"{bug.name} ") for line in lines) == 1
    for number, tried in enumerate(PROPERTIES, start=1):
        assert f"{number:>2} {tried.name}: {tried.claim}" in lines
    assert not any(line.startswith(("SURVIVES", "KILLS NOTHING", "FAILS")) for line in lines)


def test_a_bug_that_nobody_finds_is_reported() -> None:
    matrix = kill_matrix([0], bugs=[BY_NAME["data-seed-plus-step"], NO_BUG], properties=[batches_are_pure])
    assert matrix.survivors == (NO_BUG,)
    assert not matrix.every_bug_killed
    assert not matrix.passed
    assert "SURVIVES: no-bug" in str(matrix)


def test_a_property_that_finds_nothing_is_reported() -> None:
    matrix = kill_matrix(
        [0], bugs=[BY_NAME["data-seed-plus-step"]], properties=[windows_are_aligned, batches_are_pure]
    )
    assert matrix.idle_properties == (windows_are_aligned,)
    assert not matrix.every_property_kills
    assert not matrix.passed
    assert "KILLS NOTHING: windows_are_aligned" in str(matrix)


def test_a_property_that_right_code_lacks_is_reported() -> None:
    @looks_at("generate")
    def impossible(subject: Subject, seed: int) -> Iterator[str]:
        """Never holds."""
        yield "no code is good enough"

    matrix = kill_matrix([0], bugs=[BY_NAME["generation-seed-ignored"]], properties=[impossible])
    assert matrix.every_bug_killed
    assert not matrix.right_code_survives
    assert not matrix.passed
    assert "FAILS ON RIGHT CODE: impossible: no code is good enough" in str(matrix)


def test_what_a_property_cannot_see_is_not_run() -> None:
    seen = []

    @looks_at("clip_gradients")
    def counts_its_runs(subject: Subject, seed: int) -> Iterator[str]:
        """Holds."""
        seen.append(subject)
        yield from ()

    bugs = [BY_NAME["data-seed-plus-step"], BY_NAME["clipping-elements"]]
    matrix = kill_matrix([0, 1], bugs=bugs, properties=[counts_its_runs])
    assert seen == [bugs[1].subject] * 2 + [RIGHT] * 2
    assert matrix.cells == ((Cell(None, in_sight=False),), (Cell(None),))
    assert [str(cell) for (cell,) in matrix.cells] == [" ", "."]
    assert str(Cell("evidence")) == "x"
