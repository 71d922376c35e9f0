"""Swapped words: hand-made cases, and properties that hold for any text."""

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compo_pipeline.core.records import Parse
from compo_pipeline.language.swaps import EXCLUDED_UPOS, Swap, swap_across, swap_within

Tagged = Callable[[str], Parse]
Count = Callable[..., Counter[str]]
Parses = st.SearchStrategy[Parse]
CARELESS_OR_CAREFUL = pytest.mark.parametrize("careful", [False, True])


def every_swap(first: Parse, second: Parse, **options: str) -> set[Swap | None]:
    return {swap_across(first, second, random.Random(seed), **options) for seed in range(200)}


def texts(swaps: set[Swap | None]) -> set[tuple[str, str]]:
    assert None not in swaps
    return {(swap.first, swap.second) for swap in swaps}


def test_swaps_within_a_common_category_and_spares_words_of_both_sentences(tagged: Tagged) -> None:
    swaps = every_swap(
        tagged("A/DET black/ADJ cat/NOUN sleeps/VERB _./PUNCT"),
        tagged("A/DET white/ADJ dog/NOUN sleeps/VERB _./PUNCT"),
    )
    assert texts(swaps) == {
        ("A white cat sleeps.", "A black dog sleeps."),
        ("A black dog sleeps.", "A white cat sleeps."),
    }
    assert {swap.category for swap in swaps} == {"ADJ", "NOUN"}
    assert {swap.words for swap in swaps} == {("black", "white"), ("cat", "dog")}


def test_each_category_is_drawn_as_often_however_many_words_it_has(tagged: Tagged) -> None:
    first = tagged("cats/NOUN dogs/NOUN cows/NOUN pigs/NOUN run/VERB")
    second = tagged("boys/NOUN girls/NOUN men/NOUN women/NOUN sing/VERB")
    drawn = Counter(
        swap_across(first, second, random.Random(seed)).category for seed in range(1000)
    )
    assert 430 < drawn["VERB"] < 570


def test_a_repeated_word_is_drawn_as_often_as_another(tagged: Tagged) -> None:
    first = tagged("red/ADJ red/ADJ red/ADJ red/ADJ blue/ADJ")
    second = tagged("old/ADJ")
    drawn = Counter(
        swap_across(first, second, random.Random(seed)).words[0] for seed in range(1000)
    )
    assert 430 < drawn["blue"] < 570


def test_drawn_occurrence_or_all_of_them(tagged: Tagged) -> None:
    first, second = tagged("red/ADJ on/ADP Red/ADJ"), tagged("old/ADJ")
    assert texts(every_swap(first, second)) == {
        ("old on Red", "red"),
        ("red on old", "Red"),
    }
    swaps = every_swap(first, second, occurrence="all")
    assert {swap.first for swap in swaps} == {"old on old"}


def test_without_a_common_category_any_two_different_words_but_no_punctuation(
    tagged: Tagged,
) -> None:
    swaps = every_swap(tagged("Look/VERB _!/PUNCT"), tagged("A/DET cat/NOUN _./PUNCT"))
    assert texts(swaps) == {("A!", "Look cat."), ("Cat!", "A look.")}
    assert {swap.category for swap in swaps} == {"any"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("cat/NOUN", "Cat/NOUN"),
        ("cat/NOUN", "!/PUNCT"),
        ("red/ADJ ball/NOUN _./PUNCT", "blue/ADJ ball/NOUN"),
    ],
    ids=["the same word", "no word", "nothing but the order of the sentences would change"],
)
def test_no_swap(tagged: Tagged, first: str, second: str) -> None:
    kept = {swap for swap in every_swap(tagged(first), tagged(second)) if swap}
    assert kept == set()


def test_excluded_categories_make_no_category(tagged: Tagged) -> None:
    first, second = tagged("the/DET cat/NOUN is/AUX"), tagged("a/DET dog/NOUN was/AUX")
    assert {swap.category for swap in every_swap(first, second)} == {"NOUN"}


def test_the_capital_that_opens_a_sentence_stays(tagged: Tagged) -> None:
    swaps = every_swap(tagged("Dogs/NOUN"), tagged("two/NUM cats/NOUN"))
    assert texts(swaps) == {("Cats", "two dogs")}
    names = every_swap(tagged("Paris/PROPN"), tagged("in/ADP Rome/PROPN"))
    assert texts(names) == {("Rome", "in Paris")}
    acronyms = every_swap(tagged("TVs/NOUN"), tagged("two/NUM cats/NOUN"))
    assert texts(acronyms) == {("Cats", "two TVs")}


def test_pieces_of_one_written_word_stay_together(tagged: Tagged) -> None:
    first = tagged("do/AUX _n't/PART run/VERB")
    second = tagged("men/NOUN _'s/PART")
    assert texts(every_swap(first, second)) == {("do n't".replace(" ", "") + " men", "run's")}


def test_a_hyphen_parts_words(tagged: Tagged) -> None:
    swaps = every_swap(tagged("red/ADJ _-/PUNCT _haired/VERB"), tagged("old/ADJ"))
    assert texts(swaps) == {("old-haired", "red")}


def test_within_one_sentence(tagged: Tagged) -> None:
    parse = tagged("A/DET red/ADJ cat/NOUN and/CCONJ a/DET blue/ADJ dog/NOUN _./PUNCT")
    swaps = {swap_within(parse, random.Random(seed)) for seed in range(100)}
    assert {(swap.text, swap.words) for swap in swaps if swap} == {
        ("A blue cat and a red dog.", ("red", "blue")),
        ("A red dog and a blue cat.", ("cat", "dog")),
    }


def test_within_falls_back_to_any_two_words(tagged: Tagged) -> None:
    swaps = {swap_within(tagged("Cats/NOUN sleep/VERB"), random.Random(s)) for s in range(20)}
    assert {(swap.text, swap.category) for swap in swaps if swap} == {("Sleep cats", "any")}
    assert swap_within(tagged("cat/NOUN Cat/NOUN"), random.Random(0)) is None


@CARELESS_OR_CAREFUL
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_any_two_sentences(
    careful: bool, parses: Parses, written_words: Count, data: st.DataObject, seed: int
) -> None:
    first, second = data.draw(parses), data.draw(parses)
    swap = swap_across(first, second, random.Random(seed), careful=careful)
    assert swap == swap_across(first, second, random.Random(seed), careful=careful)
    if swap is None:
        return
    assert swap.first.casefold() != first.text.casefold()
    assert swap.second.casefold() != second.text.casefold()
    assert written_words(swap.first, swap.second) == written_words(first.text, second.text)
    assert swap.category not in EXCLUDED_UPOS


@CARELESS_OR_CAREFUL
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_any_one_sentence(
    careful: bool, parses: Parses, written_words: Count, data: st.DataObject, seed: int
) -> None:
    parse = data.draw(parses)
    swap = swap_within(parse, random.Random(seed), careful=careful)
    if swap is None:
        return
    assert swap.text.casefold() != parse.text.casefold()
    assert written_words(swap.text) == written_words(parse.text)
