"""The image tower: what it sees, its losses by hand, and the stop at a lost gradient."""

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

from compo_pipeline.core.compute import Compute
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.training.checkpoint import TrainingError
from compo_scenes.base_model import image_tower as tower
from compo_scenes.base_model.image_tower import (
    Readouts,
    TowerRecipe,
    binding_losses,
    tokens,
    train_tower,
)
from compo_scenes.base_model.supervision import boxes, truth
from compo_scenes.render import image
from compo_scenes.world import Scene, World


def test_the_tower_is_trained_on_what_the_model_will_see(fresh: LoadedModel, wide: Scene) -> None:
    squashed = image(wide).resize((64, 64), Image.Resampling.BICUBIC)
    raw = torch.from_numpy(np.asarray(squashed).copy()).permute(2, 0, 1)
    mean, std = (torch.tensor(v).view(3, 1, 1) * 255 for v in (fresh.mean, fresh.std))
    torch.testing.assert_close((raw - mean) / std, fresh.preprocess(image(wide)))


def test_the_mean_of_patch_tokens_through_the_head_is_the_image_embedding(
    fresh: LoadedModel, wide: Scene
) -> None:
    pixels = fresh.preprocess(image(wide))[None]
    with torch.no_grad():
        patches = tokens(fresh.model.visual, pixels)
        whole = fresh.model.encode_image(pixels)  # type: ignore[operator]
        pooled = fresh.model.visual.head(patches.mean(1))  # type: ignore[operator, union-attr]
    assert patches.shape == (1, 64, 128)
    torch.testing.assert_close(pooled, whole)


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
    compute = Compute(torch.device("cpu"), "fp32")
    file = tmp_path / "tower.safetensors"
    with pytest.raises(TrainingError, match=r"step 2: loss"):
        train_tower(spoilt, world, settings, compute, seed=0, file=file)
    assert not file.exists() and not seen[1].equal(seen[2])
    assert visual.head.proj.weight.equal(seen[2])
