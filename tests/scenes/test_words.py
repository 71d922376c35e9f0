"""Words: synonyms by draw, plain ones without, articles, and what is left unsaid."""

import pytest

from compo_pipeline.scenes.shapes import SHAPES
from compo_pipeline.scenes.words import (
    COLOUR_WORDS,
    PATTERN_WORDS,
    RELATION_WORDS,
    SIZE_WORDS,
    THING_WORDS,
    Phrase,
    describe,
    sentence,
    with_article,
)
from compo_pipeline.scenes.world import COLOURS, INVERSE, PATTERNS, SIZES, Thing
from compo_pipeline.seeding import rng


def test_no_word_means_two_things() -> None:
    every = [
        *(name for name in SHAPES if name not in THING_WORDS),
        *(name for name in COLOURS if name not in COLOUR_WORDS),
        *(
            w
            for t in (THING_WORDS, COLOUR_WORDS, SIZE_WORDS, PATTERN_WORDS, RELATION_WORDS)
            for words in t.values()
            for w in words
        ),
    ]
    assert len(set(every)) == len(every)


def test_tables_speak_of_what_can_be_drawn() -> None:
    assert set(THING_WORDS) <= set(SHAPES)
    assert set(COLOUR_WORDS) <= set(COLOURS)
    assert set(SIZE_WORDS) < set(SIZES)
    assert set(PATTERN_WORDS) < set(PATTERNS)
    assert set(RELATION_WORDS) == set(INVERSE)


@pytest.mark.parametrize(
    ("phrase", "expected"),
    [
        (Phrase("mug"), "a mug"),
        (Phrase("arrow"), "an arrow"),
        (Phrase("arrow", "cyan", "small", "dotted"), "a small dotted cyan arrow"),
    ],
)
def test_plain_words(phrase: Phrase, expected: str) -> None:
    assert phrase.indefinite(None) == expected


def test_drawn_words_are_synonyms() -> None:
    drawn = {Phrase("mug", "purple", "large").bare(rng(n)) for n in range(200)}
    assert drawn == {
        f"{size} {colour} {kind}"
        for size in ("large", "big", "huge")
        for colour in ("purple", "violet")
        for kind in ("mug", "cup")
    }


def test_what_is_said_of_a_thing_is_so() -> None:
    thing = Thing("key", "red", "medium", "solid", 9, 9, 50)
    always = describe(thing, rng(0), colour=1, size=1, pattern=1)
    assert always == Phrase("key", "red")  # there is no word for medium or solid
    striped = Thing("key", "red", "large", "striped", 9, 9, 70)
    assert describe(striped, rng(0), colour=0, size=1, pattern=1) == Phrase(
        "key", None, "large", "striped"
    )
    assert describe(striped, rng(0), colour=0, size=0, pattern=0) == Phrase("key")


def test_sentences_and_articles() -> None:
    assert sentence("an arrow is left of a key") == "An arrow is left of a key."
    assert [with_article(w) for w in ("arrow", "key")] == ["an arrow", "a key"]
