"""Captions cleaned and split as the CLIC paper's data preparation does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compo_pipeline.core.sentences import clean, split, word_count

VERBS = (
    *("displays", "showcases", "shows", "is", "features"),
    *("depicts", "illustrates", "demonstrates"),
)


@pytest.mark.parametrize("noun", ["image", "picture"])
@pytest.mark.parametrize("article", ["The", "This"])
@pytest.mark.parametrize("verb", VERBS)
def test_openings_are_removed(article: str, noun: str, verb: str) -> None:
    opening = f"{article} {noun} {verb}"
    assert clean(f"{opening} a cat.") == ("a cat.", opening)
    assert clean(f"{opening}: a cat.") == ("a cat.", opening)


@pytest.mark.parametrize(
    "opening",
    [
        "This image appears to be",
        "a digital representation of",
        "a graphic representation of",
        "a collection of",
        "a screenshot of",
        "This image appears to be a screenshot of",
        "The picture shows a collection of",
    ],
)
def test_other_openings_and_several_in_a_row(opening: str) -> None:
    assert clean(f"{opening} old maps.") == ("old maps.", opening)


@pytest.mark.parametrize(
    "caption",
    [
        "the image shows a cat.",
        "THE IMAGE SHOWS a cat.",
        "The image showsa cat.",
        "The image issues a warning.",
        "An image shows a cat.",
        "The image appears to be a cat.",
        "A collection of maps.",
        "A cat. The image shows a cat.",
        "",
    ],
)
def test_nothing_else_is_removed(caption: str) -> None:
    assert clean(caption) == (caption, None)


def test_lines_become_one() -> None:
    assert clean("  This image\nshows \n\n a cat.\tIt sleeps. ") == (
        "a cat. It sleeps.",
        "This image shows",
    )


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("A cat. A dog! Is it? Yes.", ["A cat.", "A dog!", "Is it?", "Yes."]),
        ("A cat.", ["A cat."]),
        ("A cat", ["A cat"]),
        ("", []),
        ("It costs 5.99 at most. it is 3.5 Euro", ["It costs 5.99 at most. it is 3.5 Euro"]),
        ("A cat.A dog.", ["A cat.A dog."]),
        ("Une tasse. Été.", ["Une tasse.", "Été."]),
        ("Dr. Smith meets Mrs. J. K. Jones.", ["Dr. Smith meets Mrs. J. K. Jones."]),
        ("The U.S. Navy (e.g. Sgt. Pepper) sails.", ["The U.S. Navy (e.g. Sgt. Pepper) sails."]),
        ("Is it Dr.? Yes.", ["Is it Dr.?", "Yes."]),
        ("A cat sat. Mt. Fuji rises. Fine.", ["A cat sat.", "Mt. Fuji rises.", "Fine."]),
        ("A fast. A last. He", ["A fast.", "A last.", "He"]),
        ("At 5 a.m.! It", ["At 5 a.m.!", "It"]),
    ],
)
def test_split(text: str, sentences: list[str]) -> None:
    assert split(text) == sentences


@given(st.lists(st.sampled_from(["A.", "b", "Dr.", "C!", "d?", "É", "...", ".", "🐈."])))
def test_split_loses_nothing(words: list[str]) -> None:
    text = " ".join(words)
    assert " ".join(split(text)) == text


def test_words_are_runs_of_letters_and_digits() -> None:
    assert word_count("A red-haired man's 2 dogs, été 🐈 ...") == 8
    assert word_count("") == 0
