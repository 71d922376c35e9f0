"""Settings are parsed strictly: unknown keys and wrong types are refused by their YAML name."""

from dataclasses import dataclass, field
from typing import Literal

import pytest

from compo_pipeline.__main__ import main
from compo_pipeline.cli import cli
from compo_pipeline.core.removed import REMOVED
from compo_pipeline.core.settings import (
    Open,
    SettingsError,
    all_settings,
    parse,
    plain,
)
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.pipeline_registry import register_pipelines
from compo_pipeline.project.settings import Parameters


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
    with pytest.raises(SettingsError, match=r"^training: .* a mapping \(got 5\)"):
        parse(Recipe, 5, "training")  # type: ignore[arg-type]


@dataclass(frozen=True)
class Suite:
    lists: Open[Open[Schedule]] = field(default_factory=dict)
    """By list and model."""
    recipe: Recipe | None = None


def test_null_takes_a_name_out_of_an_open_mapping_at_any_depth():
    given = {"lists": {"one": {"a": {"steps": 3}, "b": None}, "two": None}}
    assert parse(Suite, given, "suite") == Suite(lists={"one": {"a": Schedule(steps=3)}})
    # Another mapping has no names to take away.
    with pytest.raises(SettingsError, match=r"^training\.parts\.head: .*\(got None\)"):
        parse(Recipe, {"name": "clic", "parts": {"head": None}}, "training")


def test_settings_are_plain_with_all_defaults_and_parse_again():
    recipe = parse(Recipe, {"name": "clic", "stages": [{"steps": 1}]}, "training")
    values = plain(recipe)
    assert values == {
        "name": "clic",
        "attention": "sparse",
        "schedule": {"rate": 1e-6, "steps": 10},
        "betas": [0.9, 0.98],
        "parts": {},
        "stages": [{"rate": 1e-6, "steps": 1}],
        "control": None,
    }
    assert parse(Recipe, values, "training") == recipe


def test_booleans_are_no_numbers_at_any_depth():
    given = {
        "name": "clic",
        "schedule": {"rate": True},
        "betas": [0.5, False],
        "parts": {"head": {"steps": True}},
    }
    with pytest.raises(SettingsError) as error:
        parse(Recipe, given, "training")
    assert sorted(str(error.value).splitlines()) == [
        "training.betas.1: Input should be a valid number (got False)",
        "training.parts.head.steps: Input should be a valid integer (got True)",
        "training.schedule.rate: Input should be a valid number (got True)",
    ]


def test_a_removed_name_is_answered_with_its_replacement():
    """Removed names are no longer known, and each way of typing one is answered."""
    known = {*(f"--pipeline={name}" for name in register_pipelines())}
    known |= {
        *(f"compo-pipeline {name}" for name in cli.commands),
        *(each.key for each in all_settings(Parameters)),
    }
    assert not known & REMOVED.keys()
    with pytest.raises(SettingsError, match="no 'copy'; it was removed: use kedro run"):
        cli.commands["run"].main(["--pipeline=copy"], standalone_mode=False)
    with pytest.raises(SystemExit, match=r"no command 'worker'; it was removed: use torchrun"):
        main(["worker"])
    with pytest.raises(
        SettingsError, match=r"evaluation\.attention: .*removed: use kedro run --pipe"
    ):
        parse(EvaluationSettings, {"attention": {}}, "evaluation")
