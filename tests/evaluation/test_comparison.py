import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from compo_pipeline.benchmarks.items import Key
from compo_pipeline.core.records import GRADED, Score
from compo_pipeline.core.tables import Table
from compo_pipeline.evaluation import statistics
from compo_pipeline.evaluation.comparison import (
    Pair,
    Row,
    as_one_family,
    compare,
    compare_slices,
    headline_figures,
    merge_comparisons,
    row_statistics,
    run_pairs,
    with_holm,
)
from compo_pipeline.evaluation.metrics import reported_metrics

MODELS = {"base": "base", "fine_tuned": "clic"}
PAIRS = [("fine_tuned", "base")]


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
    roles = {**MODELS, **models}
    rows = compare([together], roles, run_pairs(roles), {})
    return {row.name: row for row in rows}


def test_figures_and_differences_by_hand() -> None:
    base = [True, False, False, True, None]
    ours = [True, True, True, False, None]
    row = _rows(_scores("base", "swap_obj", base), _scores("clic", "swap_obj", ours))["swap_obj"]
    assert (row.values["base"].value, row.estimate.value, row.difference.value) == (50, 75, 25)
    assert (row.items, row.skipped, row.images) == (4, 1, 4)
    assert (row.difference.gained, row.difference.lost) == (2, 1)
    assert row.difference.p == statistics.mcnemar(2, 1)
    assert [(each.model, each.against) for each in row.differences] == PAIRS
    assert list(row.values) == ["base", "fine_tuned"] and row.against("control") is None
    assert row.difference.low <= 25 <= row.difference.high


def test_comparisons_of_the_same_metrics_are_joined() -> None:
    """Two comparisons with one base, whose scores differ so that it shows whose values stay."""

    def table(right: int, pairs: Sequence[Pair], **wrong: int) -> list[Row]:
        """The base has `right` of ten items, each other model all but so many; of two subtasks."""
        scores = []
        for name in ("a", "b"):
            scores += _scores("base", name, [k < right for k in range(10)])
            for model, number in wrong.items():
                scores += _scores(model, name, [k >= number for k in range(10)])
        models = {model: model for model in ("base", *wrong)}
        return compare([scores], models, pairs, {("sugar_crepe", "accuracy", "a"): 0.5})

    first = table(2, [("x", "base")], x=0)
    second = table(3, [("z", "base"), ("z", "y")], z=1, y=4)
    found = merge_comparisons([first, second])
    assert [row.key for row in found] == [row.key for row in first]
    for row, one, two in zip(found, first, second, strict=True):
        assert list(row.values) == ["base", "x", "z", "y"]
        assert {name: each.value for name, each in row.values.items()} == {
            "base": 20, "x": 100, "z": 90, "y": 60,
        }  # fmt: skip
        assert row.values == {**two.values, **one.values}
        pairs = [(each.model, each.against) for each in row.differences]
        assert pairs == [("x", "base"), ("z", "base"), ("z", "y")]
        # Differences stay those of their own comparison, but for Holm's correction.
        assert [each.value for each in row.differences] == [80, 60, 30]
        own = (*one.differences, *two.differences)
        assert tuple(replace(each, p_holm=0.0) for each in row.differences) == tuple(
            replace(each, p_holm=0.0) for each in own
        )
        assert replace(row, values=one.values, differences=one.differences) == one
    differences = [each for row in found for each in row.differences]
    assert [each.p_holm for each in differences] == statistics.holm(
        [each.p for each in differences]
    )
    # The smallest of six ps, that of x on either subtask, is six times itself.
    assert found[0].difference.p == pytest.approx(2 / 256)
    assert found[0].difference.p_holm == pytest.approx(6 * 2 / 256)
    # One comparison is as it was; of none there is nothing.
    assert merge_comparisons([first]) == first and merge_comparisons([]) == []


