"""How much attention lies on a named thing, and comparisons of models in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from compo_pipeline.evaluation.analysis.attention import (
    Attention,
    AttentionResult,
    attend,
    coverage,
    embed_phrases,
)
from compo_pipeline.evaluation.analysis.cases import Case, Region
from compo_pipeline.evaluation.analysis.localisation import (
    MEASURES,
    Located,
    cases_to_draw,
    compare_located,
    measure,
    measure_model,
)
from compo_pipeline.evaluation.analysis.settings import AttentionSettings
from compo_pipeline.images.decoding import Limits
from compo_pipeline.models.loading import LoadedModel, load

CASE = Case(Path(), "a.png", "a box")


@pytest.fixture(scope="module")
def loaded(tiny_clip: Path) -> LoadedModel:
    """A random model that sees 32 x 32 pixels in 2 x 2 patches."""
    return load(tiny_clip)


@pytest.fixture
def cases(tmp_path: Path) -> list[Case]:
    """Three images of 40 x 20 pixels, five phrases, regions of all kinds."""
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 255, (20, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    left = Region(40, 20, ((0, 20 * 20, 20 * 20),))
    return [
        Case(tmp_path, "0.png", "a red ball", left),
        Case(tmp_path, "1.png", "a box", Region(40, 20, (), ((5, 5, 30, 5, 30, 15, 5, 15),))),
        Case(tmp_path, "0.png", "a box", Region(40, 20, ((600, 200),))),
        Case(tmp_path, "2.png", "two cups", left),
        Case(tmp_path, "2.png", "a box"),
    ]


def test_a_measure_by_hand() -> None:
    attention = Attention(
        plain=np.float32([[0.1, 0.2], [0.3, 0.4]]), scaled=np.float32([[0.0, 0.0], [0.9, 0.1]])
    )
    covered = np.float32([[0.0, 0.0], [1.0, 0.5]])
    row = measure(AttentionResult(CASE, attention, covered))
    assert row.share == pytest.approx(0.3 + 0.5 * 0.4)
    assert row.share_scaled == pytest.approx(0.95)
    assert (row.area, row.chance, row.hit) == (0.375, 0.25, 0.0)
    # The patch with most of it is the last; half a patch is not more than half.
    fuller = measure(AttentionResult(CASE, attention, np.float32([[0.0, 0.0], [1.0, 0.6]])))
    assert (fuller.chance, fuller.hit) == (0.5, 1.0)


def test_uniform_attention_lies_on_a_thing_by_its_area() -> None:
    uniform = np.full((3, 3), 1 / 9, np.float32)
    covered = np.random.default_rng(0).random((3, 3)).astype(np.float32)
    row = measure(AttentionResult(CASE, Attention(uniform, uniform), covered))
    assert row.share == pytest.approx(row.area) and row.share_scaled == pytest.approx(row.area)


@pytest.mark.parametrize("batch", [1, 2, 64])
def test_every_case_is_located_one_by_one(
    loaded: LoadedModel, cases: list[Case], batch: int
) -> None:
    found = {(row.image, row.phrase): row for row in measure_model(loaded, cases, batch=batch)}
    assert len(found) == 5
    for case in cases[:4]:
        with Image.open(case.root / case.image) as image:
            pixels = loaded.preprocess(image)[None]
        ((maps,),) = attend(loaded, pixels, [embed_phrases(loaded, [case.phrase])])
        assert case.region is not None
        covered = coverage(loaded, case.region.mask(), 2)
        row = found[case.image, case.phrase]
        assert row.problem is None
        places = [(y, x) for y in range(2) for x in range(2)]
        share = sum(float(maps.plain[place] * covered[place]) for place in places)
        assert row.share == pytest.approx(share, rel=1e-4)
        scaled = sum(float(maps.scaled[place] * covered[place]) for place in places)
        assert row.share_scaled == pytest.approx(scaled, rel=1e-3)
        most = max(places, key=lambda place: maps.plain[place])
        assert row.hit == float(covered[most] > 0.5)
    unknown = found["2.png", "a box"]
    assert unknown.problem is None and math.isnan(unknown.share) and math.isnan(unknown.area)


def test_rows_come_in_the_order_of_the_images(loaded: LoadedModel, cases: list[Case]) -> None:
    (cases[0].root / "1.png").write_text("no image")
    found = [(row.image, row.phrase) for row in measure_model(loaded, cases)]
    assert found == [
        ("0.png", "a red ball"),
        ("0.png", "a box"),
        ("1.png", "a box"),
        ("2.png", "two cups"),
        ("2.png", "a box"),
    ]


def test_each_image_is_encoded_once(
    loaded: LoadedModel, cases: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    forward = loaded.model.visual.forward_intermediates

    def counted(pixels: Any, **rest: Any) -> Any:
        seen.append(len(pixels))
        return forward(pixels, **rest)

    monkeypatch.setattr(loaded.model.visual, "forward_intermediates", counted)
    measure_model(loaded, cases, batch=2)
    assert seen == [2, 1]


def test_what_cannot_be_measured_says_why(
    loaded: LoadedModel, cases: list[Case], tmp_path: Path
) -> None:
    (tmp_path / "broken.png").write_text("no image")
    region = Region(40, 20, ((0, 800),))
    bad = [
        Case(tmp_path, "broken.png", "a box", region),
        Case(tmp_path, "none.png", "a box", region),
        Case(tmp_path, "../0.png", "a box", region),
        replace(cases[0], region=Region(20, 40, ((0, 800),))),
        replace(cases[1], region=Region(40, 20, ((800,),))),
    ]
    rows = measure_model(loaded, bad)
    problems = [row.problem for row in rows]
    assert problems == [
        "unreadable image (not_an_image)",
        "unreadable image (missing)",
        "unreadable image (out_of_root)",
        "region of another size than the image",
        "region outside of what the model sees",
    ]
    assert all(math.isnan(row.share) for row in rows)


def test_limits_are_the_callers(loaded: LoadedModel, cases: list[Case]) -> None:
    rows = measure_model(loaded, cases[:1], limits=Limits(max_pixels=10))
    assert rows[0].problem == "unreadable image (oversized)"


def test_nothing_asked_is_nothing_located(loaded: LoadedModel) -> None:
    assert measure_model(loaded, []) == []


def rows(shares: Iterable[float], scale: float = 1.0) -> list[Located]:
    """A row each, two of an image."""
    return [
        Located(f"{place // 2}.jpg", f"thing {place}", 0.1, share, scale * share, 0.05, share > 0.3)
        for place, share in enumerate(shares)
    ]


def test_a_comparison_is_of_means_in_per_cent() -> None:
    base, tuned = rows([0.1, 0.2, 0.3, 0.4]), rows([0.2, 0.1, 0.5, 0.6])
    compared = compare_located([{"base": base, "fine_tuned": tuned}])
    assert [row.metric for row in compared] == [measure.name for measure in MEASURES]
    share, scaled, hit = compared
    assert (share.items, share.images, share.skipped) == (4, 2, 0)
    values = {role: estimate.value for role, estimate in share.values.items()}
    assert values == pytest.approx({"base": 25, "fine_tuned": 35})
    assert share.difference.value == pytest.approx(10)
    assert (share.difference.gained, share.difference.lost) == (3, 1)
    assert share.chance == scaled.chance == pytest.approx(10)
    assert hit.chance == pytest.approx(5)
    assert (hit.values["base"].value, hit.estimate.value) == (25, 50)
    assert [(each.model, each.against) for each in share.differences] == [("fine_tuned", "base")]


def test_intervals_are_over_images() -> None:
    base, tuned = rows([0.1] * 20), rows([0.2, 0.2, 0.4, 0.4] * 5)
    (share, *_) = compare_located([{"base": base, "fine_tuned": tuned}])
    half = 2.262 * 10.54 / 10**0.5  # t of ten images, of 10 and 30 points each
    ends = share.difference.low, share.difference.high
    assert ends == pytest.approx((20 - half, 20 + half), abs=0.1)
    assert (share.values["base"].low, share.values["base"].high) == pytest.approx((10, 10))


def test_with_several_seeds_the_interval_holds_their_spread() -> None:
    base = rows([0.1] * 20)
    runs = [rows([0.1 + gain] * 20) for gain in (0.1, 0.2, 0.3)]
    each = [{"base": base, "control": base, "fine_tuned": run} for run in runs]
    (share, *_) = compare_located(each)
    assert share.difference.value == pytest.approx(20)
    assert share.difference.low <= 12 and share.difference.high >= 28
    (alone, *_) = compare_located(each[:1])
    assert (alone.difference.low, alone.difference.high) == pytest.approx((10, 10))
    assert [each.against for each in share.differences] == ["base", "control"]
    assert replace(share.differences[1], against="base") == share.difference


def test_what_was_not_measured_takes_no_part_and_is_counted() -> None:
    base, tuned = rows([0.1, 0.2]), rows([0.3, 0.4])
    broken, unknown = Located("x.jpg", "a box", problem="missing"), Located("y.jpg", "a box")
    tables = {"base": [*base, broken, unknown], "fine_tuned": [*tuned, broken, unknown]}
    (share, *_) = compare_located([tables])
    assert (share.items, share.images, share.skipped) == (2, 1, 1)
    assert share.difference.value == pytest.approx(20)
    assert compare_located([{"base": [unknown], "fine_tuned": [unknown]}]) == []


def test_models_of_other_cases_are_no_pair() -> None:
    tables = {"base": rows([0.1, 0.2]), "fine_tuned": rows([0.1, 0.2, 0.3])}
    with pytest.raises(ValueError, match="'fine_tuned' was measured on 3 cases, 'base' on 2"):
        compare_located([tables])


def test_p_values_hold_for_all_measures_together() -> None:
    draw = np.random.default_rng(0)
    base = draw.random(40) / 4
    tables = {"base": rows(base), "fine_tuned": rows(base + draw.normal(0.005, 0.03, 40))}
    compared = compare_located([tables])
    differences = [row.difference for row in compared]
    for each in differences:
        assert each.p <= each.p_holm <= 1
    assert max(each.p_holm for each in differences) > min(each.p for each in differences)


def test_another_model_looks_elsewhere(tiny_model: Callable[..., Path], cases: list[Case]) -> None:
    pair = [measure_model(load(tiny_model(seed, seed)), cases) for seed in (0, 1)]
    (share, *_) = compare_located([{"base": pair[0], "fine_tuned": pair[1]}])
    assert share.items == 4 and share.difference.value != 0


def test_a_random_sample_of_the_measured_cases_is_drawn() -> None:
    cases = [Case(Path(), f"{n}.jpg", "a dog") for n in range(9)]
    rows = [
        Located(case.image, case.phrase, problem="missing" if n < 3 else None)
        for n, case in enumerate(cases)
    ]
    found = cases_to_draw(cases, rows, AttentionSettings(count=4))
    assert len(found) == 4 and found == [case for case in cases[3:] if case in found]
    assert found == cases_to_draw(cases, rows, AttentionSettings(count=4))
    assert any(
        cases_to_draw(cases, rows, AttentionSettings(count=4, seed=s)) != found for s in (1, 2, 3)
    )
    assert cases_to_draw(cases, rows, AttentionSettings(count=99)) == cases[3:]
    assert cases_to_draw(cases, rows, AttentionSettings(count=0)) == []
