"""Units of captions read from parses, and foils that differ from them in one edit."""

import random
from collections.abc import Callable

import pytest

from compo_pipeline.core.records import Parse
from compo_pipeline.language.editing import token_text
from compo_pipeline.language.replacements import replacer
from compo_pipeline.language.units import Unit, foil, units

REPLACER = replacer()
Tagged = Callable[[str], Parse]
DOG = "[ A/DET/DT brown/ADJ/JJ dog/NOUN/NN ]"
HORSE = "[ a/DET/DT horse/NOUN/NN ]"
TABLE = "[ the/DET/DT table/NOUN/NN ]"


def read(parse: Parse) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"entity": [], "relation": []}
    for unit in units(parse):
        found[unit.category].append(token_text(parse, *unit.phrase))
    return found


def foils(parse: Parse, unit: Unit) -> dict[str, set[str]]:
    """Texts of many draws, by what they edit."""
    drawn = [foil(parse, unit, random.Random(seed), REPLACER) for seed in range(60)]
    found: dict[str, set[str]] = {}
    for one in drawn:
        if one is not None:
            found.setdefault(one.category, set()).add(one.text)
    return found


def test_entities_have_their_attributes_and_relations_their_parts(tagged: Tagged) -> None:
    parse = tagged(f"{DOG} sits/VERB/VBZ under/ADP/IN {TABLE} _./PUNCT/.")
    assert read(parse) == {
        "entity": ["A brown dog", "the table"],
        "relation": ["A brown dog sits under the table"],
    }
    *_, relation = units(parse)
    assert [token_text(parse, *part) for part in relation.parts] == [
        "A brown dog",
        "sits under",
        "the table",
    ]


def test_entities_of_two_nouns_are_one_and_places_are_none(tagged: Tagged) -> None:
    group = "[ A/DET/DT group/NOUN/NN ] of/ADP/IN [ people/NOUN/NNS ]"
    left = "to/ADP/IN [ the/DET/DT left/NOUN/NN ] of/ADP/IN"
    assert read(tagged(f"{group} {left} {HORSE}")) == {
        "entity": ["A group of people", "a horse"],
        "relation": ["A group of people to the left of a horse"],
    }


@pytest.mark.parametrize(
    "source",
    [
        f"{DOG} and/CCONJ/CC {HORSE}",
        f"{DOG} _,/PUNCT/, on/ADP/IN {TABLE}",
        f"on/ADP/IN {TABLE} running/VERB/VBG to/ADP/IN {HORSE}",
    ],
    ids=["a list", "another clause", "a participle of another subject"],
)
def test_neighbours_that_are_not_related(tagged: Tagged, source: str) -> None:
    assert read(tagged(source))["relation"] == []


def test_equal_units_count_once(tagged: Tagged) -> None:
    assert read(tagged(f"{HORSE} and/CCONJ/CC {HORSE}"))["entity"] == ["a horse"]
    assert units(tagged("Nothing/PRON/NN here/ADV/RB")) == ()


def test_foils_of_an_entity_change_one_word(tagged: Tagged) -> None:
    parse = tagged(f"{DOG} chases/VERB/VBZ {HORSE}")
    entity, *_ = units(parse)
    found = foils(parse, entity)
    assert found.keys() == {"attribute", "entity"}
    assert all(text.startswith("A brown ") for text in found["entity"])
    assert all(text.endswith(" dog") for text in found["attribute"])
    # A horse is in the image too.
    assert not {"A brown horse", "A brown dog"} & set.union(*found.values())


def test_foils_of_a_relation_change_a_part_or_exchange_subject_and_object(tagged: Tagged) -> None:
    parse = tagged(f"{DOG} chases/VERB/VBZ {HORSE} near/ADP/IN {TABLE}")
    relation = next(unit for unit in units(parse) if unit.category == "relation")
    found = foils(parse, relation)
    assert found["swap"] == {"A horse chases a brown dog"}
    assert all(text.startswith("A brown dog ") for text in found["relation"])
    assert not any("table" in text for texts in found.values() for text in texts)
    swapped = next(
        one
        for seed in range(60)
        if (one := foil(parse, relation, random.Random(seed), REPLACER)) and one.category == "swap"
    )
    assert swapped.text.startswith("A horse") and swapped.text.endswith("a brown dog")


@pytest.mark.parametrize("word", ["near/ADP/IN", "with/ADP/IN"])
def test_relations_that_hold_both_ways_are_not_exchanged(tagged: Tagged, word: str) -> None:
    parse = tagged(f"{DOG} is/AUX/VBZ {word} {HORSE}")
    *_, relation = units(parse)
    assert "swap" not in foils(parse, relation)


def test_the_article_before_a_new_word_is_right_within_the_unit(tagged: Tagged) -> None:
    parse = tagged(f"{DOG} on/ADP/IN [ an/DET/DT orange/ADJ/JJ table/NOUN/NN ]")
    texts = foils(parse, units(parse)[1])["attribute"]
    assert texts and all(text.startswith(("a ", "an ")) for text in texts)
    assert any(text.startswith("a ") for text in texts)


def test_a_unit_without_words_to_change_has_no_foil(tagged: Tagged) -> None:
    parse = tagged("[ xyzzy/NOUN/NN ]")
    assert foil(parse, *units(parse), random.Random(0), REPLACER) is None