def test_slices_are_of_one_family_with_the_rows_of_all_items() -> None:
    """Without this, a page of many slices without any true difference has a mark too often."""
    right = [k < 5 for k in range(40)]
    scores = [*_scores("base", "a", right), *_scores("m", "a", right[::-1])]
    models, pairs = {"base": "base", "m": "m"}, [("m", "base")]
    slices = {
        ("sugar_crepe", "a", f"{k}"): ("length=1", "object=dog") if k < 20 else ()
        for k in range(40)
    }
    rows = compare([scores], models, pairs, {})
    sliced = compare_slices([scores], models, pairs, slices, 1)
    assert len(rows) == 1 and {row.slice for row in sliced} == {"length=1", "object=dog"}
    found, parts = as_one_family(rows, sliced)
    every = [row.difference for row in (*rows, *sliced)]
    expected = statistics.holm([each.p for each in every])
    assert [row.difference.p_holm for row in (*found, *parts)] == expected
    assert (len(found), len(parts)) == (1, 2)
    # On its own each table would have had smaller ones.
    assert all(
        one.difference.p_holm >= other.difference.p_holm
        for one, other in zip((*found, *parts), (*rows, *sliced), strict=True)
    )
    assert parts[0].difference.p_holm > sliced[0].difference.p_holm


def test_models_scored_on_other_items_are_refused() -> None:
    base = _scores("base", "x", [True, True])
    ours = _scores("clic", "x", [True, None])
    with pytest.raises(ValueError, match="'clic' was scored on 1 items, 'base' on 2"):
        _rows(base, ours)


def test_seeds_widen_the_interval_of_a_method_that_depends_on_them() -> None:
    base = _scores("base", "x", [True, False] * 100)

    def seed(right: int) -> list[Score]:
        return base + _scores("clic", "x", [True] * right + [False] * (200 - right))

    steady = compare([seed(150)] * 4, MODELS, PAIRS, {})[0]
    moody = compare([seed(100), seed(130), seed(170), seed(200)], MODELS, PAIRS, {})[0]
    assert steady.estimate.value == moody.estimate.value == 75
    assert steady.values["base"] == moody.values["base"]

    def width(row: Row) -> float:
        return row.difference.high - row.difference.low

    assert width(moody) > 1.5 * width(steady)
    # Four times the same seed is one seed: nothing is gained by repeating it.
    alone = compare([seed(150)], MODELS, PAIRS, {})[0]
    assert width(steady) == pytest.approx(width(alone), rel=0.15)


def test_a_dozen_headline_figures_of_a_model_are_for_dvc() -> None:
    """One of each benchmark in turn, averages first; no other than those of all figures."""
    scores = [part for model in ("base", "clic") for part in _scores(model, "x", [True, False])]
    (row,) = compare([scores], MODELS, PAIRS, {})
    rows = [
        replace(row, benchmark=benchmark, name=name, headline=name != "part", averaged=name == "m")
        for benchmark in ("first", "second", "third")
        for name in ("part", *(f"{k}" for k in range(6)), "m")
    ]
    found = headline_figures(rows)
    assert set(found) == {"base", "fine_tuned"}
    for figures in found.values():
        kept = {benchmark: list(values["accuracy"]) for benchmark, values in figures.items()}
        assert kept == {key: ["m", "0", "1", "2"] for key in ("first", "second", "third")}
    few = headline_figures(rows[:3])
    assert few["base"] == {"first": {"accuracy": {"0": 50, "1": 50}}}


def _slowly(
    seeds: Sequence[Sequence[Score]],
    models: Mapping[str, str],
    pairs: Sequence[Pair],
    chance: Mapping[Key, float],
) -> list[Row]:
    """What `compare` finds, item by item from the scores themselves."""

    def results(scores: Iterable[Score], role: str, key: Key) -> dict[str, Score]:
        own = [each for each in scores if (each.model, _key(each)) == (models[role], key)]
        return {each.item: each for each in sorted(own, key=lambda each: each.item)}

    rows: list[Row] = []
    keys = list(dict.fromkeys(map(_key, seeds[0])))
    for benchmark in dict.fromkeys(key[0] for key in keys):
        base = {key: results(seeds[0], "base", key) for key in keys if key[0] == benchmark}
        scored = {
            key: {item: each for item, each in own.items() if each.value is not None}
            for key, own in base.items()
        }
        images = sorted({each.group for own in scored.values() for each in own.values()})
        for metric in reported_metrics({key: len(own) for key, own in scored.items()}):
            of = [(benchmark, metric.metric, subtask) for subtask in metric.weights]
            if not all(scored.get(key) for key in of):
                continue
            parts: dict[str, list[statistics.Part]] = {role: [] for role in models}
            for role, key in product(models, of):
                values = [
                    [results(scores, role, key)[item].value for item in scored[key]]
                    for scores in seeds
                ]
                place = [images.index(each.group) for each in scored[key].values()]
                per_cent = 100.0 * np.array(values, dtype=np.float64)
                parts[role].append(statistics.Part(per_cent, np.array(place)))
            weights = list(metric.weights.values())
            known = all(key in chance for key in of)
            verdicts = metric.metric not in GRADED
            exact = verdicts and len(of) == 1 and len(seeds) == 1
            estimates, differences = row_statistics(
                parts, pairs, weights, exact=exact, verdicts=verdicts
            )
            rows.append(
                Row(
                    benchmark,
                    metric.metric,
                    metric.name,
                    metric.label,
                    metric.headline,
                    metric.averaged,
                    items=sum(len(scored[key]) for key in of),
                    skipped=sum(len(base[key]) - len(scored[key]) for key in of),
                    images=len({each.group for key in of for each in scored[key].values()}),
                    chance=100 * sum(w * chance[key] for w, key in zip(weights, of, strict=True))
                    if known
                    else None,
                    values=estimates,
                    differences=differences,
                )
            )
    return with_holm(rows)


