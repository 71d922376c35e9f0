"""How well a classifier that sees texts alone tells captions from foils."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from compo_pipeline.foils.trigrams import ngrams, tokens

FOLDS = 5
_LENGTH = "<length>"
_LEVEL = 0.95


class TextAccuracy(NamedTuple):
    """Cross-validated accuracy of a text-only classifier, with its upper 95% limit."""

    value: float
    limit: float


def text_accuracy(pairs: Sequence[tuple[str, str]], groups: Sequence[int]) -> TextAccuracy | None:
    """Accuracy with which a logistic regression tells captions from foils by text alone.

    Its features are differences of word n-grams and of length; tested by folds of pairs.

    Args:
        pairs: n captions, each with its foil.
        groups: [n], numbers of what is in one fold and no independent sample: images, and couples
            of images.

    Returns:
        None with fewer groups than folds. A tie is half right. The limit is one-sided, by
        Student's t over groups.
    """
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold

    if len(set(groups)) < FOLDS:
        return None
    vectorizer = CountVectorizer(analyzer=_features, dtype=np.float64)
    right = np.zeros(len(pairs))
    signs = np.where(np.arange(len(pairs)) % 2, 1.0, -1.0)
    for train, test in GroupKFold(FOLDS).split(signs, groups=groups):
        vectorizer.fit(text for place in train for text in pairs[place])
        first, second = (
            (
                vectorizer.transform([pairs[place][0] for place in places])
                - vectorizer.transform([pairs[place][1] for place in places])
            )
            for places in (train, test)
        )
        # Half of the differences the other way round: two classes without an intercept.
        model = LogisticRegression(fit_intercept=False, max_iter=1000)
        model.fit(first.multiply(signs[train][:, None]).tocsr(), signs[train])
        scores = model.decision_function(second)
        right[test] = np.where(scores > 0, 1.0, np.where(scores < 0, 0.0, 0.5))
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
