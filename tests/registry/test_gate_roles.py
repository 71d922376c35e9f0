"""The gate's rules about roles, on official sets and models made of vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from scipy.stats import binomtest

from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.benchmarks.settings import BENCHMARKS
from compo_pipeline.core.records import Score
from compo_pipeline.core.settings import parse
from compo_pipeline.evaluation import roles
from compo_pipeline.evaluation.contamination import Overlap
from compo_pipeline.evaluation.embed import Embedded, Tokens, Vectors
from compo_pipeline.evaluation.roles import ROLES, compare_roles
from compo_pipeline.evaluation.scoring import score_model
from compo_pipeline.registry.gate import Check, judge
from compo_pipeline.registry.settings import Gate, GateRule, PromotionSettings

IMAGES = 240
WIDTH = 48
SWAPS, REPLACES = ("swap_obj", "swap_att"), ("replace_obj", "replace_att", "replace_rel")
ADDS = ("add_obj", "add_att")


def official() -> list[Subtask]:
    """SugarCrepe, SugarCrepe++, Winoground, COCO and two zero-shot sets, as read from files."""
    root, numbers = Path("images"), [f"{number}" for number in range(IMAGES)]
    found = []
    for part in (*SWAPS, *REPLACES, *ADDS):
        items = tuple(Item(n, f"{n}.jpg", (f"right {n}",), (f"{part} {n}",)) for n in numbers)
        found.append(Subtask("sugar_crepe", part, ("image_to_text",), root, items))
        if part not in ADDS:
            two = (replace(one, positives=(*one.positives, f"also {one.item}")) for one in items)
            protocols = ("image_to_text", "text_only")
            found.append(Subtask("sugar_crepe_pp", part, protocols, root, tuple(two)))
    groups = tuple(
        Item(n, f"{n}_0.png", (f"first {n}",), (f"second {n}",), (f"{n}_1.png",)) for n in numbers
    )
    found.append(Subtask("winoground", "Object", ("group",), root, groups))
    scenes = tuple(
        Item(n, f"{n}.jpg", tuple(f"scene {n} {place}" for place in range(5))) for n in numbers
    )
    found.append(Subtask("coco", "karpathy", ("retrieval",), root / "coco", scenes))
    for name in ("meals", "pets"):
        classes = tuple(f"{name} {kind}" for kind in "abc")
        items = tuple(
            Item(f"{kind} {n}", f"{kind}/{n}.jpg", (kind,))
            for kind in classes
            for n in numbers[: IMAGES // 3]
        )
        prompts = ("a photo of {}.",)
        found.append(Subtask("zero_shot_sets", name, ("zero_shot",), root, items, classes, prompts))
    return found


OFFICIAL = ("sugar_crepe", "sugar_crepe_pp", "winoground", "coco", "zero_shot_sets")


def scored(subtasks: Sequence[Subtask], noise: float, shake: float = 0.0) -> list[Score]:
    """Scores of a model that sees what is in an image, and reads a caption with some noise.

    Args:
        subtasks: what is scored.
        noise: of right captions; wrong ones have a noise of 1.
        shake: of images, which spoils everything.
    """
    draw = np.random.default_rng(0)
    images: dict[str, np.ndarray[Any, Any]] = {}
    texts: dict[str, np.ndarray[Any, Any]] = {}

    def vector() -> np.ndarray[Any, Any]:
        return draw.normal(size=WIDTH)

    for task in subtasks:
        for name in task.classes:
            texts.update(dict.fromkeys(task.prompts(name), vector()))
        for item in task.items:
            first = task.path(item)
            if task.classes:
                prompt = task.prompts(item.positives[0])[0]
                images[str(first)] = texts[prompt] + 1.5 * vector()
                continue
            seen = images.setdefault(str(first), vector())
            other = [images.setdefault(str(path), seen + vector()) for path in task.paths(item)[1:]]
            for text in item.positives:
                texts[text] = seen + noise * vector()
            for text in item.negatives:
                texts[text] = other[0] + noise * vector() if other else seen + vector()
    images = {path: value + shake * vector() for path, value in images.items()}
    return score_model(subtasks, embedded(images, texts), "m").rows


def embedded(images: dict[str, Any], texts: dict[str, Any]) -> Embedded:
    def unit(values: dict[str, Any]) -> Vectors:
        rows = np.array(list(values.values()), dtype=np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return Vectors(rows, {name: place for place, name in enumerate(values)})

    places = {text: place for place, text in enumerate(texts)}
    cut = np.zeros(len(texts), dtype=bool)
    tokens = Tokens(torch.arange(len(texts)).reshape(-1, 1), cut, places)
    return Embedded(unit(images), {}, unit(texts), tokens)


def clean(scores: Iterable[Score]) -> list[Overlap]:
    """Nothing of the items is in the training data."""
    places = {(score.benchmark, score.subtask.partition("/")[0]) for score in scores}
    return [Overlap(*place, IMAGES, 0, 0, IMAGES, 0) for place in sorted(places)]


@pytest.fixture(scope="module")
def promotion() -> PromotionSettings:
    """The settings of conf/base."""
    file = Path(__file__).parents[2] / "conf/base/parameters_promotion.yml"
    return parse(PromotionSettings, yaml.safe_load(file.read_text())["promotion"], "promotion")


@pytest.fixture(scope="module")
def models() -> Callable[..., list[Score]]:
    """Scores of all sets by noise and shake, or those of some benchmarks; each model once."""
    subtasks = official()
    known = cache(lambda noise, shake: scored(subtasks, noise, shake))
    return lambda noise, shake=0.0, benchmarks=OFFICIAL: [
        score for score in known(noise, shake) if score.benchmark in benchmarks
    ]


def judged(
    ours: list[Score], theirs: list[Score], settings: PromotionSettings
) -> tuple[Check, ...]:
    return judge(ours, theirs, clean(ours), settings.gate, waive=settings.waive)


def failed(checks: Iterable[Check]) -> list[Check]:
    return [check for check in checks if not check.passed]


def test_a_better_model_passes_and_a_shaken_one_is_refused(
    models: Callable[..., list[Score]], promotion: PromotionSettings
) -> None:
    base = models(1.0)
    checks = judged(models(0.5), base, promotion)
    assert failed(checks) == []
    assert [(check.rule, check.subject) for check in checks if check.numbers is not None] == [
        ("composition", "Composition, mean of 2 sets"),
        ("composition", "SugarCrepe++ ITT average"),
        ("composition", "Winoground group score"),
        ("retrieval", "COCO retrieval image to text R@5 karpathy"),
        ("retrieval", "COCO retrieval text to image R@5 karpathy"),
        ("zero_shot", "Zero-shot meals top-1"),
        ("zero_shot", "Zero-shot pets top-1"),
    ]
    # It reads captions better, what it knew of images is lost; no waiver helps a scored role.
    for settings in (promotion, replace(promotion, waive=ROLES)):
        refused = failed(judged(models(0.5, 3.0), base, settings))
        assert {check.rule for check in refused} == {"composition", "retrieval", "zero_shot"}
    assert {check.rule for check in failed(judged(base, base, promotion))} == {"composition"}


@pytest.mark.parametrize(
    ("role", "sets"),
    [
        ("composition", ["SugarCrepe++", "Winoground"]),
        ("retrieval", ["Retrieval", "Flickr30k retrieval"]),
        ("zero_shot", ["Zero-shot (zero_shot_sets)"]),
    ],
)
def test_an_absent_role_is_refused_until_it_is_waived(
    models: Callable[..., list[Score]], promotion: PromotionSettings, role: Any, sets: list[str]
) -> None:
    others = [name for name in OFFICIAL if BENCHMARKS[name].role != role]
    base, better = models(1.0, benchmarks=others), models(0.5, benchmarks=others)
    (refusal,) = failed(judged(better, base, promotion))
    assert (refusal.rule, refusal.absent, refusal.waived) == (role, role, None)
    assert f"`promotion.waive: [{role}]`" in refusal.finding
    for name in sets:
        assert name in refusal.finding
    checks = judged(better, base, replace(promotion, waive=(role,)))
    assert failed(checks) == [] and [each.waived for each in checks if each.waived] == [role]
    # A waiver waives what is absent, and nothing else.
    other = replace(promotion, waive=tuple(each for each in ROLES if each != role))
    assert [check.rule for check in failed(judged(better, base, other))] == [role]


def test_one_key_waives_all_that_is_absent(
    models: Callable[..., list[Score]], promotion: PromotionSettings
) -> None:
    ours, theirs = models(0.5, benchmarks=["coco"]), models(1.0, benchmarks=["coco"])
    refused = failed(judged(ours, theirs, promotion))
    assert [check.rule for check in refused] == ["composition", "zero_shot"]
    for check in refused:
        assert "`promotion.waive: [composition, zero_shot]`" in check.finding


def table(verdicts: dict[str, Sequence[bool]]) -> list[Score]:
    """Scores of benchmarks of composition with one subtask each, over images of their own."""
    metric = {"winoground": ("group", "all"), "color_swap": ("group", "all")}
    return [
        Score("m", name, metric[name][1], metric[name][0], f"{k}", f"{name} {k}", (0.5,), ok, None)
        for name, own in verdicts.items()
        for k, ok in enumerate(own)
    ]


def test_the_mean_of_a_role_and_its_interval() -> None:
    """Against a bootstrap over images."""
    draw = np.random.default_rng(0)
    shared = {"winoground": draw.random((2, 200)), "color_swap": draw.random((2, 400))}
    ours = table({name: list(values[0] < 0.6) for name, values in shared.items()})
    theirs = table({name: list(values[1] < 0.45) for name, values in shared.items()})
    scores = [
        replace(score, model=model) for model, own in (("a", ours), ("b", theirs)) for score in own
    ]
    found = compare_roles([scores], {"a": "a", "b": "b"}, [("a", "b")])["composition"]
    differences = [
        100 * ((values[0] < 0.6).astype(float) - (values[1] < 0.45)) for values in shared.values()
    ]
    difference = found.mean.difference
    assert difference.value == pytest.approx(np.mean([each.mean() for each in differences]))
    resampled = [
        np.mean([draw.choice(each, len(each)).mean() for each in differences]) for _ in range(4000)
    ]
    low, high = np.percentile(resampled, [2.5, 97.5])
    assert difference.low == pytest.approx(low, abs=0.7)
    assert difference.high == pytest.approx(high, abs=0.7)
    assert (found.mean.items, found.mean.images) == (600, 600)


def test_items_of_one_image_in_two_benchmarks_are_one_unit() -> None:
    """The second benchmark repeats the first one, which tells nothing more."""
    draw = np.random.default_rng(1)
    ours, theirs = (list(draw.random(200) < share) for share in (0.6, 0.5))
    models = {"a": ours, "b": theirs}

    def compared(*benchmarks: str) -> Any:
        scores = [
            replace(score, model=model, group=score.item)
            for model, own in models.items()
            for score in table(dict.fromkeys(benchmarks, own))
        ]
        found = compare_roles([scores], {"a": "a", "b": "b"}, [("a", "b")])
        return found["composition"].mean

    once, twice = compared("winoground"), compared("winoground", "color_swap")
    assert twice.images == once.images == 200
    width = once.difference.high - once.difference.low
    assert twice.difference.high - twice.difference.low == pytest.approx(width, rel=0.02)


@pytest.mark.parametrize("lost", [0, 12, 18, 21, 27])
def test_a_role_does_not_rise_where_a_set_falls_significantly(lost: int) -> None:
    """Of two sets the one rises much; of the other so many items are lost and ten gained."""
    rises = [k < 150 for k in range(200)], [k < 50 for k in range(200)]
    falls = [k >= lost for k in range(200)], [k < 190 for k in range(200)]
    ours, theirs = (
        table({"winoground": rises[place], "color_swap": falls[place]}) for place in (0, 1)
    )
    gate = Gate(version=1, rules={"composition": GateRule("rise", role="composition")})
    settings = PromotionSettings(gate)
    checks = [check for check in judged(ours, theirs, settings) if check.numbers is not None]
    mean, *sets = checks
    assert mean.passed and "mean of 2 sets" in mean.subject and sets[0].passed
    exact = binomtest(min(lost, 10), lost + 10).pvalue
    assert sets[1].passed == (lost <= 10 or exact >= 0.05 / 2)


def test_an_item_more_in_one_set_never_makes_another_one_fail() -> None:
    draw = np.random.default_rng(2)
    gate = Gate(version=1, rules={"composition": GateRule("rise", role="composition")})
    settings = PromotionSettings(gate)
    for _ in range(6):
        verdicts = [
            {name: list(draw.random(100) < 0.5) for name in ("winoground", "color_swap")}
            for _ in range(2)
        ]
        before = {c.subject for c in failed(judged(*map(table, verdicts), settings))}
        wrong = verdicts[0]["winoground"].index(False)
        verdicts[0]["winoground"][wrong] = True
        after = {c.subject for c in failed(judged(*map(table, verdicts), settings))}
        assert after <= before


def test_a_set_that_could_not_be_scored_fails_the_role(
    models: Callable[..., list[Score]], promotion: PromotionSettings
) -> None:
    tables = [
        [
            replace(score, similarities=(), correct=None, skipped="missing")
            if (score.benchmark, score.subtask) == ("sugar_crepe_pp", "swap_att")
            else score
            for score in models(noise)
        ]
        for noise in (0.5, 1.0)
    ]
    (refusal,) = failed(judged(*tables, promotion))
    assert refusal.rule == "composition" and refusal.subject == "SugarCrepe++ ITT average"
    assert "no item that could be scored" in refusal.finding


def test_of_some_files_a_benchmark_is_the_mean_over_those_that_are_there(
    models: Callable[..., list[Score]],
) -> None:
    scores = [
        score
        for score in models(0.5, benchmarks=("sugar_crepe", "sugar_crepe_pp"))
        if score.benchmark == "sugar_crepe" or score.subtask in SWAPS
    ]
    found = compare_roles([scores], {"m": "m"}, [("m", "m")])["composition"]
    # SugarCrepe counts: the other benchmark lacks some of its items.
    assert {each.label for each in found.sets} == {
        "SugarCrepe average",
        "SugarCrepe++, mean of swap obj, swap att",
    }
    own = next(each for each in found.sets if each.label.startswith("SugarCrepe++"))
    expected = [
        np.mean([s.correct for s in scores if (s.metric, s.subtask) == ("itt", name)])
        for name in SWAPS
    ]
    assert own.values["m"].value == pytest.approx(100 * np.mean(expected))


def test_every_listed_metric_is_one_that_its_benchmark_reports() -> None:
    for name, figures in roles._COMPOSITION.items():
        benchmark = BENCHMARKS[name]
        assert benchmark.role == "composition"
        for metric, part in figures:
            assert benchmark.headline(metric, part), (name, metric, part)
