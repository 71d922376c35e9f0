import itertools

import numpy as np
import pytest

from compo_pipeline.evaluation import protocols


def test_image_to_text_needs_every_positive_above_every_negative() -> None:
    positives = np.array([[0.5, 0.4], [0.5, 0.2], [0.3, 0.9], [0.4, 0.4]])
    negatives = np.array([[0.3], [0.3], [0.29], [0.4]])
    # Second: one positive below. Fourth: a tie, which is wrong.
    assert protocols.choice(positives, negatives).tolist() == [True, False, True, False]


def test_ties_are_right_where_the_official_code_takes_the_first() -> None:
    tie = np.array([[0.4, 0.4], [0.4, 0.5]])
    assert protocols.verdicts("accuracy", tie, 1).tolist() == [False, False]
    assert protocols.verdicts("accuracy", tie, 1, ties_right=True).tolist() == [True, False]


def test_group_scores_are_winogrounds_item_by_item() -> None:
    drawn = np.random.default_rng(0).integers(0, 4, (300, 2, 2)) / 4  # many ties
    found = protocols.group(drawn)
    for k, s in enumerate(drawn):
        text = s[0, 0] > s[0, 1] and s[1, 1] > s[1, 0]
        image = s[0, 0] > s[1, 0] and s[1, 1] > s[0, 1]
        assert found["text"][k] == text and found["image"][k] == image
        assert found["group"][k] == (text and image)
        assert found["group_match"][k] == (s[0, 0] + s[1, 1] > s[0, 1] + s[1, 0])
    shares = protocols.group(np.random.default_rng(0).standard_normal((20_000, 2, 2)))
    for metric, chance in protocols.GROUP_CHANCES.items():
        assert shares[metric].mean() == pytest.approx(chance, abs=0.015)


@pytest.mark.parametrize(
    ("metric", "count"),
    [
        ("itt", 4),
        ("joint", 6),
        ("t2i", 4),
        ("tot", 3),
        ("i2t_r1", 2),
        *((one, 4) for one in protocols.GROUP_CHANCES),
    ],
)
def test_the_margin_is_positive_where_the_verdict_is_right(metric: str, count: int) -> None:
    drawn = np.random.default_rng(0).integers(0, 4, (300, count)) / 4  # many ties
    margins = [protocols.margin(metric, row, 2) for row in drawn.tolist()]
    assert (np.array(margins) > 0).tolist() == protocols.verdicts(metric, drawn, 2).tolist()


def test_text_only_needs_both_comparisons_strictly() -> None:
    between = np.array([0.9, 0.9, 0.9, 0.9])
    first = np.array([0.8, 0.95, 0.8, 0.9])
    second = np.array([0.7, 0.7, 0.95, 0.1])
    assert protocols.text_only(between, first, second).tolist() == [True, False, False, False]


@pytest.mark.parametrize(("positives", "negatives", "level"), [(1, 1, 1 / 2), (2, 1, 1 / 3)])
def test_chance_is_the_share_of_orders_that_are_right(
    positives: int, negatives: int, level: float
) -> None:
    assert protocols.choice_chance(positives, negatives) == pytest.approx(level)
    drawn = np.random.default_rng(0).standard_normal((20_000, positives + negatives))
    share = protocols.choice(drawn[:, :positives], drawn[:, positives:]).mean()
    assert share == pytest.approx(level, abs=0.015)


def _slow(similarities: np.ndarray, query: int, owner: np.ndarray, k: int) -> bool:
    """Right when fewer than k candidates that do not match stand at or above the best match."""
    best = max(s for s, o in zip(similarities, owner, strict=True) if o == query)
    above = [s for s, o in zip(similarities, owner, strict=True) if o != query and s >= best]
    return len(above) < k


def test_ranking_agrees_with_the_obvious_rule_ties_included() -> None:
    generator = np.random.default_rng(1)
    for _ in range(30):
        owner = np.concatenate([np.arange(8), generator.integers(0, 8, 12)])
        # Few distinct values, so that ties are common.
        similarities = generator.integers(0, 9, (8, 20)) / 8
        best, rivals = protocols.ranking(similarities, np.arange(8), owner, (1, 5, 10))
        for query in range(8):
            for column, k in enumerate((1, 5, 10)):
                right = bool(best[query] > rivals[query, column])
                assert right == _slow(similarities[query], query, owner, k)


def test_chance_by_counting() -> None:
    assert protocols.ranking_chance(10, 1, 1) == pytest.approx(0.1)
    assert protocols.ranking_chance(10, 5, 1) == pytest.approx(0.5)
    # Of the 10 pairs out of 5, 3 hold neither of the two matches.
    assert protocols.ranking_chance(5, 2, 2) == pytest.approx(0.7)
    assert protocols.ranking_chance(5, 2, 4) == 1.0


def test_class_embedding_is_the_normalised_mean_over_templates() -> None:
    prompts = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.6, 0.8], [0.6, 0.8]]])
    weights = protocols.class_embeddings(prompts)
    assert weights == pytest.approx(np.array([[0.5**0.5, 0.5**0.5], [0.6, 0.8]]))


def test_average_precision_and_its_chance_by_counting() -> None:
    """Of the definition in torchmetrics and scikit-learn: a tie counts as ranked above."""
    assert protocols.average_precision(np.array([0.9, 0.1, 0.5]), 2) == (1 + 2 / 3) / 2
    assert protocols.average_precision(np.array([0.5, 0.5]), 1) == 1 / 2
    for candidates, matches in ((1, 1), (4, 1), (4, 2), (5, 3)):
        orders = [
            protocols.average_precision(np.array(order), matches)
            for order in itertools.permutations(range(candidates))
        ]
        chance = protocols.average_precision_chance(candidates, matches)
        assert np.mean(orders) == pytest.approx(chance)
