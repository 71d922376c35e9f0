"""Words of requests against the words of the training captions."""

import math

import numpy as np
import pytest
from scipy import stats

from compo_pipeline.serving.monitoring.vocabulary import new_words, word_shifts

COUNTS = {"a": 500, "dog": 200, "cat": 200, "on": 60, "grass": 40}


def test_words_are_compared_by_the_variance_between_texts() -> None:
    texts = ["a dog on grass"] * 30 + ["a cat, a cat"] * 10 + ["A dog!"] * 20
    found = {each.word: each for each in word_shifts(texts, COUNTS, 1.0)}
    words = np.array([len(text.split()) for text in texts])
    for word, p in (("dog", 0.2), ("cat", 0.2), ("on", 0.06)):
        seen = np.array([text.lower().replace("!", "").replace(",", "").split().count(word)
                         for text in texts])  # fmt: skip
        z = (seen - p * words).sum() / math.sqrt(((seen - p * words) ** 2).sum())
        assert found[word].share == pytest.approx(100 * seen.sum() / words.sum())
        assert found[word].training == pytest.approx(100 * p)
        assert found[word].texts == (seen > 0).sum()
        # Five words are compared, so that Holm's p is at most five times as large.
        raw = 2 * stats.norm.sf(abs(z))
        assert raw - 1e-12 <= found[word].p <= min(1, 5 * raw) + 1e-12


def test_a_text_that_repeats_a_word_is_one_text() -> None:
    plain = ["a dog", "a cat"] * 50
    assert word_shifts([*plain, "cat " * 500], {"a": 2, "dog": 1, "cat": 1}, 0.05) == []


def test_words_that_vanish_and_new_ones_are_found() -> None:
    texts = ["a drone on a roof", "a dog on a roof"] * 40
    found = {each.word: each for each in word_shifts(texts, COUNTS, 0.05)}
    assert found["cat"].share == 0 and found["cat"].texts == 0 and found["cat"].training == 20
    assert found["roof"].training == 0 and found["roof"].share == pytest.approx(20)
    assert word_shifts([], COUNTS, 0.05) == [] == word_shifts(texts, {}, 0.05)


def test_words_that_no_caption_has_are_new() -> None:
    texts = ["a Purple dog on the grass", "a purple cat beneath the drone", "a dog", "a dog on a"]
    found = new_words(texts, {**COUNTS, "the": 9})
    assert [(each.word, each.texts) for each in found] == [
        ("purple", 2),
        ("beneath", 1),
        ("drone", 1),
    ]
    assert found[0].example == texts[0]
