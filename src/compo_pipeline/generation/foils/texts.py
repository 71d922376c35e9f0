"""Text-only baselines on foils: a smoothed trigram model, and a classifier of captions and foils.

Smoothing: Witten and Bell, "The zero-frequency problem", IEEE Transactions on Information Theory 37
(1991), method C, interpolated down to equal probabilities of all words.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

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
