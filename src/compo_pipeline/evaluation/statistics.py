"""Bootstrap intervals, significance tests and detectable differences.

Images are resampled, as items of one image (its five captions, its items in several subtasks) are
not independent. All metrics of a benchmark, for all models, use the same resamples, so that every
difference between models is paired.

R resamples, S seeds, G images, C columns (a subtask's mean under one model).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]

LEVEL = 0.95
POWER = 0.8


def image_weights(images: int, resamples: int, generator: np.random.Generator) -> Floats:
    """How often each resample drew each image: [R, G], rows sum to G."""
    return _draw_counts(images, resamples, generator)


def seed_weights(seeds: int, resamples: int, generator: np.random.Generator) -> Floats:
    """The share of each training seed in each resample: [R, S], rows sum to 1.

    With one seed all shares are 1. Few seeds understate the spread between them: a
    bootstrap of 5 gives 4/5 of its variance on average.
    """
    return _draw_counts(seeds, resamples, generator).astype(np.float64) / seeds


def _draw_counts(size: int, resamples: int, generator: np.random.Generator) -> Floats:
    counts = np.empty((resamples, size), dtype=np.float32)
    block = max(1, 4_000_000 // max(size, 1))
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        drawn = generator.integers(0, size, (rows, size))
        drawn += np.arange(rows)[:, None] * size
        counts[start : start + rows] = np.bincount(drawn.ravel(), minlength=rows * size).reshape(
            rows, size
        )
    return counts


def mean_draws(right: Floats, items: Floats, images: Floats, seeds: Floats) -> Floats:
    """Means over items under every resample, for C columns at once.

    Args:
        right: [S, G, C], number of right items of each image under each seed.
        items: [G, C], number of items of each image.
        images: [R, G], `image_weights`.
        seeds: [R, S], `seed_weights`.

    Returns:
        [R, C]; NaN where a resample drew none of the images that have items.
    """
    totals = sum(seeds[:, s, None] * (images @ of_seed) for s, of_seed in enumerate(right))
    with np.errstate(invalid="ignore", divide="ignore"):
        draws: Floats = totals / (images @ items)
    return draws


def mean_of_parts(draws: Sequence[Floats], weights: Sequence[float]) -> Floats:
    """A weighted average of several means under every resample: [R].

    A part of few images (a rare class) is missing from some resamples; these average their other
    parts.
    """
    stacked = np.stack(draws)
    present = ~np.isnan(stacked) * np.array(weights)[:, None]
    with np.errstate(invalid="ignore"):
        mean: Floats = np.nan_to_num(stacked * present).sum(axis=0) / present.sum(axis=0)
    return mean


def interval(draws: Floats, level: float = LEVEL) -> tuple[float, float]:
    """Percentile interval of draws; NaN draws are left out."""
    tail = 100 * (1 - level) / 2
    valid = draws[~np.isnan(draws)]
    if not len(valid):
        return float("nan"), float("nan")
    low, high = np.percentile(valid, [tail, 100 - tail])
    # Rounded, as an end of zero must not appear a billionth above it.
    return round(float(low), 9), round(float(high), 9)


def bootstrap_p(draws: Floats) -> float:
    """Two-sided p of "no difference": how rarely draws of a difference cross zero.

    Never below 2 / (R + 1), the resolution of R resamples.
    """
    valid = draws[~np.isnan(draws)]
    beyond = min(int((valid <= 0).sum()), int((valid >= 0).sum()))
    return min(1.0, 2 * (beyond + 1) / (len(valid) + 1))


def mcnemar(gained: int, lost: int) -> float:
    """Exact McNemar test: two-sided p that items changed sides as often one way as the other.

    Args:
        gained: items that only the second model has right.
        lost: items that only the first model has right.
    """
    changed = gained + lost
    term = tail = 1  # binomial coefficients, as integers: exact however many items changed
    for k in range(min(gained, lost)):
        term = term * (changed - k) // (k + 1)
        tail += term
    return float(min(Fraction(1), Fraction(2 * tail, 2**changed)))


def least_detectable(standard_error: float, power: float = POWER, level: float = LEVEL) -> float:
    """The true difference that a two-sided test at `level` finds with probability `power`.

    The standard error is that of the paired difference, so it is small where two models err on
    the same items.
    """
    normal = NormalDist()
    return (normal.inv_cdf(1 - (1 - level) / 2) + normal.inv_cdf(power)) * standard_error


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's correction: adjusted p values that hold jointly over all comparisons."""
    order = sorted(range(len(ps)), key=lambda k: ps[k])
    adjusted = [0.0] * len(ps)
    largest = 0.0
    for rank, position in enumerate(order):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[position]))
        adjusted[position] = largest
    return adjusted
