import math

import numpy as np
import pytest

from compo_pipeline.evaluation import statistics
from compo_pipeline.seeding import numpy_rng


def _draws(right: np.ndarray, items: np.ndarray, resamples: int = 4000) -> np.ndarray:
    """Draws of one figure; right [S, G]."""
    generator = numpy_rng("test")
    seeds = statistics.seed_weights(len(right), resamples, generator)
    images = statistics.image_weights(len(items), resamples, generator)
    return statistics.mean_draws(right[:, :, None], items[:, None], images, seeds)[:, 0]


def test_weights_are_counts_of_draws() -> None:
    weights = statistics.image_weights(7, 50, np.random.default_rng(0))
    assert weights.shape == (50, 7)
    assert (weights.sum(axis=1) == 7).all() and (weights == weights.round()).all()
    assert not (weights[0] == weights[1]).all()
    shares = statistics.seed_weights(5, 50, np.random.default_rng(0))
    assert shares.sum(axis=1) == pytest.approx(np.ones(50))
    assert (statistics.seed_weights(1, 3, np.random.default_rng(0)) == 1).all()


def test_mean_draws_agree_with_resampling_item_by_item() -> None:
    right = np.array([[1, 0, 2], [0, 1, 2]], dtype=float)  # two seeds, three images
    items = np.array([1, 1, 2], dtype=float)
    images = np.array([[2, 0, 1], [1, 1, 1], [3, 0, 0]], dtype=float)
    seeds = np.array([[1, 0], [0.5, 0.5], [0, 1]])
    drawn = statistics.mean_draws(right[:, :, None], items[:, None], images, seeds)[:, 0]
    # First resample: seed 0, image 0 twice, image 2 once: (2 * 1 + 2) / (2 * 1 + 2) = 1.
    # Second: mean of both seeds over everything: (3 / 4 + 3 / 4) / 2. Third: seed 1 has 0 of 3.
    assert drawn == pytest.approx([1.0, 0.75, 0.0])


def test_spread_of_one_item_an_image_is_the_binomial_one() -> None:
    right = (np.arange(400) % 4 == 0).astype(float)
    drawn = _draws(right[None], np.ones(400))
    assert drawn.std() == pytest.approx(math.sqrt(0.25 * 0.75 / 400), rel=0.06)
    low, high = statistics.interval(drawn)
    assert low == pytest.approx(0.25 - 1.96 * 0.02165, abs=0.005)
    assert high == pytest.approx(0.25 + 1.96 * 0.02165, abs=0.005)


def test_items_of_one_image_move_together() -> None:
    # 100 images of 5 items, all right or all wrong: no more certain than 100 items.
    right = 5 * (np.arange(100) % 2).astype(float)
    assert _draws(right[None], np.full(100, 5.0)).std() == pytest.approx(0.05, rel=0.08)


def test_seeds_add_their_spread_to_that_of_the_items() -> None:
    # Every item is right under one seed and wrong under the other: the items add nothing.
    right = np.array([np.ones(50), np.zeros(50)])
    drawn = _draws(right, np.ones(50))
    # The mean of two draws from {0, 1}.
    assert np.unique(drawn).tolist() == [0, 0.5, 1]
    assert drawn.std() == pytest.approx(math.sqrt(0.125), rel=0.06)


def test_resamples_without_any_item_are_left_out() -> None:
    images = np.array([[2.0, 0.0], [0.0, 2.0]])
    drawn = statistics.mean_draws(
        np.array([[[1.0], [0.0]]]), np.array([[1.0], [0.0]]), images, np.ones((2, 1))
    )[:, 0]
    assert drawn[0] == 1 and math.isnan(drawn[1])
    assert statistics.interval(drawn) == (1, 1)


def test_a_resample_averages_the_parts_that_it_has() -> None:
    nan = float("nan")
    draws = [np.array([0.2, nan, nan]), np.array([0.4, 0.6, nan])]
    for weights, first in (((0.5, 0.5), 0.3), ((0.25, 0.75), 0.35)):
        drawn = statistics.mean_of_parts(draws, weights)
        assert drawn[:2] == pytest.approx([first, 0.6]) and math.isnan(drawn[2])


def test_mcnemar_by_hand() -> None:
    # 1 of 6 changed sides one way: 2 * (C(6, 0) + C(6, 1)) / 2^6.
    assert statistics.mcnemar(1, 5) == statistics.mcnemar(5, 1) == pytest.approx(14 / 64)
    assert statistics.mcnemar(0, 0) == 1
    assert statistics.mcnemar(4, 4) == 1
    assert statistics.mcnemar(0, 10) == pytest.approx(2 / 1024)
    # Thousands of changes neither overflow nor vanish.
    assert 0 < statistics.mcnemar(5000, 5600) < 1e-8


def test_bootstrap_p() -> None:
    assert statistics.bootstrap_p(np.full(999, 0.3)) == pytest.approx(2 / 1000)
    assert statistics.bootstrap_p(np.array([-1.0, 1.0] * 50)) == 1
    assert statistics.bootstrap_p(np.array([-1.0] * 4 + [1.0] * 95)) == pytest.approx(0.1)


def test_least_detectable_difference_is_found_four_times_in_five() -> None:
    assert statistics.least_detectable(1.0) == pytest.approx(1.95996 + 0.84162, abs=1e-4)
    effect = statistics.least_detectable(0.5)
    found = np.random.default_rng(0).normal(effect, 0.5, 20_000) / 0.5 > 1.95996
    assert found.mean() == pytest.approx(0.8, abs=0.01)


def test_holm_by_hand() -> None:
    # Sorted: .01 * 4, .02 * 3, .03 * 2, .5 * 1, never falling.
    assert statistics.holm([0.02, 0.01, 0.5, 0.03]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert statistics.holm([0.6, 0.9]) == [1.0, 1.0]
    assert statistics.holm([]) == []
