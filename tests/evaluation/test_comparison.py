import random
from collections.abc import Iterable

import numpy as np
import pytest

from compo_pipeline.evaluation import statistics
from compo_pipeline.evaluation.comparison import Row, by_role, compare, with_holm_together
from compo_pipeline.records import Score

MODELS = {"base": "base", "fine_tuned": "clic"}


def _scores(
    model: str, subtask: str, verdicts: Iterable[bool | None], metric: str = "accuracy"
) -> list[Score]:
    return [
        Score(model, "sugar_crepe", subtask, metric, str(k), f"{subtask}{k}.jpg", (), right,
              "missing" if right is None else None)
        for k, right in enumerate(verdicts)
    ]  # fmt: skip


def _rows(*scores: list[Score], **models: str) -> dict[str, Row]:
    together = [score for part in scores for score in part]
    rows = compare([together], {**MODELS, **models}, {})
    return {row.name: row for row in rows}


def test_figures_and_differences_by_hand() -> None:
    base = [True, False, False, True, None]
    ours = [True, True, True, False, None]
    row = _rows(_scores("base", "swap_obj", base), _scores("clic", "swap_obj", ours))["swap_obj"]
    assert (row.base.value, row.fine_tuned.value, row.vs_base.value) == (50, 75, 25)
    assert (row.items, row.skipped, row.images) == (4, 1, 4)
    assert (row.vs_base.gained, row.vs_base.lost) == (2, 1)
    assert row.vs_base.p == statistics.mcnemar(2, 1)
    assert row.control is None and row.vs_control is None
    assert row.vs_base.low <= 25 <= row.vs_base.high


def test_averages_weigh_subtasks_not_items() -> None:
    scores = [
        part
        for model in ("base", "clic")
        for part in (
            _scores(model, "add_obj", [True] * 9 + [False]),
            _scores(model, "add_att", [True, False]),
        )
    ]
    assert _rows(*scores)["add"].base.value == pytest.approx((90 + 50) / 2)


def test_pairing_narrows_the_interval() -> None:
    generator = np.random.default_rng(0)
    base = generator.random(500) < 0.6
    ours = base.copy()
    ours[:20] = True  # the same items but twenty
    paired = _rows(_scores("base", "x", base.tolist()), _scores("clic", "x", ours.tolist()))["x"]
    width = paired.vs_base.high - paired.vs_base.low
    assert width < 0.5 * (paired.base.high - paired.base.low)
    changed = int((ours != base).sum())
    # Variance of a paired difference whose items change one way alone: d (1 - d) / n.
    share = changed / 500
    expected = 100 * (share * (1 - share) / 500) ** 0.5
    assert paired.vs_base.least_detectable == pytest.approx(2.8016 * expected, rel=0.1)


def test_equal_models_are_level() -> None:
    verdicts = [True, False] * 20
    scores = [_scores(model, "x", verdicts) for model in ("base", "clic", "control")]
    row = _rows(*scores, control="control")["x"]
    for difference in (row.vs_base, row.vs_control):
        assert difference is not None
        assert difference.value == 0 and difference.low == -difference.high < 0
        assert difference.p == difference.p_holm == 1


def test_p_values_are_corrected_over_all_figures() -> None:
    parts = []
    for name in ("a", "b", "c"):
        parts.append(_scores("base", name, [False] * 8 + [True] * 2))
        parts.append(_scores("clic", name, [True] * 10))
    rows = _rows(*parts)
    assert rows["a"].vs_base.p == pytest.approx(2 / 256)
    assert rows["a"].vs_base.p_holm == pytest.approx(3 * 2 / 256)


