"""Finding the match among many candidates: retrieval and zero-shot classification.

A query is right at k when its best match is strictly above all but k - 1 of the candidates that
do not match; a tie with the k-th of them is wrong. Both numbers that decide are returned, so that
a score can be checked by hand.

q queries, c candidates, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Ints = NDArray[np.integer]


def deciding(
    similarities: Floats, query_owner: Ints, candidate_owner: Ints, ks: Sequence[int]
) -> tuple[Floats, Floats]:
    """What decides whether each query is right at each k: right where best > rival.

    Retrieval: owners are images, so that any caption of an image matches it (R@k). Zero-shot:
    the owner of a query is its class, of a candidate its own (top-k).

    Args:
        similarities: [q, c].
        query_owner: [q], what each query belongs to.
        candidate_owner: [c], what each candidate belongs to; equal owners match.
        ks: ranks of interest.

    Returns:
        [q], the best match (-inf where nothing matches), and [q, len(ks)], the k-th best of the
        candidates that do not match (-inf where there are fewer).
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


def chance(candidates: int, matches: int, k: int) -> float:
    """Chance level at k: a random order puts one of the matches among the first k."""
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
