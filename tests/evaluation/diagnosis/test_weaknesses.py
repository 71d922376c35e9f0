"""Weaknesses of models with planted ones."""

import random
from collections.abc import Mapping
from dataclasses import asdict

import pytest

from compo_pipeline.core.records import Score
from compo_pipeline.core.settings import parse
from compo_pipeline.data.generators import Recipe
from compo_pipeline.evaluation.comparison import BASE, FINE_TUNED, compare
from compo_pipeline.evaluation.diagnosis.diagnose import (
    Diagnosis,
    KindResult,
    TrainingRun,
    diagnose,
    foil_rows,
    kind_result,
    weaknesses,
    worst,
)
from compo_pipeline.evaluation.diagnosis.negatives import AskedChanges
from compo_pipeline.evaluation.evaluate import ComparedModel, Comparison
from compo_pipeline.language.changes import Change

KINDS: tuple[Change, ...] = ("swapped_attributes", "replaced_relation", "replaced_object")
MODELS = {BASE: "base", FINE_TUNED: "ours"}


def scored(right: Mapping[str, Mapping[Change, float]], items: int = 300) -> list[Score]:
    """Scores with these shares of right items."""
    drawn = random.Random(5)
    return [
        Score(
            model, "foils", kind, "accuracy", str(n), f"{n}.jpg", (), drawn.random() < share, None
        )
        for model, kinds in right.items()
        for kind, share in kinds.items()
        for n in range(items)
    ]


def results_of(
    right: Mapping[str, Mapping[Change, float]], asked: Mapping[Change, int]
) -> list[KindResult]:
    counted = AskedChanges(100, 100, asked, {})
    rows = compare([scored(right)], MODELS, [(FINE_TUNED, BASE)], {})
    results = [kind_result(row, BASE, FINE_TUNED, counted) for row in foil_rows(rows)]
    assert {one.kind for one in results} == set(KINDS)
    return weaknesses(results, counted)


def weak(right: Mapping[str, Mapping[Change, float]], asked: Mapping[Change, int]) -> list[str]:
    return [one.kind for one in results_of(right, asked)]


def worst_of(right: Mapping[str, Mapping[Change, float]], asked: Mapping[Change, int]) -> list[str]:
    return [one.kind for one in worst(results_of(right, asked))]


HALF = dict.fromkeys(KINDS, 0.5)
GOOD = dict.fromkeys(KINDS, 0.95)
EVEN = dict.fromkeys(KINDS, 40)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_that_is_missed_and_not_asked_for_is_named(kind: Change) -> None:
    assert weak({"base": HALF, "ours": {**GOOD, kind: 0.5}}, {**EVEN, kind: 0}) == [kind]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_named_without_both(kind: Change) -> None:
    assert weak({"base": HALF, "ours": GOOD}, EVEN) == []
    # Missed, though it is asked for: other negatives of it are no remedy.
    assert weak({"base": HALF, "ours": {**GOOD, kind: 0.5}}, EVEN) == []
    # Not asked for, and right all the same.
    assert weak({"base": HALF, "ours": GOOD}, {**EVEN, kind: 0}) == []
    assert weak({"base": GOOD, "ours": GOOD}, {**EVEN, kind: 0}) == []


def test_the_worst_comes_first() -> None:
    ours = {**GOOD, "replaced_relation": 0.5, "replaced_object": 0.62}
    asked = {**EVEN, "replaced_relation": 0, "replaced_object": 0}
    assert weak({"base": HALF, "ours": ours}, asked) == ["replaced_relation", "replaced_object"]
    assert worst_of({"base": HALF, "ours": ours}, asked) == [
        "replaced_relation",
        "replaced_object",
    ]


def test_what_is_changed_first_has_at_least_half_the_errors_of_the_worst() -> None:
    ours = {**GOOD, "replaced_relation": 0.5, "replaced_object": 0.82}
    asked = {**EVEN, "replaced_relation": 0, "replaced_object": 0}
    base = {"base": {**HALF, "replaced_object": 0.82}, "ours": ours}
    assert weak(base, asked) == ["replaced_relation", "replaced_object"]
    assert worst_of(base, asked) == ["replaced_relation"]


@pytest.mark.parametrize("also", [(), ("replaced_object",)])
def test_a_recipe_that_teaches_all_that_is_missed_most_is_advised(also: tuple[Change, ...]) -> None:
    missed: tuple[Change, ...] = ("replaced_relation", *also)
    ours = {**GOOD, **dict.fromkeys(missed, 0.5)}
    rows = compare([scored({"base": HALF, "ours": ours})], MODELS, [(FINE_TUNED, BASE)], {})
    recipe = Recipe("taught", ("swapped_objects", "replaced_relation"), "relations +30")
    counted = AskedChanges(100, 100, {**EVEN, **dict.fromkeys(missed, 0)}, {})
    run = TrainingRun("plain", lambda: counted, lambda: (), recipes=(recipe,))
    models = {name: ComparedModel(name, name) for name in MODELS}
    found = diagnose(Comparison(models, tuple(rows)), run)
    assert set(found.first) == set(missed)
    assert found.recipe == (None if also else recipe)
    assert ("--env=taught" in found.sentence) != bool(also)
    assert parse(Diagnosis, asdict(found), "diagnosis") == found
