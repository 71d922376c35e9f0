"""Concepts of captions, hand-tagged and of any text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compo_pipeline.core.records import Parse
from compo_pipeline.language.concepts import Concept, concepts
from compo_pipeline.language.parsing import parse

if TYPE_CHECKING:
    from spacy.language import Language

Tagged = Callable[[str], Parse]


def test_phrases_stand_where_the_caption_has_them(tagged: Tagged) -> None:
    found = concepts(tagged("[ A/DET red/ADJ cat/NOUN ] near/ADP [ two/NUM Dogs/NOUN ] _./PUNCT"))
    assert found == (Concept("A red cat", 0, 9), Concept("two Dogs", 15, 23))


def test_a_phrase_counts_once_whatever_its_case(tagged: Tagged) -> None:
    found = concepts(tagged("[ A/DET cat/NOUN ] and/CCONJ [ a/DET Cat/NOUN ] and/CCONJ [ I/NOUN ]"))
    assert found == (Concept("A cat", 0, 5),)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("She/PRON runs/VERB _./PUNCT", Concept("She runs", 0, 8)),
        ("[ I/NOUN ] run/VERB _!/PUNCT", Concept("I run", 0, 5)),
        ("Runs/VERB near/ADP [ the/DET left/NOUN ]", Concept("Runs near the left", 0, 18)),
    ],
)
def test_a_caption_without_phrases_is_its_own(
    tagged: Tagged, source: str, expected: Concept
) -> None:
    assert concepts(tagged(source)) == (expected,)


def test_a_caption_of_marks_alone(tagged: Tagged) -> None:
    assert concepts(tagged("./PUNCT")) == (Concept("", 0, 0),)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("[ a/DET cat/NOUN ] in/ADP [ front/NOUN ] of/ADP [ it/NOUN ]", ["a cat", "it"]),
        ("[ a/DET cat/NOUN ] to/ADP [ the/DET left/NOUN ]", ["a cat"]),
        ("[ a/DET cat/NOUN ] on/ADP [ the/DET far/ADJ right/ADJ side/NOUN ]", ["a cat"]),
        ("[ a/DET couple/NOUN ] of/ADP [ cats/NOUN ]", ["cats"]),
        ("[ a/DET photo/NOUN ] of/ADP [ a/DET cat/NOUN ]", ["a cat"]),
        ("[ a/DET close/NOUN ] up/ADP of/ADP [ a/DET cat/NOUN ]", ["a cat"]),
        ("[ a/DET cat/NOUN ] of/ADP [ 2011/NOUN ]", ["a cat"]),
        ("[ a/DET cat/NOUN ] and/CCONJ [ 's/PART tail/NOUN ]", ["a cat", "tail"]),
        ('[ "/PUNCT _stop/NOUN _"/PUNCT ] signs/VERB', ["stop"]),
        ('[ a/DET "/PUNCT _stop/NOUN _"/PUNCT sign/NOUN ]', ['a "stop" sign']),
    ],
)
def test_phrases_that_name_no_thing_are_left_out(
    tagged: Tagged, source: str, expected: list[str]
) -> None:
    assert [concept.text for concept in concepts(tagged(source))] == expected


@pytest.mark.parametrize(
    "source",
    [
        "[ the/DET background/NOUN ] is/AUX blue/ADJ",
        "on/ADP [ a/DET gray/ADJ background/NOUN ]",
        "[ a/DET couple/NOUN ] kisses/VERB",
        "[ a/DET blurry/ADJ photo/NOUN ] of/ADP",
        "[ another/DET cat/NOUN ]",
        "in/ADP [ a/DET red/ADJ top/NOUN ]",
    ],
)
def test_the_same_words_are_kept_where_they_name_a_thing(tagged: Tagged, source: str) -> None:
    words = source.partition("[ ")[2].partition(" ]")[0].split()
    expected = " ".join(word.partition("/")[0] for word in words)
    assert [concept.text for concept in concepts(tagged(source))] == [expected]


@given(st.data())
def test_any_parse(parses: st.SearchStrategy[Parse], data: st.DataObject) -> None:
    given_parse = data.draw(parses)
    found = concepts(given_parse)
    assert found
    assert len({concept.text.casefold() for concept in found}) == len(found)
    assert [concept.start for concept in found] == sorted(concept.start for concept in found)
    for text, start, end in found:
        assert text == given_parse.text[start:end]


def test_the_shipped_pipeline(compo_en: Language) -> None:
    text = "A picture of two dogs in front of a wooden bench, and a Dog on the left side."
    (parsed,) = parse(compo_en, [("id", 0, text)])
    assert [concept.text for concept in concepts(parsed)] == ["two dogs", "a wooden bench", "a Dog"]
