"""Protocols as pure functions of similarities; they know no file format and no model.

Ties are wrong: a match must be strictly more similar than a non-match.

n items, P positives, N negatives, q queries, c candidates, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]
Ints = NDArray[np.integer]

TEXT_ONLY_CHANCE = 1 / 3


def image_to_text(positives: Floats, negatives: Floats) -> Bools:
    """Whether every positive is above every negative (ITT; accuracy with one of each).

    Args:
        positives: [n, P], cosine of each item's image with its positives.
        negatives: [n, N], the same with its negatives.

    Returns:
        [n].
    """
    correct: Bools = positives.min(axis=1) > negatives.max(axis=1)
    return correct


def image_to_text_chance(positives: int, negatives: int) -> float:
    """Chance level of `image_to_text`: 1 / C(P + N, P), the share of orders with positives first.

    1/2 for SugarCrepe, 1/3 for SugarCrepe++.
    """
    return 1 / comb(positives + negatives, positives)


def text_only(between: Floats, first: Floats, second: Floats) -> Bools:
    """Whether two positives are closer to each other than either is to the negative (TOT).

    SugarCrepe++: cos(P1, P2) > cos(P1, N) and cos(P1, P2) > cos(P2, N). Chance level 1/3: one of
    three cosines must be the largest.

    Args:
        between: [n], cosine of the two positives.
        first: [n], cosine of the first positive with the negative.
        second: [n], cosine of the second positive with the negative.

    Returns:
        [n].
    """
    correct: Bools = (between > first) & (between > second)
    return correct


def ranking(
    similarities: Floats, query_owner: Ints, candidate_owner: Ints, ks: Sequence[int]
) -> tuple[Floats, Floats]:
    """The two similarities that decide each query at each k: correct if best > rival.

    A query is correct at k if its best match is above all but k - 1 of the candidates that do not
    match. Retrieval: owners are images, so any caption of an image matches it (R@k). Zero-shot:
    owners are classes (top-k).

    Args:
        similarities: [q, c].
        query_owner: [q], owner of each query.
        candidate_owner: [c], owner of each candidate; equal owners match.
        ks: the values of k.

    Returns:
        [q], the best match (-inf without any), and [q, len(ks)], the k-th best of the candidates
        that do not match (-inf if there are fewer).
    """
    matches = query_owner[:, None] == candidate_owner[None, :]
    best = np.where(matches, similarities, -np.inf).max(axis=1)
    others = np.where(matches, -np.inf, similarities)
    depth = min(max(ks), others.shape[1])
    top = -np.sort(-np.partition(others, -depth, axis=1)[:, -depth:], axis=1)
    rivals = np.full((len(best), len(ks)), -np.inf, dtype=top.dtype)
    for column, k in enumerate(ks):
        if k <= depth:
            rivals[:, column] = top[:, k - 1]
    return best, rivals


def ranked(best: Floats, rivals: Floats) -> Bools:
    """Whether each query's best match is above its rival, both [q] of `ranking`."""
    correct: Bools = best > rivals
    return correct


def ranking_chance(candidates: int, matches: int, k: int) -> float:
    """Chance level at k: a random order has one of the matches among the first k."""
    if candidates - matches < k:
        return 1.0
    return 1 - comb(candidates - matches, k) / comb(candidates, k)


def class_embeddings(prompts: Floats) -> Floats:
    """Zero-shot classifier: the normalised mean over templates of normalised text embeddings.

    Args:
        prompts: [classes, templates, D].

    Returns:
        [classes, D].
    """
    mean = prompts.mean(axis=1)
    weights: Floats = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    return weights
