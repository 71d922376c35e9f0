import math

import numpy as np
import pytest
from scipy import stats

from compo_pipeline.evaluation import statistics
from compo_pipeline.evaluation.statistics import Part, difference, level


def _part(right: np.ndarray, image: np.ndarray | None = None) -> Part:
    """Verdicts [S, n] or [n], by default of an image each."""
    right = np.atleast_2d(right)
    return Part(100.0 * right, np.arange(right.shape[1]) if image is None else image)


def _width(found: statistics.SampledMean) -> float:
    return found.interval[1] - found.interval[0]


def test_a_level_of_one_item_an_image_is_agresti_and_coulls() -> None:
    found = level([_part(np.arange(400) % 4 == 0)], [1.0])
    added = 1.959964**2 / 2
    items = 400 + 2 * added
    centre = (100 + added) / items
    error = math.sqrt(centre * (1 - centre) / items)
    assert found.value == 25
    half = stats.t.ppf(0.975, 399) * error
    assert found.interval == pytest.approx((100 * (centre - half), 100 * (centre + half)), abs=0.02)


@pytest.mark.parametrize("right", [0, 1])
def test_an_interval_does_not_collapse_at_the_ends(right: int) -> None:
    low, high = level([_part(np.full(80, right))], [1.0]).interval
    assert (high if right else low) == 100 * right
    wilson = stats.binomtest(80 * right, 80).proportion_ci(method="wilson")
    assert high - low == pytest.approx(100 * (wilson.high - wilson.low), rel=0.25)
    same = _part(np.full(80, right))
    low, high = difference([same], [same], [1.0]).interval
    assert low == -high and high == pytest.approx(100 * 1.99 * math.sqrt(2) / 82, rel=0.01)


def test_a_difference_is_bonett_and_prices() -> None:
    base, ours = np.zeros(100), np.zeros(100)
    ours[:12], base[12:17] = 1, 1
    found = difference([_part(ours)], [_part(base)], [1.0])
    gained, lost = 13 / 102, 6 / 102
    error = math.sqrt((gained + lost - (gained - lost) ** 2) / 102)
    half = stats.t.ppf(0.975, 99) * error
    middle = gained - lost
    assert found.value == pytest.approx(7)
    assert found.interval == pytest.approx((100 * (middle - half), 100 * (middle + half)), abs=0.1)


def test_items_of_one_image_count_as_the_design_effect_leaves() -> None:
    image = np.repeat(np.arange(100), 5)
    # All right or all wrong: no more certain than 100 items.
    together = level([_part(image % 2 == 0, image)], [1.0])
    alone = level([_part(np.arange(100) % 2 == 0)], [1.0])
    assert _width(together) == pytest.approx(_width(alone), rel=0.01)
    # Independent items: as certain as 500.
    right = np.random.default_rng(0).random(500) < 0.5
    independent, apart = level([_part(right, image)], [1.0]), level([_part(right)], [1.0])
    assert _width(independent) == pytest.approx(_width(apart), rel=0.15)


def test_an_average_weighs_its_parts() -> None:
    right = [np.arange(200) % 2 == 0, np.arange(50) % 5 == 0]
    numbers = np.split(np.arange(250), [200])
    found = level([_part(*part) for part in zip(right, numbers, strict=True)], [0.25, 0.75])
    assert found.value == pytest.approx(0.25 * 50 + 0.75 * 20)
    error = 100 * math.sqrt(0.25**2 * 0.25 / 199 + 0.75**2 * 0.16 / 49)
    assert _width(found) == pytest.approx(2 * 1.97 * error, rel=0.04)


def test_seeds_that_differ_widen_the_interval_by_students_t() -> None:
    # The items add nothing but what is added at the ends: every seed has all right or all wrong.
    values = np.linspace(40, 60, 5)[:, None].repeat(4000, 1)
    found = level([Part(values, np.arange(4000))], [1.0])
    expected = 2 * stats.t.ppf(0.975, 4) * np.std(values[:, 0], ddof=1) / math.sqrt(5)
    assert _width(found) == pytest.approx(expected, rel=0.01)
    two = level([Part(values[[0, 4]], np.arange(4000))], [1.0])
    assert two.interval == (0, 100)  # 12.7 standard errors of 10 points


def test_an_interval_of_three_seeds_holds_its_level() -> None:
    generator = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        accuracy = 0.8 + 0.02 * generator.standard_normal((3, 1))
        low, high = level([_part(generator.random((3, 400)) < accuracy)], [1.0]).interval
        held += low <= 80 <= high
    assert held >= 0.94 * 300


def test_a_part_of_one_image_has_a_spread() -> None:
    parts = [_part(np.array([k < 3]), np.array([k])) for k in range(8)]
    found = level(parts, [1 / 8] * 8)
    assert _width(found) == pytest.approx(_width(level([_part(np.arange(8) < 3)], [1.0])), rel=0.1)


@pytest.mark.parametrize("seeds", [1, 3])
def test_p_is_below_a_twentieth_where_the_interval_excludes_zero(seeds: int) -> None:
    generator = np.random.default_rng(seeds)
    base = _part(generator.random((seeds, 200)) < 0.5)
    excluded = set()
    for accuracy in (0.5, 0.55, 0.6, 0.65, 0.9):
        ours = _part(generator.random((seeds, 200)) < accuracy)
        found = difference([ours], [base], [1.0])
        low, high = found.interval
        assert (low > 0 or high < 0) == (found.p < 0.05)
        excluded.add(found.p < 0.05)
    assert excluded == {True, False}
    assert difference([base], [base], [1.0]).p == 1


def test_mcnemar_by_hand() -> None:
    # 1 of 6 changed sides one way: 2 * (C(6, 0) + C(6, 1)) / 2^6.
    assert statistics.mcnemar(1, 5) == statistics.mcnemar(5, 1) == pytest.approx(14 / 64)
    assert statistics.mcnemar(0, 0) == 1
    assert statistics.mcnemar(4, 4) == 1
    assert statistics.mcnemar(0, 10) == pytest.approx(2 / 1024)
    # Thousands of changes neither overflow nor vanish.
    assert 0 < statistics.mcnemar(5000, 5600) < 1e-8


def test_least_detectable_difference_is_found_four_times_in_five() -> None:
    generator = np.random.default_rng(0)
    base = _part(generator.random(2000) < 0.5)
    least = difference([_part(generator.random(2000) < 0.5)], [base], [1.0]).least_detectable
    found = 0
    for _ in range(500):
        base = _part(generator.random(2000) < 0.5)
        ours = generator.random(2000) < 0.5 + least / 100
        found += difference([_part(ours)], [base], [1.0]).interval[0] > 0
    assert least == pytest.approx(2.8016 * 100 * math.sqrt(0.5 / 2000), rel=0.03)
    assert found == pytest.approx(0.8 * 500, rel=0.05)


def test_holm_by_hand() -> None:
    # Sorted: .01 * 4, .02 * 3, .03 * 2, .5 * 1, never falling.
    assert statistics.holm([0.02, 0.01, 0.5, 0.03]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert statistics.holm([0.6, 0.9]) == [1.0, 1.0]
    assert statistics.holm([]) == []
