"""What views ask for, whoever wrote their negatives, and what rules would."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from compo_pipeline.core.records import Caption, View
from compo_pipeline.core.settings import parse, with_values
from compo_pipeline.core.tables import Table
from compo_pipeline.evaluation.diagnosis.negatives import (
    Negatives,
    RuleSetting,
    Sample,
    asked_changes,
    rule_settings,
)
from compo_pipeline.generation.counterfactuals.contract import Opening
from compo_pipeline.generation.counterfactuals.settings import CounterfactualSettings
from compo_pipeline.language.parsing import parses_of
from compo_pipeline.language.replacements import replacer
from compo_pipeline.methods.registry import METHODS
from compo_pipeline.methods.views import from_table, single_view
from compo_pipeline.project.settings import loader_of, read_settings

CAPTION = "A red cat sits beside a green dog."


@pytest.fixture
def view() -> Callable[..., View]:
    """A view of a caption with negatives of a table."""

    def make(caption: str, *negatives: str) -> View:
        row = Caption("a", "a", "a.png", 4, 3, (caption,), "test", "train")
        written = [from_table((text, "no")) for text in negatives]
        return single_view(row, (caption,), written, "")

    return make


def test_kinds_are_read_from_the_texts_of_a_table(view: Callable[..., View]) -> None:
    rows = [
        view(CAPTION, "A green cat sits beside a red dog."),
        view(
            CAPTION, "A red cat sits beside a green horse.", "A blue cat sits beside a green dog."
        ),
        view(CAPTION, "Something else altogether."),
        view(CAPTION),
    ]
    asked = asked_changes(
        [Negatives.from_view(row) for row in rows], partial(parses_of, "compo_en")
    )
    assert (asked.captions, asked.negatives) == (4, 4)
    assert asked.asked == {"swapped_attributes": 1, "replaced_object": 1, "replaced_attribute": 1}
    assert asked.shown == {}


def test_of_a_pair_the_anchors_negatives_count(view: Callable[..., View]) -> None:
    made = view(CAPTION, "A blue cat sits beside a green dog.", "Two parks run in a dog.")
    pair = replace(made, kind="pair", positives=(CAPTION, "Two dogs run in a park."))
    assert Negatives.from_view(pair) == (CAPTION, ["A blue cat sits beside a green dog."], False)
    assert len(Negatives.from_view(made).texts) == 2


@pytest.fixture(scope="module")
def found(sample: Sample) -> dict[str, RuleSetting]:
    rows = Table.of(sample.captions, Caption)
    opening = Opening(0, rows, Path("images"), Path("state"), {})
    edits = CounterfactualSettings(caption_editor="rules")
    return {one.method: one for one in rule_settings({}, edits, opening, sample)}


def test_methods_with_rules_are_found(found: dict[str, RuleSetting]) -> None:
    assert found.keys() <= METHODS.keys()
    assert {"negclip", "fsc_clip", "sparcl"} <= found.keys()
    assert found["negclip"].key == "negclip.views.generators"
    assert found["sparcl"].key == "counterfactuals.rules.negatives"


def test_every_rule_can_be_set_under_its_key(
    found: dict[str, RuleSetting], bootstrapped: Path
) -> None:
    for method in ("negclip", "sparcl"):
        setting = found[method]
        changes = with_values({}, {setting.key: list(setting.allowed), "method": method})
        read_settings(loader_of(bootstrapped / "conf", "base", changes))
        assert set(setting.current) <= set(setting.allowed)


def test_a_rule_asks_as_many_captions_as_its_generator_finds_something_in(
    found: dict[str, RuleSetting], sample: Sample
) -> None:
    generator = replacer(categories=["relation"])
    parses = [sample.context.parses[row.sample_id] for row in sample.captions]
    wanted = sum(generator(parse, random.Random(0)) is not None for parse in parses)
    asked = found["negclip"].asked(("replace_relation",))
    assert 0 < wanted < len(parses)
    assert (asked.captions, asked.asked) == (len(parses), {"replaced_relation": wanted})
    assert asked.negatives == wanted
    assert not asked.shown


def test_images_of_negatives_are_counted(sample: Sample) -> None:
    rows = Table.of(sample.captions, Caption)
    opening = Opening(0, rows, Path("images"), Path("state"), {})
    edits = parse(
        CounterfactualSettings,
        {"caption_editor": "rules", "image_generator": "diffusion", "diffusion": {"model": "m"}},
    )
    (setting,) = (
        one for one in rule_settings({}, edits, opening, sample) if one.method == "sparcl"
    )
    asked = setting.asked(("relation",))
    assert asked.asked == asked.shown
    assert asked.asked["replaced_relation"] > 0