def _key(score: Score) -> Key:
    return score.benchmark, score.metric, score.subtask


KEYS = (
    ("sugar_crepe", "accuracy", "swap_obj"),
    ("sugar_crepe", "accuracy", "add_obj"),
    ("sugar_crepe", "accuracy", "add_att"),
    ("sugar_crepe_pp", "itt", "swap_att"),
    ("sugar_crepe_pp", "tot", "swap_att"),
    ("winoground", "group", "all"),
    ("own", "average_precision", "few"),
    ("own", "average_precision", "empty"),
    ("own", "accuracy", "set/one"),
    ("own", "accuracy", "set/two"),
)


def _random_scores(random_: random.Random, names: Sequence[str]) -> list[list[Score]]:
    """Three seeds of three models on the same items; some are skipped, some are there twice."""
    items = {
        key: {name: random_.choice(names) for name in random_.sample(names, random_.randint(4, 40))}
        for key in KEYS
    }
    skipped = {key: {name for name in own if random_.random() < 0.2} for key, own in items.items()}
    skipped[KEYS[7]] = set(items[KEYS[7]])

    def rows(model: str) -> Iterator[Score]:
        for key, own in items.items():
            benchmark, metric, subtask = key
            for item, group in [*own.items(), *list(own.items())[:3]]:
                start = (model, benchmark, subtask, metric, item, group)
                if item in skipped[key]:
                    yield Score(*start, (), None, "missing")
                else:
                    right = None if metric in GRADED else random_.random() < 0.6
                    yield Score(*start, (random_.random(), random_.random()), right, None)

    seeds = [[row for model in ("base", "control", "clic") for row in rows(model)] for _ in "012"]
    for rows_ in seeds:
        random_.shuffle(rows_)
    return seeds


@pytest.mark.parametrize("models", [MODELS, {**MODELS, "control": "control"}], ids=["two", "three"])
@pytest.mark.parametrize("count", [1, 3], ids=["one seed", "three seeds"])
def test_figures_are_those_of_a_slow_computation_to_the_last_bit(
    models: dict[str, str], count: int, tmp_path: Path
) -> None:
    random_ = random.Random(0)
    # In alphabetical order upper case comes before lower case, "10" before "2".
    names = [f"{start}{number}" for start in ("", "A", "b", "ä", "图") for number in range(12)]
    seeds = [
        [row for row in rows if row.model in models.values()]
        for rows in _random_scores(random_, names)[:count]
    ]
    chance = {key: random_.random() for key in KEYS[1:]}
    pairs = run_pairs(models)
    expected = _slowly(seeds, models, pairs, chance)
    assert len(expected) > 8 and any(row.skipped for row in expected)
    assert compare(seeds, models, pairs, chance) == expected
    tables = [Table.spilled(rows, Score, tmp_path) for rows in seeds]
    assert compare(tables, models, pairs, chance) == expected
    # Within slices: the same of their rows alone.
    slices = {
        (benchmark, subtask, name): random_.sample(("a=1", "a=2", "b=1"), random_.randint(0, 2))
        for benchmark, _, subtask in KEYS
        for name in names
    }
    found = compare_slices(tables, models, pairs, slices, 1)
    for one in ("a=1", "a=2", "b=1"):
        own = [
            [row for row in rows if one in slices[row.benchmark, row.subtask, row.item]]
            for rows in seeds
        ]
        alone = _slowly(own, models, pairs, {})
        own = {row.key: row for row in with_holm([row for row in found if row.slice == one])}
        assert own and own == {row.key: replace(row, slice=one) for row in alone}
