"""Choice of items whose texts do not tell caption from foil, against slow computations."""

import random
from collections import Counter

import pytest

from compo_pipeline.generation.foils.balance import (
    EVENNESS,
    TOLERANCE,
    Candidate,
    Couple,
    balanced_couples,
    drop_uneven_couples,
    form_couples,
)

WORDS = tuple("dog cat sofa mat hat car".split())


def candidates(seed: int, count: int = 400) -> list[Candidate]:
    """Captions with one word replaced; the models' preference is for the caption, mostly."""
    drawn = random.Random(seed)
    found = []
    for _ in range(count):
        own, other = drawn.sample(WORDS, 2)
        rest = " ".join(drawn.choices(("red", "on", "a", "small", "the"), k=drawn.randint(2, 6)))
        texts = f"A {own} {rest}.", f"A {other} {rest}."
        image = f"image {drawn.randrange(count // 3)}"
        found.append(Candidate(image, (own, other), drawn.gauss(1, 2), texts))
    return found


def grams(text: str) -> Counter[str]:
    """Sequences of one to three words of a text with its ends."""
    words = ["<", *text.lower().replace(".", "").split(), ">"]
    return Counter(
        " ".join(words[start:end])
        for start in range(len(words))
        for end in range(start + 1, min(start + 3, len(words)) + 1)
    )


def differences(couple: Couple) -> Counter[str]:
    """How much more often each n-gram stands in a couple's captions than in its foils."""
    found = Counter[str]()
    for one in couple:
        found.update(grams(one.texts[0]))
        found.subtract(grams(one.texts[1]))
    return found


def sums(couples: list[Couple], scales: dict[str, int]) -> tuple[float, float]:
    """The two sums that the third rule compares, an n-gram weighed by 1 / its frequency."""
    own = [differences(couple) for couple in couples]
    total = {gram: sum(each[gram] for each in own) for gram in scales}
    squares = sum(each[gram] ** 2 / scale for each in own for gram, scale in scales.items())
    return sum(total[gram] ** 2 / scale for gram, scale in scales.items()), squares


def frequencies(couples: list[Couple]) -> dict[str, int]:
    """In how many couples an n-gram is not as frequent in captions as in foils: two or more."""
    found = Counter(
        gram for couple in couples for gram, count in differences(couple).items() if count
    )
    return {gram: count for gram, count in found.items() if count > 1}


@pytest.mark.parametrize("seed", range(5))
def test_words_lengths_and_preferences_are_the_same_in_captions_and_foils(seed: int) -> None:
    couples = balanced_couples(candidates(seed))
    chosen = [one for couple in couples for one in couple]
    assert len(couples) > 10
    sides = [Counter[str](), Counter[str]()]
    for one in chosen:
        for side, text in zip(sides, one.texts, strict=True):
            side.update(text.lower().replace(".", "").split())
            side.update([f"{len(text.split())} words"])
    assert sides[0] == sides[1]
    assert sum(one.preference > 0 for one in chosen) == len(couples)
    assert all(abs(one.preference + other.preference) <= TOLERANCE for one, other in couples)
    assert len({one.image for one in chosen}) == len(chosen)
    assert balanced_couples(candidates(seed)) == couples


@pytest.mark.parametrize("seed", range(5))
def test_couples_are_dropped_until_n_grams_are_as_even_as_wanted(seed: int) -> None:
    couples = form_couples(candidates(seed))
    # An n-gram that gives captions away: one of a side of each couple.
    couples = [
        (
            one._replace(texts=(f"Here is {one.texts[0]}", f"It is {one.texts[1]}")),
            other,
        )
        if number % 3
        else (one, other)
        for number, (one, other) in enumerate(couples)
    ]
    scales = frequencies(couples)
    before, spread = sums(couples, scales)
    assert before > EVENNESS * spread
    kept = drop_uneven_couples(couples)
    after, spread = sums(kept, scales)
    assert after <= EVENNESS * spread + 1e-9
    assert set(kept) < set(couples)


def test_where_every_couple_tells_none_is_left() -> None:
    # All captions begin with a word that no foil has: dropping must end, and leave nothing.
    one, other = form_couples(candidates(0))[0]
    couples = [
        tuple(
            each._replace(
                image=f"{number} {each.image}",
                texts=(f"Really {each.texts[0]}", f"Never {each.texts[1]}"),
            )
            for each in (one, other)
        )
        for number in range(7)
    ]
    assert drop_uneven_couples([(one, other) for one, other in couples]) == []
    assert drop_uneven_couples([]) == []
