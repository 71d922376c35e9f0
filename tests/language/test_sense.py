"""Which exchanges make sense: hand-made cases, and careful rules on parsed captions."""

import random
from collections.abc import Callable

import pytest
from spacy.language import Language

from compo_pipeline.core.records import Parse
from compo_pipeline.language.parsing import parse
from compo_pipeline.language.reordering import swap_phrases
from compo_pipeline.language.sense import can_replace, is_harmless_exchange, movable_unit
from compo_pipeline.language.swaps import swap_across, swap_within

Tagged = Callable[[str], Parse]


@pytest.mark.parametrize(
    ("source", "place", "expected"),
    [
        ("a/DET cat/NOUN sits/VERB", 1, (1, 2)),
        ("a/DET parking/NOUN meter/NOUN", 2, (1, 3)),
        ("a/DET parking/NOUN meter/NOUN", 1, None),
        ("in/ADP front/NOUN of/ADP it/PRON", 1, None),
        ("next/ADV to/ADP it/PRON", 0, None),
        ("very/ADV large/ADJ cats/NOUN", 0, None),
        ("he/PRON sits/VERB down/ADV", 2, (2, 3)),
    ],
)
def test_units(tagged: Tagged, source: str, place: int, expected: tuple[int, int] | None) -> None:
    assert movable_unit(tagged(source), (place, place + 1)) == expected


def test_a_phrase_of_several_words_is_its_own_unit(tagged: Tagged) -> None:
    assert movable_unit(tagged("a/DET piece/NOUN of/ADP it/PRON"), (0, 2)) == (0, 2)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("sitting/VERB/VBG on/ADP", "lying/VERB/VBG in/ADP", True),
        ("sitting/VERB/VBG on/ADP", "sits/VERB/VBZ in/ADP", False),
        ("sitting/VERB/VBG on/ADP", "eating/VERB/VBG a/DET", False),
        ("cat/NOUN/NN", "cats/NOUN/NNS", False),
        ("big/ADJ/JJ dog/NOUN/NN", "red/ADJ/JJ ball/NOUN/NN", True),
        ("big/ADJ/JJ dog/NOUN/NN", "alone/ADJ/JJ on/ADP", False),
    ],
)
def test_what_agrees(tagged: Tagged, one: str, other: str, expected: bool) -> None:
    first, second = tagged(one), tagged(other)
    assert can_replace(first, (0, 1), second, (0, 1)) is expected


def test_verb_phrases_agree_at_both_ends(tagged: Tagged) -> None:
    phrase = tagged("is/AUX/VBZ sitting/VERB/VBG")
    assert not can_replace(phrase, (0, 2), phrase, (1, 2))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a/DET cat/NOUN", "the/DET dog/NOUN", True),
        ("a/DET cat/NOUN", "the/DET owl/NOUN", False),
        ("the/DET owl/NOUN", "A/DET cat/NOUN", False),
        ("an/DET owl/NOUN", "an/DET eel/NOUN", True),
    ],
)
def test_articles_suit(tagged: Tagged, one: str, other: str, expected: bool) -> None:
    assert can_replace(tagged(one), (1, 2), tagged(other), (1, 2)) is expected


SAME = [
    ("[ a/DET cat/NOUN ] and/CCONJ [ a/DET dog/NOUN ]", (1, 2), (4, 5)),
    ("[ A/DET cat/NOUN ] ,/PUNCT [ a/DET cow/NOUN ] or/CCONJ [ the/DET dog/NOUN ]", (1, 2), (7, 8)),
    ("[ a/DET cat/NOUN ] next/ADV to/ADP [ a/DET dog/NOUN ]", (1, 2), (5, 6)),
    ("[ an/DET old/ADJ church/NOUN ] and/CCONJ [ statue/NOUN ]", (2, 3), (4, 5)),
    ("[ a/DET big/ADJ red/ADJ car/NOUN ]", (1, 2), (2, 3)),
    ("black/ADJ and/CCONJ white/ADJ", (0, 1), (2, 3)),
]
OTHER = [
    ("[ a/DET cat/NOUN ] on/ADP [ a/DET dog/NOUN ]", (1, 2), (4, 5)),
    ("[ a/DET black/ADJ cat/NOUN ] and/CCONJ [ a/DET white/ADJ dog/NOUN ]", (2, 3), (6, 7)),
    ("[ a/DET black/ADJ cat/NOUN ] and/CCONJ [ a/DET white/ADJ dog/NOUN ]", (1, 2), (5, 6)),
    ("[ a/DET man/NOUN ] sitting/VERB and/CCONJ [ a/DET boy/NOUN ]", (1, 2), (5, 6)),
    ("sitting/VERB and/CCONJ [ a/DET boy/NOUN ] reading/VERB", (0, 1), (4, 5)),
]


@pytest.mark.parametrize(
    ("source", "one", "other", "expected"),
    [(*case, True) for case in SAME] + [(*case, False) for case in OTHER],
)
def test_what_says_the_same(
    tagged: Tagged, source: str, one: tuple[int, int], other: tuple[int, int], expected: bool
) -> None:
    assert is_harmless_exchange(tagged(source), one, other) is expected


def outcomes(rule: Callable[..., object], *parses: Parse) -> set[object]:
    made = (rule(*parses, random.Random(seed), careful=True) for seed in range(100))
    return {one for one in made if one is not None}


def test_careful_rules_on_a_caption(compo_en: Language) -> None:
    source = "A man and a woman are riding big red bikes in front of a parking meter."
    (caption,) = parse(compo_en, [("id", 0, source)])
    assert {made.text for made in outcomes(swap_phrases, caption)} == {
        "A parking meter and a woman are riding big red bikes in front of a man.",
        "A man and a parking meter are riding big red bikes in front of a woman.",
    }
    assert outcomes(swap_within, caption) == set()


def test_careful_swaps_across_captions(compo_en: Language) -> None:
    sources = ["Two dogs lie near a bed.", "A cat sleeps on the sofas."]
    first, second = parse(compo_en, [("id", n, source) for n, source in enumerate(sources)])
    assert {(made.first, made.second) for made in outcomes(swap_across, first, second)} == {
        ("Two sofas lie near a bed.", "A cat sleeps on the dogs."),
        ("Two dogs lie near a cat.", "A bed sleeps on the sofas."),
    }
