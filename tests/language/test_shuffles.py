"""Shuffled pairs of words: hand-made cases. What holds for any text is in test_generated.py."""

import random
from collections import Counter
from collections.abc import Callable
from itertools import permutations

import pytest
from spacy.language import Language

from compo_pipeline.language.generated import Generated
from compo_pipeline.language.parsing import parse
from compo_pipeline.language.shuffles import shuffle_bigrams

Shuffle = Callable[[str], set[Generated | None]]


@pytest.fixture(scope="session")
def shuffled(compo_en: Language) -> Shuffle:
    """Every outcome that a hundred seeds give."""

    def draw(text: str) -> set[Generated | None]:
        (parsed,) = parse(compo_en, [("id", 0, text)])
        return {shuffle_bigrams(parsed, random.Random(seed)) for seed in range(100)}

    return draw


def texts(made: set[Generated | None]) -> set[str | None]:
    return {one.text if one else None for one in made}


@pytest.mark.parametrize(
    ("source", "outcomes"),
    [
        ("a dog eats grass", {"eats grass a dog"}),
        (
            "a dog eats green grass today",
            {
                "a dog grass today eats green",
                "eats green a dog grass today",
                "eats green grass today a dog",
                "grass today a dog eats green",
                "grass today eats green a dog",
            },
        ),
        ("a dog runs", {"runs a dog"}),
        ("A dog eats grass.", {"Eats grass a dog."}),
        ("A dog eats grass?!", {"Eats grass a dog?!"}),
        ("a man, a dog", {"a dog, a man"}),
        ('a sign reads "stop here" today', None),
        ("they don't eat grass", {"eat grass they don't"}),
        ("a red-haired man sleeps", {"man sleeps a red-haired"}),
        ("two dogs' bowls, 50%", {"bowls 50% two, dogs'"}),
        ("a dog a cat", {"a cat a dog"}),
        ("a  dog\nsleeps well", {"sleeps  well\na dog"}),
    ],
)
def test_outcomes(shuffled: Shuffle, source: str, outcomes: set[str] | None) -> None:
    made = texts(shuffled(source))
    if outcomes is not None:
        assert made <= outcomes | {None} and made & outcomes
    else:
        assert all(text is not None and text.count('"') == 2 for text in made)


def test_pairs_stay_and_never_keep_their_order(shuffled: Shuffle) -> None:
    orders = {" ".join(order) for order in permutations(("a b", "c d", "e f", "g"))}
    made = texts(shuffled("a b c d e f g"))
    assert made <= orders - {"a b c d e f g"}
    assert len(made) > 15


@pytest.mark.parametrize("source", ["", "dogs", "two dogs", "Two dogs.", "a dog a dog", "... !"])
def test_nothing_to_shuffle(source: str, shuffled: Shuffle) -> None:
    assert shuffled(source) == {None}


def test_words_and_spans(shuffled: Shuffle) -> None:
    assert shuffled("A dog sleeps.") == {
        Generated(
            "Sleeps a dog.", "bigram", "pairs", ("A dog", "sleeps"), ((0, 6), (7, 8), (9, 12))
        )
    }
    (made,) = shuffled("a dog a cat")
    assert made is not None and made.spans == ((2, 5), (8, 11))


def test_permutations_are_drawn_alike(compo_en: Language) -> None:
    (parsed,) = parse(compo_en, [("id", 0, "one two three four five six")])
    drawn = Counter(shuffle_bigrams(parsed, random.Random(seed)).text for seed in range(1000))
    assert len(drawn) == 5 and all(150 < count < 250 for count in drawn.values())
