"""Scoring protocols of the benchmarks, as pure functions of image-text similarities.

They know no file format and no model.

Ties are wrong: a match must be strictly more similar than a non-match. With `ties_right` a tie is
right, as in the official code of benchmarks that take the first of equal candidates.

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

STRICT = "strict_accuracy"
"""The metric of a choice in which ties are wrong, beside `accuracy`, in which they are right."""
CHOICES = ("accuracy", STRICT, "itt", "t2i")
"""Metrics whose verdict is `choice`."""

RECALLS = (1, 5, 10)
"""The k of recall at k."""

TEXT_ONLY_CHANCE = 1 / 3
# Chance levels of `group`: of similarities in random order.
GROUP_CHANCES = {"text": 1 / 4, "image": 1 / 4, "group": 1 / 6, "group_match": 1 / 2}

# Chance levels of `half_truth`.
HALF_TRUTH_CHANCES = {"half_truth": 1 / 2, "truth_order": 1 / 6}


def choice(positives: Floats, negatives: Floats, *, ties_right: bool = False) -> Bools:
    """Whether every positive is more similar to its query than every negative, for each item.

    Image-to-text choice (ITT; accuracy with one positive): cosines of an image with its texts.
    Text-to-image choice: cosines of a text with images.

    Args:
        positives: [n, P], cosine of each item's query with its positives.
        negatives: [n, N], the same with its negatives.
        ties_right: whether equal similarities count as right.

    Returns:
        [n].
    """
    lowest, highest = positives.min(axis=1), negatives.max(axis=1)
    correct: Bools = lowest >= highest if ties_right else lowest > highest
    return correct


def group(similarities: Floats) -> dict[str, Bools]:
    """Winoground's scores of items with two images and two captions: text, image and group.

    text: each image is closer to its own caption; image: each caption is closer to its own image;
    group: both; group_match: the right pairing has the larger sum (GroupMatch, arXiv 2510.07632).

    Args:
        similarities: [n, 2, 2], cosine of image i with caption j.

    Returns:
        [n] by score.
    """
    s00, s01, s10, s11 = similarities.reshape(-1, 4).T
    text: Bools = (s00 > s01) & (s11 > s10)
    image: Bools = (s00 > s10) & (s11 > s01)
    match: Bools = s00 + s11 > s01 + s10
    return {"text": text, "image": image, "group": text & image, "group_match": match}


def joint(similarities: Floats, images: int, *, ties_right: bool = False) -> Bools:
    """Whether all images of an item are closer to their own text than to wrong ones (What'sUp).

    Args:
        similarities: [n, images * texts], image by image, the right text first.
        images: number of images of an item.
        ties_right: whether equal similarities count as right.

    Returns:
        [n].
    """
    each = similarities.reshape(len(similarities) * images, -1)
    correct = choice(each[:, :1], each[:, 1:], ties_right=ties_right)
    whole: Bools = np.all(correct.reshape(-1, images), axis=1)
    return whole


def average_precision(similarities: Floats, matches: int) -> float:
    """Average precision of a ranking of candidates.

    Ties count against a match.

    Args:
        similarities: [c], of a query with its candidates, the matches first.
        matches: number of similarities that match, one or more.
    """
    above = similarities[None, :] >= similarities[:matches, None]  # [matches, c]
    return float((above[:, :matches].sum(axis=1) / above.sum(axis=1)).mean())


def half_truth(similarities: Floats) -> dict[str, Bools]:
    """Half-truth scores: whether a false detail lowers, and a true one raises, the similarity.

    From arXiv 2602.23906.

    half_truth: the caption is above the half truth; truth_order: so it is, and below the full one.

    Args:
        similarities: [n, 3], cosine of the image with the full truth, the caption, the half truth.

    Returns:
        [n] by score.
    """
    full, caption, half = similarities.T
    above: Bools = caption > half
    order: Bools = (full > caption) & above
    return {"half_truth": above, "truth_order": order}


def verdicts(metric: str, similarities: Floats, matches: int, *, ties_right: bool = False) -> Bools:
    """Whether each scored item is right in a metric, computed from its stored similarities.

    Args:
        metric: metric of the rows.
        similarities: [n, s], as `scoring` describes them.
        matches: number of the first similarities that are of matches, in `CHOICES`. In `joint`,
            number of images of an item.
        ties_right: whether ties are right in a choice.

    Returns:
        [n].
    """
    if metric in CHOICES:
        first, others = similarities[:, :matches], similarities[:, matches:]
        return choice(first, others, ties_right=ties_right and metric != STRICT)
    if metric == "joint":
        return joint(similarities, matches, ties_right=ties_right)
    if metric == "tot":
        return text_only(*similarities.T)
    if metric in GROUP_CHANCES:
        return group(similarities)[metric]
    if metric in HALF_TRUTH_CHANCES:
        return half_truth(similarities)[metric]
    return ranked(*similarities.T)


def margin(metric: str, similarities: Sequence[float], matches: int) -> float:
    """Similarity margin by which a scored item is right (positive) or wrong in a metric.

    Args:
        metric: metric of the row.
        similarities: similarities as `scoring` describes them.
        matches: number of the first similarities that are of matches, in `CHOICES`. In `joint`,
            number of images of the item.
    """
    if metric == "joint":
        count = len(similarities) // matches
        each = [similarities[start : start + count] for start in range(0, len(similarities), count)]
        return min(own[0] - max(own[1:]) for own in each)
    if metric in CHOICES:
        return min(similarities[:matches]) - max(similarities[matches:])
    if metric in GROUP_CHANCES:
        s00, s01, s10, s11 = similarities
        text, image = min(s00 - s01, s11 - s10), min(s00 - s10, s11 - s01)
        every = {"text": text, "image": image, "group": min(text, image)}
        return every.get(metric, s00 + s11 - s01 - s10)
    return similarities[0] - max(similarities[1:])


def choice_chance(positives: int, negatives: int) -> float:
    """Chance level of `choice`: 1 / C(P + N, P), the share of orders with all positives first.

    1/2 for SugarCrepe, 1/3 for SugarCrepe++.
    """
    return 1 / comb(positives + negatives, positives)


def average_precision_chance(candidates: int, matches: int) -> float:
    """Chance level of `average_precision`: its mean over all orders of the candidates."""
    harmonic = sum(1 / k for k in range(1, candidates + 1))
    others = (matches - 1) / max(candidates - 1, 1)
    return (harmonic + others * (candidates - harmonic)) / candidates


def text_only(between: Floats, first: Floats, second: Floats) -> Bools:
    """Whether two positive texts are closer to each other than to the negative (TOT).

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
    """Similarities that decide recall at k: each query's best match, and its rival at each k.

    A query is correct if best > rival.

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
    """Whether each query's best match is more similar than its rival, as `ranking` gives them."""
    correct: Bools = best > rivals
    return correct


def ranking_chance(candidates: int, matches: int, k: int) -> float:
    """Chance level of recall at k: probability that a match is among k random candidates."""
    if candidates - matches < k:
        return 1.0
    return 1 - comb(candidates - matches, k) / comb(candidates, k)


def class_embeddings(prompts: Floats) -> Floats:
    """Zero-shot classifier weights: normalised mean over templates of text embeddings.

    The text embeddings are normalised too.

    Args:
        prompts: [classes, templates, D].

    Returns:
        [classes, D].
    """
    mean = prompts.mean(axis=1)
    weights: Floats = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    return weights
