"""The statistics are those of slow computations, and the alarm has its level."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from compo_pipeline.evaluation.statistics import holm
from compo_pipeline.serving.monitoring import drift
from compo_pipeline.serving.monitoring.drift import (
    FIGURES,
    FigureDrift,
    PairRows,
    adjusted_p_values,
    classifier_auc,
    compare_rows,
    energy_statistics,
    kernel_statistics,
    margins,
    measure_drift,
    permutation_p_values,
    permuted_labels,
    random_features,
    superiority,
)

Draw = Callable[..., PairRows]
RNG = np.random.default_rng(0)


def report(window: PairRows, reference: PairRows, seed: int = 0) -> dict[str, FigureDrift]:
    found = measure_drift(compare_rows(window, reference, seed), seed, permutations=99)
    assert [each.name for each in found] == list(FIGURES)
    return {each.name: each for each in found}


def drifted(window: PairRows, reference: PairRows, seed: int = 0) -> set[str]:
    found = report(window, reference, seed)
    return {name for name, each in found.items() if (each.adjusted or 1) <= 0.05}


def labels_of(count: int, inside: int, permutations: int = 20) -> NDArray[np.floating]:
    keys = RNG.random((permutations, count), dtype=np.float32)
    return permuted_labels(keys, np.arange(count) < inside)


def test_labels_are_divisions_of_the_rows() -> None:
    labels = labels_of(50, 20, permutations=4000)
    assert set(np.unique(labels)) == {0, 1} and (labels.sum(axis=1) == 20).all()
    assert labels[0].tolist() == [1] * 20 + [0] * 30
    # Each row is of the window in two fifths of them: four standard errors.
    assert abs(labels[1:].mean(axis=0) - 0.4).max() < 4 * (0.24 / 4000) ** 0.5


@pytest.mark.parametrize("values", [RNG.integers(0, 9, 90), RNG.standard_normal(90)])
def test_the_energy_distance_is_scipys(values: NDArray[np.floating]) -> None:
    labels = labels_of(90, 25)
    found = energy_statistics(values.astype(float), labels, 25)
    for row, statistic in zip(labels.astype(bool), found, strict=True):
        expected = stats.energy_distance(values[row], values[~row]) ** 2
        assert statistic == pytest.approx(expected, rel=1e-4)


def test_the_energy_distance_of_many_numbers_is_near_scipys() -> None:
    values = RNG.standard_normal(3000)
    labels = labels_of(3000, 1000, permutations=3)
    values[:1000] += 0.2
    found = energy_statistics(values, labels, 1000)
    expected = stats.energy_distance(values[:1000], values[1000:]) ** 2
    assert found[0] == pytest.approx(expected, rel=0.02)


def test_the_kernel_statistic_is_that_of_a_gaussian_kernel() -> None:
    rows = RNG.standard_normal((60, 5))
    rows[:20] += 0.5
    labels = labels_of(60, 20, permutations=3)
    features = random_features(rows, np.random.default_rng(1), count=100_000)
    distances = np.linalg.norm(rows[:, None] - rows, axis=2)
    # The width that the features were drawn with: the median over pairs of rows drawn by the seed.
    order = np.random.default_rng(1).permutation(60)
    width = np.median([distances[a, b] for a, b in zip(order[:30], order[30:], strict=True)])
    kernel = np.exp(-(distances**2) / (2 * width**2))
    for row, statistic in zip(labels, kernel_statistics(features, labels, 20), strict=True):
        weights = np.where(row == 1, 1 / 20, -1 / 40)
        assert statistic == pytest.approx(weights @ kernel @ weights, rel=0.05)


def test_adjusted_p_values_are_those_of_the_steps_one_by_one() -> None:
    cause = RNG.standard_normal(500)
    statistics = {
        "a": cause + RNG.standard_normal(500),
        "b": cause + RNG.standard_normal(500),
        "c": RNG.integers(0, 5, 500).astype(float),
    }
    for name, value in {"a": 3.5, "b": 1.5, "c": 4.0}.items():
        statistics[name][0] = value
    p = {
        name: np.array([np.mean(values >= one) for one in values])
        for name, values in statistics.items()
    }
    assert all(np.allclose(permutation_p_values(statistics[name]), p[name]) for name in p)
    found, left, largest = (
        adjusted_p_values(statistics),
        sorted(p, key=lambda name: p[name][0]),
        0.0,
    )
    while left:
        name = left[0]
        least = np.min([p[each] for each in left], axis=0)
        largest = max(largest, float(np.mean(least <= p[name][0])))
        assert found[name] == pytest.approx((p[name][0], largest))
        left.remove(name)


def test_unrelated_figures_are_adjusted_as_by_holm_and_equal_ones_are_one() -> None:
    independent = {f"{k}": RNG.standard_normal(50_000) for k in range(4)}
    for name, value in zip(independent, (2.6, 2.4, 0.5, 2.0), strict=True):
        independent[name][0] = value
    found = adjusted_p_values(independent)
    expected = holm([found[name][0] for name in independent])
    for name, p in zip(independent, expected, strict=True):
        assert found[name][1] == pytest.approx(p, rel=0.1, abs=0.01)
    equal = adjusted_p_values({"a": independent["0"], "b": independent["0"]})
    assert equal["a"][1] == equal["b"][1] == pytest.approx(equal["a"][0])


def test_a_constant_figure_is_no_drift_and_takes_no_power_from_others() -> None:
    statistic = RNG.standard_normal(200)
    statistic[0] = 9
    found = adjusted_p_values({"a": statistic, "constant": np.zeros(200)})
    assert found["constant"] == (1, 1) and found["a"] == pytest.approx((1 / 200, 1 / 200))


def test_superiority_is_mann_whitneys() -> None:
    values = RNG.integers(0, 6, 80).astype(float)
    inside = np.arange(80) < 30
    u = stats.mannwhitneyu(values[inside], values[~inside]).statistic
    assert superiority(values, inside) == pytest.approx(u / (30 * 50))


def test_a_classifier_tells_what_differs_apart(draw: Draw) -> None:
    inside = np.arange(800) < 400
    same, shifted = draw(800, 1).images, draw(400, 2, shift=4.0).images
    assert classifier_auc(same, inside, np.random.default_rng(0)) == pytest.approx(0.5, abs=0.06)
    both = np.concatenate([shifted, same[:400]])
    assert classifier_auc(both, inside, np.random.default_rng(0)) > 0.95


def test_margins_are_over_the_best_other_text(draw: Draw) -> None:
    rows, others = draw(30, 1), draw(8, 2).texts
    others[3] = rows.texts[5]
    for place, found in enumerate(margins(rows.images, rows.texts, others)):
        image, text = rows.images[place], rows.texts[place]
        best = max(float(image @ other) for other in others if not np.array_equal(other, text))
        assert found == pytest.approx(float(image @ text) - best, abs=1e-6)
    assert np.isnan(margins(rows.images, rows.texts, others[:0])).all()
    assert np.isnan(margins(rows.images[5:6], rows.texts[5:6], others[3:4])).all()


def test_the_alarm_keeps_its_level(draw: Draw) -> None:
    alarms = sum(bool(drifted(draw(40, 2 * k), draw(120, 2 * k + 1), k)) for k in range(60))
    low, high = stats.binom.interval(0.999, 60, 0.05)
    assert low <= alarms <= high


def test_what_drifts_is_named(draw: Draw) -> None:
    reference, window = draw(600, 0), draw(300, 1)
    assert drifted(window, reference) == set()
    assert "images" in drifted(draw(300, 1, shift=1.0), reference)
    noisy = drifted(draw(300, 1, noise=2.0), reference)
    assert {"cosines", "margins"} <= noisy and "images" not in noisy
    exchanged = replace(window, texts=window.texts[::-1])
    assert drifted(exchanged, reference) == {"cosines", "margins"}
    longer = replace(window, words=window.words + 2, tokens=window.tokens + 2)
    assert {"tokens", "words"} <= drifted(longer, reference)
    assert drifted(replace(window, unknown_words=window.words), reference) == {"unknown_words"}


def test_effects_are_those_of_the_rows(draw: Draw) -> None:
    reference, window = draw(600, 0), draw(300, 1)
    found = report(window, reference)["words"]
    kept = compare_rows(window, reference, 0)
    ours, theirs = kept.values["words"][kept.inside], kept.values["words"][~kept.inside]
    assert (found.requests, found.reference) == (300, 540)
    assert found.means == pytest.approx((ours.mean(), theirs.mean()))
    welch = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval()
    assert found.interval == pytest.approx((welch.low, welch.high), abs=0.01)
    assert found.deviations == pytest.approx((ours.mean() - theirs.mean()) / theirs.std(ddof=1))
    assert found.apart == pytest.approx(
        stats.mannwhitneyu(ours, theirs).statistic / (len(ours) * len(theirs))
    )


def test_what_rows_lack_is_not_compared(draw: Draw) -> None:
    reference, window = draw(300, 0), draw(100, 1)
    alone = replace(
        window,
        texts=np.full_like(window.texts, np.nan),
        **dict.fromkeys(("tokens", "words", "unknown_words"), np.full(100, np.nan)),
    )
    found = report(alone, reference)
    assert {name for name, each in found.items() if each.p is not None} == {"images"}
    assert found["images"].requests == 100 and found["cosines"].requests == 0
    few = report(window.take(np.arange(drift.FEWEST_ROWS - 1)), reference)
    assert {each.p for each in few.values()} == {None}


def test_a_large_window_is_drawn_from(draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "MOST_ROWS", 50)
    assert report(draw(120, 1), draw(300, 0))["images"].requests == 50


def test_the_same_seed_gives_the_same_report(draw: Draw) -> None:
    reference, window = draw(300, 0), draw(100, 1)
    assert report(window, reference, 3) == report(window, reference, 3)
    assert report(window, reference, 3) != report(window, reference, 4)
