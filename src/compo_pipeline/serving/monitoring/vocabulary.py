"""Words of logged texts against the words of the training captions.

W words, C clusters with a text.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy import special

from compo_pipeline.evaluation.contamination import normalise_text
from compo_pipeline.evaluation.statistics import holm

FEWEST_TEXTS = 5
"""Texts of different images that a word needs to be compared."""


@dataclass(frozen=True, slots=True)
class WordShift:
    """A word whose share of all words differs between logged texts and training captions.

    Attributes:
        word: word in lower case.
        texts: number of different images whose text has the word.
        share: share of the requests' words, in per cent.
        training: share of the training captions' words, in per cent.
        p: two-sided, by image, adjusted by Holm's correction for all compared words.
    """

    word: str
    texts: int
    share: float
    training: float
    p: float


@dataclass(frozen=True, slots=True)
class NewWord:
    """A word of the logged texts that no training caption has.

    Attributes:
        word: word in lower case.
        texts: number of different images whose text has the word.
        example: one of these.
    """

    word: str
    texts: int
    example: str


def word_shifts(texts: Sequence[str], counts: Mapping[str, int], alpha: float) -> list[WordShift]:
    """Words significantly more or less frequent in logged texts than in training captions.

    The variance of a word's count is that between texts (a ratio estimate over clusters), so that a
    text which repeats a word counts once. A word of the training captions that no text has is
    compared where a share of `FEWEST_TEXTS` is expected.

    Args:
        texts: one of each image.
        counts: number of each word in the training captions.
        alpha: the largest adjusted p.
    """
    split = [Counter(normalise_text(text).split()) for text in texts]
    totals = [own.total() for own in split]
    words, total = sum(totals), sum(counts.values())
    if not words or not total:
        return []
    squares = sum(own**2 for own in totals)
    found: dict[str, list[tuple[int, int]]] = {}
    for own, length in zip(split, totals, strict=True):
        for word, count in own.items():
            found.setdefault(word, []).append((count, length))
    names = set(found) | {
        word for word, count in counts.items() if word and count / total * words >= FEWEST_TEXTS
    }
    shifts = []
    for word in sorted(names):
        having, expected = found.get(word, []), counts.get(word, 0) / total
        if len(having) < FEWEST_TEXTS and expected * words < FEWEST_TEXTS:
            continue
        seen = sum(count for count, _ in having)
        variance = expected**2 * squares + sum(
            (count - expected * length) ** 2 - (expected * length) ** 2 for count, length in having
        )
        z = (seen - expected * words) / math.sqrt(variance)
        p = min(1.0, 2 * float(special.ndtr(-abs(z))))
        shifts.append(WordShift(word, len(having), 100 * seen / words, 100 * expected, p))
    adjusted = holm([each.p for each in shifts])
    tested = (
        WordShift(each.word, each.texts, each.share, each.training, p)
        for each, p in zip(shifts, adjusted, strict=True)
        if p <= alpha
    )
    return sorted(tested, key=lambda each: (each.p, each.word))


def new_words(texts: Sequence[str], counts: Mapping[str, int]) -> list[NewWord]:
    """Words of the logged texts that no training caption has, the most frequent first.

    Args:
        texts: one of each image.
        counts: number of each word in the training captions.
    """
    having: dict[str, list[str]] = {}
    for text in texts:
        for word in set(normalise_text(text).split()) - counts.keys():
            having.setdefault(word, []).append(text)
    new = (NewWord(word, len(own), own[0]) for word, own in having.items())
    return sorted(new, key=lambda each: (-each.texts, each.word))
