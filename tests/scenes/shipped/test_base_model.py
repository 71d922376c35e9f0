"""The base model's training: targets by hand, batches, losses, and the stop at a lost gradient."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader

from compo_pipeline.core.compute import Compute
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.training.checkpoint import TrainingError
from compo_scenes.base_model import image_tower as tower
from compo_scenes.base_model import text_tower as base
from compo_scenes.base_model.image_tower import Readouts, TowerRecipe, binding_losses, train_tower
from compo_scenes.base_model.supervision import Box, ImageBatches, boxes, truth
from compo_scenes.base_model.text_tower import BaseRecipe, pairs_of_scenes
from compo_scenes.render import image
from compo_scenes.world import COLOURS, Scene, World

COMPUTE = Compute(torch.device("cpu"), "fp32")


def test_boxes_of_a_squashed_image(wide: Scene) -> None:
    assert boxes(wide) == [
        Box("box", "blue", "medium", "solid", 0.25, 0.5, 0.25, 48 / 144),
        Box("star", "pink", "large", "dotted", 0.75, 0.75, 0.375, 0.5),
    ]


def test_truth_by_hand(world: World, wide: Scene) -> None:
    """Two images; the second is the lower half of a composite alone."""
    told = truth([boxes(wide), boxes(wide, 1)[:1]], world, grid=4)
    assert told.owner.tolist() == [0, 0, 1]
    assert told.kind.tolist() == [1, 2, 1]
    assert told.colour.tolist() == [2, 3, 2]
    assert told.size.tolist() == [1, 2, 1]
    assert told.pattern.tolist() == [0, 2, 0]
    assert told.place.tolist() == [[-0.5, 0.0], [0.5, 0.5], [-0.5, 0.5]]
    assert told.pairs.nonzero().tolist() == [[0, 1 * 4 + 2], [0, 2 * 4 + 3], [1, 1 * 4 + 2]]
    # The box spans 1/8..3/8 across and 1/3..2/3 down: a third of each of four patches.
    # The star spans 9/16..15/16 and 1/2..1: three quarters of each of four.
    assert told.patch_kind[0].view(4, 4).tolist() == [
        [4, 4, 4, 4],
        [1, 1, 4, 4],
        [1, 1, 2, 2],
        [4, 4, 2, 2],
    ]
    assert told.patch_colour[0].view(4, 4)[2].tolist() == [2, 2, 3, 3]
    # In the half it spans 2/3..5/6 down: a third of the row of patches 1/2..3/4, and of the last.
    assert told.patch_kind[1].view(4, 4).tolist() == [[4] * 4] * 4
    finer = truth([boxes(wide, 1)[:1]], world, grid=8).patch_kind[0].view(8, 8)
    assert (finer != 4).nonzero().tolist() == [[row, col] for row in (5, 6) for col in (1, 2)]


def batches(world: World, **changes: object) -> ImageBatches:
    settings = {"seed": 0, "batches": 4, "batch_size": 6, "composites": 0.5, **changes}
    return ImageBatches(world, size=64, grid=8, **settings)  # type: ignore[arg-type]


def test_a_batch_is_the_same_in_any_process_and_any_order(world: World) -> None:
    here = batches(world)
    backwards = [here[i] for i in reversed(range(4))][::-1]
    elsewhere = list(DataLoader(batches(world), batch_size=None, num_workers=2))
    for (pixels, told), (others, theirs) in zip(backwards, elsewhere, strict=True):
        assert pixels.equal(others)
        assert all(a.equal(b) for a, b in zip(told, theirs, strict=True))
    assert not backwards[0][0].equal(backwards[1][0])
    assert not here[0][0].equal(batches(world, seed=1)[0][0])


@pytest.mark.parametrize("composites", [0.0, 1.0])
def test_images_show_what_the_truth_says(world: World, composites: float) -> None:
    """At a box's centre lies its colour, half of a composite or not."""
    pixels, told = batches(world, batch_size=40, composites=composites)[0]
    assert pixels.shape == (40, 3, 64, 64)
    names = list(world.colours)
    seen = 0
    for n in ((told.kind == 1) & (told.pattern == 0)).nonzero().flatten().tolist():
        others = told.place[told.owner == told.owner[n]]
        if ((others - told.place[n]).abs().amax(1) < 0.2).sum() > 1:
            continue  # another thing lies within the box
        x, y = ((told.place[n] + 1) * 32).long().tolist()
        pixel = pixels[told.owner[n], :, y, x].float()
        nearest = min(names, key=lambda c: float((pixel - torch.tensor(COLOURS[c])).abs().sum()))
        assert nearest == names[told.colour[n]]
        assert told.patch_kind[told.owner[n]].view(8, 8)[y // 8, x // 8] == 1
        seen += 1
    assert seen > 5
    assert len(told.owner.unique()) == 40
    most = torch.bincount(told.owner).max()
    assert (most > 3) == (composites == 1.0)


def test_the_tower_is_trained_on_what_the_model_will_see(fresh: LoadedModel, wide: Scene) -> None:
    squashed = image(wide).resize((64, 64), Image.Resampling.BICUBIC)
    raw = torch.from_numpy(np.asarray(squashed).copy()).permute(2, 0, 1)
    mean, std = (torch.tensor(v).view(3, 1, 1) * 255 for v in (fresh.mean, fresh.std))
    torch.testing.assert_close((raw - mean) / std, fresh.preprocess(image(wide)))


def test_a_readout_is_read_at_the_things_that_are_there(
    world: World, wide: Scene, tall: Scene
) -> None:
    readouts, told = Readouts(world, 5, 3), truth([boxes(wide), boxes(tall)], world, 1)
    embedding = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    read = readouts.of_thing(readouts.size, embedding, told)
    every = readouts.size(embedding * tower.READOUT_SCALE)
    expected = [every[m, kind * 3 : kind * 3 + 3] for m, kind in ((0, 1), (0, 2), (1, 1))]
    assert read.equal(torch.stack(expected))


def test_binding_losses_equal_the_loop(world: World, wide: Scene, tall: Scene) -> None:
    readouts, told = Readouts(world, 5, 3), truth([boxes(wide), boxes(tall)], world, 1)
    embedding = F.normalize(torch.randn(2, 3, generator=torch.Generator().manual_seed(0)), dim=-1)
    logits = readouts.pair(embedding * tower.READOUT_SCALE).detach()
    what = 0.0
    for m, n in itertools.product(range(2), range(16)):
        p = 1 / (1 + math.exp(-float(logits[m, n])))
        what -= math.log(p if told.pairs[m, n] else 1 - p) / 2
    places = readouts.of_thing(readouts.place, embedding, told).detach()
    where = sum(float((places[n] - told.place[n]).square().sum()) for n in range(3)) / 6
    got = binding_losses(readouts, embedding, told)
    assert got[0].item() == pytest.approx(what, rel=1e-5)
    assert got[1].item() == pytest.approx(where, rel=1e-5)


def test_a_loss_that_is_not_finite_stops_and_changes_no_weight(
    copy: Callable[[], LoadedModel], world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, spoilt, seen = tower._forward, copy(), list[torch.Tensor]()
    visual: Any = spoilt.model.visual

    def lost(*args: Any) -> torch.Tensor:
        seen.append(visual.head.proj.weight.detach().clone())
        return forward(*args) * (math.nan if len(seen) == 3 else 1)

    monkeypatch.setattr(tower, "_forward", lost)
    settings = TowerRecipe(steps=4, batch_size=2, warmup=1, workers=0)
    file = tmp_path / "tower.safetensors"
    with pytest.raises(TrainingError, match=r"step 2: loss"):
        train_tower(spoilt, world, settings, COMPUTE, seed=0, file=file)
    assert not file.exists() and not seen[1].equal(seen[2])
    assert visual.head.proj.weight.equal(seen[2])


def test_near_duplicates_exchange_places(world: World) -> None:
    pairs = pairs_of_scenes(world, 60, seed=0)
    assert len(pairs) == 60
    twins = [(scene, twin) for scene, twin in pairs if twin]
    assert 20 < len(twins) < 60
    for scene, twin in twins:
        assert scene.split == twin.split == "train"
        assert twin.content == scene.content
        assert twin.things != scene.things


def test_near_duplicates_share_a_batch(fresh: LoadedModel, world: World) -> None:
    settings = BaseRecipe(scenes=12, batch_size=8, duplicates=1.0)
    data = base._Captioned(fresh, world, settings, COMPUTE, seed=0)
    assert data.features.shape == (len(data.scenes), 192)
    chosen, texts = data.batch(3)
    assert data.batch(3) == (chosen, texts)
    assert len(chosen) == len(texts) == 8
    twin = {row[0]: row[1] for row in data.rows if len(row) == 2}
    for n, scene in enumerate(chosen[:-1]):
        assert scene not in twin or chosen[n + 1] == twin[scene]
    assert any(scene in twin for scene in chosen)
