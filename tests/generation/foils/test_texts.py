"""The trigram model, and the classifier that sees texts alone."""

import math
import random

import numpy as np
import pytest

from compo_pipeline.generation.foils.balance import Preference, Trigrams, text_accuracy

CAPTIONS = ("A dog sits.", "A dog runs.", "The cat sits on a dog.", "Dogs")


def likelihood(captions: tuple[str, ...], text: str) -> float:
    """By the formula of Witten and Bell, counted anew for each word."""
    padded = [["^", "^", *each.lower().strip(".").split(), "$"] for each in captions]
    runs = [
        tuple(words[end - size : end])
        for words in padded
        for end in range(3, len(words) + 1)
        for size in (1, 2, 3)
    ]
    vocabulary = {run for run in runs if len(run) == 1}

    def probability(run: tuple[str, ...]) -> float:
        if not run:
            return 1 / (len(vocabulary) + 1)
        behind = [each for each in runs if len(each) == len(run) and each[:-1] == run[:-1]]
        kinds = len(set(behind))
        if not behind:
            return probability(run[1:])
        return (behind.count(run) + kinds * probability(run[1:])) / (len(behind) + kinds)

    words = ["^", "^", *text.lower().strip(".").split(), "$"]
    return sum(math.log(probability(tuple(words[i - 2 : i + 1]))) for i in range(2, len(words)))


@pytest.mark.parametrize("text", ["A dog sits.", "The cat runs on", "Zebras sit", ""])
def test_likelihoods_follow_the_formula(text: str) -> None:
    model = Trigrams(CAPTIONS)
    assert model.log_likelihood(text) == pytest.approx(likelihood(CAPTIONS, text))


def test_a_preference_is_for_what_captions_have_and_foils_do_not() -> None:
    captions = Trigrams(CAPTIONS)
    pairs = [("A dog sits.", "A cat sits.")] * 5
    assert Preference(captions, pairs)("A dog runs.", "A cat runs.") > Preference(captions, [])(
        "A dog runs.", "A cat runs."
    )
    there, back = (Preference(captions, pairs)(*pair) for pair in (pairs[0], pairs[0][::-1]))
    assert there == pytest.approx(-back)


def pairs_of(seed: int, count: int, share: float) -> list[tuple[str, str]]:
    """Pairs of random words, of which a share has a word more often in the caption."""
    drawn = random.Random(seed)
    vocabulary = [f"w{chr(97 + number)}" for number in range(20)]
    found = []
    for _ in range(count):
        texts = [" ".join(drawn.choices(vocabulary, k=6)) for _ in range(2)]
        caption = drawn.random() < share
        texts[0 if caption else 1] += " really"
        texts[1 if caption else 0] += " hardly"
        found.append((texts[0], texts[1]))
    return found


LEARNT = pairs_of(0, 400, 0.9)


def test_a_word_that_tells_is_found_on_unseen_pairs() -> None:
    found = text_accuracy(LEARNT, pairs_of(1, 400, 0.9), range(400))
    assert found is not None and 0.85 < found.value < found.limit < 0.95


def test_a_word_that_tells_is_found_although_the_pairs_are_balanced() -> None:
    """Of each couple one word tells, another word in each: none is frequent enough to learn."""
    words = [f"{one}{other}" for one in "abcdefghij" for other in "klmno"]
    pairs = [(f"a {word} dog", f"a dog {word}") for word in words]
    learnt = [(f"the {word} cat", f"the cat {word}") for word in words]
    found = text_accuracy(learnt, pairs, range(len(pairs)))
    assert found is not None and found.value > 0.9
    balanced = [*pairs[::2], *(pair[::-1] for pair in pairs[1::2])]
    even = text_accuracy(learnt, balanced, range(len(balanced)))
    assert even is not None and even.value == pytest.approx(0.5, abs=0.05) and even.limit > 0.55


def test_the_limit_holds_in_nineteen_of_twenty_samples_of_texts_that_tell_nothing() -> None:
    measured = [text_accuracy(LEARNT, pairs_of(seed, 60, 0.5), range(60)) for seed in range(1, 41)]
    assert np.mean([found is not None and found.limit >= 0.5 for found in measured]) >= 0.9


def test_pairs_that_repeat_widen_the_limit_and_too_few_measure_nothing() -> None:
    pairs = pairs_of(1, 100, 0.6)
    repeated = [pair for pair in pairs for _ in range(4)]
    groups = [number for number, _ in enumerate(pairs) for _ in range(4)]
    once = text_accuracy(LEARNT, pairs, range(100))
    grouped = text_accuracy(LEARNT, repeated, groups)
    assert once is not None and grouped is not None
    assert grouped.limit - grouped.value == pytest.approx(once.limit - once.value, rel=0.2)
    assert text_accuracy(LEARNT, pairs[:4], range(4)) is None
    assert text_accuracy([], pairs, range(100)) is None
