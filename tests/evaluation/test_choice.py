import numpy as np
import pytest

from compo_pipeline.evaluation.protocols import choice


def test_image_to_text_needs_every_positive_above_every_negative() -> None:
    positives = np.array([[0.5, 0.4], [0.5, 0.2], [0.3, 0.9], [0.4, 0.4]])
    negatives = np.array([[0.3], [0.3], [0.29], [0.4]])
    # Second: one positive below. Fourth: a tie, which is wrong.
    assert choice.image_to_text(positives, negatives).tolist() == [True, False, True, False]


def test_image_to_text_looks_at_the_strongest_negative() -> None:
    assert not choice.image_to_text(np.array([[0.5]]), np.array([[0.1, 0.6, 0.2]]))[0]


def test_text_only_needs_both_comparisons_strictly() -> None:
    between = np.array([0.9, 0.9, 0.9, 0.9])
    first = np.array([0.8, 0.95, 0.8, 0.9])
    second = np.array([0.7, 0.7, 0.95, 0.1])
    assert choice.text_only(between, first, second).tolist() == [True, False, False, False]


@pytest.mark.parametrize(("positives", "negatives", "level"), [(1, 1, 1 / 2), (2, 1, 1 / 3)])
def test_chance_is_the_share_of_orders_that_are_right(
    positives: int, negatives: int, level: float
) -> None:
    assert choice.image_to_text_chance(positives, negatives) == pytest.approx(level)
    drawn = np.random.default_rng(0).standard_normal((20_000, positives + negatives))
    share = choice.image_to_text(drawn[:, :positives], drawn[:, positives:]).mean()
    assert share == pytest.approx(level, abs=0.015)
