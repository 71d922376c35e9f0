"""Confidence intervals, significance tests and detectable differences.

The unit is the image, as items of one image (its five captions, its items in several subtasks) are
not independent. Everything is in closed form: the same scores give the same interval.
benchmarks/accuracy/coverage.py simulates how often the intervals hold the true value.

S training seeds, n items.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special  # scipy.stats has the same functions but takes seconds to import
from scipy.optimize import brentq

Floats = NDArray[np.floating]

LEVEL = 0.95
POWER = 0.8

_TAIL = (1 - LEVEL) / 2
_SMALLEST_P = 1e-100


class Part(NamedTuple):
    """Values [S, n] in per cent of n items under S seeds, and each item's image number [n].

    One component of a mean; an image has the same number in all of them.
    """

    values: Floats
    image: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SampledMean:
    """A weighted mean in per cent, with its sampling variance over images and over seeds.

    `centre` is the middle of its interval, which lies a little inside the value near a bound.
    """

    value: float
    centre: float
    image_variance: float
    images: int
    seed_variance: float
    seeds: int
    bounds: tuple[float, float]

    def half_width(self, tail: float) -> float:
        """Half the width of a confidence interval with probability `tail` beyond each end.

        Each variance has its own quantile of t, so that few seeds give a wide interval where the
        seeds differ and change nothing where they do not: Banerjee, "On confidence interval for
        two-means problem based on separate estimates of variances and tabulated values of t-table",
        Sankhya A 23 (1961), who proves for two independent normal means that it holds at least its
        level. The spread of an item between seeds is in both variances,
        which makes the interval somewhat wide rather than too narrow.
        """
        images = special.stdtrit(max(1, self.images - 1), tail) ** 2 * self.image_variance
        seeds = special.stdtrit(max(1, self.seeds - 1), tail) ** 2 * self.seed_variance
        return math.sqrt(images + seeds)

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper end of the 95% confidence interval, within the bounds."""
        half, (low, high) = self.half_width(_TAIL), self.bounds
        # Rounded, as an end of zero must not appear a billionth above it.
        ends = max(low, self.centre - half), min(high, self.centre + half)
        return round(ends[0], 9), round(ends[1], 9)

    @property
    def p(self) -> float:
        """Two-sided p-value of a true mean of zero, consistent with the interval.

        Below 0.05 where the interval excludes zero.
        """
        distance = abs(self.centre)
        if self.half_width(_SMALLEST_P) <= distance:
            return _SMALLEST_P
        tail = brentq(
            lambda log: self.half_width(math.exp(log)) - distance,
            math.log(_SMALLEST_P),
            math.log(0.5),
        )
        return min(1.0, 2 * math.exp(tail))

    @property
    def least_detectable(self) -> float:
        """Smallest true value that a 5% two-sided test detects with a power of 80%.

        Bloom, "Minimum detectable effects", Evaluation Review 19 (1995).
        Of a paired difference it is small where two models err on the same items.
        """
        return self.half_width(_TAIL) + self.half_width(1 - POWER)


def level(parts: Sequence[Part], weights: Sequence[float], *, verdicts: bool = True) -> SampledMean:
    """Weighted mean of one model's values, with its variance (Agresti-Coull for right/wrong).

    To verdicts z^2 / 2 items of 0 and as many of 100 are added.

    Agresti and Coull, "Approximate is better than 'exact' for interval estimation of binomial
    proportions", The American Statistician 52 (1998); the centre is that of Wilson's interval.
    """
    added = float(special.ndtri(_TAIL)) ** 2 / 2 if verdicts else 0.0
    return _pooled_mean(parts, weights, (0.0, 100.0), added)


def difference(
    ours: Sequence[Part],
    theirs: Sequence[Part],
    weights: Sequence[float],
    *,
    verdicts: bool = True,
) -> SampledMean:
    """Mean paired difference of two models, with its variance (Bonett-Price for right/wrong).

    To verdicts an item of -100 and one of 100 are added.

    Bonett and Price, "Adjusted Wald confidence interval for a difference of binomial proportions
    based on paired data", J. Educational and Behavioral Statistics 37 (2012): one is added to each
    of the two counts of items that only one model has right.
    """
    parts = [Part(a.values - b.values, a.image) for a, b in zip(ours, theirs, strict=True)]
    return _pooled_mean(parts, weights, (-100.0, 100.0), 1.0 if verdicts else 0.0)


def _pooled_mean(
    parts: Sequence[Part], weights: Sequence[float], bounds: tuple[float, float], added: float
) -> SampledMean:
    """Weighted mean and variances of parts, after adding `added` pseudo-items at each bound.

    These count as items, of which there are as many as the design effect leaves: Korn and Graubard,
    "Confidence intervals for proportions with small expected number of positive counts estimated
    from survey data", Survey Methodology 24 (1998). Between the effective numbers of images and of
    items (Kish, Survey Sampling, 1965), and the former where nothing varies. The variance is that
    of a ratio estimate over clusters, the images (Cochran, Sampling Techniques).
    """
    total = 1 + max(int(part.image.max()) for part in parts)
    by_seed = np.dot(weights, [part.values.mean(axis=1) for part in parts])  # [S]
    value = float(by_seed.mean())
    share, residual = np.zeros(total), np.zeros(total)
    item_variance = item_share = 0.0
    for weight, part in zip(weights, parts, strict=True):
        each = weight / len(part.image)
        images = len(np.unique(part.image))
        # The residual of a part of one image is from the mean of all parts, else it would be zero.
        mean = part.values.mean() if images > 1 else value
        unbiased = math.sqrt(images / (images - 1)) if images > 1 else 1.0
        deviations = part.values.mean(axis=0) - mean
        share += each * np.bincount(part.image, minlength=total)
        residual += each * unbiased * np.bincount(part.image, deviations, total)
        item_variance += weight * float(((part.values - mean) ** 2).mean())
        item_share += weight * each
    variance = float(residual @ residual)
    fewest, most = 1 / float(share @ share), 1 / item_share
    count = min(most, max(fewest, item_variance / variance)) if variance else fewest
    all_items = count + 2 * added
    centre = (count * value + added * sum(bounds)) / all_items
    squares = count**2 * variance + count * (value - centre) ** 2
    squares += added * sum((bound - centre) ** 2 for bound in bounds)
    seeds = len(by_seed)
    return SampledMean(
        value=value,
        centre=centre,
        image_variance=squares / all_items**2,
        images=int((share > 0).sum()),
        seed_variance=float(by_seed.var(ddof=1)) / seeds if seeds > 1 else 0.0,
        seeds=seeds,
        bounds=bounds,
    )


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided p-value of McNemar's exact test, from the counts of changed items.

    Its hypothesis is that items change sides as often one way as the other.

    Agresti, Categorical Data Analysis: the sign test on the items that only one model has right.

    Args:
        gained: items that only the second model has right.
        lost: items that only the first model has right.
    """
    return min(1.0, 2 * float(special.bdtr(min(gained, lost), gained + lost, 0.5)))


def holm(ps: Sequence[float]) -> list[float]:
    """P-values after Holm's correction for multiple comparisons.

    Holm, "A simple sequentially rejective multiple test procedure", Scandinavian J. Statistics 6
    (1979).
    """
    order = sorted(range(len(ps)), key=lambda k: ps[k])
    adjusted = [0.0] * len(ps)
    largest = 0.0
    for rank, position in enumerate(order):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[position]))
        adjusted[position] = largest
    return adjusted
