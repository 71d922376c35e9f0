"""Settings are parsed strictly: unknown keys and wrong types are refused by their YAML name."""

from dataclasses import dataclass, field
from typing import Literal

import pytest

from compo_pipeline.analysis.settings import SweepSettings
from compo_pipeline.configuration import SettingsError, nearest, parse


@dataclass(frozen=True)
class Schedule:
    rate: float = 1e-6
    steps: int = 10


@dataclass(frozen=True)
class Recipe:
    name: str
    attention: Literal["sparse", "softmax"] = "sparse"
    schedule: Schedule = field(default_factory=Schedule)
    betas: tuple[float, float] = (0.9, 0.98)
    parts: dict[str, Schedule] = field(default_factory=dict)
    stages: tuple[Schedule, ...] = ()
    control: Schedule | None = None


def test_nested_values_reach_frozen_dataclasses():
    given = {
        "name": "clic",
        "schedule": {"rate": 2},
        "betas": [0.5, 0.6],
        "parts": {"head": {"steps": 3}},
        "stages": [{"steps": 1}, {"steps": 2}],
    }
    recipe = parse(Recipe, given, "training")
    assert recipe == Recipe(
        name="clic",
        schedule=Schedule(rate=2.0),
        betas=(0.5, 0.6),
        parts={"head": Schedule(steps=3)},
        stages=(Schedule(steps=1), Schedule(steps=2)),
    )
    with pytest.raises(AttributeError):
        recipe.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "key", "suggestion"),
    [
        ({"schedul": {}}, "training.schedul", "schedule"),
        ({"schedule": {"stpes": 1}}, "training.schedule.stpes", "steps"),
        ({"parts": {"head": {"ratee": 1}}}, "training.parts.head.ratee", "rate"),
        ({"stages": [{}, {"step": 1}]}, "training.stages.1.step", "steps"),
        ({"control": {"rat": 1}}, "training.control.rat", "rate"),
    ],
)
def test_unknown_key_is_refused_at_any_depth(given, key, suggestion):
    with pytest.raises(SettingsError) as error:
        parse(Recipe, {"name": "clic", **given}, "training")
    assert str(error.value).startswith(f"{key}: unknown key; did you mean '{suggestion}'?")


def test_every_wrong_value_is_named_with_what_was_got():
    given = {"name": "clic", "attention": "dense", "schedule": {"steps": "many"}}
    with pytest.raises(SettingsError) as error:
        parse(Recipe, given, "training")
    lines = str(error.value).splitlines()
    assert lines[0].startswith("training.attention: ") and "'sparse' or 'softmax'" in lines[0]
    assert lines[1].startswith("training.schedule.steps: ") and "(got 'many')" in lines[1]


def test_missing_value_and_wrong_shape_are_named():
    with pytest.raises(SettingsError, match=r"^training\.name: Field required$"):
        parse(Recipe, {}, "training")
    with pytest.raises(SettingsError, match="training: expected a mapping, got 5"):
        parse(Recipe, 5, "training")  # type: ignore[arg-type]


@dataclass(frozen=True)
class Gate:
    rules: dict[str, Recipe]


def test_an_entry_without_its_fields_names_the_nearest_complete_one():
    given = {"rules": {"retrieval": {"name": "r"}, "retreival": {"schedule": {"steps": 3}}}}
    with pytest.raises(SettingsError) as error:
        parse(Gate, given, "gate")
    expected = "gate.rules.retreival: a new name needs name too; did you mean 'retrieval'?"
    assert str(error.value) == f"{expected} (known: retrieval)"


def test_no_suggestion_where_nothing_is_close():
    assert nearest("quux", ["schedule", "rate"]) == ""
    assert nearest("sheduel", ["schedule", "rate"]) == "; did you mean 'schedule'?"


def test_a_single_value_instead_of_a_list_is_told_in_words_of_yaml() -> None:
    with pytest.raises(SettingsError, match=r"^wise_ft.ratios: Input should be a valid list"):
        parse(SweepSettings, {"ratios": 0.5}, "wise_ft")
