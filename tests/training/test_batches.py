"""Rows are dealt into batches: each at most once, no image twice where that can be."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from compo_pipeline.core.seeding import rng
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.tables import codes
from compo_pipeline.methods.clic import Clic, ClicObjective, ClicViews
from compo_pipeline.methods.clip import Clip, ClipObjective
from compo_pipeline.methods.contract import NoViewSettings
from compo_pipeline.methods.views import EpochViews, Mixture
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.training.batches import Batches, deal
from compo_pipeline.training.preprocessing import ModelPreprocessor
from compo_pipeline.training.settings import (
    CurriculumSettings,
    OptimizerSettings,
    TrainingSettings,
)

CLIC = Clic(ClicViews(), ClicObjective())
IMAGES = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=40)


def dealt(images: Sequence[str], size: int, seed: int, epoch: int) -> tuple[list[list[int]], int]:
    """Rows by batch, and how many are beside another of their image."""
    batches, repeated = deal(codes(pa.chunked_array([images], pa.string())), size, seed, epoch)
    return batches.tolist(), repeated


def dealt_plainly(
    images: Sequence[str], size: int, seed: int, epoch: int
) -> tuple[list[list[int]], int]:
    """The same with lists and texts alone."""
    waiting = list(range(len(images)))
    rng(seed, "order", epoch).shuffle(waiting)
    most = max(Counter(images).values())
    batches, repeated = [], 0
    for left in range(len(waiting) // size, 0, -1):
        if most >= left:
            rows = Counter(images[row] for row in waiting)
            waiting.sort(key=lambda row: rows[images[row]] < left)
        batch: list[int] = []
        passed: list[int] = []
        while waiting and len(batch) < size:
            row = waiting.pop(0)
            there = any(images[row] == images[other] for other in batch)
            (passed if there else batch).append(row)
        short = size - len(batch)
        batches.append(batch + passed[:short])
        repeated += short
        waiting = passed[short:] + waiting
    return batches, repeated


@given(IMAGES, st.integers(1, 12), st.integers(0, 99), st.integers(0, 9))
def test_deal(images: list[str], size: int, seed: int, epoch: int) -> None:
    size = min(size, len(images))
    batches, repeated = dealt(images, size, seed, epoch)
    assert (batches, repeated) == dealt_plainly(images, size, seed, epoch)
    assert len(batches) == len(images) // size
    assert all(len(batch) == size for batch in batches)
    rows = [row for batch in batches for row in batch]
    assert len(set(rows)) == len(rows) and set(rows) <= set(range(len(images)))
    shown = [Counter(images[row] for row in batch) for batch in batches]
    assert repeated == sum(size - len(counted) for counted in shown)


@given(IMAGES, st.integers(1, 8), st.integers(0, 99))
def test_deal_repeats_no_image_that_it_need_not(images: list[str], size: int, seed: int) -> None:
    size = min(size, len(images))
    batches, repeated = dealt(images, size, seed, 0)
    # No batch can hold an image twice, so an image fills at most one place of each.
    places = sum(min(rows, len(batches)) for rows in Counter(images).values())
    assert repeated == max(0, len(batches) * size - places)


def make(world: Any, views: Path, tiny: LoadedModel, **changes: Any) -> Batches:
    options = {"batch_size": 4, "epochs": 3, **changes}
    method = options.pop("method", Clip(NoViewSettings(), ClipObjective()))
    captions = options.pop("captions", world.captions)
    reader, seed = ModelPreprocessor(tiny, world.root), options.pop("seed", 0)
    recipe = TrainingSettings(optimizer=OptimizerSettings(1, 1, 1), **options)
    return Batches(captions, views, method, reader, recipe, seed)


def test_every_epoch_sees_every_row_once(world: Any, views: Path, tiny: LoadedModel) -> None:
    batches = make(world, views, tiny)
    assert len(batches) == 9
    for epoch in range(3):
        seen = [
            row.caption.sample_id
            for step in range(3 * epoch, 3 * epoch + 3)
            for row in batches.examples(step)
        ]
        assert sorted(seen) == [row.sample_id for row in world.captions]
        table = EpochViews(views).epoch(epoch % 2)
        assert {row.view for row in batches.examples(3 * epoch)} <= set(table)


def test_a_curriculum_shows_rows_of_its_kinds_first(
    world: Any, views: Path, tiny: LoadedModel
) -> None:
    """Its first epoch is as long as any, of these rows alone; then all rows come as without it."""
    table = EpochViews(views).epoch(0)
    kinds = [
        {each["category"] for each in json.loads(row.provenance)["negatives"] if each}
        for row in table
    ]
    chosen = max(set.union(*kinds), key=lambda kind: sum(kind in own for own in kinds))
    few = {row.sample_id for row, own in zip(table, kinds, strict=True) if chosen in own}
    assert 2 <= len(few) < len(table)
    plain = make(world, views, tiny, batch_size=2)
    batches = make(world, views, tiny, batch_size=2, curriculum=CurriculumSettings((chosen,), 1))
    steps = len(batches) // 3
    first = [[row.caption.sample_id for row in batches.examples(step)] for step in range(steps)]
    assert len(batches) == len(plain)
    assert {name for batch in first for name in batch} == few
    assert all(len(set(batch)) == 2 for batch in first)
    later = range(steps, 3 * steps)
    assert [batches.examples(step) for step in later] == [plain.examples(step) for step in later]
    with pytest.raises(SettingsError, match=rf"curriculum.kinds: no row .* {chosen} {len(few)}"):
        make(world, views, tiny, curriculum=CurriculumSettings(("none",), 1)).examples(0)


def test_an_epoch_of_several_sources_has_their_shares(
    world: Any, tiny: LoadedModel, tmp_path: Path
) -> None:
    """A third of the rows are of a source of two rows, which come in twice: in batches apart."""
    world = world.of_two_sources()
    views = world.drawn(CLIC, tmp_path / "views", mixture=Mixture({"many": 2.0, "few": 1.0}, 12, 0))
    batches = make(world, views, tiny, batch_size=3, epochs=2)
    for epoch in range(2):
        steps = range(4 * epoch, 4 * epoch + 4)
        seen = [row.caption for step in steps for row in batches.examples(step)]
        assert Counter(row.source for row in seen) == {"many": 8, "few": 4}
        assert Counter(row.sample_id for row in seen if row.source == "few") == {
            row.sample_id: 2 for row in world.captions[-2:]
        }
        counts = [batches.counts(step) for step in steps]
        assert sum(each["rows of few"] for each in counts) == 4
        assert sum(each["rows of many"] for each in counts) == 8
        assert counts[0]["rows beside another of their image"] == 0
        for step in steps:
            images = [row.caption.image_id for row in batches.examples(step)]
            assert len(set(images)) == len(images)


def test_workers_load_the_steps_of_several_sources_in_one_order(
    world: Any, tiny: LoadedModel, tmp_path: Path
) -> None:
    world = world.of_two_sources()
    views = world.drawn(CLIC, tmp_path / "views", mixture=Mixture({"many": 2.0, "few": 1.0}, 12, 0))
    batches = make(world, views, tiny, method=CLIC, epochs=2)
    loaded = list(DataLoader(batches, batch_size=None, num_workers=2))
    assert len(loaded) == 6
    for step, (collated,) in enumerate(loaded):
        (expected,) = batches[step]
        assert collated.counts == expected.counts
        for own, other in zip(collated.batch, expected.batch, strict=True):
            assert torch.equal(own, other)


def test_a_step_is_the_same_whenever_it_is_asked_for(
    world: Any, views: Path, tiny: LoadedModel
) -> None:
    forward, backward = make(world, views, tiny), make(world, views, tiny)
    steps = {step: forward.examples(step) for step in range(9)}
    assert {step: backward.examples(step) for step in reversed(range(9))} == steps
    assert make(world, views, tiny, seed=1).examples(0) != steps[0]


def test_batches_shrink_with_a_warning(
    world: Any, views: Path, tiny: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    batches = make(world, views, tiny, batch_size=500)
    assert "Batches shrink to 12: there are no more rows (not 500)." in caplog.text
    assert (batches.batch_size, len(batches)) == (12, 3)
    assert len(batches.examples(0)) == 12
    caplog.clear()
    make(world, views, tiny, batch_size=12)
    assert caplog.text == ""


def test_views_of_other_captions_are_refused(world: Any, views: Path, tiny: LoadedModel) -> None:
    with pytest.raises(ValueError, match=r"samples of .* are not among the captions \(s00"):
        make(world, views, tiny, captions=world.captions[1:])


def test_views_that_were_never_drawn_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="kedro run --pipelines=counterfactuals,views"):
        EpochViews(tmp_path)


def test_epochs_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (100, 9, 11, 10):
        (tmp_path / f"epoch={number:02d}.parquet").touch()
    assert [file.stem[6:] for file in EpochViews(tmp_path).files] == ["09", "10", "11", "100"]


def test_images_of_a_run_are_those_its_steps_show(
    world: Any, views: Path, tiny: LoadedModel
) -> None:
    batches = make(world, views, tiny, method=CLIC)
    images = batches.images().values()
    needed = [CLIC.images(row, step)[0] for step in range(9) for row in batches.examples(step)]
    assert list(images) == list(dict.fromkeys(needed)) and len(needed) > len(images)


def test_what_a_batch_reports(world: Any, views: Path, tiny: LoadedModel) -> None:
    twins = [replace(row, image_id="same") for row in world.captions]
    long = "a very long tale of " * 20
    twins[0] = replace(twins[0], sentences=(long, *twins[0].sentences[1:]))
    batches = make(world, views, tiny, captions=twins)
    counts = [batches[step][0].counts for step in range(3)]
    assert counts[0]["rows beside another of their image"] == 9
    assert "rows beside another of their image" not in counts[1]
    assert sum(count["truncated texts"] for count in counts) == 1
    assert [count["rows"] for count in counts] == [4, 4, 4]
