"""Drift of a window of requests from a version's reference: tests with one alarm, and effect sizes.

Both sides are rows of an image with a text, one row for each image, so that the rows of both are
exchangeable where nothing has drifted and permutations of all rows give the exact null
distribution, of all figures together. Which figures are compared:

    images, texts   embeddings: the kernel statistic of Gretton et al., "A kernel two-sample test",
                    JMLR 13 (2012), under random features of a Gaussian kernel (Rahimi and Recht,
                    "Random features for large-scale kernel machines", NeurIPS 2007)
    cosines         of an image with its text
    margins         that cosine less that of the most similar of some other texts of the reference,
                    the same ones for both sides, whose rows are compared no more
    tokens, words   lengths of the texts
    unknown_words   share of a text's words that no training caption has

Numbers are compared by the energy distance, two times the integral of the squared difference of the
distribution functions (Székely and Rizzo, "Energy statistics", J. Statistical Planning and
Inference 143, 2013). p values are adjusted by the step-down procedure of Holm with the joint null
distribution in place of Bonferroni's inequality (Westfall and Young, "Resampling-based multiple
testing", 1993; algorithm 4.1 of Ge, Dudoit and Speed, "Resampling-based multiple testing for
microarray data analysis", Test 12, 2003): related figures cost no power, and the alarm keeps its
level.

n rows of both sides, D width of the joint space, P permutations, F random features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]

FIGURES = ("images", "texts", "cosines", "margins", "tokens", "words", "unknown_words")
EMBEDDINGS = ("images", "texts")
PERMUTATIONS = 999
MOST_ROWS = 5000
"""Rows of the window that are compared; of more, as many are drawn at random."""
FEWEST_ROWS = 20
"""Rows of the window, and of the reference, that a figure needs."""
FEATURES = 512
OTHERS = 500
"""Texts of the reference that margins are above, at most a tenth of it."""
_EQUAL = 1 - 1e-3  # cosine of equal texts, of embeddings as float16
_RIDGE = 0.1
_MEDIAN_OF = 1000  # rows
_GRID = 256


@dataclass(frozen=True, eq=False)
class PairRows:
    """Rows of an image with a text, as embeddings and word counts.

    A missing value is NaN.

    Attributes:
        images: embeddings [n, D], of length 1.
        texts: embeddings [n, D], of length 1.
        tokens: numbers of tokens of the text [n].
        words: numbers of words of the text [n].
        unknown_words: words of the text that no training caption has [n].
    """

    images: Floats
    texts: Floats
    tokens: Floats
    words: Floats
    unknown_words: Floats

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, places: NDArray[np.integer] | Bools) -> PairRows:
        """The rows at given indices, or where a mask is true."""
        return PairRows(**{each.name: getattr(self, each.name)[places] for each in fields(self)})

    def with_rows(self, other: PairRows) -> PairRows:
        """These rows and the rows of another object, concatenated."""
        names = (each.name for each in fields(self))
        return PairRows(
            **{name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in names}
        )


@dataclass(frozen=True, slots=True)
class FigureDrift:
    """Drift of one quantity (such as cosines) from requests to reference: p values, effect sizes.

    Attributes:
        name: name of the figure, one of `FIGURES`.
        requests: rows of the window that have it.
        reference: rows of the reference.
        p: p value of the permutation test. None if there are too few rows, or nothing to compare.
        adjusted: p for all figures together.
        apart: probability that a row of the window lies on the window's side of one of the
            reference, ties counting half; 0.5 without drift. Of embeddings by a linear
            classifier that is fitted on other rows; of numbers by their size, so that it is below
            0.5 where the window's are smaller.
        means: means of the window and of the reference. None for embeddings.
        interval: 95% interval of the difference of the means.
        deviations: difference of the means in standard deviations of the reference.
    """

    name: str
    requests: int
    reference: int
    p: float | None = None
    adjusted: float | None = None
    apart: float | None = None
    means: tuple[float, float] | None = None
    interval: tuple[float, float] | None = None
    deviations: float | None = None


@dataclass(frozen=True, eq=False)
class Compared:
    """Values of each compared quantity for requests and reference, in one array per quantity.

    Attributes:
        values: [n] or [n, D] by figure; NaN where a row lacks it.
        inside: whether a row is of the window [n].
    """

    values: Mapping[str, Floats]
    inside: Bools


def compare_rows(window: PairRows, reference: PairRows, seed: int) -> Compared:
    """Collect what is tested for drift, of requests and reference: embeddings, cosines, lengths.

    Args:
        window: one row for each image.
        reference: reference of the version. Margins are over its texts.
        seed: seed of the draws.
    """
    rng = np.random.default_rng(seed)
    if len(window) > MOST_ROWS:
        window = window.take(np.sort(rng.permutation(len(window))[:MOST_ROWS]))
    drawn = rng.permutation(len(reference))
    others = min(OTHERS, len(reference) // 10)
    rows = window.with_rows(reference.take(np.sort(drawn[others:])))
    values = {
        "images": rows.images,
        "texts": rows.texts,
        "cosines": np.einsum("nd,nd->n", rows.images, rows.texts),
        "margins": margins(rows.images, rows.texts, reference.texts[drawn[:others]]),
        "tokens": rows.tokens,
        "words": rows.words,
        "unknown_words": rows.unknown_words / np.maximum(rows.words, 1),
    }
    return Compared(values, np.arange(len(rows)) < len(window))


def margins(images: Floats, texts: Floats, others: Floats) -> Floats:
    """Cosine margin [n] of each image: its own text over the most similar other text.

    Texts that are equal to the image's own one are no others; NaN where there is no other.

    Args:
        images: embeddings [n, D].
        texts: embeddings [n, D].
        others: embeddings of the other texts.
    """
    similar = images @ others.T
    similar[texts @ others.T > _EQUAL] = -np.inf
    best = similar.max(axis=1, initial=-np.inf)
    cosines = np.einsum("nd,nd->n", images, texts)
    return np.where(np.isinf(best), np.nan, cosines - best)


def measure_drift(
    compared: Compared, seed: int, *, permutations: int = PERMUTATIONS
) -> list[FigureDrift]:
    """Test each quantity for drift between requests and reference, and measure effect sizes.

    Args:
        compared: rows that `compare_rows` returns.
        seed: seed of permutations and random features.
        permutations: number of them.

    Returns:
        Every figure, in the order of `FIGURES`.
    """
    rng = np.random.default_rng([1, seed])
    of_window = compared.inside
    keys = rng.random((permutations, len(of_window)), dtype=np.float32)
    labels: dict[bytes, Floats] = {}
    statistics: dict[str, Floats] = {}
    figures = []
    for name in FIGURES:
        own = compared.values[name]
        there = ~np.isnan(own if own.ndim == 1 else own[:, 0])
        counts = int((there & of_window).sum()), int((there & ~of_window).sum())
        figure = FigureDrift(name, *counts)
        if min(counts) >= FEWEST_ROWS:
            own, inside, key = own[there].astype(np.float64), of_window[there], there.tobytes()
            if key not in labels:
                labels[key] = permuted_labels(keys[:, there], inside)
            if name in EMBEDDINGS:
                features = random_features(own, rng)
                statistics[name] = kernel_statistics(features, labels[key], counts[0])
                figure = replace(figure, apart=classifier_auc(own, inside, rng))
            else:
                statistics[name] = energy_statistics(own, labels[key], counts[0])
                figure = _with_effects(figure, own, inside)
        figures.append(figure)
    tested = adjusted_p_values(statistics)
    return [
        replace(each, p=tested[each.name][0], adjusted=tested[each.name][1])
        if each.name in tested
        else each
        for each in figures
    ]


def permuted_labels(keys: Floats, inside: Bools) -> Floats:
    """Labels [P + 1, n], 1 for rows of the window: the observed ones, then random permutations.

    Args:
        keys: random numbers [P, n]; the rows with the least ones are the window's.
        inside: whether a row is of the window [n].
    """
    count = int(inside.sum())
    labels = np.zeros((len(keys) + 1, len(inside)), dtype=np.float32)
    labels[0] = inside
    chosen = np.argpartition(keys, count - 1, axis=1)[:, :count]
    np.put_along_axis(labels[1:], chosen, 1.0, axis=1)
    return labels


def random_features(rows: Floats, rng: np.random.Generator, count: int = FEATURES) -> Floats:
    """Centred random Fourier features [n, F] that approximate a Gaussian kernel.

    The kernel's width is the median distance of rows.
    """
    some = rows[rng.permutation(len(rows))[:_MEDIAN_OF]]
    half = len(some) // 2
    width = float(np.median(np.linalg.norm(some[:half] - some[half : 2 * half], axis=1)))
    directions = rng.standard_normal((rows.shape[1], count)) / max(width, 1e-6)
    phases = rows @ directions + rng.uniform(0, 2 * math.pi, count)
    features = math.sqrt(2 / count) * np.cos(phases)
    centred: Floats = (features - features.mean(axis=0)).astype(np.float32)
    return centred


def kernel_statistics(features: Floats, labels: Floats, count: int) -> Floats:
    """Kernel two-sample statistic [P + 1] for the observed labels and each permutation.

    Args:
        features: centred, [n, F].
        labels: labels that `permuted_labels` returns [P + 1, n].
        count: rows of the window.
    """
    sums = labels @ features  # of the reference it is the negative
    scale = 1 / count + 1 / (len(features) - count)
    squares: Floats = (sums.astype(np.float64) * scale) ** 2
    return np.asarray(squares.sum(axis=1))


def energy_statistics(values: Floats, labels: Floats, count: int) -> Floats:
    """Energy distance [P + 1] of two samples for the observed labels and each permutation.

    Args:
        values: numbers [n].
        labels: labels that `permuted_labels` returns [P + 1, n].
        count: rows of the window.
    """
    grid = np.unique(values)
    if len(grid) > _GRID:
        grid = np.unique(np.quantile(values, np.linspace(0, 1, _GRID)))
    inside = labels @ (values[:, None] <= grid[:-1]).astype(np.float32)  # [P + 1, grid - 1]
    all_rows = np.searchsorted(np.sort(values), grid[:-1], side="right")
    difference = inside / count - (all_rows - inside) / (len(values) - count)
    return np.asarray((2 * difference.astype(np.float64) ** 2 * np.diff(grid)).sum(axis=1))


def adjusted_p_values(statistics: Mapping[str, Floats]) -> dict[str, tuple[float, float]]:
    """Permutation p value of each quantity, and the p value adjusted for all quantities together.

    Args:
        statistics: statistics by figure [P + 1], larger for more drift. The observed one is first,
            and a position is the same permutation in all of them.
    """
    names = list(statistics)
    if not names:
        return {}
    p = np.stack([permutation_p_values(statistics[name]) for name in names])  # [figures, P + 1]
    order = np.argsort(p[:, 0], kind="stable")
    # Least p of this figure and of those behind it, in each permutation.
    least = np.minimum.accumulate(p[order][::-1], axis=0)[::-1]
    joint = np.maximum.accumulate((least <= p[order, :1]).mean(axis=1))
    return {
        names[place]: (float(p[place, 0]), float(joint[rank])) for rank, place in enumerate(order)
    }


def permutation_p_values(statistics: Floats) -> Floats:
    """P value [P + 1] of each statistic: the share of statistics that are at least as large."""
    # Equal divisions of the rows differ by rounding.
    rounded = np.round(statistics, 12)
    ranked = np.sort(rounded)
    return np.asarray((len(ranked) - np.searchsorted(ranked, rounded)) / len(ranked))


def classifier_auc(rows: Floats, inside: Bools, rng: np.random.Generator) -> float:
    """Cross-fitted AUC of a linear classifier that tells requests from reference rows.

    Linear discriminants with a ridge, each fitted on one half and applied to the other.

    Args:
        rows: embeddings [n, D].
        inside: whether a row is of the window [n].
        rng: generator that draws the halves.
    """
    first = np.zeros(len(rows), dtype=bool)
    for side in (inside, ~inside):
        places = rng.permutation(np.flatnonzero(side))
        first[places[: len(places) // 2]] = True
    found = []
    for fitted in (first, ~first):
        means = [rows[fitted & side].mean(axis=0) for side in (inside, ~inside)]
        centred = rows[fitted] - np.where(inside[fitted, None], *means)
        covariance = centred.T @ centred / len(centred)
        ridge = _RIDGE * np.trace(covariance) / len(covariance) + 1e-12
        direction = np.linalg.solve(
            covariance + ridge * np.eye(len(covariance)), means[0] - means[1]
        )
        found.append(superiority(rows[~fitted] @ direction, inside[~fitted]))
    return sum(found) / 2


def superiority(values: Floats, inside: Bools) -> float:
    """Probability that a request's value is above a reference row's, ties counting half (AUC)."""
    distinct, place = np.unique(values, return_inverse=True)
    counts = [np.bincount(place[side], minlength=len(distinct)) for side in (inside, ~inside)]
    below = np.cumsum(counts[1]) - counts[1] / 2
    return float(counts[0] @ below / (counts[0].sum() * counts[1].sum()))


def _with_effects(figure: FigureDrift, values: Floats, inside: Bools) -> FigureDrift:
    """A copy of a drift result with effect sizes: AUC, means and standardised difference."""
    sides = values[inside], values[~inside]
    means = float(sides[0].mean()), float(sides[1].mean())
    error = math.sqrt(sum(float(side.var(ddof=1)) / len(side) for side in sides))
    difference, spread = means[0] - means[1], float(sides[1].std(ddof=1))
    return replace(
        figure,
        apart=superiority(values, inside),
        means=means,
        interval=(difference - 1.96 * error, difference + 1.96 * error),
        deviations=difference / spread if spread else None,
    )
