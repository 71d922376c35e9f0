"""Entities, attributes and relations read from tags and noun phrases."""

from collections.abc import Callable

import pytest

from compo_pipeline.core.records import Parse
from compo_pipeline.language.editing import token_text
from compo_pipeline.language.lexicon import load_lexicon
from compo_pipeline.language.scene_graph import kinds, scene_graph

Tagged = Callable[[str], Parse]
DOG = "[ a/DET/DT brown/ADJ/JJ dog/NOUN/NN ]"
TABLE = "[ the/DET/DT table/NOUN/NN ]"


def graph(parse: Parse) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"entity": [], "attribute": [], "relation": []}
    for element in scene_graph(parse).elements:
        found[element.category].append(token_text(parse, element.start, element.end))
    return found


def test_a_simple_caption(tagged: Tagged) -> None:
    source = f"{DOG} sits/VERB/VBZ under/ADP/IN {TABLE} _./PUNCT/."
    assert graph(tagged(source)) == {
        "entity": ["dog", "table"],
        "attribute": ["brown"],
        "relation": ["under", "sits"],
    }


def test_prepositions_of_several_words_hide_their_nouns(tagged: Tagged) -> None:
    left = "to/ADP/IN [ the/DET/DT left/NOUN/NN ] of/ADP/IN"
    parse = tagged(f"{DOG} {left} {TABLE}")
    assert graph(parse)["relation"] == ["to the left of"]
    assert graph(parse)["entity"] == ["dog", "table"]
    assert scene_graph(parse).entities == 2


def test_nouns_of_several_words_and_pieces_of_unknown_ones(tagged: Tagged) -> None:
    hydrant = "[ a/DET/DT fire/NOUN/NN hydrant/NOUN/NN ]"
    bat = "[ a/DET/DT cricket/NOUN/NN club/NOUN/NN ]"
    parse = tagged(f"{hydrant} near/ADP/IN {bat}")
    assert graph(parse)["entity"] == ["fire hydrant"]
    assert scene_graph(parse).entities == 2


@pytest.mark.parametrize(
    ("phrase", "entities"),
    [
        ("[ a/DET/DT cats/NOUN/NNS ]", []),
        ("[ two/NUM/CD cat/NOUN/NN ]", []),
        ("[ two/NUM/CD cats/NOUN/NNS ]", ["cats"]),
        ("[ sheep/NOUN/NNS ]", []),
        ("[ xyzzy/NOUN/NN ]", ["xyzzy"]),
    ],
)
def test_heads_that_agree_with_their_phrase(
    tagged: Tagged, phrase: str, entities: list[str]
) -> None:
    assert graph(tagged(phrase))["entity"] == entities


def test_modifiers(tagged: Tagged) -> None:
    source = "[ two/NUM/CD old/ADJ/JJ wood/NOUN/NN chairs/NOUN/NNS ] are/AUX/VBP red/ADJ/JJ"
    assert graph(tagged(source))["attribute"] == ["two", "old", "wood", "red"]


@pytest.mark.parametrize(
    "source",
    [
        f"{DOG} covered/VERB/VBN with/ADP/IN [ snow/NOUN/NN ]",
        f"{DOG} looking/VERB/VBG at/ADP/IN {TABLE}",
        f"{DOG} in/ADP/IN between/ADP/IN {TABLE}",
        f"under/ADP/IN {TABLE}",
        f"{DOG} on/ADP/IN top/NOUN/NN",
    ],
)
def test_prepositions_that_are_no_relation_of_two_entities(tagged: Tagged, source: str) -> None:
    relations = graph(tagged(source))["relation"]
    assert {"with", "at", "between", "under", "on"}.isdisjoint(relations)


def test_conditions(tagged: Tagged) -> None:
    def conditions(source: str) -> dict[str, frozenset[str]]:
        parsed = tagged(source)
        elements = scene_graph(parsed).elements
        return {token_text(parsed, one.start, one.end): one.conditions for one in elements}

    found = conditions(f"{DOG} sits/VERB/VBZ on/ADP/IN {TABLE}")
    assert found["brown"] == {"animate", "grown"} and found["on"] == {"thing", "bare"}
    assert found["sits"] == {"intransitive", "animate", "grown"}
    assert conditions(f"{DOG} chases/VERB/VBZ {TABLE}")["chases"] == {"transitive"}
    counted = f"{DOG} with/ADP/IN [ three/NUM/CD tables/NOUN/NNS ]"
    assert conditions(counted)["with"] == {"thing"}
    measured = f"{DOG} with/ADP/IN [ a/DET/DT plate/NOUN/NN ] of/ADP/IN [ food/NOUN/NN ]"
    assert "bare" not in conditions(measured)["with"]


def test_things_do_nothing_to_others(tagged: Tagged) -> None:
    assert graph(tagged(f"{DOG} pushing/VERB/VBG {TABLE}"))["relation"] == ["pushing"]
    assert graph(tagged(f"{TABLE} holding/VERB/VBG {DOG}"))["relation"] == []


def test_nouns_that_measure_others(tagged: Tagged) -> None:
    def entities(noun: str) -> list[str]:
        source = f"[ a/DET/DT {noun}/NOUN/NN ] of/ADP/IN [ flowers/NOUN/NNS ]"
        return graph(tagged(source))["entity"]

    assert entities("bed") == ["flowers"]
    assert entities("bowl") == ["bowl", "flowers"]


def test_words_of_longer_nouns_and_counts_are_no_attributes(tagged: Tagged) -> None:
    stand = "[ a/DET/DT hot/ADJ/JJ dog/NOUN/NN stand/NOUN/NN ]"
    assert graph(tagged(stand))["attribute"] == []
    assert graph(tagged("[ a/DET/DT few/ADJ/JJ dogs/NOUN/NNS ]"))["attribute"] == []
    assert graph(tagged("[ few/ADJ/JJ dogs/NOUN/NNS ]"))["attribute"] == ["few"]


def test_kinds() -> None:
    lemmas = load_lexicon().lemmas.items()
    noun = {name: kinds(lemma) for (name, upos), lemma in lemmas if upos == "NOUN"}
    assert noun["dog"] == {"animate", "grown"} and noun["boy"] == {"animate"}
    assert "room" in noun["kitchen"]
    assert noun["shirt"] == {"worn"} and noun["doll"] == {"thing"}
    assert "air" in noun["rain"] and {"place", "slope"} <= noun["hill"]
    assert kinds(None) == frozenset()