def test_p_values_of_several_models_are_one_family() -> None:
    """Holm (1979): with the ps in order, reject while each is below 5% / (ps that are left)."""
    random_ = random.Random(0)
    parts = [_scores("base", name, [False] * 12) for name in "abcd"]
    tables = []
    for _ in range(2):
        own = [
            _scores("clic", name, [random_.random() < right for _ in range(12)])
            for name, right in zip("abcd", (0.95, 0.9, 0.6, 0.5), strict=True)
        ]
        tables.append(list(_rows(*parts, *own).values()))
    together = with_holm_together(tables)
    differences = [row.vs_base for rows in together for row in rows]
    ordered = sorted(differences, key=lambda one: one.p)
    rejected = []
    for rank, one in enumerate(ordered):
        if one.p * (len(ordered) - rank) >= 0.05:
            break
        rejected.append(one)
    assert 0 < len(rejected) < len(ordered)
    marked = [one for one in differences if one.significance == "above"]
    assert {id(one) for one in marked} == {id(one) for one in rejected}
    raw = [one for one in differences if one.low > 0]
    assert len(raw) > len(marked)


def test_models_scored_on_other_items_are_refused() -> None:
    base = _scores("base", "x", [True, True])
    ours = _scores("clic", "x", [True, None])
    with pytest.raises(ValueError, match="'clic' was scored on 1 items, 'base' on 2"):
        _rows(base, ours)


def test_subtasks_without_a_scored_item_give_no_figure() -> None:
    scores = [
        part
        for model in ("base", "clic")
        for part in (_scores(model, "add_obj", [True]), _scores(model, "add_att", [None]))
    ]
    assert set(_rows(*scores)) == {"add_obj"}


def test_seeds_widen_the_interval_of_a_method_that_depends_on_them() -> None:
    base = _scores("base", "x", [True, False] * 100)

    def seed(right: int) -> list[Score]:
        return base + _scores("clic", "x", [True] * right + [False] * (200 - right))

    steady = compare([seed(150)] * 4, MODELS, {})[0]
    moody = compare([seed(100), seed(130), seed(170), seed(200)], MODELS, {})[0]
    assert steady.fine_tuned.value == moody.fine_tuned.value == 75
    assert steady.base == moody.base

    def width(row: Row) -> float:
        return row.vs_base.high - row.vs_base.low

    assert width(moody) > 1.5 * width(steady)
    # Four times the same seed is one seed: nothing is gained by repeating it.
    alone = compare([seed(150)], MODELS, {})[0]
    assert width(steady) == pytest.approx(width(alone), rel=0.15)


def test_the_mean_per_class_has_an_interval_though_classes_are_rare() -> None:
    # Eight classes of one image each.
    rows = [
        Score(model, "zero_shot", f"things/{k}", "per_class", "0", f"{k}.jpg", (), k < right, None)
        for model, right in (("base", 2), ("clic", 6))
        for k in range(8)
    ]
    found = {row.name: row for row in compare([rows], MODELS, {})}["things"]
    assert (found.base.value, found.fine_tuned.value) == (25, 75)
    assert 0 <= found.base.low < 25 < found.base.high <= 100
    assert found.vs_base.least_detectable > 0


def test_by_role_nests_figures_for_dvc() -> None:
    scores = [part for model in ("base", "clic") for part in _scores(model, "x", [True, False])]
    assert by_role(compare([scores], MODELS, {})) == {
        "base": {"sugar_crepe": {"accuracy": {"x": 50}}},
        "fine_tuned": {"sugar_crepe": {"accuracy": {"x": 50}}},
    }


def test_the_same_seed_gives_the_same_intervals_in_any_order_of_rows() -> None:
    base, ours = ([k % of == 0 for k in range(30)] for of in (3, 2))
    scores = _scores("base", "x", base) + _scores("clic", "x", ours)
    first, *others = (compare([rows], MODELS, {}) for rows in (scores, scores, scores[::-1]))
    assert others == [first, first]


def test_a_difference_names_its_seeds() -> None:
    scores = [
        part
        for model in ("base", "clic")
        for part in _scores(model, "x", [k % (2 if model == "base" else 3) > 0 for k in range(60)])
    ]
    (alone,), (several,) = compare([scores], MODELS, {}), compare([scores] * 3, MODELS, {})
    assert alone.vs_base.format() == f"+16.7 [{alone.vs_base.low:+.1f}, {alone.vs_base.high:+.1f}]"
    assert several.vs_base.format() == f"{alone.vs_base.format()[:-1]}; 3 seeds]"
