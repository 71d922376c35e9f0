"""Choosing among texts. Ties are wrong: a right text must stand strictly above a wrong one."""

from __future__ import annotations

from math import comb

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]


def image_to_text(positives: Floats, negatives: Floats) -> Bools:
    """Whether every positive stands strictly above every negative (ITT; accuracy with one each).

    Chance level, with P positives and N negatives: 1 / C(P + N, P), the share of orders that put
    the positives first: 1/2 for SugarCrepe, 1/3 for SugarCrepe++.

    Args:
        positives: [n, P], cosine of each item's image with its positives.
        negatives: [n, N], the same with its negatives.

    Returns:
        [n].
    """
    right: Bools = positives.min(axis=1) > negatives.max(axis=1)
    return right


def text_only(between: Floats, first: Floats, second: Floats) -> Bools:
    """Whether two positives are strictly closer to each other than either is to the negative (TOT).

    SugarCrepe++: cos(P1, P2) > cos(P1, N) and cos(P1, P2) > cos(P2, N). Chance level 1/3: one of
    three cosines must be the largest.

    Args:
        between: [n], cosine of the two positives.
        first: [n], cosine of the first positive with the negative.
        second: [n], cosine of the second positive with the negative.

    Returns:
        [n].
    """
    right: Bools = (between > first) & (between > second)
    return right


def image_to_text_chance(positives: int, negatives: int) -> float:
    """Chance level of `image_to_text`."""
    return 1 / comb(positives + negatives, positives)


TEXT_ONLY_CHANCE = 1 / 3
