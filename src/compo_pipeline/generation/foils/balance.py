"""Choose caption-foil pairs so that a text-only model cannot tell caption from foil.

1. Items are chosen in couples, of two images. Of a couple a text model prefers the caption in one
   item and the foil in the other: it is right in exactly half of all items.
2. Where a foil has expression b in the place of a, the other item of its couple has a in the place
   of b. Every word and every length is then exactly as frequent in captions as in foils.
3. Couples are dropped until all n-grams of words together are nearly as frequent in captions as in
   foils: for n-gram f, let d(f, c) be its count in the captions of couple c minus that in the
   foils. If for each couple a coin decided which texts are the captions, the sum over n-grams of
   (sum over couples of d)^2 would be, on average, the sum over both of d^2. Couples are dropped,
   each time the one that lowers the first sum most, until it is at most `EVENNESS` of the second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from compo_pipeline.generation.foils.texts import ngrams

if TYPE_CHECKING:
    from scipy.sparse import csr_array

TOLERANCE = 2.0
"""By how much the preferences of a couple may differ, in nats."""
EVENNESS = 0.8
_REPEATED = 2  # couples that an n-gram must be in to count: what is in one says nothing of others


class Candidate(NamedTuple):
    """A possible foil item: its image, exchanged words, text-model preference and texts.

    Attributes:
        image: image that the item shows.
        words: expression of the caption and the foil's in its place, or names of what the two have
            in common with others.
        preference: difference in nats by which a text model prefers the caption to the foil.
        texts: caption and foil.
    """

    image: str
    words: tuple[str, str]
    preference: float
    texts: tuple[str, str]


Couple = tuple[Candidate, Candidate]


def balanced_couples(candidates: Sequence[Candidate]) -> list[Couple]:
    """Pairs of candidate items, chosen so that their texts do not tell caption from foil.

    An image is in one couple at most.
    """
    return drop_uneven_couples(form_couples(candidates))


def form_couples(candidates: Sequence[Candidate]) -> list[Couple]:
    """Pair candidate items of two images with opposite word changes and opposite preferences.

    These are the first two rules of the module.

    Those of rare expressions are chosen first, as there are fewer of them; of equally likely ones
    those whose candidates come first.
    """
    by_words: dict[tuple[str, str], list[Candidate]] = defaultdict(list)
    for one in candidates:
        by_words[one.words].append(one)
    groups = [
        (ours, by_words[words[::-1]], words == words[::-1])
        for words, ours in sorted(by_words.items())
        if words <= words[::-1] and words[::-1] in by_words
    ]
    groups.sort(key=lambda group: min(len(group[0]), len(group[1])))
    used: set[str] = set()
    found: list[Couple] = []
    for ours, theirs, same in groups:
        found += _match_candidates(ours, theirs, used)
        if not same:
            found += _match_candidates(theirs, ours, used)
    return found


def _match_candidates(
    ours: Sequence[Candidate], theirs: Sequence[Candidate], used: set[str]
) -> Iterator[Couple]:
    """Pairs of candidates: the text model prefers the caption in one and the foil in the other.

    It prefers both about as much.

    Args:
        ours: candidates of the first side.
        theirs: candidates of the second.
        used: images that have an item; those of the couples are added.
    """

    def strength(one: Candidate) -> float:
        return abs(one.preference)

    # The weakest are last, where they are taken from.
    preferred = sorted((one for one in ours if one.preference > 0), key=strength, reverse=True)
    refused = sorted((one for one in theirs if one.preference < 0), key=strength, reverse=True)
    while preferred and refused:
        one, other = preferred[-1], refused[-1]
        if one.image in used:
            preferred.pop()
        elif other.image in used:
            refused.pop()
        elif one.image == other.image or abs(strength(one) - strength(other)) > TOLERANCE:
            (preferred if strength(one) < strength(other) else refused).pop()
        else:
            used.update((one.image, other.image))
            yield preferred.pop(), refused.pop()


def drop_uneven_couples(couples: Sequence[Couple]) -> list[Couple]:
    """Drop couples of items until captions and foils have nearly equal n-gram frequencies.

    This is the third rule of the module; n-grams weigh by 1 / frequency.
    """
    if not couples:
        return []
    counts = _ngram_differences(couples)  # [couples, n-grams]
    squares = counts.power(2).sum(axis=1)
    alive = np.ones(len(couples), bool)
    total = counts.sum(axis=0)
    # Without couples both sums are zero but for rounding.
    while alive.any() and (total**2).sum() > EVENNESS * squares[alive].sum():
        lowered = np.where(alive, 2 * (counts @ total) - squares, -np.inf)
        worst = int(lowered.argmax())
        alive[worst] = False
        total = total - counts[[worst]].toarray()[0]
    return [couple for couple, kept in zip(couples, alive, strict=True) if kept]


def _ngram_differences(couples: Sequence[Couple]) -> csr_array:
    """Scaled n-gram counts of captions minus those of foils, for each couple [couples, n-grams].

    The scale is one over the root of the number of couples in which an n-gram differs.
    """
    from scipy.sparse import csr_array, diags_array
    from sklearn.feature_extraction.text import CountVectorizer

    texts = [
        [" \n ".join(one.texts[side] for one in couple) for couple in couples] for side in (0, 1)
    ]
    vectorizer = CountVectorizer(analyzer=_line_ngrams, dtype=np.float64)
    vectorizer.fit([*texts[0], *texts[1]])
    found = csr_array(vectorizer.transform(texts[0]) - vectorizer.transform(texts[1]))
    differs = np.asarray((found != 0).sum(axis=0)).ravel()
    scales = np.where(differs >= _REPEATED, 1 / np.sqrt(np.maximum(differs, 1)), 0.0)
    return csr_array(found @ diags_array(scales))


def _line_ngrams(text: str) -> list[str]:
    """Word n-grams of each line of a text."""
    return [each for line in text.split("\n") for each in ngrams(line)]
