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

The text-only baselines are a smoothed trigram model, and a classifier of captions and foils.
Smoothing: Witten and Bell, "The zero-frequency problem", IEEE Transactions on Information Theory 37
(1991), method C, interpolated down to equal probabilities of all words.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

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


_WORDS = re.compile(r"[^\W_]+")
_START, _END = "<s>", "</s>"
_ORDER = 3
_FEWEST = 5  # groups of which the accuracy has a limit
_LENGTH = "<length>"
_LEVEL = 0.95


def tokens(text: str) -> list[str]:
    """Case-folded words of a text, without punctuation."""
    return _WORDS.findall(text.casefold())


class Trigrams:
    """A smoothed trigram model of captions, which gives log-likelihoods of texts.

    Of no captions, every text of one length is equally likely.

    P(w | h) = (c(h w) + t(h) P(w | h')) / (c(h) + t(h)), with c the count of a sequence, t(h) the
    number of different words behind h, and h' the history h without its first word.

    Args:
        captions: captions to learn from.
    """

    def __init__(self, captions: Iterable[str]) -> None:
        self._counts: Counter[tuple[str, ...]] = Counter()  # of sequences of one to three words
        for caption in captions:
            words = _padded(caption)
            for end in range(_ORDER, len(words) + 1):
                for start in range(end - _ORDER, end):
                    self._counts[tuple(words[start:end])] += 1
        self._seen: Counter[tuple[str, ...]] = Counter()  # c(h)
        self._kinds: Counter[tuple[str, ...]] = Counter()  # t(h)
        for sequence, count in self._counts.items():
            self._seen[sequence[:-1]] += count
            self._kinds[sequence[:-1]] += 1
        self._known: dict[tuple[str, ...], float] = {}

    def log_likelihood(self, text: str) -> float:
        """Natural logarithm of a text's probability under the model."""
        words = _padded(text)
        return sum(
            self._log_probability(tuple(words[end - _ORDER : end]))
            for end in range(_ORDER, len(words) + 1)
        )

    def _log_probability(self, sequence: tuple[str, ...]) -> float:
        """Natural logarithm of a trigram's conditional probability, cached."""
        if sequence not in self._known:
            self._known[sequence] = math.log(self._probability(sequence))
        return self._known[sequence]

    def _probability(self, sequence: tuple[str, ...]) -> float:
        """Smoothed probability of a sequence's last word after its other words."""
        if not sequence:
            return 1 / (self._kinds[()] + 1)  # one more word than there are: any that is new
        history = sequence[:-1]
        seen, kinds = self._seen[history], self._kinds[history]
        shorter = self._probability(sequence[1:])
        return (self._counts[sequence] + kinds * shorter) / (seen + kinds) if seen else shorter


def _padded(text: str) -> list[str]:
    """Tokens of a text between marks of its start and end, for trigrams."""
    return [*[_START] * (_ORDER - 1), *tokens(text), _END]


def ngrams(text: str) -> list[str]:
    """Word n-grams (one to three words) of a text, with marks at its start and end."""
    words = [_START, *tokens(text), _END]
    return [
        " ".join(words[start : start + size])
        for size in range(1, _ORDER + 1)
        for start in range(len(words) - size + 1)
    ]


class Preference:
    """Text model that scores, in nats, how much more a caption looks real than its foil.

    The log-likelihood of a text under a trigram model of captions, plus its log-likelihood ratio
    under models of captions that have foils and of their foils.

    Args:
        captions: captions to learn from.
        pairs: captions with their foils, of the same source.
    """

    def __init__(self, captions: Trigrams, pairs: Sequence[tuple[str, str]]) -> None:
        self._captions = captions
        self._true, self._false = (Trigrams(pair[side] for pair in pairs) for side in (0, 1))

    def __call__(self, caption: str, foil: str) -> float:
        """That of the caption minus that of the foil, in nats."""
        return self._score(caption) - self._score(foil)

    def _score(self, text: str) -> float:
        """Log-likelihood of a text as a caption, plus its log ratio of caption to foil, in nats."""
        ratio = self._true.log_likelihood(text) - self._false.log_likelihood(text)
        return self._captions.log_likelihood(text) + ratio


class TextAccuracy(NamedTuple):
    """Accuracy of a text-only classifier, with its upper 95% limit."""

    value: float
    limit: float


def text_accuracy(
    learnt: Sequence[tuple[str, str]], pairs: Sequence[tuple[str, str]], groups: Sequence[int]
) -> TextAccuracy | None:
    """Accuracy with which a logistic regression tells captions from foils by their text.

    Its features are differences of word n-grams and of length. It learns from pairs of other
    images, which nobody balanced: learnt from balanced ones it would be wrong more often than a
    coin, as what one couple has more often in its captions the others have more often in foils.

    Args:
        learnt: captions of other images, each with a foil, to learn from.
        pairs: n captions, each with its foil, to be told apart.
        groups: numbers of groups of dependent samples [n]: pairs of images.

    Returns:
        None without `learnt`, or with fewer than five groups. A tie is half right. The limit is
        one-sided, by Student's t over groups.
    """
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    if not learnt or len(set(groups)) < _FEWEST:
        return None
    vectorizer = CountVectorizer(analyzer=_features, dtype=np.float64)
    vectorizer.fit(text for pair in learnt for text in pair)
    training, tested = (
        vectorizer.transform([pair[0] for pair in some])
        - vectorizer.transform([pair[1] for pair in some])
        for some in (learnt, pairs)
    )
    # Half of the differences the other way round: two classes without an intercept.
    signs = np.where(np.arange(len(learnt)) % 2, 1.0, -1.0)
    model = LogisticRegression(fit_intercept=False, max_iter=1000)
    model.fit(training.multiply(signs[:, None]).tocsr(), signs)
    scores = model.decision_function(tested)
    right = np.where(scores > 0, 1.0, np.where(scores < 0, 0.0, 0.5))
    return TextAccuracy(float(right.mean()), _upper_limit(right, np.asarray(groups)))


def _features(text: str) -> list[str]:
    """Word n-grams of a text, and a constant feature repeated once per word to count the words."""
    return [*ngrams(text), *[_LENGTH] * len(tokens(text))]


def _upper_limit(values: NDArray[np.float64], groups: NDArray[np.int64]) -> float:
    """Upper 95% limit of the mean of values [n], which are correlated within groups [n]."""
    _, numbers = np.unique(groups, return_inverse=True)
    count = numbers.max() + 1
    deviations = np.bincount(numbers, values - values.mean())
    error = math.sqrt(count / (count - 1) * (deviations**2).sum()) / len(values)
    return min(1.0, float(values.mean() + stdtrit(count - 1, _LEVEL) * error))
