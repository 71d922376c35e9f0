"""Edits of parsed captions: what can be moved, spacing, capitals, articles."""

from collections.abc import Callable

import pytest

from compo_pipeline.core.records import Parse
from compo_pipeline.core.sentences import bare
from compo_pipeline.language.editing import (
    Edit,
    apply_edits,
    copy_capitals,
    exchange_edits,
    indefinite_article,
    is_movable,
    recapitalise,
    token_text,
)

Tagged = Callable[[str], Parse]


def test_edits(tagged: Tagged) -> None:
    parse = tagged("a/DET fire/NOUN hydrant/NOUN near/ADP it/PRON _./PUNCT")
    text = apply_edits(parse, [Edit(1, 3, "cat"), Edit(3, 4, "far from")])
    assert text == "a cat far from it."
    assert apply_edits(parse, []) == parse.text


def test_what_is_written_keeps_its_spacing(tagged: Tagged) -> None:
    parse = tagged("red/ADJ _-/PUNCT _haired/ADJ men/NOUN")
    assert token_text(parse, 0, 3) == "red-haired"
    assert token_text(parse, 2, 4) == "haired men"


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, 1, False), (1, 2, False), (0, 2, True), (2, 3, True), (3, 4, False), (2, 4, True)],
)
def test_what_can_move(tagged: Tagged, start: int, end: int, expected: bool) -> None:
    parse = tagged("do/AUX _n't/PART run/VERB _!/PUNCT")
    assert is_movable(parse, start, end) is expected


@pytest.mark.parametrize(
    ("source", "to", "place", "expected"),
    [
        ("Dogs/NOUN", "two/NUM cats/NOUN", 1, "dogs"),
        ("Dogs/NOUN", "Cats/NOUN", 0, "Dogs"),
        ("Rome/PROPN", "in/ADP it/PRON", 1, "Rome"),
        ("TVs/NOUN", "two/NUM cats/NOUN", 1, "TVs"),
        ("I/PRON", "and/CCONJ me/PRON", 1, "I"),
        ("dogs/NOUN", '"/PUNCT _Cats/NOUN', 1, "Dogs"),
    ],
)
def test_capitals(tagged: Tagged, source: str, to: str, place: int, expected: str) -> None:
    taken = tagged(source)
    assert recapitalise(tagged(to), place, taken.text, taken, 0) == expected


def test_an_exchange(tagged: Tagged) -> None:
    parse = tagged("The/DET cat/NOUN saw/VERB a/DET very/ADV old/ADJ dog/NOUN")
    text = apply_edits(parse, exchange_edits(parse, (0, 2), (3, 7)))
    assert text == "A very old dog saw the cat"


def test_case_and_closing_marks_tell_no_sentences_apart() -> None:
    assert bare("A cat?!") == bare("a CAT .") != bare("a cat, a dog")


@pytest.mark.parametrize(
    ("a", "an"),
    [
        ("unicorn uniform useful one-way euro ukulele utensil", "umbrella uncle uninteresting"),
        ("house horse hotel Unit", "hour honest heir Apple X-ray SUV"),
        ("yellow 5 ewe US", "elephant ear 8-foot unidentified F"),
    ],
)
def test_articles(a: str, an: str) -> None:
    assert [indefinite_article(word) for word in a.split()] == ["a"] * len(a.split())
    assert [indefinite_article(word) for word in an.split()] == ["an"] * len(an.split())


@pytest.mark.parametrize(
    ("word", "model", "written"),
    [
        ("cat", "Dog", "Cat"),
        ("cat", "DOG", "CAT"),
        ("an", "A", "An"),
        ("t-shirt", "Hat", "T-shirt"),
        ("cat", "'Dog", "Cat"),
        ("cat", "", "cat"),
    ],
)
def test_capitals_of_a_replacement(word: str, model: str, written: str) -> None:
    assert copy_capitals(word, model) == written
