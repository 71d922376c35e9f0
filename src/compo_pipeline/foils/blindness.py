"""How well a classifier that sees texts alone tells captions from foils."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from compo_pipeline.foils.trigrams import ngrams, tokens

_FEWEST = 5  # groups of which the accuracy has a limit
_LENGTH = "<length>"
_LEVEL = 0.95


class TextAccuracy(NamedTuple):
    """Accuracy of a text-only classifier, with its upper 95% limit."""

    value: float
    limit: float


def text_accuracy(
    learnt: Sequence[tuple[str, str]], pairs: Sequence[tuple[str, str]], groups: Sequence[int]
) -> TextAccuracy | None:
    """Accuracy with which a logistic regression tells captions from foils by text alone.

    Its features are differences of word n-grams and of length. It learns from pairs of other
    images, which nobody balanced: learnt from balanced ones it would be wrong more often than a
    coin, as what one couple has more often in its captions the others have more often in foils.

    Args:
        learnt: captions of other images, each with a foil, to learn from.
        pairs: n captions, each with its foil, to be told apart.
        groups: [n], numbers of what is no independent sample: couples of images.

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
