"""The reference says of every key what it is, from where that is written once."""

from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from compo_pipeline.core.reference import ParameterEntry, chosen, collect_entries
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.project.settings import all_values, loader_of, with_methods
from compo_pipeline.registry.settings import GateRule


@pytest.fixture(scope="module")
def entries(bootstrapped: Path) -> list[ParameterEntry]:
    conf = bootstrapped / "conf"
    default, smoke = (all_values(loader_of(conf, env, {})) for env in ("base", "smoke"))
    return [*collect_entries(with_methods(), default, smoke)]


@pytest.mark.parametrize(
    ("key", "type_", "default", "value"),
    [
        ("training.log_every", "integer > 0 or null", None, 1),
        ("clic.views.images", "composite or single", "composite", "composite"),
        ("siglip.objective.trains", "list of image or text", ["text"], ["text"]),
        ("data.root", "path", "data/01_raw/scenes", "data/01_raw/smoke"),
        ("seed", "integer", 0, 0),
    ],
)
def test_a_key_has_its_type_default_and_value(
    entries: list[ParameterEntry], key: str, type_: str, default: Any, value: Any
) -> None:
    entry = next(entry for entry in entries if entry.key == key)
    assert (entry.type, entry.default, entry.value) == (type_, default, value)
    assert entry.meaning


def test_settings_under_names_of_ones_own_are_explained_once(entries: list[ParameterEntry]) -> None:
    rules = chosen(entries, "promotion.gate.rules")
    keys = [entry.key.removeprefix("promotion.gate.rules") for entry in rules]
    names = [each.name for each in fields(GateRule)]
    assert keys == ["", *(f".<name>.{name}" for name in names)]
    assert "zero_shot" in rules[0].default
    # Smoke changes every rule, and the reference shows what it makes of them.
    assert rules[0].value["zero_shot"]["by"] == 100.0


def test_a_key_is_chosen_before_a_mere_prefix(entries: list[ParameterEntry]) -> None:
    assert {entry.key for entry in chosen(entries, "data")} & {"dataset"} == set()
    assert [entry.key for entry in chosen(entries, "training.log")] == ["training.log_every"]
    with pytest.raises(SettingsError, match="did you mean 'training'"):
        chosen(entries, "trainign")
    with pytest.raises(SettingsError, match=r"training\.batch_size"):
        chosen(entries, "batch_size")


def test_the_pages_are_up_to_date(bootstrapped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(bootstrapped / "benchmarks" / "project")
    parameters = import_module("parameters")
    found = {page.name: page.read_text(encoding="utf-8") for page in parameters.PAGES.iterdir()}
    assert found == parameters.pages(), "stale: python benchmarks/project/parameters.py"
